"""Is there space for an image in fairlead's cache and in the folder for temporary files?"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.paths import cache_dir
from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, well
from fairlead.doctor.world import World

# A TensorFlow image: 1.8 GB of tree, 0.45 GB of squashfs, as much of SIF, 0.5 GB of downloads.
NEEDED_BYTES = 4 * 10**9


def examine(world: World) -> Iterator[Diagnosis]:
    temporary = world.environ.get("TMPDIR", "/tmp")
    for title, folder, variable, needed in (
        ("the cache", str(cache_dir(world.environ)), "XDG_CACHE_HOME", NEEDED_BYTES),
        ("the folder for temporary files", temporary, "TMPDIR", 10**9),
    ):
        free = world.free_bytes(folder)
        if free >= needed:
            yield well(f"{free / 1e9:.1f} GB free in {title}", folder)
        else:
            yield ill(
                "space",
                free=free / 1e9,
                title=title,
                folder=folder,
                needed=needed / 1e9,
                variable=variable,
            )


CHECK = Check("space", "space for images and temporary files", examine, Topic.MACHINE, order=60)
