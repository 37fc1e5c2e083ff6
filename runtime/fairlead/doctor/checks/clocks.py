"""Do the clocks agree: of this machine, of the world, of the file systems that files are stamped by?"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Severity
from fairlead.base.paths import cache_dir
from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, note, well
from fairlead.doctor.world import World

NAME = "clocks"
SOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
# Read without a system call; reading another takes a microsecond, and MPI_Wtime is called often.
_FAST = ("tsc", "arch_sys_counter", "timebase", "kvm-clock", "hyperv_clocksource_tsc_page", "tod")
SLIP_S = 0.001  # within a moment of 30 ms: the time of day is being set
OFFSET_S = 2.0  # make, and builds that compare times, tell an older file from a newer by less


def examine(world: World) -> Iterator[Diagnosis]:
    state = world.clock_state()
    problems = [*_files(world), *_source(world)]
    if abs(state.slip_s) > SLIP_S:
        problems.append(
            ill(
                NAME,
                "the time of day is being moved",
                where="CLOCK_REALTIME against CLOCK_MONOTONIC",
                why=f"they went {state.slip_s * 1e3:.1f} ms apart within 30 ms: files and logs get times that "
                "jump",
                remedy="wait until the clock is set: timedatectl, or chronyc tracking",
                severity=Severity.WARNING,
            )
        )
    if state.synchronised is False:
        problems.append(_unsynchronised(world))
    yield from problems
    if not problems:
        known = (
            f"synchronised to {state.error_s * 1e3:.0f} ms"
            if state.synchronised
            else "not known to be wrong"
        )
        yield well(NAME, f"the clock is {known}; the file systems' agree", SOURCE)


def _unsynchronised(world: World) -> Diagnosis:
    """One machine alone needs nobody's time; nodes of a job do."""
    site = world.profile().site
    what = "the kernel does not know this clock to be synchronised"
    why = "no NTP, PTP or chrony daemon has told it so (adjtimex(2), STA_UNSYNC)"
    remedy = "sudo timedatectl set-ntp true, or install chrony"
    if site and site.scheduler.kind != "none":
        why += "; nodes whose clocks differ mix up logs, and munge refuses jobs from 5 minutes on"
        return ill(NAME, what, where="adjtimex", why=why, remedy=remedy, severity=Severity.WARNING)
    why += "; on a virtual machine its host may hold the clock all the same"
    return note(NAME, what, where="adjtimex", why=why, remedy=remedy)


def _files(world: World) -> Iterator[Diagnosis]:
    for folder in (str(cache_dir(world.environ)), world.environ.get("TMPDIR") or "/tmp"):
        offset = world.clock_offset_s(folder)
        if offset is not None and abs(offset) > OFFSET_S:
            kind = world.file_system(folder).kind
            yield ill(
                NAME,
                f"the clock of a file system is {abs(offset):.0f} s {'ahead' if offset > 0 else 'behind'}",
                where=f"{folder} ({kind})",
                why="its server stamps files by its own clock: what was made just now looks older or newer, "
                "and builds redo or leave out work",
                remedy="ask the administrator of that file server to synchronise its clock",
                severity=Severity.WARNING,
            )


def _source(world: World) -> Iterator[Diagnosis]:
    source = (world.read(SOURCE) or "").strip()
    if source and source not in _FAST:
        yield ill(
            NAME,
            f"the kernel tells the time by `{source}`",
            where=SOURCE,
            why="each look at the clock is a system call: MPI_Wtime, profilers and MPI's progress get slow",
            remedy="dmesg | grep -i clocksource tells why it left tsc; often tsc=reliable on the kernel's "
            "command line, or a newer firmware",
            severity=Severity.WARNING,
        )


CHECK = Check(NAME, "clocks of the machine and its file systems", examine, Topic.MACHINE, order=90)
