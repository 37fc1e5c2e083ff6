"""Could somebody else replace what fairlead loads into ranks, or the keys that it trusts?"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from fairlead.base.paths import cache_dir, config_dir
from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, well
from fairlead.doctor.world import World
from fairlead.image.keys import SYSTEM_KEYS


def examine(world: World) -> Iterator[Diagnosis]:
    cache, config = cache_dir(world.environ), config_dir(world.environ)
    places = [(cache / part, cache, f"the cache's folder `{part}`") for part in ("native", "stage")]
    places += [(config / "keys", config, "the trusted keys"), (SYSTEM_KEYS, SYSTEM_KEYS, "the system's keys")]  # fmt: skip
    diagnoses: dict[str, Diagnosis] = {}
    for folder, top, title in places:
        for part, why in world.exposed(str(folder), str(top)):
            quoted = shlex.quote(part)
            diagnoses.setdefault(
                part, ill("exposed-folders", part=part, why=why, title=title, quoted_part=quoted)
            )
    yield from diagnoses.values() or [
        well("nobody else can write to the cache and the keys", str(cache))
    ]


CHECK = Check("exposed-folders", "who else can write to the cache and the keys", examine, Topic.MACHINE, order=75)  # fmt: skip
