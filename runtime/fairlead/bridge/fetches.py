"""How long fetching took where no client sees it: Spark's executors and Dask's workers fetch when rows are asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fairlead.bridge.timings import Operation


@dataclass(frozen=True)
class Fetched:
    """Rows that went to a worker.

    Attributes:
        by: ``Spark`` or ``Dask``.
        seconds: from its request to its end.
    """

    matrix: str
    by: str
    rank: int
    bytes: int
    seconds: float


@dataclass
class Fetches:
    """Joins the streams of a matrix, one for each rank, to one operation.

    Args:
        now: seconds, monotonic.
    """

    now: Callable[[], float] = time.monotonic
    _open: dict[tuple[str, str], dict[int, tuple[Fetched, float]]] = field(default_factory=dict)

    def add(self, fetched: Fetched, ranks: set[int]) -> Iterator[Operation]:
        """Takes a stream; the operations that are over by that.

        Args:
            ranks: that have rows of the matrix.
        """
        key = (fetched.matrix, fetched.by)
        if fetched.rank in self._open.get(key, {}):  # it is fetched once more
            yield self._joined(key)
        streams = self._open.setdefault(key, {})
        streams[fetched.rank] = (fetched, self.now())
        if ranks <= set(streams):
            yield self._joined(key)

    def rest(self, matrices: set[str]) -> Iterator[Operation]:
        """Operations of these matrices of which only some ranks' rows were asked for."""
        for key in [key for key in self._open if key[0] in matrices]:
            yield self._joined(key)

    def _joined(self, key: tuple[str, str]) -> Operation:
        streams = self._open.pop(key).values()
        seconds = [stream.seconds for stream, _ in streams]
        wall = max(end for _, end in streams) - min(end - stream.seconds for stream, end in streams)
        slowest = max((stream for stream, _ in streams), key=lambda stream: stream.seconds)
        return Operation(
            "fetch", key[1], "", (key[0],), bytes=sum(stream.bytes for stream, _ in streams),
            phases={"fetch": (sum(seconds) / len(seconds), max(seconds))}, wall_s=wall, rank=slowest.rank,
        )  # fmt: skip
