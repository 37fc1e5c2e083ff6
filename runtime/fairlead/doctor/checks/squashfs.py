"""Can images be opened in the compression they have: by squashfuse, by the engine, by the kernel?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, note, well
from fairlead.doctor.site_expectations import says
from fairlead.doctor.world import World

# fairlead's own images, and what Apptainer packs by default.
TRIED = ("zstd", "gzip")
_OPTION = {"zstd": "CONFIG_SQUASHFS_ZSTD", "gzip": "CONFIG_SQUASHFS_ZLIB"}


def examine(world: World) -> Iterator[Diagnosis]:
    failed: dict[str, list[str]] = {compression: [] for compression in TRIED}
    openers = []
    if world.which("tar2sqfs") and world.which("squashfuse_ll"):
        openers.append(("squashfuse_ll", world.try_squashfuse))
    if world.which("tar2sqfs") and world.engine():
        openers.append(("the engine", world.probe_engine))
    for name, attempt in openers:
        for compression in TRIED:
            ran = attempt(compression)
            if ran.returncode:
                failed[compression].append(
                    f"{name}: {ran.tail or f'it ended with {ran.returncode}'}"
                )
    kernel = _kernel(world)
    if not openers:
        yield note("squashfs-untested", kernel=kernel)
        return
    names = " and ".join(name for name, _ in openers)
    wanted, why = _wanted(world)
    broken = [compression for compression in TRIED if failed[compression]]
    if not broken:
        yield well(
            f"{names} open{'s' * (len(openers) == 1)} zstd and gzip squashfs",
            f"the kernel {kernel}",
        )
    elif len(broken) == len(TRIED):
        yield note("squashfs-none-opens", why="\n".join([*failed["zstd"], f"the kernel {kernel}"]))
    else:
        [bad] = broken
        other = next(c for c in TRIED if c != bad)
        yield ill(
            "squashfs-own-images-unsupported"
            if bad == wanted
            else "squashfs-other-images-unsupported",
            bad=bad,
            other=other,
            names=names,
            why="\n".join([*failed[bad], why, f"the kernel {kernel}"]),
        )


def _wanted(world: World) -> tuple[str, str]:
    site = world.profile().site
    if site is None:
        return "zstd", "fairlead packs images by zstd"
    return site.images.compression, says(site, "images.compression", site.images.compression)


def _kernel(world: World) -> str:
    """What the running kernel supports; squashfs is not needed where squashfuse mounts."""
    release = (world.read("/proc/sys/kernel/osrelease") or "").strip()
    listed = "squashfs" in (world.read("/proc/filesystems") or "")
    module = world.matching(f"/lib/modules/{release}/kernel/fs/squashfs/squashfs.ko*")
    if not listed and not module:
        return "has no squashfs of its own"
    state = "has squashfs" if listed else "has squashfs as a module that is not loaded"
    files = ("/proc/config.gz", f"/boot/config-{release}", f"/lib/modules/{release}/config")
    options = world.run(("zgrep", "-hs", "^CONFIG_SQUASHFS_", *files)).stdout
    if not options:
        return f"{state}; with unknown compressions"
    known = [c for c in TRIED if re.search(rf"^{_OPTION[c]}=y", options, re.MULTILINE)]
    return f"{state} with {' and '.join(known) or 'neither zstd nor gzip'}"


CHECK = Check(
    "squashfs", "zstd and gzip images (tested)", examine, Topic.ENGINES, order=40, limit_s=150
)
