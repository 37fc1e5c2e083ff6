"""Are large buffers in huge pages, and do the variables that ask for them mean anything here?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fairlead.base.errors import Severity
from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, well
from fairlead.doctor.site_expectations import DEVICES
from fairlead.doctor.world import World

NAME = "hugepages"
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
        problems.append(
            ill(
                NAME,
                "transparent huge pages are off",
                where=f"{SETTING} = never",
                why="large arrays and message buffers are in pages of 4 kB: more misses of the TLB, slower "
                "registration with a fabric's card",
                remedy=f"echo madvise | sudo tee {SETTING}\n"
                "(and transparent_hugepage=madvise on the kernel's command line to keep it)",
                severity=Severity.WARNING,
            )
        )
    problems += _asked_for(world, pool, mounts)
    if world.matching(DEVICES["aries"]) and not mounts:
        problems.append(
            ill(
                NAME,
                "there is no hugetlbfs, and Aries' MPI keeps its buffers there",
                where="/var/lib/hugetlbfs",
                why="it is not mounted; Cray's MPI then falls back to small pages, or ends in MPI_Init",
                remedy="sudo mount -t hugetlbfs none /var/lib/hugetlbfs; in a container: "
                "--bind /var/lib/hugetlbfs",
                severity=Severity.WARNING,
            )
        )
    yield from problems
    if not problems:
        state = chosen[1] if chosen else "unknown to this kernel"
        yield well(
            NAME, f"transparent huge pages: {state}; {pool} reserved", ", ".join(mounts) or SETTING
        )


def _asked_for(world: World, pool: int, mounts: list[str]) -> Iterator[Diagnosis]:
    asked = [name for name in _ASKING if world.environ.get(name, "no") not in ("", "no", "0")]
    if not asked or (mounts and pool):
        return
    modules = world.environ.get("LOADEDMODULES", "").split(":")
    module = next((m for m in modules if m.startswith("craype-hugepages")), "")
    yield ill(
        NAME,
        f"{asked[0]} asks for huge pages that are not there",
        where=", ".join(f"{name}={world.environ[name]}" for name in asked)
        + (f"; module {module}" if module else ""),
        why=("no hugetlbfs is mounted" if not mounts else "no page is reserved")
        + "; and an image has no libhugetlbfs to heed it: programs warn, or end when memory is mapped",
        remedy=f"module unload {module}" if module else f"unset {' '.join(asked)}",
        severity=Severity.WARNING,
    )


def _pool(world: World) -> int:
    found = re.search(r"^HugePages_Total:\s*(\d+)", world.read("/proc/meminfo") or "", re.MULTILINE)
    return int(found[1]) if found else 0


def _mounted(world: World, folder: str) -> bool:
    there = world.file_system(folder)
    return there.kind == "hugetlbfs" and there.mount == folder


CHECK = Check(NAME, "huge pages", examine, Topic.NODE, order=50)
