"""May this user lock memory? A fabric's card writes into it, so it must not move."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fairlead.base.errors import Severity
from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, note, well
from fairlead.doctor.site_expectations import DEVICES, FABRICS, says
from fairlead.doctor.world import World

NAME = "locked-memory"
UNLIMITED = -1
# Below this, buffers of a job of ordinary size cannot be registered; vendors ask for `unlimited`.
ENOUGH_BYTES = 4 * 2**30
_NEED_IT = ("infiniband", "omni-path", "slingshot")


def examine(world: World) -> Iterator[Diagnosis]:
    soft, hard = world.limit("MEMLOCK")
    found = {kind: path for kind in _NEED_IT for path in world.matching(DEVICES[kind])[:1]}
    site = world.profile().site
    if _enough(soft):
        yield well(NAME, f"{_words(soft)} of memory may be locked", "RLIMIT_MEMLOCK of this shell")
    elif found:
        kind, device = next(iter(found.items()))
        yield ill(
            NAME,
            f"only {_words(soft)} of memory may be locked, and {FABRICS[kind]} needs it unlimited",
            where=f"RLIMIT_MEMLOCK: soft {_words(soft)}, hard {_words(hard)}; {device}",
            why="the card's memory regions cannot be registered: MPI fails at its start, or takes TCP instead",
            remedy=f"ulimit -l {'unlimited' if hard == UNLIMITED else hard // 1024}"
            if _enough(hard)
            else "as root, `* - memlock unlimited` in /etc/security/limits.d/fabric.conf, and "
            "LimitMEMLOCK=infinity\nfor the service that starts jobs (slurmd, pbs_mom)",
            severity=Severity.WARNING,
        )
    elif site and site.fabric.kind in _NEED_IT:
        yield note(
            NAME,
            f"{_words(soft)} may be locked here, where there is no {FABRICS[site.fabric.kind]} device",
            why=f"{says(site, 'fabric.kind', site.fabric.kind)}: compute nodes need it unlimited",
            remedy="fairlead doctor locked-memory, on a compute node",
        )
    else:
        yield well(NAME, f"{_words(soft)} may be locked; no device here needs more")
    yield from _service(world, bool(found))


def _service(world: World, needed: bool) -> Iterator[Diagnosis]:
    """What Slurm's daemon has is what its jobs get."""
    if not needed or not world.which("pgrep"):
        return
    pids = world.run(("pgrep", "-x", "slurmd")).stdout.split()
    text = world.read(f"/proc/{pids[0]}/limits") if pids else None
    limit = re.search(r"^Max locked memory\s+(\w+)", text or "", re.MULTILINE)
    if limit and limit[1].isdecimal() and not _enough(int(limit[1])):
        yield ill(
            NAME,
            f"slurmd itself may lock only {_words(int(limit[1]))}, and its jobs no more",
            where=f"/proc/{pids[0]}/limits",
            why="a job's limits are those of slurmd, or of the shell that submitted it where these are lower",
            remedy="as root: `systemctl edit slurmd`, [Service] LimitMEMLOCK=infinity; and "
            "PropagateResourceLimitsExcept=MEMLOCK in slurm.conf",
            severity=Severity.WARNING,
        )


def _enough(limit: int) -> bool:
    return limit == UNLIMITED or limit >= ENOUGH_BYTES


def _words(limit: int) -> str:
    return "any amount" if limit == UNLIMITED else f"{limit / 1024:.0f} KiB"


CHECK = Check(NAME, "memory that may be locked", examine, Topic.NODE, order=40)
