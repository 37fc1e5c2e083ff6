"""What Linux reports about its processors: model, load, clock and heat; and the clock of each host of a job.

A reading alone proves nothing: processors that compute on all cores run below the clock of one, and many save power. So
:func:`clocks` gives the clocks read, along with how fast the rank's arithmetic was; :mod:`fairlead.perf.judge.diagnosis` concludes.

Sources: Documentation/admin-guide/pm/cpufreq.rst and intel_pstate.rst for ``scaling_cur_freq`` and ``base_frequency``,
Documentation/admin-guide/acpi/cppc_sysfs.rst for ``nominal_freq``, Documentation/ABI/testing/sysfs-devices-system-cpu for
``thermal_throttle``. ``cpu MHz`` of /proc/cpuinfo is measured where the processor has aperfmperf (arch/x86/kernel/cpu/
aperfmperf.c) and a constant where it has not, as in many virtual machines.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from fairlead.base import proc_stat
from fairlead.perf.records.validation import Clock

if TYPE_CHECKING:
    from fairlead.perf.measure.kernels import KernelTimes

_CPUS = "sys/devices/system/cpu"
_COUNTERS = ("core_throttle_count", "package_throttle_count")
_LOOK_S = 0.3  # 30 clock ticks a core
# Drivers whose largest clock is the one that a processor is sold with; others count its boost as well.
_NO_BOOST = ("acpi-cpufreq", "pcc-cpufreq")


@dataclass(frozen=True)
class Reading:
    """What one core says at a moment.

    Attributes:
        mhz: its clock; None where the system does not measure it.
        nominal_mhz: the clock that the processor is sold with, without boost; None if unknown.
        throttled: how often this core or its package was slowed down for heat since the start of the system; None
            where that is not counted.
    """

    mhz: float | None = None
    nominal_mhz: float | None = None
    throttled: int | None = None


def read(core: int, root: Path = Path("/")) -> Reading:
    """What ``core`` says now; what has just computed on it, is in the clock. Never raises.

    Args:
        core: its number, as Linux counts them.
        root: of the file systems, for recorded machines.
    """
    own = root / _CPUS / f"cpu{core}"
    mhz = _scaled(own / "cpufreq/scaling_cur_freq", 1e-3) or _measured(core, root)
    nominal = _scaled(own / "cpufreq/base_frequency", 1e-3)
    nominal = nominal or _scaled(own / "acpi_cppc/nominal_freq", 1.0)
    if nominal is None and text(own / "cpufreq/scaling_driver") in _NO_BOOST:
        nominal = _scaled(own / "cpufreq/cpuinfo_max_freq", 1e-3)
    counts = [_scaled(own / "thermal_throttle" / name, 1.0, zero=True) for name in _COUNTERS]
    known = [int(count) for count in counts if count is not None]
    return Reading(mhz, nominal, sum(known) if known else None)


def core_now() -> int | None:
    """The core that the calling thread is on, or was last; None where Linux does not say."""
    try:
        return int(proc_stat.fields("/proc/thread-self")[proc_stat.PROCESSOR])
    except (OSError, ValueError, IndexError):
        return None


def read_current() -> tuple[int | None, Reading]:
    """The core that the calling thread is on, and its reading."""
    core = core_now()
    return core, Reading() if core is None else read(core)


def others(seconds: float = _LOOK_S, root: Path = Path("/")) -> float | None:
    """Cores of those that this process may use which other processes keep busy; None where Linux does not say.

    A load average would count what this program itself did in the last minute.

    Args:
        seconds: how long to look.
        root: of the file systems, for recorded machines.
    """
    before, own, begun = _busy_ticks(root), sum(os.times()[:2]), time.monotonic()
    time.sleep(seconds)
    after, own, took = _busy_ticks(root), sum(os.times()[:2]) - own, time.monotonic() - begun
    if before is None or after is None:
        return None
    return max(0.0, ((after - before) / os.sysconf("SC_CLK_TCK") - own) / took)


def _busy_ticks(root: Path) -> int | None:
    """Clock ticks that the cores of this process have worked, by proc(5): user, nice, system, irq, softirq, steal."""
    rows = [row.split() for row in text(root / "proc/stat").splitlines() if row.startswith("cpu")]
    mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    cores = [row for row in rows if row[0] in mine and len(row) > 8]
    if not cores:
        return None
    return sum(int(row[column]) for row in cores for column in (1, 2, 3, 6, 7, 8))


def load() -> float | None:
    """Processes that want to run, mean of the last minute; None where the system does not say."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def machine_facts() -> dict[str, str]:
    """Kernel and processor of this machine."""
    model = re.search(r"^model name.*?:(.*)$", text(Path("/proc/cpuinfo")), re.MULTILINE)
    processor = model[1].strip() if model else platform.machine()
    return {"kernel": platform.release(), "processor": processor}


