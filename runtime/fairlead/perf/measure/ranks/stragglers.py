"""The search for slow nodes, disks and links, over MPI: ``python3 -m fairlead.perf.measure.ranks.stragglers --config FILE`` on every rank.

Rank 0 carries the search out (:mod:`fairlead.perf.measure.straggler_search`) and gives orders; the first rank of each host exchanges
messages with those of other hosts, all groups of a round at the same time. Before, every rank runs kernels of its own
(:mod:`fairlead.perf.measure.kernels`), by turns where there are more ranks than cores, and the first rank of each host
writes files (:mod:`fairlead.perf.measure.disks`). Every exchange is checked.

The config is the JSON form of :class:`Settings`; rank 0 writes that of a document that :func:`outcomes` reads.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fairlead.base.serde import from_json, to_json
from fairlead.perf.measure import disks, straggler_search
from fairlead.perf.measure import kernels as compute
from fairlead.perf.measure.disks import DiskTimes, find_disk
from fairlead.perf.measure.kernels import KERNELS, Kernels, KernelTimes, Sample, find_compute
from fairlead.perf.measure.program import read_settings, write_document
from fairlead.perf.measure.rank_control import RankControl, machines
from fairlead.perf.measure.straggler_search import (
    Across,
    Answer,
    Kind,
    Outcome,
    OutOfTime,
    Seconds,
    Straggler,
    conclude,
    find_links,
)

SCHEMA, SCHEMA_VERSION = "fairlead/culprits", 1
_PERIOD = 251  # of a message's values: a prime, so that no shift by a power of two looks right
_WRONG = 20  # wrong messages that are named


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        out: the file that rank 0 writes.
        bytes: of the messages; a search for each.
        repeats: of each exchange and kernel, of which the median and the quickest count.
        link_threshold, compute_threshold, disk_threshold: how many times slower than usual is slow.
        sample_s: seconds of CPU that a kernel's sample takes: more than a few periods of a CPU quota (0.1 s).
        round_s: after which a rank repeats its exchanges of a round no more.
        limit_s: after which no more rounds of links begin, from the first one on.
        compute, links: whether processors, whether links are looked at.
        folders: whose disks are held against each other, as :func:`fairlead.perf.measure.disks.folder_of` takes them.
    """

    out: Path
    bytes: tuple[int, ...] = (1 << 20,)
    repeats: int = 5
    link_threshold: float = straggler_search.THRESHOLD
    compute_threshold: float = compute.THRESHOLD
    sample_s: float = 0.25
    round_s: float = 5
    limit_s: float = 120
    compute: bool = True
    links: bool = True
    folders: tuple[str, ...] = ()
    disk_threshold: float = disks.THRESHOLD


def outcomes(document: Mapping[str, Any]) -> dict[str, Outcome]:
    """The outcomes in what rank 0 has written: ``compute``, ``disks``, ``links of N B``, and ``all`` in one."""
    return {name: from_json(Outcome, value) for name, value in document["outcomes"].items()}


def together(outcomes: Mapping[str, Outcome]) -> Outcome:
    """All outcomes in one.

    A node whose processor is slow cannot drive its link either: then only the processor is named. A link that is slow
    with messages of several sizes is named once, as it is worst.
    """
    every = [c for outcome in outcomes.values() for c in outcome.culprits]
    processors, links = (
        {c.names for c in every if c.kind is kind} for kind in (Kind.COMPUTE, Kind.LINK)
    )
    kept: dict[tuple[Any, ...], Straggler] = {}
    for report in every:
        if report.kind is Kind.LINK and report.names in processors:
            continue
        if report.kind is Kind.COMPUTE and report.names in links:
            report = replace(
                report, evidence=f"{report.evidence}; its link is slow as well, perhaps for that"
            )
        key = (report.kind, report.names, report.ranks)
        if key not in kept or report.times_slower > kept[key].times_slower:
            kept[key] = report
    unsure = [f"{name}: {words}" for name, o in outcomes.items() for words in o.unsure]
    unsure += [
        f"{name}: {o.reason}"
        for name, o in outcomes.items()
        if o.answer is Answer.UNKNOWN and not o.unsure
    ]
    clear = "; ".join(o.reason for o in outcomes.values())
    rounds = sum(o.rounds for o in outcomes.values())
    return conclude(list(kept.values()), unsure, clear, rounds, None)


