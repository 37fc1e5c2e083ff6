"""Searches in generations: a genetic one, and population-based training, whose members go on from checkpoints.

Both are pure functions of the trials so far and of a trial's seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.tune.space import Parameter, Space


@dataclass(frozen=True)
class Member:
    """A trial as an ancestor.

    Attributes:
        chosen: its parameters, elements of lists apart.
        cost: the smaller, the better; infinite for one that failed.
    """

    number: int
    chosen: dict[str, Any]
    cost: float


@dataclass(frozen=True)
class Evolution:
    """How a population changes.

    Attributes:
        population: members of a generation.
        demes: groups that a generation is divided into; parents come from all of them one time in ten.
        mutation, crossover: how likely a parameter changes, and comes from a second parent.
        quantile: share of a generation that gives way to the best, in population-based training.
        inherit: a child goes on from its first parent's checkpoint, in a genetic search.
        fixed: parameters that a member keeps for life, in population-based training.
        generations: how many a whole training has, in that of a bundled model; 0 for any.
    """

    population: int = 10
    demes: int = 1
    mutation: float = 0.1
    crossover: float = 0.5
    quantile: float = 0.25
    inherit: bool = False
    fixed: tuple[str, ...] = ()
    generations: int = 0


def offspring(
    space: Space, members: Sequence[Member], number: int, seed: int, how: Evolution
) -> tuple[dict[str, Any], int | None]:
    """Parameters of the trial of that number, and its first parent; parameters that are left out are chosen at random.

    Args:
        members: trials that have ended.
    """
    draw, deme = random.Random(seed), number % how.demes
    whole = [m for m in members if math.isfinite(m.cost)]
    pool = _pool(whole, None if draw.random() < 0.1 else deme, how)
    if number < how.population or not pool:
        return {}, None
    left, two = (min(draw.choices(range(len(pool)), k=2)) for _ in range(2))  # tournaments of two
    first, second = pool[left].chosen, pool[two].chosen
    child = {
        n: second[n] if n in second and draw.random() < how.crossover else v
        for n, v in first.items()
    }
    rate = max(how.mutation, 1 / (4 * max(len(child), 1)))
    for name in child:
        if draw.random() < rate:
            child[name] = mutated(space.parameters[name.partition("[")[0]], child[name], draw)
    for _ in range(20):  # what is known needs no trial
        if not child or not any(child == member.chosen for member in whole):
            break
        name = draw.choice(sorted(child))
        child[name] = mutated(space.parameters[name.partition("[")[0]], child[name], draw)
    return child, pool[left].number


def _pool(whole: Sequence[Member], deme: int | None, how: Evolution) -> list[Member]:
    """The possible parents of a deme's children, the best first.

    Args:
        whole: members without failures.
        deme: None for parents from all demes.
    """
    own = whole if deme is None else [m for m in whole if m.number % how.demes == deme] or whole
    best = sorted(own, key=lambda m: (m.cost, m.number))
    return best[: max(how.population // how.demes, 2)]


def possible_parents(members: Sequence[Member], how: Evolution) -> set[int]:
    """The numbers of all that the next child may go on from."""
    whole = [m for m in members if math.isfinite(m.cost)]
    return {m.number for deme in (None, *range(how.demes)) for m in _pool(whole, deme, how)}


def mutated(parameter: Parameter, value: Any, draw: random.Random) -> Any:
    """Another value near by; of choices, any other."""
    if parameter.kind == "choice":
        others = [c for c in parameter.choices or [] if c != value]
        return draw.choice(others) if others else value
    low, high = float(parameter.low or 0), float(parameter.high or 0)
    if parameter.log:
        place = math.exp(math.log(value) + draw.gauss(0, 0.2 * math.log(high / low)))
    else:
        place = value + draw.gauss(0, 0.2 * (high - low))
    return _fitting(parameter, place)


def _fitting(parameter: Parameter, place: float) -> Any:
    """The nearest value that the parameter can have."""
    low, high = float(parameter.low or 0), float(parameter.high or 0)
    place = min(max(place, low), high)
    step = float(parameter.step or (1 if parameter.kind == "int" and not parameter.log else 0))
    if step:
        place = low + step * min(
            round((place - low) / step), math.floor((high - low) / step + 1e-9)
        )
    return round(place) if parameter.kind == "int" else place


def successor(
    space: Space, before: Sequence[Member], member: int, seed: int, how: Evolution
) -> tuple[dict[str, Any], int | None]:
    """Parameters of a member of the next generation, and the number of the trial whose checkpoint it goes on from.

    A member among the worst takes the place of one of the best and changes its parameters by a fifth (exploit, explore);
    the others go on as they are. A member that has failed counts as one of the worst; where all have, it begins again.

    Args:
        before: the whole generation before, in the order of members.
        member: place in the generation.
    """
    draw = random.Random(seed)
    ordered = sorted(before, key=lambda m: (m.cost, m.number))
    share = max(int(len(ordered) * how.quantile), 1)
    own, best = before[member], [m for m in ordered[:share] if math.isfinite(m.cost)]
    if not best:
        return dict(own.chosen), None
    if math.isfinite(own.cost) and (own not in ordered[-share:] or own in best):
        return dict(own.chosen), own.number
    source, child = draw.choice(best), {}
    for element, value in source.chosen.items():
        name = element.partition("[")[0]
        same = name in how.fixed
        child[element] = value if same else _explored(space.parameters[name], value, draw)
    return child, source.number


def _explored(parameter: Parameter, value: Any, draw: random.Random) -> Any:
    if parameter.kind == "choice":
        return mutated(parameter, value, draw) if draw.random() < 0.1 else value
    return _fitting(parameter, float(value) * draw.choice((0.8, 1.25)))