def clocks(every: Sequence[KernelTimes], hosts: Sequence[str]) -> tuple[Clock, ...]:
    """For each host what its slowest rank had: facts, in the order of ``hosts``; hosts that report nothing are left out.

    Args:
        every: what ranks' kernels took, with their clocks.
        hosts: of the job, in its order: a smaller launch takes part of them, from the first.
    """
    ranks = [_rank(report) for report in every]
    times = [rank.times for rank in ranks if rank.times]
    rates = [rank.seen_mhz for rank in ranks if rank.seen_mhz]
    usual_s, usual_mhz = (median(times) if times else None), (median(rates) if rates else None)
    by_host = []
    for number, host in enumerate(hosts):
        mine = [rank for rank in ranks if rank.host == host]
        if not any(rank.seen_mhz or rank.throttled is not None for rank in mine):
            continue
        slowest = max(mine, key=lambda rank: rank.times or 0.0)
        counted = [rank.throttled for rank in mine if rank.throttled is not None]
        by_host.append(
            replace(
                slowest,
                usual_mhz=usual_mhz if len(rates) > 1 else None,
                times=slowest.times / usual_s if slowest.times and usual_s else None,
                throttled=max(counted, default=None),
                from_nodes=number + 1,
            )
        )
    return tuple(by_host)


def _rank(kernel: KernelTimes) -> Clock:
    """A rank's own; ``times`` are seconds still."""
    arithmetic = kernel.samples.get("arithmetic", ())
    every = [s for samples in kernel.samples.values() for s in samples]
    rates = [s.mhz for s in arithmetic if s.mhz is not None]
    counted = [s.hot for s in every if s.hot is not None]
    return Clock(
        kernel.host,
        median(rates) if rates else None,
        next((s.nominal_mhz for s in every if s.nominal_mhz is not None), None),
        times=median(s.wall_s for s in arithmetic) if arithmetic else None,
        throttled=sum(counted) if counted else None,
    )


def _measured(core: int, root: Path) -> float | None:
    """``cpu MHz`` of /proc/cpuinfo, where it is a measurement."""
    for block in text(root / "proc/cpuinfo").split("\n\n"):
        rows = {key.strip(): value.strip() for key, _, value in (r.partition(":") for r in block.splitlines())}  # fmt: skip
        if rows.get("processor") == str(core):
            if "aperfmperf" not in rows.get("flags", "").split():
                return None
            return _number(rows.get("cpu MHz", ""), 1.0)
    return None


def _scaled(path: Path, unit: float, zero: bool = False) -> float | None:
    return _number(text(path), unit, zero)


def _number(word: str, unit: float, zero: bool = False) -> float | None:
    """None also for the 0 that some drivers write where they do not know."""
    try:
        value = float(word) * unit
    except ValueError:
        return None
    return value if value > 0 or (zero and value == 0) else None


def text(path: Path) -> str:
    """The content of a small file, stripped; empty where it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
