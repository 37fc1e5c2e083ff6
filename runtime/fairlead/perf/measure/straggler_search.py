"""Which node, or which pair of nodes, is slow: the search over links, as a pure function of an oracle.

The oracle measures, in one round, any number of groups at once that have no node in common. A group is two sets
of nodes, and its time is that of the slowest pair with one end in each (:class:`Across`); a plain pair is the
smallest. :mod:`fairlead.perf.measure.ranks.stragglers` is the oracle over MPI, :mod:`fairlead.perf.measure.kernels` the same question
about processors, which needs no search.

**Why it takes O(log n) rounds.** Let n be the nodes, t the threshold, k the culprits: nodes and pairs together.

1. *Nodes.* D = max(3, ceil(log2 n)) rounds (no more than there are partners) pair every node with a new partner
   each time. A node whose link is slow is slow in all of them. A healthy one is slow only where its partner is, or
   the pair itself: each culprit spoils at most one of its D pairings, so with k < D at least one is quick. Hence
   *slow in every pairing* is exact for k < D, and two more rounds with quick partners confirm it. What is usual is the
   median of all pairings but those of nodes whose quickest is slow compared with the other nodes' quickest: with few nodes, most
   pairings may have a slow end. Right as long as no more than half of the nodes are slow.
2. *Pairs.* All other pairs are covered by ceil(log2 n) rounds: round j halves each of 2^j blocks and measures it
   across, so that two nodes meet in the one round where they are parted. Each node then has sent n - 1 messages,
   which no method can go below: a pair that has carried nothing cannot be cleared. A group with a slow pair is
   slow; it is cut in four (half a side against half a side), which two rounds of disjoint groups measure, and the
   slow quarters are followed: 2 (ceil(log2 n) - 1) rounds for one culprit, at most k times that for k. Two more
   rounds confirm. Where step 1 has met all pairs (n up to 4) its slow pairs are taken as they are.

So one culprit takes at most 4 ceil(log2 n) + 5 rounds, and k < D take (2 + 2k) ceil(log2 n) + 5. D
slow pairs of one node are, to this search and in effect, a slow link of that node. With two nodes there is one link
and nothing to compare it with. If all links are slow alike, none stands out: hold the sweeps against a reference.

**Noise** only adds time. *Slow* needs more than a slow median: the quickest repeat, too, has to be slow, in every
confirming round. A median that is slow while its repeat is quick is unsteady, and said to be; a slowness that goes away in a
later round is dropped.
"""

from __future__ import annotations

import enum
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median, median_low
from typing import NamedTuple

THRESHOLD = 2.0
_CONFIRM = 2  # rounds


class Kind(enum.Enum):
    """What is slow."""

    COMPUTE = "node-compute"
    LINK = "node-link"
    PAIR = "pair"
    DISK = "node-disk"


class Answer(enum.Enum):
    """The outcome in short."""

    NONE = "none is slow"
    ONE = "one is slow"
    SEVERAL = "several are slow"
    UNKNOWN = "cannot tell"


@dataclass(frozen=True)
class Straggler:
    """One thing that is slow.

    Attributes:
        names: of the host, or of both hosts of a pair.
        times_slower: its time over the usual time.
        evidence: its numbers and those of the others.
        remedy: what to do next.
        ranks: whose processor is slow; for links and disks the ranks that measured it.
    """

    kind: Kind
    names: tuple[str, ...]
    times_slower: float
    evidence: str
    remedy: str
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """The outcome of a search; has a JSON form (:mod:`fairlead.base.serde`).

    Attributes:
        reason: a sentence; for UNKNOWN, why there is no answer.
        rounds: number of rounds measured.
        usual_s: the usual time in seconds; None if there is none.
        unsure: what was slow at times, in words; not among the culprits.
    """

    answer: Answer
    culprits: tuple[Straggler, ...]
    reason: str
    rounds: int
    usual_s: float | None = None
    unsure: tuple[str, ...] = ()


