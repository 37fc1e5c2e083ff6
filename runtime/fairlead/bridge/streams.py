"""Partitions sent to ranks and rows fetched from them, wherever they are: in this process, an executor, a worker of Dask.

Like :mod:`fairlead.bridge.wire` this module travels by value: it imports nothing of fairlead but that and
:mod:`fairlead.bridge.arrow`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from fairlead.bridge.arrow import WINDOW_BYTES, Form, Piece, Rows, array_of, pieces
from fairlead.bridge.wire import END, Endpoint, Secret, WireError, dial

# Another attempt may not meet these.
PASSING = frozenset(
    {"bridge-lost", "bridge-unreachable", "bridge-checksum", "bridge-refused", "bridge-silent"}
)
ATTEMPTS = 3

# Dense rows, or indptr, indices and values; and the values of the index column.
Chunk = tuple[Any, Any]


@dataclass(frozen=True)
class Sent:
    """A partition that a rank has.

    Attributes:
        place: of the rank among those of the matrix.
        serialise_s, send_s, receive_s: seconds making rows of the data, sending them, and until the rank had them.
        cols: of its rows; 0 without any.
    """

    partition: int
    attempt: int
    rows: int
    place: int
    bytes: int
    serialise_s: float = 0.0
    send_s: float = 0.0
    receive_s: float = 0.0
    cols: int = 0


@dataclass(frozen=True)
class Sending:
    """Where the rows of a matrix go.

    Attributes:
        endpoints: of the ranks that will hold it, in the order of its rows.
        limit_s: how long a rank waits for rows of one stream.
    """

    matrix: str
    form: Form
    endpoints: tuple[Endpoint, ...]
    secret: Secret
    index: Any = None
    limit_s: float = 600.0

    def place(self, partition: int, partitions: int) -> int:
        """The rank of a partition: ranks are in the order of the partitions, whatever the estimate of their number."""
        ranks = len(self.endpoints)
        return min(partition * ranks // max(partitions, 1), ranks - 1)

    def send(self, partition: int, partitions: int, attempt: int, chunks: Iterable[Chunk],
             show: Callable[[int, int], None] = lambda rows, size: None) -> Sent:  # fmt: skip
        """Sends a partition.

        Args:
            show: called with the rows and bytes of each chunk that is sent.
        Raises:
            WireError: as the protocol raises it, or ``chunks``.
        """
        place, shares = (
            self.place(partition, partitions),
            self.index is None and not self.form.sparse,
        )
        connection = dial(
            self.endpoints[place], self.secret, role="send", matrix=self.matrix, form=asdict(self.form),
            partition=partition, attempt=attempt, limit_s=self.limit_s, shares=shares,
        )  # fmt: skip
        begun, sending = time.perf_counter(), 0.0
        try:
            ring = connection.shared() if shares and connection.is_local else None
            rows = Rows(connection, self.form, self.index, ring)
            for data, index in chunks:
                before, size, number = time.perf_counter(), rows.bytes, rows.rows
                if self.form.sparse:
                    indptr, indices, values = data
                    rows.sparse(indptr, indices, values, index)
                else:
                    rows.dense(data, index)
                sending += time.perf_counter() - before
                show(rows.rows - number, rows.bytes - size)
            before = time.perf_counter()
            answer = rows.end()
            sending += time.perf_counter() - before
        finally:
            connection.close()
        serialise = time.perf_counter() - begun - sending
        return Sent(
            partition, attempt, rows.rows, place, rows.bytes, serialise, sending, answer["seconds"],
            self.form.cols if rows.rows else 0,
        )  # fmt: skip

    def send_again(self, partition: int, partitions: int, chunks: Callable[[], Iterable[Chunk]],
                   show: Callable[[int, int], None] = lambda rows, size: None) -> Sent:  # fmt: skip
        """Sends a partition; once more where a connection was lost.

        Args:
            chunks: makes them, for each attempt.
        """
        for attempt in range(ATTEMPTS):
            done = [0, 0]

            def count(rows: int, size: int, done: list[int] = done) -> None:
                done[:] = [done[0] + rows, done[1] + size]
                show(rows, size)

            try:
                return self.send(partition, partitions, attempt, chunks(), count)
            except WireError as exc:
                if exc.check not in PASSING or attempt == ATTEMPTS - 1:
                    raise
                show(-done[0], -done[1])
                time.sleep(0.2 * 4**attempt)
        raise AssertionError("unreachable")


@dataclass(frozen=True)
class Fetching:
    """Where the rows of a matrix are.

    Attributes:
        counts: rows of each rank.
        by: who fetches, where only the ranks see how long it takes.
    """

    matrix: str
    form: Form
    endpoints: tuple[Endpoint, ...]
    counts: tuple[int, ...]
    secret: Secret
    by: str = ""

    def rows(self, place: int, low: int = 0, high: int | None = None) -> Iterator[Piece]:
        """Rows of one rank, as they come.

        Args:
            low, high: of its own rows; all by default.
        """
        high = self.counts[place] if high is None else high
        connection = dial(
            self.endpoints[place], self.secret, role="fetch", matrix=self.matrix, low=low, high=high,
            by=self.by,
        )  # fmt: skip
        try:
            connection.grant(WINDOW_BYTES)
            yield from pieces(connection, self.form, 60.0)
            connection.say(END)  # the rank waits for it
        finally:
            connection.close()

    def dense(self, place: int, low: int = 0, high: int | None = None) -> np.ndarray:
        """Rows of one rank: (rows, columns)."""
        high = self.counts[place] if high is None else high
        out = np.empty((high - low, self.form.cols), self.form.dtype)
        done = 0
        for piece in self.rows(place, low, high):
            out[done : done + piece.rows] = densified(piece, self.form)
            done += piece.rows
        return out

    def batches(self, place: int) -> Iterator[pa.RecordBatch]:
        """Rows of one rank as Arrow batches with a column ``row`` of lists, and ``index`` where there is one."""
        for piece in self.rows(place):
            flat = array_of(densified(piece, self.form).reshape(-1))
            offsets = array_of(np.arange(piece.rows + 1, dtype=np.int32) * self.form.cols)
            columns = {"row": pa.ListArray.from_arrays(offsets, flat)}
            if piece.index is not None:
                columns = {"index": piece.index, **columns}
            yield pa.RecordBatch.from_pydict(columns)


def densified(piece: Piece, form: Form) -> np.ndarray:
    """The rows of a piece: (rows, columns)."""
    if piece.dense is not None:
        return piece.dense
    assert piece.csr is not None
    indptr, indices, values = piece.csr
    out = np.zeros((piece.rows, form.cols), form.dtype)
    out[np.repeat(np.arange(piece.rows), np.diff(indptr)), indices] = values
    return out
