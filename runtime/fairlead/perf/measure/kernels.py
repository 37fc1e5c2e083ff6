"""Whose processor is slow: two kernels that every rank runs by itself, and the judgement over all ranks.

No search is needed: one round times all ranks, each on its own. A sample lasts long enough for a CPU quota to
bite (its period is 0.1 s by default), and the samples of a rank are taken at different times, so that what else
runs on a machine for a moment slows one of them and not all.

Wall time decides: whatever takes the core away makes a job's steps longer. What the kernel says of the sample then names the
cause: the cgroup's throttled time a quota, the time spent waiting for a core other work on it, and neither a
processor that is slow itself (its clock, its memory).
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, median_low

import numpy as np

from fairlead.perf.measure import processors
from fairlead.perf.measure.straggler_search import Answer, Kind, Outcome, Straggler, conclude

THRESHOLD = 1.5
KERNELS = ("memory", "arithmetic")
# Three arrays of it are streamed: beyond the caches of a core, and of most processors a core's share of the last.
_STREAM, _CACHED = 16 << 20, 32 << 10  # bytes


@dataclass(frozen=True)
class Sample:
    """One run of a kernel, in seconds.

    Attributes:
        waited_s: that the process was able to run and had no core; None where the kernel does not say.
        throttled_s: that its cgroup was held back by a quota; None where that cannot be read.
        mhz, nominal_mhz: the clock of the core at the end, and its nominal one; None if unknown.
        hot: how often the core was slowed down for heat meanwhile; None where that is not counted, or where it
            changed the core.
    """

    wall_s: float
    cpu_s: float
    waited_s: float | None = None
    throttled_s: float | None = None
    mhz: float | None = None
    nominal_mhz: float | None = None
    hot: int | None = None


@dataclass(frozen=True)
class KernelTimes:
    """What one rank's kernels took.

    Attributes:
        samples: of each kernel, all of the same work on all ranks.
    """

    rank: int
    host: str
    samples: Mapping[str, tuple[Sample, ...]]


def find_compute(every: Sequence[KernelTimes], threshold: float = THRESHOLD) -> Outcome:
    """The ranks whose kernels take longer than those of the others.

    A rank is slow in a kernel if even its quickest sample takes ``threshold`` times the median over ranks of their
    median samples. That is right as long as no more than half of the ranks are slow.
    """
    if len(every) < 2:
        return Outcome(Answer.UNKNOWN, (), "there is one rank: nothing to compare it with", 1)
    usual = {
        kernel: median_low(median(s.wall_s for s in rank.samples[kernel]) for rank in every)
        for kernel in every[0].samples
    }
    rates = [s.mhz for rank in every for s in rank.samples.get("arithmetic", ()) if s.mhz]
    usual_mhz = median(rates) if rates else None
    culprits, unsure = [], []
    wavering: dict[str, list[str]] = defaultdict(list)
    for rank in every:
        slow, at_times = [], []
        for kernel, samples in rank.samples.items():
            most = threshold * usual[kernel]
            if min(s.wall_s for s in samples) >= most:
                slow.append(kernel)
            elif median(s.wall_s for s in samples) >= most:
                at_times.append(kernel)
        if slow:
            culprits.append(_culprit(rank, slow, usual, usual_mhz))
        elif at_times:
            numbers = "; ".join(_numbers(rank, kernel, usual) for kernel in at_times)
            unsure.append(f"rank {rank.rank} on {rank.host} is slow at times: {numbers}")
            wavering[rank.host].append(unsure[-1])
    clear = f"no rank of {len(every)} takes {threshold:g} times as long as usual"
    ranks = Counter(rank.host for rank in every)
    culprits = _by_host(culprits, {host: len(words) for host, words in wavering.items()}, ranks)
    named = {suspect.names[0] for suspect in culprits if len(suspect.ranks) > 1}
    unsure = [words for words in unsure if not any(words in wavering[host] for host in named)]
    return conclude(culprits, unsure, clear, 1, max(usual.values()))


def _by_host(
    culprits: Sequence[Straggler], wavering: Mapping[str, int], ranks: Mapping[str, int]
) -> list[Straggler]:
    """A host all of whose ranks are slow, at least half of them always, is one culprit, and not one for each of them.

    Args:
        wavering: how many ranks of a host are slow at times.
        ranks: how many ranks a host has.
    """
    stragglers: list[Straggler] = []
    for host in dict.fromkeys(suspect.names[0] for suspect in culprits):
        own, count = [suspect for suspect in culprits if suspect.names == (host,)], ranks[host]
        at_times = wavering.get(host, 0)
        if count == 1 or len(ranks) == 1 or len(own) + at_times < count or 2 * len(own) < count:
            stragglers += own
            continue
        worst = max(own, key=lambda suspect: suspect.times_slower)
        who = f"{len(own)} of {count} ranks of {host} are slow and the others at times"
        if not at_times:
            who = f"all {count} ranks of {host} are slow"
        stragglers.append(
            replace(
                worst,
                times_slower=median(suspect.times_slower for suspect in own),
                evidence=f"{who}, the worst {worst.evidence}",
                ranks=tuple(rank for suspect in own for rank in suspect.ranks),
            )
        )
    return stragglers


def _culprit(
    rank: KernelTimes, slow: Sequence[str], usual: Mapping[str, float], usual_mhz: float | None
) -> Straggler:
    times = max(median(s.wall_s for s in rank.samples[k]) / usual[k] for k in slow)
    why, remedy = _cause(rank, slow, usual_mhz)
    numbers = "; ".join(_numbers(rank, kernel, usual) for kernel in slow)
    evidence = f"rank {rank.rank}: {numbers}; {why}"
    return Straggler(Kind.COMPUTE, (rank.host,), times, evidence, remedy, (rank.rank,))


def _numbers(rank: KernelTimes, kernel: str, usual: Mapping[str, float]) -> str:
    wall = sorted(s.wall_s for s in rank.samples[kernel])
    return f"{kernel} {wall[0]:.3f} to {wall[-1]:.3f} s, {usual[kernel]:.3f} s is usual"


def _cause(rank: KernelTimes, slow: Sequence[str], usual_mhz: float | None) -> tuple[str, str]:
    """The likeliest cause in words with its numbers, and the remedy."""
    samples = [s for kernel in slow for s in rank.samples[kernel]]
    wall, cpu = sum(s.wall_s for s in samples), sum(s.cpu_s for s in samples)
    throttled = sum(s.throttled_s or 0 for s in samples)
    if throttled > 0.2 * wall:
        return (
            f"its cgroup was throttled for {throttled:.2f} of {wall:.2f} s",
            f"raise the CPU quota of the job or container on {rank.host}: cpu.max (cpu.cfs_quota_us) of its cgroup",
        )
    if cpu < 0.7 * wall:
        known = any(s.waited_s is not None for s in samples)
        waited = sum(s.waited_s or 0 for s in samples)
        how = f", and waited {waited:.2f} s for a core" if known else ""
        return (
            f"it had a core for {cpu:.2f} of {wall:.2f} s{how}",
            f"see what else runs on {rank.host}, and which cores rank {rank.rank} may use: `top`, `taskset -p`, the"
            " binding of the launcher, a CPU quota above its cgroup",
        )
    return (
        f"it had a core all the time ({cpu:.2f} of {wall:.2f} s)" + _clock(samples, usual_mhz),
        f"look at clock, temperature, power limit and memory of {rank.host}: `cpupower frequency-info`, `dmesg`,"
        " `numactl --hardware`; until then, leave it out of the job",
    )


def _clock(samples: Sequence[Sample], usual_mhz: float | None) -> str:
    """What the core said of itself, as far as it did."""
    hot, words = sum(s.hot or 0 for s in samples), ""
    if hot:
        words += f", which was slowed down for heat {hot} time{'s' if hot > 1 else ''}"
    rates = [s.mhz for s in samples if s.mhz]
    if rates and usual_mhz:
        words += f"; its clock was {median(rates):.0f} MHz, {usual_mhz:.0f} is usual"
    return words


class Kernels:
    """This process's kernels, with the memory that they work on."""

    def __init__(self) -> None:
        self._stream = [np.full(_STREAM // 8, value) for value in (1.0, 2.0, 3.0)]
        self._cached = [np.full(_CACHED // 8, value) for value in (0.5, 0.25)]
        self._pass = {"memory": self._memory, "arithmetic": self._arithmetic}

    def seconds_of_one(self, kernel: str) -> float:
        """Seconds of CPU that one pass takes; a quota does not lengthen them."""
        run = self._pass[kernel]
        run()  # the first touches the pages
        count, begun = 0, time.thread_time()
        while count < 3 or time.thread_time() - begun < 0.005:
            run()
            count += 1
        return (time.thread_time() - begun) / count

    def sample(self, kernel: str, passes: int) -> Sample:
        run = self._pass[kernel]
        throttled, waited = throttled_s(), _waited_s()
        core, before = processors.read_current()
        wall, cpu = time.perf_counter(), time.thread_time()
        for _ in range(passes):
            run()
        wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
        last, after = processors.read_current()
        hot = None
        if last == core and before.throttled is not None and after.throttled is not None:
            hot = after.throttled - before.throttled
        return Sample(
            wall, cpu, _less(_waited_s(), waited), _less(throttled_s(), throttled), after.mhz,
            after.nominal_mhz, hot,
        )  # fmt: skip

    def _memory(self) -> None:
        """A pass over memory: a = 3 b, then a = a + c."""
        a, b, c = self._stream
        np.multiply(b, 3.0, out=a)
        np.add(a, c, out=a)

    def _arithmetic(self) -> None:
        """A polynomial in the first-level cache; no BLAS, which has threads of its own."""
        x, y = self._cached
        for _ in range(50):
            np.multiply(y, x, out=y)
            np.add(y, 0.25, out=y)


def throttled_s(root: Path = Path("/")) -> float | None:
    """For how many seconds this process's cgroup, of either version, has been throttled; None if unknown."""
    base = root / "sys/fs/cgroup"
    for line in processors.text(root / "proc/self/cgroup").splitlines():
        number, controllers, own = line.split(":", 2)
        if number == "0":
            mounts, key, unit = (base, base / "unified"), "throttled_usec", 1e-6
        elif "cpu" in controllers.split(","):
            mounts, key, unit = (base / controllers, base / "cpu"), "throttled_time", 1e-9
        else:
            continue
        for mount in mounts:
            rows = processors.text(mount / own.lstrip("/") / "cpu.stat")
            if match := re.search(rf"^{key} (\d+)$", rows, re.MULTILINE):
                return int(match[1]) * unit
    return None


def _waited_s() -> float | None:
    try:
        return int(processors.text(Path("/proc/thread-self/schedstat")).split()[1]) * 1e-9
    except (IndexError, ValueError):
        return None


def _less(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before