def conclude(
    culprits: Sequence[Straggler],
    unsure: Sequence[str],
    clear: str,
    rounds: int,
    usual_s: float | None,
    late: str = "",
) -> Outcome:
    """The outcome of what was found.

    Args:
        clear: the reason given when nothing is slow.
        late: why the search did not finish; "" if it did.
    """
    if culprits:
        answer = Answer.ONE if len(culprits) == 1 else Answer.SEVERAL
        reason = "; ".join(f"{c.kind.value} {' - '.join(c.names)}" for c in culprits)
        reason += f"; {late}, there may be more" if late else ""
    elif late or unsure:
        answer, reason = Answer.UNKNOWN, "; ".join(filter(None, (late, *unsure)))
    else:
        answer, reason = Answer.NONE, clear
    return Outcome(answer, tuple(culprits), reason, rounds, usual_s, tuple(unsure))


class Across(NamedTuple):
    """All pairs with one end in ``left`` and the other in ``right``; nodes by number."""

    left: tuple[int, ...]
    right: tuple[int, ...]


class Seconds(NamedTuple):
    """Of the slowest pair of a group: its quickest repeat, and the median of its repeats."""

    best: float
    typical: float


Measure = Callable[[Sequence[Across]], Sequence[Seconds]]
Pair = tuple[int, int]


class OutOfTime(Exception):
    """The oracle raises it when it may not measure any more."""


def find_links(names: Sequence[str], measure: Measure, threshold: float = THRESHOLD) -> Outcome:
    """The nodes whose link is slow, and the pairs that are slow by themselves.

    Args:
        names: of the nodes, shape (n,).
        measure: the oracle. Groups of a call have no node in common; it answers in their order, in seconds.
        threshold: how many times slower than usual is slow, above 1.
    """
    if len(names) < 3:
        why = "there is one node" if len(names) < 2 else "two nodes have one link between them"
        return Outcome(Answer.UNKNOWN, (), f"{why}: nothing to compare it with", 0)
    search = _Search(names, measure, threshold)
    try:
        search.run()
        late = ""
    except OutOfTime:
        late = f"the time was up after {search.rounds} rounds"
    return search.outcome(late)


def halvings(nodes: int) -> int:
    """ceil(log2 nodes)."""
    return max(0, nodes - 1).bit_length()


def meetings(nodes: int) -> int:
    """D, the partners that each node meets in the first step, at least."""
    return min(nodes - 1, max(3, halvings(nodes)))


