"""Do the clocks of this machine, of its time servers and of its file systems agree?"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.paths import cache_dir
from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, note, well
from fairlead.doctor.world import World

SOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
# Read without a system call; reading another takes a microsecond, and MPI_Wtime is called often.
_FAST = ("tsc", "arch_sys_counter", "timebase", "kvm-clock", "hyperv_clocksource_tsc_page", "tod")
SLIP_S = 0.001  # within a moment of 30 ms: the time of day is being set
OFFSET_S = 2.0  # make, and builds that compare times, distinguish files by less


def examine(world: World) -> Iterator[Diagnosis]:
    state = world.clock_state()
    problems = [*_files(world), *_source(world)]
    if abs(state.slip_s) > SLIP_S:
        problems.append(ill("clocks-moving", slip_s=state.slip_s * 1e3))
    if state.synchronised is False:
        problems.append(_unsynchronised(world))
    known = "not known to be wrong"
    if state.synchronised:
        known = f"synchronised to {state.error_s * 1e3:.0f} ms"
    yield from problems or [well(f"the clock is {known}; the file systems' agree", SOURCE)]


def _unsynchronised(world: World) -> Diagnosis:
    """A single machine needs no common time; nodes of a job do."""
    site = world.profile().site
    if site and site.scheduler.kind != "none":
        return ill("clocks-unsynchronised-node")
    return note("clocks-unsynchronised-guest")


def _files(world: World) -> Iterator[Diagnosis]:
    for folder in (str(cache_dir(world.environ)), world.environ.get("TMPDIR") or "/tmp"):
        offset = world.clock_offset_s(folder)
        if offset is not None and abs(offset) > OFFSET_S:
            ahead = "ahead" if offset > 0 else "behind"
            fs = world.file_system(folder)
            yield ill("clocks-file-system", offset=abs(offset), ahead=ahead, folder=folder, fs=fs)


def _source(world: World) -> Iterator[Diagnosis]:
    source = (world.read(SOURCE) or "").strip()
    if source and source not in _FAST:
        yield ill("clocks-slow-source", source=source, file=SOURCE)


CHECK = Check(
    "clocks", "clocks of the machine and its file systems", examine, Topic.MACHINE, order=90
)
