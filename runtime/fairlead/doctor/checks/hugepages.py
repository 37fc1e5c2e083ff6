"""Are large buffers in huge pages, and do the variables that ask for them mean anything here?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, well
from fairlead.doctor.site_expectations import DEVICES
from fairlead.doctor.world import World

SETTING = "/sys/kernel/mm/transparent_hugepage/enabled"
# What Cray's craype-hugepages modules set, for libhugetlbfs(7).
_ASKING = ("HUGETLB_MORECORE", "HUGETLB_ELFMAP", "HUGETLB_FORCE_ELFMAP")


def examine(world: World) -> Iterator[Diagnosis]:
    text = world.read(SETTING) or ""
    chosen = re.search(r"\[(\w+)\]", text)
    pool = _pool(world)
    mounts = [p for p in ("/dev/hugepages", "/var/lib/hugetlbfs") if _mounted(world, p)]
    problems = []
    if chosen and chosen[1] == "never":
        problems.append(ill("hugepages-transparent-off", setting=SETTING))
    problems += _asked_for(world, pool, mounts)
    if world.matching(DEVICES["aries"]) and not mounts:
        problems.append(ill("hugepages-no-hugetlbfs-aries"))
    state = chosen[1] if chosen else "unknown to this kernel"
    what = f"transparent huge pages: {state}; {pool} reserved"
    yield from problems or [well(what, ", ".join(mounts) or SETTING)]


def _asked_for(world: World, pool: int, mounts: list[str]) -> Iterator[Diagnosis]:
    asked = [name for name in _ASKING if world.environ.get(name, "no") not in ("", "no", "0")]
    if not asked or (mounts and pool):
        return
    modules = world.environ.get("LOADEDMODULES", "").split(":")
    module = next((m for m in modules if m.startswith("craype-hugepages")), "")
    first, words = asked[0], " ".join(asked)
    values = ", ".join(f"{name}={world.environ[name]}" for name in asked)
    if mounts and module:
        yield ill("hugepages-none-reserved-module", asked=first, asked_list=values, module=module)
    elif mounts:
        yield ill("hugepages-none-reserved", asked=first, asked_list=values, asked_2=words)
    elif module:
        yield ill("hugepages-no-hugetlbfs-module", asked=first, asked_list=values, module=module)
    else:
        yield ill("hugepages-no-hugetlbfs", asked=first, asked_list=values, asked_2=words)


def _pool(world: World) -> int:
    match = re.search(r"^HugePages_Total:\s*(\d+)", world.read("/proc/meminfo") or "", re.MULTILINE)
    return int(match[1]) if match else 0


def _mounted(world: World, folder: str) -> bool:
    there = world.file_system(folder)
    return there.kind == "hugetlbfs" and there.mount == folder


CHECK = Check("hugepages", "huge pages", examine, Topic.NODE, order=50)
