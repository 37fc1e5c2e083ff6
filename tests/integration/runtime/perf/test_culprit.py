"""Who is slow, found by an oracle with noise: the right one, in the rounds that were promised."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.base.serde import from_json, to_json
from fairlead.perf.measure import straggler_search
from fairlead.perf.measure.straggler_search import (
    Across,
    Answer,
    Kind,
    Outcome,
    OutOfTime,
    Seconds,
    find_links,
)

REPEATS, USUAL = 5, 1e-3
# Sides above this are not tried pair by pair: 1024 nodes have half a million.
_LARGE = 48


@dataclass
class Network:
    """Links with noise that only adds; some nodes and pairs are slower by a factor.

    Attributes:
        noise: the mean of what is added, in parts of the usual time (exponential).
        hiccup: how often a repeat takes ten times as long.
    """

    nodes: int
    seed: int
    slow_nodes: dict[int, float] = field(default_factory=dict)
    slow_pairs: dict[tuple[int, int], float] = field(default_factory=dict)
    noise: float = 0.05
    hiccup: float = 0.01
    rounds: int = 0
    ends_after: int = 10**6

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    @property
    def names(self) -> list[str]:
        return [f"n{i}" for i in range(self.nodes)]

    def measure(self, groups: Sequence[Across]) -> list[Seconds]:
        if self.rounds == self.ends_after:
            raise OutOfTime
        self.rounds += 1
        every = [node for group in groups for side in group for node in side]
        assert len(every) == len(set(every)), "a node in two groups of a round"
        return [self._group(*group) for group in groups]

    def _group(self, left: Sequence[int], right: Sequence[int]) -> Seconds:
        sides = set(left), set(right)
        ends = (
            (a, b)
            for mine, other in (sides, sides[::-1])
            for a in mine & self.slow_nodes.keys()
            for b in other
        )
        cut = (
            p
            for p in self.slow_pairs
            if any(p[i] in sides[0] and p[1 - i] in sides[1] for i in (0, 1))
        )
        special = [*ends, *cut]
        many = len(left) * len(right)
        pairs = special if many > _LARGE else [(a, b) for a in left for b in right]
        found = [self._pair(a, b) for a, b in pairs]
        if many > _LARGE:  # the slowest of all others, as a tail that grows with the logarithm
            own = USUAL * (1 + self.noise * math.log(many) / 2)
            found.append(Seconds(own, own * (1 + self.noise)))
        return Seconds(max(s.best for s in found), max(s.typical for s in found))

    def _pair(self, a: int, b: int) -> Seconds:
        factor = max(
            self.slow_nodes.get(a, 1), self.slow_nodes.get(b, 1), self.slow_pairs.get((min(a, b), max(a, b)), 1)
        )  # fmt: skip
        repeats = [
            USUAL * factor * (1 + self.random.expovariate(1) * self.noise)
            * (10 if self.random.random() < self.hiccup else 1)
            for _ in range(REPEATS)
        ]  # fmt: skip
        return Seconds(min(repeats), median(repeats))


def most_rounds(nodes: int, culprits: int = 1) -> int:
    """What a search takes at most, with fewer than D culprits and noise below the threshold."""
    levels = straggler_search.halvings(nodes)
    first = straggler_search.meetings(nodes) + nodes % 2
    return (
        first
        + straggler_search._CONFIRM
        + levels
        + 2 * culprits * max(0, levels - 1)
        + straggler_search._CONFIRM * culprits
    )


def found(outcome: Outcome) -> set[tuple[Kind, tuple[str, ...]]]:
    return {(c.kind, c.names) for c in outcome.culprits}


@given(st.data())
def test_one_culprit_is_named_in_logarithmic_rounds(data: st.DataObject) -> None:
    nodes = data.draw(st.one_of(st.integers(3, 40), st.integers(3, 1024)))
    factor, seed = data.draw(st.floats(4, 100)), data.draw(st.integers(0, 10**6))
    a, b = sorted(
        data.draw(st.lists(st.integers(0, nodes - 1), min_size=2, max_size=2, unique=True))
    )
    one = data.draw(st.booleans())
    network = Network(nodes, seed, *(({a: factor}, {}) if one else ({}, {(a, b): factor})))
    outcome = find_links(network.names, network.measure)
    expected = (Kind.LINK, (f"n{a}",)) if one else (Kind.PAIR, (f"n{a}", f"n{b}"))
    assert found(outcome) == {expected} and outcome.answer is Answer.ONE, outcome
    hiccups = 10 if network.hiccup else 1
    assert factor / 1.6 < outcome.culprits[0].times_slower < factor * 1.6 * hiccups
    assert outcome.rounds == network.rounds <= most_rounds(nodes)
    assert network.rounds <= 4 * math.ceil(math.log2(nodes)) + 5 <= 7 * math.log2(nodes) + 5
    if nodes >= 8:
        assert network.rounds <= 6 * math.log2(nodes)


@given(st.data())
def test_several_culprits_are_all_named(data: st.DataObject) -> None:
    """As many as are promised, fewer than partners that each node meets."""
    nodes = data.draw(st.one_of(st.integers(6, 40), st.integers(6, 1024)))
    count = data.draw(st.integers(2, straggler_search.meetings(nodes) - 1))
    order = data.draw(st.permutations(range(nodes)) if nodes <= 40 else st.lists(
        st.integers(0, nodes - 1), min_size=2 * count, max_size=2 * count, unique=True))  # fmt: skip
    slow_nodes = dict.fromkeys(order[: min(data.draw(st.integers(0, count)), nodes // 4)], 8.0)
    rest = list(combinations(sorted(set(order[:12]) - set(slow_nodes)), 2))
    chosen = data.draw(st.permutations(rest))[: count - len(slow_nodes)] if rest else []
    network = Network(
        nodes, data.draw(st.integers(0, 10**6)), slow_nodes, dict.fromkeys(chosen, 8.0)
    )
    outcome = find_links(network.names, network.measure)
    expected = {(Kind.LINK, (f"n{n}",)) for n in slow_nodes}
    expected |= {(Kind.PAIR, (f"n{a}", f"n{b}")) for a, b in chosen}
    assert found(outcome) == expected, outcome
    assert network.rounds <= most_rounds(nodes, len(expected))


@given(nodes=st.one_of(st.integers(3, 40), st.integers(3, 1024)), seed=st.integers(0, 10**6))
def test_no_rank_is_named_where_nothing_is_slow(nodes: int, seed: int) -> None:
    outcome = find_links((network := Network(nodes, seed, noise=0.1)).names, network.measure)
    assert outcome.answer is Answer.NONE and outcome.culprits == ()
    assert network.rounds <= most_rounds(nodes)


@given(nodes=st.integers(3, 64), seed=st.integers(0, 10**6), noise=st.floats(0.3, 3))
def test_heavy_noise_may_hide_but_names_no_one(nodes: int, seed: int, noise: float) -> None:
    network = Network(nodes, seed, noise=noise, hiccup=0.2)
    outcome = find_links(network.names, network.measure, threshold=4)
    assert outcome.culprits == ()


@pytest.mark.parametrize("nodes", [1, 2])
def test_too_few_nodes_cannot_be_judged(nodes: int) -> None:
    network = Network(nodes, 0)
    outcome = find_links(network.names, network.measure)
    assert outcome.answer is Answer.UNKNOWN and "nothing to compare it with" in outcome.reason
    assert network.rounds == 0


@given(st.integers(2, 300))
def test_pairings_are_disjoint_and_never_repeat(nodes: int) -> None:
    rounds = nodes - 1 + nodes % 2 if nodes < 30 else 12
    seen = set()
    for row in straggler_search.pairings(nodes, rounds):
        assert len({n for pair in row for n in pair}) == 2 * len(row) >= nodes - 1
        seen |= {frozenset(pair) for pair in row}
    assert len(seen) == rounds * (nodes // 2)


@given(st.integers(1, 150))
def test_covering_has_every_pair_once_in_logarithmic_rounds(nodes: int) -> None:
    rounds = straggler_search.covering(range(nodes))
    pairs = [frozenset((a, b)) for row in rounds for g in row for a in g.left for b in g.right]
    assert len(pairs) == len(set(pairs)) == nodes * (nodes - 1) // 2
    assert len(rounds) == straggler_search.halvings(nodes) == math.ceil(math.log2(nodes))
    # Nobody sends more than one message a pair, but for uneven halves.
    steps = sum(max(max(len(g.left), len(g.right)) for g in row) for row in rounds)
    assert steps <= nodes - 1 + len(rounds)


def test_unsteady_link_is_said_to_be_unsteady() -> None:
    """Slow in three of five repeats: the median is slow, the quickest is not."""
    network = Network(8, 1)

    def measure(groups: Sequence[Across]) -> list[Seconds]:
        plain = network.measure(groups)
        return [Seconds(s.best, s.typical * 9) if 3 in (*g.left, *g.right) else s for g, s in zip(groups, plain, strict=True)]  # fmt: skip

    outcome = find_links(network.names, measure)
    assert outcome.answer is Answer.UNKNOWN and outcome.culprits == ()
    assert len(outcome.unsure) == 1 and outcome.unsure[0].startswith("the link of n3 is unsteady")


def test_slow_everywhere_is_not_followed() -> None:
    pairs = {(a, b): 9.0 for a, b in combinations(range(64), 2) if (a * 7 + b * 3) % 5 == 0}
    network = Network(64, 2, slow_pairs=pairs)
    outcome = find_links(network.names, network.measure)
    assert outcome.answer is Answer.UNKNOWN and "too many to follow" in outcome.reason
    assert network.rounds < 60


@given(nodes=st.integers(0, 70), seed=st.integers(0, 10**6), spread=st.floats(0, 6))
def test_any_times_at_all_come_to_an_end(nodes: int, seed: int, spread: float) -> None:
    network, chance = Network(nodes, seed), random.Random(seed)

    def measure(groups: Sequence[Across]) -> list[Seconds]:
        network.measure(groups)
        found = [sorted(chance.lognormvariate(0, spread) for _ in "12") for _ in groups]
        return [Seconds(*each) for each in found]

    outcome = find_links(network.names, measure)
    assert (
        outcome.rounds <= most_rounds(nodes, straggler_search.meetings(nodes)) if nodes > 2 else 1
    )
    assert bool(outcome.culprits) == (outcome.answer in (Answer.ONE, Answer.SEVERAL))


def test_time_that_is_up_ends_the_search_with_what_was_found() -> None:
    slow = Network(64, 3, {5: 9.0}, ends_after=9)
    outcome = find_links(slow.names, slow.measure)
    assert (
        found(outcome) == {(Kind.LINK, ("n5",))} and "time was up after 9 rounds" in outcome.reason
    )
    none = Network(64, 3, ends_after=2)
    outcome = find_links(none.names, none.measure)
    assert outcome.answer is Answer.UNKNOWN and outcome.usual_s is None


def test_outcome_comes_back_from_its_json() -> None:
    network = Network(16, 4, {5: 9.0}, {(1, 2): 7.0})
    outcome = find_links(network.names, network.measure)
    assert outcome.answer is Answer.SEVERAL
    assert from_json(Outcome, json.loads(json.dumps(to_json(outcome)))) == outcome
    link, pair = outcome.culprits
    assert "n5" in link.evidence and "usual" in link.evidence and "n5" in link.remedy
    assert "n1 with n2" in pair.evidence and link.ranks == (5,) and pair.ranks == (1, 2)
