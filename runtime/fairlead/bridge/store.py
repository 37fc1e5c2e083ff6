"""The matrices of one rank: streams that arrive, and blocks of rows that functions work on."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairlead.base.errors import fail
from fairlead.bridge.arrow import Form, Piece


@dataclass
class Held:
    """This rank's rows of a matrix.

    Attributes:
        local: (rows, columns) NumPy array, or CSR.
        index: their values of the index column, as an Arrow array; None without one.
    """

    local: Any
    index: Any = None

    @property
    def bytes(self) -> int:
        parts = (
            (self.local.data, self.local.indices, self.local.indptr)
            if _is_sparse(self.local)
            else (self.local,)
        )
        index = self.index.nbytes if self.index is not None else 0
        return int(sum(part.nbytes for part in parts) + index)


def _is_sparse(local: Any) -> bool:
    return hasattr(local, "indptr")


@dataclass
class Arriving:
    """One attempt at sending a partition."""

    pieces: list[Piece] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    whole: bool = False


class Budget:
    """Bytes that matrices may take on this rank; shared by all threads."""

    def __init__(self, most: int, who: str):
        self.most, self._who = most, who
        self.used = 0
        self.peak = 0
        self._lock = threading.Lock()

    def take(self, number: int) -> None:
        """
        Raises:
            FairleadError: they do not fit.
        """
        with self._lock:
            if self.used + number > self.most:
                raise fail(
                    "bridge-memory", who=self._who, needs=number, used=self.used, most=self.most
                )
            self.used += number
            self.peak = max(self.peak, self.used)

    def room(self, number: int) -> None:
        """Refuses what would not fit, before it is made.

        Raises:
            FairleadError: it would not.
        """
        self.take(number)
        self.give(number)

    def give(self, number: int) -> None:
        with self._lock:
            self.used -= number


class Store:
    """What a rank holds, by the number of the matrix."""

    def __init__(self, budget: Budget):
        self.budget = budget
        self._lock = threading.Lock()
        self._arriving: dict[str, dict[tuple[int, int], Arriving]] = {}
        self._held: dict[str, Held] = {}
        self._done: set[str] = (
            set()
        )  # sealed or freed: what still arrives belongs to an attempt that does not count

    def receive(
        self, matrix: str, partition: int, attempt: int, pieces: Iterable[Piece]
    ) -> Arriving:
        """Keeps a stream until the matrix is sealed.

        Raises:
            FairleadError: over the budget.
            WireError: it is cut off.
        """
        arriving = Arriving()
        with self._lock:
            if matrix in self._done:
                raise fail("bridge-is-sealed", matrix=matrix)
            self._discard(self._arriving.setdefault(matrix, {}).pop((partition, attempt), None))
            self._arriving[matrix][partition, attempt] = arriving
        try:
            for piece in pieces:
                with self._lock:
                    if self._arriving.get(matrix, {}).get((partition, attempt)) is not arriving:
                        raise fail("bridge-is-sealed", matrix=matrix)
                self.budget.take(piece.bytes)
                arriving.pieces.append(piece)
                arriving.rows += piece.rows
                arriving.bytes += piece.bytes
            with self._lock:  # its last piece may have come while the matrix was sealed without it
                if self._arriving.get(matrix, {}).get((partition, attempt)) is not arriving:
                    raise fail("bridge-is-sealed", matrix=matrix)
                arriving.whole = True
        except BaseException:
            with self._lock:
                if self._arriving.get(matrix, {}).get((partition, attempt)) is arriving:
                    del self._arriving[matrix][partition, attempt]
                self._discard(arriving)
            raise
        return arriving

    def arriving(self) -> dict[str, tuple[int, int]]:
        """Rows and bytes that have come of matrices that are not sealed yet, all attempts together."""
        with self._lock:
            return {
                matrix: (
                    sum(a.rows for a in attempts.values()),
                    sum(a.bytes for a in attempts.values()),
                )
                for matrix, attempts in self._arriving.items()
            }

    def _discard(self, arriving: Arriving | None) -> None:
        if arriving:
            self.budget.give(sum(piece.bytes for piece in arriving.pieces))
            arriving.pieces.clear()

    def seal(self, matrix: str, form: Form, wanted: list[tuple[int, int, int]]) -> Held:
        """Makes the block of a matrix of the attempts that count, and drops the others.

        Args:
            wanted: partition, attempt and rows, in the order of the partitions.
        Raises:
            FairleadError: one of them is not here as it should be.
        """
        with self._lock:
            arriving = self._arriving.pop(matrix, {})
            self._done.add(matrix)
        chosen = []
        for partition, attempt, rows in wanted:
            attempt_data = arriving.pop((partition, attempt), None)
            if attempt_data is None or not attempt_data.whole or attempt_data.rows != rows:
                came = attempt_data.rows if attempt_data else 0
                raise fail(
                    "bridge-partition", partition=partition, attempt=attempt, rows=rows, came=came
                )
            chosen.append(attempt_data)
        for other in arriving.values():
            self._discard(other)
        pieces = [piece for attempt_data in chosen for piece in attempt_data.pieces]
        for attempt_data in chosen:
            attempt_data.pieces.clear()
        taken = sum(piece.bytes for piece in pieces)
        index = _joined_index(pieces)
        local = self._sparse(pieces, form) if form.sparse else self._dense(pieces, form)
        held = Held(local, index)
        self.budget.give(taken)
        self.put(matrix, held)
        return held

    def _dense(self, pieces: list[Piece], form: Form) -> Any:
        pieces[:] = [p for p in pieces if (p.region.rows if p.region else p.dense is not None)]
        if len(pieces) == 1:
            return pieces[0].region.array() if pieces[0].region else pieces[0].dense
        # Its pages come as they are written, and those of the pieces go: never two of the whole.
        total = sum(piece.region.rows if piece.region else piece.rows for piece in pieces)
        rows = np.empty((total, form.cols), form.dtype)
        done = 0
        pieces.reverse()
        while pieces:
            piece = pieces.pop()
            if piece.region:
                piece.region.move_into(rows[done : done + piece.region.rows])
                done += piece.region.rows
            else:
                rows[done : done + piece.rows] = piece.dense
                done += piece.rows
            del piece
        return rows

    def _sparse(self, pieces: list[Piece], form: Form) -> Any:
        from scipy.sparse import csr_array

        parts = [piece.csr for piece in pieces if piece.csr is not None]
        stored = sum(len(values) for _, _, values in parts)
        kind = np.int32 if max(stored, form.cols) < 2**31 else np.int64
        starts = np.cumsum([0, *(len(values) for _, _, values in parts)])
        indptr = np.concatenate(
            [np.zeros(1, kind), *(p[0][1:] + s for p, s in zip(parts, starts, strict=False))]
        )
        indices = np.concatenate([np.zeros(0, kind), *(part[1] for part in parts)])
        values = np.concatenate([np.zeros(0, form.dtype), *(part[2] for part in parts)])
        made = csr_array(
            (values, indices.astype(kind), indptr.astype(kind)),
            shape=(len(indptr) - 1, form.cols),
        )
        made.sum_duplicates()
        return made

    def put(self, matrix: str, held: Held) -> None:
        """Keeps a block.

        Raises:
            FairleadError: over the budget.
        """
        self.budget.take(held.bytes)
        with self._lock:
            self._held[matrix] = held

    def get(self, matrix: str) -> Held:
        return self._held[matrix]

    def free(self, matrix: str) -> int:
        """Drops a matrix, sealed or not; how many bytes that gives back."""
        before = self.budget.used
        with self._lock:
            self._done.add(matrix)
            held = self._held.pop(matrix, None)
            for attempt_data in self._arriving.pop(matrix, {}).values():
                self._discard(attempt_data)
        if held:
            self.budget.give(held.bytes)
        return before - self.budget.used


def _joined_index(pieces: list[Piece]) -> Any:
    arrays = [piece.index for piece in pieces if piece.index is not None]
    if not arrays:
        return None
    import pyarrow as pa

    return pa.concat_arrays(arrays)