class Rank:
    """The commands that a rank obeys."""

    def __init__(self, control: RankControl):
        self._control = control
        self._kernels: Kernels | None = None

    def act(self, command: tuple[Any, ...]) -> Any:
        name, *words = command
        return getattr(self, name)(*words)

    def cost(self) -> dict[str, float]:
        """Seconds of CPU of one pass of each kernel."""
        self._kernels = Kernels()
        return {kernel: self._kernels.seconds_of_one(kernel) for kernel in KERNELS}

    def sample(self, kernel: str, passes: int) -> Sample:
        assert self._kernels
        return self._kernels.sample(kernel, passes)

    def rest(self) -> None:
        """Gives the kernels' memory back."""
        self._kernels = None

    def disk(self, folder: str, size: int) -> tuple[dict[str, float], str]:
        """As :func:`fairlead.perf.measure.disks.timed`, and why there are no times."""
        try:
            return disks.timed(disks.folder_of(folder), size), ""
        except OSError as exc:
            return {}, exc.strerror or str(exc)

    def across(
        self, left: Sequence[int], right: Sequence[int], size: int, repeats: int, round_s: float
    ) -> tuple[Seconds, list[str]]:
        """This rank's part of a group: an exchange with each rank of the other side.

        In each step every rank has one partner; no two pairs of a step share a rank.

        Returns:
            Seconds of its slowest partner, an exchange; and its wrong messages, in words.
        """
        rank = self._control.rank
        mine, theirs, turn = (left, right, -1) if rank in left else (right, left, 1)
        place, steps = mine.index(rank), max(len(left), len(right))
        values = np.arange(size) % _PERIOD
        take, wrong, late = np.empty(size, np.uint8), [], time.monotonic() + round_s
        seconds_by_rank: dict[int, list[float]] = {}
        for repeat in range(-1, repeats):  # the first connects the two, and does not count
            for step in range(steps):
                at = (place + turn * step) % steps
                if at >= len(theirs):
                    continue
                other = theirs[at]
                give, expected = (_message(values, sender, repeat) for sender in (rank, other))
                take.fill(255)
                enough = int(repeat > 0 and time.monotonic() > late)
                if self._control.meet(other, enough) or enough:
                    continue  # both know it
                begun = time.perf_counter()
                for _ in range(_inner(size)):
                    self._control.swap(give, take, other)
                if repeat >= 0:
                    seconds = (time.perf_counter() - begun) / _inner(size)
                    seconds_by_rank.setdefault(other, []).append(seconds)
                if (odd := np.flatnonzero(take != expected)).size:
                    wrong.append(
                        f"rank {rank} got a wrong message of {size} B from rank {other}, byte {odd[0]}"
                    )
        best, typical = (max(f(v) for v in seconds_by_rank.values()) for f in (min, median))
        return Seconds(best, typical), wrong

    def one_way(self, sender: int, receiver: int, size: int, repeats: int) -> list[float]:
        """Seconds of a message from one to the other and a byte back, shape (repeats,), on the sender; else empty."""
        world, sends, samples = self._control.world, self._control.rank == sender, []
        buffer, mark = np.zeros(size, np.uint8), np.zeros(1, np.uint8)
        for repeat in range(-1, repeats):
            self._control.meet(receiver if sends else sender)
            begun = time.perf_counter()
            for _ in range(_inner(size)):
                if sends:
                    world.Send(buffer, receiver)
                    world.Recv(mark, receiver)
                else:
                    world.Recv(buffer, sender)
                    world.Send(mark, sender)
            if sends and repeat >= 0:
                samples.append((time.perf_counter() - begun) / _inner(size))
        return samples


