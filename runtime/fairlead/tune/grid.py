"""All points of a space: every way through its choices, conditional ones too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairlead.base.errors import fail
from fairlead.tune.space import Scalar, Space

_MOST = 100_000


class _Way:
    """Chooses by a list of indices, and notes how many choices there were at each place."""

    def __init__(self, indices: Sequence[int], space: Space):
        self._indices, self._space = indices, space
        self.counts: list[int] = []
        self.chosen: dict[str, Any] = {}

    def _choose(self, name: str, values: Sequence[Scalar] | None) -> Any:
        if values is None:
            raise fail("tune-grid-continuous", name=name.partition("[")[0])
        at = len(self.counts)
        self.counts.append(len(values))
        self.chosen[name] = values[self._indices[at] if at < len(self._indices) else 0]
        return self.chosen[name]

    def _of(self, name: str) -> Any:
        return self._choose(name, self._space.parameters[name.partition("[")[0]].values())

    def suggest_float(self, name: str, low: float, high: float, **how: Any) -> float:
        return float(self._of(name))

    def suggest_int(self, name: str, low: int, high: int, **how: Any) -> int:
        return int(self._of(name))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return self._of(name)


def points(space: Space) -> list[dict[str, Any]]:
    """The parameters of every point, in order; the last parameter changes first.

    Raises:
        FairleadError: a parameter is continuous, or there are too many points.
    """
    combinations: list[dict[str, Any]] = []
    indices: list[int] = []
    while True:
        way = _Way(indices, space)
        space.ask(way)
        combinations.append(way.chosen)
        if len(combinations) > _MOST:
            raise fail("tune-grid-large", most=_MOST)
        indices = [*indices, *[0] * (len(way.counts) - len(indices))][: len(way.counts)]
        while indices and indices[-1] + 1 == way.counts[len(indices) - 1]:
            indices.pop()
        if not indices:
            return combinations
        indices[-1] += 1
