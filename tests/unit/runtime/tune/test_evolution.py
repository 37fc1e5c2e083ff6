"""Genetic search: offspring fit their space and come closer to the best."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.tune.evolution import (
    Evolution,
    Member,
    mutated,
    offspring,
    possible_parents,
    successor,
)
from fairlead.tune.space import Parameter, Space

SPACE = Space(
    parameters={
        "x": Parameter(low=-4.0, high=4.0),
        "rate": Parameter(low=1e-5, high=1.0, log=True),
        "n": Parameter(low=1, high=9, step=2),
        "kind": Parameter(choices=["a", "b", "c"]),
    }
)


def _drawn(draw: random.Random) -> dict[str, object]:
    return {
        "x": draw.uniform(-4, 4), "rate": 10 ** draw.uniform(-5, 0), "n": draw.randrange(1, 10, 2),
        "kind": draw.choice("abc"),
    }  # fmt: skip


def _cost(chosen: dict[str, object]) -> float:
    return (
        (chosen["x"] - 1) ** 2 + (math.log10(chosen["rate"]) + 3) ** 2 + abs(chosen["n"] - 5) / 2
        + (chosen["kind"] != "b")
    )  # fmt: skip


def _best(seed: int, genetic: bool, trials: int = 120) -> float:
    members: list[Member] = []
    for number in range(trials):
        child = (
            offspring(SPACE, members, number, seed * 1000 + number, Evolution())[0]
            if genetic
            else {}
        )
        chosen = {**_drawn(random.Random(seed * 1000 + number)), **child}
        members.append(Member(number, chosen, _cost(chosen)))
    return min(member.cost for member in members)


def test_generations_come_closer_to_the_best_than_chance() -> None:
    pairs = [(_best(seed, genetic=True), _best(seed, genetic=False)) for seed in range(12)]
    assert sum(one < other for one, other in pairs) >= 10
    assert sorted(one for one, _ in pairs)[6] < sorted(other for _, other in pairs)[6] / 2


@given(st.integers(0, 2**31), st.sampled_from(sorted(SPACE.parameters)))
def test_mutation_stays_within_the_parameter(seed: int, name: str) -> None:
    draw, parameter = random.Random(seed), SPACE.parameters[name]
    value = mutated(parameter, _drawn(draw)[name], draw)
    if parameter.choices:
        assert value in parameter.choices
    else:
        assert parameter.low <= value <= parameter.high
    assert name != "n" or (isinstance(value, int) and value % 2 == 1)


@pytest.mark.parametrize("demes", [1, 2])
def test_offspring_of_failures_are_new_and_those_of_parents_are_theirs(demes: int) -> None:
    how = Evolution(population=4, demes=demes)
    failed = [Member(i, _drawn(random.Random(i)), math.inf) for i in range(8)]
    assert offspring(SPACE, failed, 8, 1, how) == ({}, None)
    parents = [Member(i, _drawn(random.Random(i)), float(i)) for i in range(8)]
    for seed in range(50):
        child, parent = offspring(SPACE, parents, 8, seed, how)
        assert parent in possible_parents(parents, how)
        assert child.keys() == SPACE.parameters.keys()
        assert child not in [member.chosen for member in parents]


def test_possible_parents_are_the_best_of_each_deme_and_of_all() -> None:
    costs = [5.0, 1.0, 6.0, 2.0, 7.0, 3.0, math.inf, 4.0]
    members = [Member(i, {}, cost) for i, cost in enumerate(costs)]
    assert possible_parents(members, Evolution(population=4, demes=2)) == {0, 2, 1, 3}
    assert possible_parents(members, Evolution(population=3)) == {1, 3, 5}


def test_member_that_failed_takes_the_place_of_one_of_the_best() -> None:
    draws = [_drawn(random.Random(i)) for i in range(8)]
    costs = [1.0, 2.0, 3.0, math.inf, math.inf, math.inf, math.inf, math.inf]
    before = [
        Member(i, chosen, cost) for i, (chosen, cost) in enumerate(zip(draws, costs, strict=True))
    ]
    how = Evolution(population=8, fixed=("kind", "n"))
    for seed in range(20):
        for member in (3, 5, 7):
            chosen, source = successor(SPACE, before, member, seed, how)
            assert source in (0, 1)
            assert (chosen["kind"], chosen["n"]) == (draws[source]["kind"], draws[source]["n"])
            assert chosen["x"] != draws[source]["x"]
        assert successor(SPACE, before, 2, seed, how) == (draws[2], 2)
    failed = [Member(i, chosen, math.inf) for i, chosen in enumerate(draws)]
    assert successor(SPACE, failed, 1, 1, how) == (draws[1], None)