def _inner(size: int) -> int:
    """Exchanges of a sample."""
    return max(1, min(100, (64 << 10) // size))


def _message(values: Any, rank: int, repeat: int) -> Any:
    """Bytes that depend on place, sender and repeat; never 255, which a buffer holds before."""
    return ((values + rank * 31 + (repeat + 1) * 7) % _PERIOD).astype(np.uint8)


class Conductor:
    """Rank 0: what is measured when, and what came of it."""

    def __init__(self, control: RankControl, rank: Rank, settings: Settings):
        self._control, self._act, self._settings = control, rank.act, settings
        self.hosts = [fact["host"] for fact in control.facts]
        self.machines = machines(control.facts)
        self.crowded = any(len(ranks) > cores for ranks, cores in self.machines)
        self.wrong: list[str] = []
        self._late = math.inf

    def document(self) -> dict[str, Any]:
        begun, results = time.monotonic(), {}
        worked: list[KernelTimes] = []
        if self._settings.compute:
            worked = self.worked()
            results["compute"] = find_compute(worked, self._settings.compute_threshold)
        stored: list[DiskTimes] = []
        if self._settings.folders and len(set(self.hosts)) > 1:
            stored = self.stored()
            results["disks"] = find_disk(stored, self._settings.disk_threshold)
        self._late = time.monotonic() + self._settings.limit_s
        if self._settings.links and len(set(self.hosts)) > 1:
            results |= {f"links of {size} B": self.links(size) for size in self._settings.bytes}
        results["all"] = together(results)
        return {
            "schema": SCHEMA,
            "version": SCHEMA_VERSION,
            "settings": to_json(self._settings),
            "hosts": self.hosts,
            "crowded": self.crowded,
            "seconds": time.monotonic() - begun,
            "outcomes": {name: to_json(outcome) for name, outcome in results.items()},
            "samples": to_json(worked),
            "disks": to_json(stored),
            "wrong": len(self.wrong),
            "wrong_messages": self.wrong[:_WRONG],
        }

    def worked(self) -> list[KernelTimes]:
        """Every rank's samples, of the same work; repeats of a rank lie apart in time."""
        every = range(self._control.size)
        costs = self._ask(dict.fromkeys(every, ("cost",)))
        passes = {
            k: math.ceil(self._settings.sample_s / median(cost[k] for cost in costs.values()))
            for k in KERNELS
        }
        samples: list[dict[str, tuple[Sample, ...]]] = [dict.fromkeys(KERNELS, ()) for _ in every]
        for _ in range(self._settings.repeats):
            for turn in turns(self.machines):
                for kernel in KERNELS:
                    answers = self._ask(dict.fromkeys(turn, ("sample", kernel, passes[kernel])))
                    for rank, sample in answers.items():
                        samples[rank][kernel] += (sample,)
        self._ask(dict.fromkeys(every, ("rest",)))
        return [KernelTimes(rank, self.hosts[rank], samples[rank]) for rank in every]

    def stored(self) -> list[DiskTimes]:
        """What files take in each folder on every host; hosts of one machine, which share a disk, take turns."""
        leaders = self._leaders()
        shared = [([rank for rank in ranks if rank in leaders], 1) for ranks, _ in self.machines]
        size = disks.size_for(len(leaders))
        times: list[DiskTimes] = []
        for folder in self._settings.folders:
            answers: dict[int, list[tuple[dict[str, float], str]]] = {r: [] for r in leaders}
            for _ in range(self._settings.repeats):
                for turn in turns([(ranks, cores) for ranks, cores in shared if ranks]):
                    for rank, answer in self._ask(
                        dict.fromkeys(turn, ("disk", folder, size))
                    ).items():
                        answers[rank].append(answer)
            times += [self._disk(folder, rank, each) for rank, each in answers.items()]
        return times

    def _disk(
        self, folder: str, rank: int, answers: Sequence[tuple[dict[str, float], str]]
    ) -> DiskTimes:
        title, host = folder or "the folder of temporary files", self.hosts[rank]
        if failed := next((why for _, why in answers if why), ""):
            return DiskTimes(title, host, rank, failed=failed)
        seconds = {kind: tuple(each[kind] for each, _ in answers) for kind in answers[0][0]}
        return DiskTimes(title, host, rank, seconds)

    def _leaders(self) -> list[int]:
        """The first rank of each host."""
        return [self.hosts.index(name) for name in dict.fromkeys(self.hosts)]

    def links(self, size: int) -> Outcome:
        """The search over hosts, each by its first rank."""
        names = list(dict.fromkeys(self.hosts))
        leaders = self._leaders()
        repeats, round_s = self._settings.repeats, self._settings.round_s
        threshold = self._settings.link_threshold
        if len(names) == 2:
            samples = [
                self._ask(dict.fromkeys(leaders, ("one_way", *way, size, repeats)))[way[0]]
                for way in (leaders, leaders[::-1])
            ]
            return two_ways(names, leaders, samples, threshold)

        def measure(groups: Sequence[Across]) -> list[Seconds]:
            if time.monotonic() > self._late:
                raise OutOfTime
            answers: dict[int, Any] = {}
            sides = [[[leaders[node] for node in side] for side in group] for group in groups]
            ranks = [[*left, *right] for left, right in sides]
            for batch in at_once(ranks, self.machines):
                commands = {
                    rank: ("across", *sides[number], size, repeats, round_s)
                    for number in batch
                    for rank in ranks[number]
                }
                answers.update(self._ask(commands))
            self.wrong += [words for _, wrong in answers.values() for words in wrong]
            # Of a link that is slow one way, only the receiver sees it: the sender's data wait in buffers.
            return [
                Seconds(*(max(answers[rank][0][i] for rank in group) for i in (0, 1)))
                for group in ranks
            ]

        outcome = find_links(names, measure, threshold)
        culprits = tuple(
            replace(c, ranks=tuple(leaders[n] for n in c.ranks)) for c in outcome.culprits
        )
        return replace(outcome, culprits=culprits)

    def _ask(self, commands: Mapping[int, Any]) -> dict[int, Any]:
        return self._control.ask(commands, self._act)


def two_ways(
    names: Sequence[str], ranks: Sequence[int], taken: Sequence[Sequence[float]], threshold: float
) -> Outcome:
    """Of two nodes, whose link is the only one: whether it is slower in one direction than in the other; pure.

    Args:
        names, ranks: of the two nodes, and who measured.
        taken: seconds from the first to the second, and back; each of shape (repeats,).
    """
    there, back = (Seconds(min(each), median(each)) for each in taken)
    quick, slow = sorted((there, back), key=lambda seconds: seconds.typical)
    a, b = names if slow is there else reversed(names)
    if min(slow.typical, slow.best) < threshold * quick.typical:
        why = (
            "two nodes have one link between them: nothing to compare it with but the two directions,"
            " and they are alike"
        )
        return Outcome(Answer.UNKNOWN, (), why, 2)
    evidence = (
        f"from {a} to {b} a message takes {1e3 * slow.typical:.3g} ms,"
        f" the other way {1e3 * quick.typical:.3g} ms"
    )
    remedy = f"have what leaves {a} and what reaches {b} looked at: cable, port, link rate"
    times = slow.typical / quick.typical
    slow_way = Straggler(Kind.PAIR, tuple(names), times, evidence, remedy, tuple(ranks))
    return conclude([slow_way], [], "", 2, quick.typical)


def turns(shared: Sequence[tuple[Sequence[int], int]]) -> list[list[int]]:
    """Ranks that run kernels at the same time: all, or half as many as there are cores where there are too few.

    Args:
        shared: of each machine its ranks and its number of cores.

    >>> turns([([0, 1, 2], 2), ([3, 4], 2)])
    [[0, 3, 4], [1], [2]]
    """
    rows: list[list[int]] = []
    for ranks, cores in shared:
        each = len(ranks) if len(ranks) <= cores else max(1, cores // 2)
        for number, start in enumerate(range(0, len(ranks), each)):
            if number == len(rows):
                rows.append([])
            rows[number] += ranks[start : start + each]
    return rows


def at_once(
    groups: Sequence[Sequence[int]], shared: Sequence[tuple[Sequence[int], int]]
) -> list[list[int]]:
    """Which groups of a round, by number, exchange at the same time: all, unless ranks would share a core.

    Who shares a core with another pair is slow through no fault of the link. A group by itself may be larger.

    Args:
        groups: ranks of each group.
        shared: of each machine its ranks and its number of cores.

    >>> at_once([[0, 1], [2, 3], [4, 5]], [([0, 1, 2, 3], 2), ([4], 8), ([5], 8)])
    [[0, 2], [1]]
    """
    machine = {rank: number for number, (ranks, _) in enumerate(shared) for rank in ranks}
    batches: list[tuple[Counter[int], list[int]]] = []
    for number, group in enumerate(groups):
        need = Counter(machine[rank] for rank in group)
        fits = (b for b in batches if all(b[0][m] + n <= shared[m][1] for m, n in need.items()))
        if (place := next(fits, None)) is None:
            batches.append(place := (Counter(), []))
        place[0].update(need)
        place[1].append(number)
    return [numbers for _, numbers in batches]


def main(words: Sequence[str]) -> None:
    settings = read_settings(Settings, words)
    control = RankControl()
    rank = Rank(control)
    if control.rank == 0:
        document = Conductor(control, rank, settings).document()
        control.end()
        write_document(settings.out, document)
    else:
        control.serve(rank.act)
    control.quiet_barrier()
    control.close()


if __name__ == "__main__":
    main(sys.argv[1:])
