"""Can this user lock memory? A fabric's card writes into it, so it must not move."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, note, well
from fairlead.doctor.site_expectations import FABRICS, fast_devices, says
from fairlead.doctor.world import World

UNLIMITED = -1
# Below this, buffers of a job of ordinary size cannot be registered; vendors ask for `unlimited`.
ENOUGH_BYTES = 4 * 2**30
_NEED_IT = ("infiniband", "omni-path", "slingshot", "efa")


def examine(world: World) -> Iterator[Diagnosis]:
    soft, hard = world.limit("MEMLOCK")
    devices = {kind: path for kind, path in fast_devices(world).items() if kind in _NEED_IT}
    site = world.profile().site
    if _enough(soft):
        yield well(f"{_words(soft)} of memory can be locked", "RLIMIT_MEMLOCK of this shell")
    elif devices:
        kind, device = next(iter(devices.items()))
        limited: dict[str, Any] = {
            "words": _words(soft),
            "fabrics": FABRICS[kind],
            "words_2": _words(hard),
            "device": device,
        }
        if _enough(hard):
            unlimited = "unlimited" if hard == UNLIMITED else hard // 1024
            yield ill("locked-memory-soft-limit", unlimited=unlimited, **limited)
        else:
            yield ill("locked-memory-hard-limit", **limited)
    elif site and site.fabric.kind in _NEED_IT:
        yield note(
            "locked-memory-login-node",
            words=_words(soft),
            fabrics=FABRICS[site.fabric.kind],
            says=says(site, "fabric.kind", site.fabric.kind),
        )
    else:
        yield well(f"{_words(soft)} can be locked; no device of this machine needs more")
    yield from _service(world, bool(devices))


def _service(world: World, needed: bool) -> Iterator[Diagnosis]:
    """What Slurm's daemon has is what its jobs get."""
    if not needed or not world.which("pgrep"):
        return
    pids = world.run(("pgrep", "-x", "slurmd")).stdout.split()
    text = world.read(f"/proc/{pids[0]}/limits") if pids else None
    limit = re.search(r"^Max locked memory\s+(\w+)", text or "", re.MULTILINE)
    if limit and limit[1].isdecimal() and not _enough(int(limit[1])):
        yield ill("locked-memory-slurmd", words=_words(int(limit[1])), pids=pids[0])


def _enough(limit: int) -> bool:
    return limit == UNLIMITED or limit >= ENOUGH_BYTES


def _words(limit: int) -> str:
    return "any amount" if limit == UNLIMITED else f"{limit / 1024:.0f} KiB"


CHECK = Check("locked-memory", "limit of locked memory", examine, Topic.NODE, order=40)
