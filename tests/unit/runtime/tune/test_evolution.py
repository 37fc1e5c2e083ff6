"""Genetic search: offspring fit their space and come closer to the best."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.tune.evolution import Evolution, Member, mutated, offspring
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
            offspring(SPACE, members, number, seed * 1000 + number, Evolution()) if genetic else {}
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
    assert offspring(SPACE, failed, 8, 1, how) == {}
    parents = [Member(i, _drawn(random.Random(i)), float(i)) for i in range(8)]
    for seed in range(50):
        child = offspring(SPACE, parents, 8, seed, how)
        assert child.keys() == SPACE.parameters.keys()
        assert child not in [member.chosen for member in parents]