def pairings(nodes: int, rounds: int) -> list[list[Pair]]:
    """Rounds of disjoint pairs in which no node meets a partner twice: the circle method.

    One sits out each round where ``nodes`` is odd. ``rounds`` below ``nodes`` (odd: up to ``nodes``).

    >>> pairings(4, 3)
    [[(0, 3), (1, 2)], [(0, 2), (3, 1)], [(0, 1), (2, 3)]]
    """
    seats, result = list(range(nodes + nodes % 2)), []
    for _ in range(rounds):
        facing = zip(seats[: len(seats) // 2], reversed(seats), strict=False)
        result.append([(a, b) for a, b in facing if max(a, b) < nodes])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return result


def covering(nodes: Sequence[int]) -> list[list[Across]]:
    """Rounds of disjoint groups that hold every pair exactly once.

    >>> [len(row) for row in covering(range(8))]
    [1, 2, 4]
    """
    blocks, result = [tuple(nodes)], []
    while any(len(block) > 1 for block in blocks):
        halves = [_halves(block) for block in blocks]
        result.append([Across(left, right) for left, right in halves if right])
        blocks = [half for both in halves for half in both if half]
    return result


def disjoint(groups: Iterable[Across]) -> list[list[Across]]:
    """The groups in rounds, each in the first that has none of its nodes."""
    rounds: list[tuple[set[int], list[Across]]] = []
    for group in groups:
        own = {*group.left, *group.right}
        free = (pair for pair in rounds if not pair[0] & own)
        if (place := next(free, None)) is None:
            rounds.append(place := (set(), []))
        busy, row = place
        busy |= own
        row.append(group)
    return [row for _, row in rounds]


def _halves(nodes: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    middle = (len(nodes) + 1) // 2
    return nodes[:middle], nodes[middle:]


def _quarters(group: Across) -> list[Across]:
    """Those that can be measured together come first and last."""
    (a, b), (c, d) = _halves(group.left), _halves(group.right)
    return [Across(*both) for both in ((a, c), (b, d), (a, d), (b, c)) if all(both)]


@dataclass
class _Search:
    names: Sequence[str]
    measure: Measure
    threshold: float
    rounds: int = 0
    usual: float = math.nan
    met: dict[int, dict[int, Seconds]] = field(default_factory=lambda: defaultdict(dict))
    nodes: dict[int, list[Seconds]] = field(default_factory=dict)
    pairs: dict[Pair, list[Seconds]] = field(default_factory=dict)
    unsure: list[str] = field(default_factory=list)
    aside: set[int] = field(default_factory=set)  # nodes that say nothing about pairs

    def run(self) -> None:
        count = len(self.names)
        # Who sits out has a partner fewer.
        for row in pairings(count, meetings(count) + count % 2):
            self._meet(Across((a,), (b,)) for a, b in row)
        self.usual = self._usual()
        self._confirm_nodes()
        healthy = [node for node in range(count) if node not in self.aside]
        if meetings(count) == count - 1:
            slow_pairs = [Across((a,), (b,)) for a in healthy for b in healthy if a < b]
            slow_pairs = [g for g in slow_pairs if self._slow(self.met[g.left[0]][g.right[0]])]
        else:
            slow_pairs = self._bisect([g for row in covering(healthy) for g in self._slow_of(row)])
        self._confirm_pairs(slow_pairs)

    def outcome(self, late: str) -> Outcome:
        culprits = [self._of_node(*item) for item in sorted(self.nodes.items())]
        culprits += [self._of_pair(*item) for item in sorted(self.pairs.items())]
        count, usual = len(self.names), None if math.isnan(self.usual) else self.usual
        clear = f"no link of {count} nodes is {self.threshold:g} times slower than usual"
        return conclude(culprits, self.unsure, clear, self.rounds, usual, late)

    def _usual(self) -> float:
        """The median of the pairings that have no node which is always slow, however many those are."""
        quickest = {n: min(s.typical for s in met.values()) for n, met in self.met.items()}
        most = self.threshold * median_low(quickest.values())
        return median_low(
            s.typical
            for a, met in self.met.items()
            for b, s in met.items()
            if a < b and max(quickest[a], quickest[b]) <= most
        )

    def _round(self, groups: Sequence[Across]) -> list[tuple[Across, Seconds]]:
        timed = list(zip(groups, self.measure(groups), strict=True))
        self.rounds += 1
        return timed

    def _meet(self, groups: Iterable[Across]) -> None:
        for group, seconds in self._round(list(groups)):
            (a,), (b,) = group
            self.met[a][b] = self.met[b][a] = seconds

    def _slow(self, seconds: Seconds) -> bool:
        return seconds.typical >= self.threshold * self.usual

    def _slow_of(self, groups: Sequence[Across]) -> list[Across]:
        return [group for group, seconds in self._round(groups) if self._slow(seconds)]

    def _confirm_nodes(self) -> None:
        """Those that were slow with all, once more with nodes that were quick with some node."""
        suspects = [n for n, met in self.met.items() if all(map(self._slow, met.values()))]
        suspects.sort()
        quick = [node for node in range(len(self.names)) if node not in suspects]
        if len(suspects) > len(quick):  # then the usual time is unknown
            words = f"{len(suspects)} of {len(self.names)} nodes were slow with every other that they met"
            self.unsure.append(f"{words}, more than half")
            self.aside.update(suspects)
            return
        again: dict[int, list[Seconds]] = defaultdict(list)
        for turn in range(_CONFIRM if suspects else 0):
            at = turn * max(1, len(quick) // _CONFIRM)
            partners = (quick[at:] + quick[:at])[: len(suspects)]
            groups = [Across((a,), (b,)) for a, b in zip(suspects, partners, strict=True)]
            for group, seconds in self._round(groups):
                again[group.left[0]].append(seconds)
        for node, times in again.items():
            if self._stands(times, f"the link of {self.names[node]}"):
                self.nodes[node] = [*self.met[node].values(), *times]
            if all(map(self._slow, times)):
                self.aside.add(node)

    def _bisect(self, groups: list[Across]) -> list[Across]:
        """The pairs that slow groups are slow by."""
        slow_pairs: list[Across] = []
        while groups:
            if len(groups) > meetings(len(self.names)):
                words = f"{len(groups)} groups of pairs were slow at once, too many to follow"
                self.unsure.append(f"{words}: the network is slow in many places, or busy")
                break
            slow_pairs += [g for g in groups if len(g.left) == len(g.right) == 1]
            quarters = [q for g in groups if g not in slow_pairs for q in _quarters(g)]
            groups = [g for row in disjoint(quarters) for g in self._slow_of(row)]
        return slow_pairs

    def _confirm_pairs(self, groups: Sequence[Across]) -> None:
        again: dict[Pair, list[Seconds]] = defaultdict(list)
        for _ in range(_CONFIRM):
            for row in disjoint(groups):
                for group, seconds in self._round(row):
                    a, b = sorted((group.left[0], group.right[0]))
                    again[a, b].append(seconds)
        for pair, times in again.items():
            if self._stands(times, f"the pair {self._named(pair)}"):
                self.pairs[pair] = times

    def _stands(self, times: Sequence[Seconds], what: str) -> bool:
        """Whether all of the confirming rounds were slow from the quickest repeat on."""
        if not all(map(self._slow, times)):
            return False
        if all(seconds.best >= self.threshold * self.usual for seconds in times):
            return True
        best, typical = min(s.best for s in times), median(s.typical for s in times)
        self.unsure.append(
            f"{what} is unsteady: {_s(best)} at best, {_s(typical)} in the median, {_s(self.usual)} is usual"
        )
        return False

    def _named(self, pair: Pair) -> str:
        return " - ".join(self.names[node] for node in pair)

    def _of_node(self, node: int, exchanges: Sequence[Seconds]) -> Straggler:
        times, name = median(s.typical for s in exchanges) / self.usual, self.names[node]
        evidence = (
            f"all {len(exchanges)} exchanges of {name}, each with another node where there is one, took {_range(exchanges)};"
            f" {_s(self.usual)} is usual"
        )
        remedy = (
            f"leave {name} out of the job, and have its cable, port and link rate checked:"
            f" `ethtool` or `ibstatus` on {name}"
        )
        return Straggler(Kind.LINK, (name,), times, evidence, remedy, (node,))

    def _of_pair(self, pair: Pair, exchanges: Sequence[Seconds]) -> Straggler:
        times, (a, b) = (
            median(s.typical for s in exchanges) / self.usual,
            (self.names[n] for n in pair),
        )
        quick = [
            f"{self.names[node]} with others {_s(min(s.typical for s in self.met[node].values()))}"
            for node in pair
        ]
        evidence = (
            f"{a} with {b} {_range(exchanges)}; {', '.join(quick)}; {_s(self.usual)} is usual"
        )
        remedy = f"have the path between {a} and {b} checked (routes, switch ports); until then, do not use both in a job"
        return Straggler(Kind.PAIR, (a, b), times, evidence, remedy, pair)


def _range(exchanges: Sequence[Seconds]) -> str:
    typical = sorted(s.typical for s in exchanges)
    return f"{_s(typical[0])} to {_s(typical[-1])}"


def _s(seconds: float) -> str:
    """Seconds with a unit that can be read.

    >>> _s(0.00123)
    '1.23 ms'
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
