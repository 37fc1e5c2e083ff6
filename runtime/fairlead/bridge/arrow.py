"""Tables as rows of a matrix, and back: what is in the Arrow messages between the sides.

A dense matrix travels as a column ``row`` of fixed-size lists, a sparse one as two columns of lists, ``columns`` and
``values``, which together are CSR. A column ``index`` may go with either, of any Arrow type.

Like :mod:`fairlead.bridge.wire` this module travels by value: it imports nothing of fairlead but that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from fairlead.bridge.wire import BATCH, END, Connection, WireError

DTYPES = ("float32", "float64", "int32", "int64")
PIECE_BYTES = 8 << 20  # of a message: small enough for caches, large enough for its overhead
WINDOW_BYTES = 64 << 20  # that a sender may be ahead
_FEW_ROWS = 256


@dataclass(frozen=True)
class Form:
    """What the rows of a matrix are.

    Attributes:
        cols: how many columns.
        dtype: of :data:`DTYPES`.
        sparse: as CSR.
        allow_nan: whether NaN may be in it.
    """

    cols: int
    dtype: str
    sparse: bool = False
    allow_nan: bool = False

    @property
    def row_bytes(self) -> int:
        return self.cols * np.dtype(self.dtype).itemsize

    def schema(self, index: pa.DataType | None = None) -> pa.Schema:
        kind = pa.from_numpy_dtype(np.dtype(self.dtype))
        if self.sparse:
            fields = [("columns", pa.large_list(pa.int64())), ("values", pa.large_list(kind))]
        else:
            fields = [("row", pa.list_(pa.field("item", kind, nullable=False), self.cols))]
        if index is not None:
            fields.append(("index", index))
        return pa.schema(fields)


def common_dtype(kinds: Sequence[pa.DataType]) -> str:
    """The type of a matrix with columns of these types.

    Raises:
        WireError: one is not numeric.
    """
    dtypes = set()
    for number, kind in enumerate(kinds):
        if not (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        ):
            raise WireError("bridge-column-type", column=number, kind=str(kind))
        dtypes.add(kind)
    if all(pa.types.is_float32(kind) or pa.types.is_float16(kind) for kind in dtypes):
        return "float32"
    if any(pa.types.is_floating(kind) for kind in dtypes):
        return "float64"
    if any(pa.types.is_uint64(kind) for kind in dtypes):
        return "float64"
    narrow = all(kind.bit_width < 32 or pa.types.is_int32(kind) for kind in dtypes)
    return "int32" if narrow else "int64"


def is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def is_vector(kind: pa.DataType) -> bool:
    """Whether it is how Spark's ML vectors look in Arrow."""
    if not pa.types.is_struct(kind):
        return False
    return [kind.field(i).name for i in range(kind.num_fields)] == [
        "type",
        "size",
        "indices",
        "values",
    ]


def dense_rows(batch: pa.RecordBatch, form: Form, begin: int = 0) -> np.ndarray:
    """The numbers of a batch.

    Args:
        batch: one column of lists, or a column of numbers for each column of the matrix.
        begin: number of its first row, for errors.
    Returns:
        (rows, columns), C-contiguous; a view of the batch where it can be one.
    Raises:
        WireError: nulls, NaN, a row of another length, or no numbers.
    """
    dtype, rows = np.dtype(form.dtype), batch.num_rows
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if column.null_count:
            raise WireError("bridge-null", column=name, row=begin + _first_null(column))
    if batch.num_columns == 1 and is_vector(batch.column(0).type):
        values = _vectors(batch.column(0), form, begin)
    elif batch.num_columns == 1 and is_list(batch.column(0).type):
        values = _of_lists(batch.column(0), form, begin)
    else:
        if batch.num_columns != form.cols:
            raise WireError("bridge-ragged", row=begin, length=batch.num_columns, cols=form.cols)
        values = _of_columns([c.to_numpy(zero_copy_only=False) for c in batch.columns], rows, dtype)
    values = np.ascontiguousarray(values.reshape(rows, form.cols), dtype)
    without_nan(values, form, begin)
    return values


def _first_null(column: pa.Array) -> int:
    return int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])


def _of_lists(column: pa.Array, form: Form, begin: int) -> np.ndarray:
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(lengths != form.cols)
    if wrong.size:
        raise WireError(
            "bridge-ragged",
            row=begin + int(wrong[0]),
            length=int(lengths[wrong[0]]),
            cols=form.cols,
        )
    values = column.flatten()
    if values.null_count:
        raise WireError(
            "bridge-null", column="", row=begin + _first_null(values) // max(form.cols, 1)
        )
    common_dtype([values.type])
    numbers: np.ndarray = values.to_numpy(zero_copy_only=False)
    return numbers


def _vectors(column: pa.Array, form: Form, begin: int) -> np.ndarray:
    kinds = column.field("type").to_numpy(zero_copy_only=False)
    if (kinds == 1).all():
        return _of_lists(column.field("values"), form, begin)
    indptr, indices, values = sparse_rows(column, form, begin)
    rows = np.zeros((len(column), form.cols), form.dtype)
    rows[np.repeat(np.arange(len(column)), np.diff(indptr)), indices] = values
    return rows


def sparse_rows(
    column: pa.Array, form: Form, begin: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Spark's ML vectors, sparse or dense, as CSR: indptr, indices and values.

    Args:
        begin: number of the first one, for errors.
    Raises:
        WireError: nulls, NaN, or a vector of another length.
    """
    if column.null_count:
        raise WireError("bridge-null", column="", row=begin + _first_null(column))
    kinds = column.field("type").to_numpy(zero_copy_only=False)
    stored = column.field("values").value_lengths().to_numpy(zero_copy_only=False)
    sizes = stored.copy()  # of dense ones, which have no other
    is_sparse = kinds == 0
    sizes[is_sparse] = column.field("size").filter(pa.array(is_sparse)).to_numpy()
    wrong = np.flatnonzero(sizes != form.cols)
    if wrong.size:
        row = int(wrong[0])
        raise WireError("bridge-ragged", row=begin + row, length=int(sizes[row]), cols=form.cols)
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(stored, dtype=np.int64)])
    values = column.field("values").flatten().to_numpy(zero_copy_only=False)
    indices = np.empty(values.size, np.int64)
    here = np.repeat(is_sparse, stored)
    indices[here] = column.field("indices").flatten().to_numpy(zero_copy_only=False)
    indices[~here] = np.tile(np.arange(form.cols), int((~is_sparse).sum()))
    values = np.ascontiguousarray(values, form.dtype)
    if not form.allow_nan and values.dtype.kind == "f":
        rows = np.flatnonzero(np.isnan(values))
        if rows.size:
            row = int(np.searchsorted(indptr, rows[0], "right")) - 1
            raise WireError("bridge-nan", row=begin + row, column=int(indices[rows[0]]))
    return indptr, indices, values


def _of_columns(columns: list[np.ndarray], rows: int, dtype: np.dtype) -> np.ndarray:
    out = np.empty((rows, len(columns)), dtype)
    # A few rows at a time, so that what is written stays in the cache.
    for low in range(0, rows, _FEW_ROWS):
        part = out[low : low + _FEW_ROWS]
        for number, column in enumerate(columns):
            part[:, number] = column[low : low + _FEW_ROWS]
    return out


def without_nan(values: np.ndarray, form: Form, begin: int = 0) -> None:
    """Refuses NaN.

    Args:
        values: (rows, columns), or those of a sparse matrix.
    Raises:
        WireError: there is one.
    """
    if form.allow_nan or values.dtype.kind != "f":
        return
    with np.errstate(invalid="ignore", over="ignore"):
        if np.isfinite(values.sum(dtype=values.dtype)):
            return  # a sum that is a number has no NaN in it; of any other, each number is looked at
    positions = np.argwhere(np.isnan(values))
    if positions.size:
        where = positions[0]
        row = begin + int(where[0]) if values.ndim == 2 else begin
        raise WireError("bridge-nan", row=row, column=int(where[-1]) if values.ndim == 2 else "")


def array_of(values: np.ndarray) -> pa.Array:
    """An Arrow array of the same memory. ``pa.array`` would import pandas first, where that is installed."""
    values = np.ascontiguousarray(values)
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, values.size, [None, pa.py_buffer(values)])


class Rows:
    """Sends the rows of one partition: as an Arrow stream, or through a ring that the receiver shares.

    Args:
        index: type of the index column; None for none.
        ring: that memory; None for a stream. Only dense rows without index go through it.
    """

    def __init__(
        self, connection: Connection, form: Form, index: pa.DataType | None = None,
        ring: np.ndarray | None = None,
    ):  # fmt: skip
        self._connection, self._form, self._ring = connection, form, ring
        self._schema = form.schema(index)
        self._prefixes: dict[int, memoryview] = {}
        self.rows = 0
        if ring is None:
            self._message(self._schema.serialize())

    @property
    def bytes(self) -> int:
        return self._connection.sent

    def dense(self, values: np.ndarray, index: pa.Array | None = None) -> None:
        """Sends rows.

        Args:
            values: (rows, columns) of the form's type, C-contiguous.
        """
        if self._ring is not None:
            self._connection.place(self._ring, values)
            self.rows += values.shape[0]
            return
        rows = max(PIECE_BYTES // max(self._form.row_bytes, 1), 1)
        for low in range(0, values.shape[0], rows):
            part = values[low : low + rows]
            if index is None and part.nbytes % 8 == 0:
                self._bare(part)
            else:
                self._batch(part, None if index is None else index[low : low + rows])
            self.rows += part.shape[0]

    def _bare(self, part: np.ndarray) -> None:
        """A record batch whose metadata was made for another one of as many rows: only the numbers differ."""
        rows = part.shape[0]
        if rows not in self._prefixes:
            message = memoryview(self._listed(part).serialize())
            self._prefixes[rows] = message[: message.nbytes - part.nbytes]
        self._message(self._prefixes[rows], part)

    def _listed(self, part: np.ndarray, index: pa.Array | None = None) -> pa.RecordBatch:
        kind = self._schema.field("row").type
        values = array_of(part.reshape(-1))
        listed = pa.FixedSizeListArray.from_arrays(values, type=kind)
        columns = [listed] if index is None else [listed, index]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _batch(self, part: np.ndarray, index: pa.Array | None) -> None:
        self._message(self._listed(part, index).serialize())

    def sparse(self, indptr: Any, indices: Any, values: Any, index: pa.Array | None = None) -> None:
        """Sends rows in CSR.

        Args:
            indptr: (rows + 1,) ``indices`` and ``values``: (stored values,).
        """
        rows, each = len(indptr) - 1, PIECE_BYTES // (8 + np.dtype(self._form.dtype).itemsize)
        low = 0
        while low < rows:
            high = int(np.searchsorted(indptr, indptr[low] + each, "right")) - 1
            high = min(max(high, low + 1), rows)
            begin, end = int(indptr[low]), int(indptr[high])
            offsets = array_of(np.asarray(indptr[low : high + 1], np.int64) - begin)
            columns = [
                pa.LargeListArray.from_arrays(offsets, array_of(np.asarray(part[begin:end], kind)))
                for part, kind in ((indices, np.int64), (values, self._form.dtype))
            ]
            if index is not None:
                columns.append(index[low:high])
            self._message(pa.RecordBatch.from_arrays(columns, schema=self._schema).serialize())
            self.rows += high - low
            low = high

    def _message(self, *parts: Any) -> None:
        self._connection.await_credit()
        self._connection.credit -= sum(memoryview(part).nbytes for part in parts)
        self._connection.send(BATCH, *parts)

    def end(self) -> dict[str, Any]:
        """Ends the stream.

        Returns:
            What the receiver says of it.
        """
        self._connection.say(END, rows=self.rows, bytes=self.bytes)
        while True:
            kind, value = self._connection.receive()
            if isinstance(value, dict) and kind == END:
                return value


@dataclass
class Piece:
    """Rows as they came.

    Attributes:
        dense: (rows, columns); None for a sparse matrix.
        csr: indptr, indices and values; None for a dense one.
        index: values of the index column.
        bytes: that they take.
        region: a whole stream of dense rows, which its earlier pieces have announced.
    """

    rows: int
    dense: np.ndarray | None = None
    csr: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    index: pa.Array | None = None
    bytes: int = 0
    region: Any = None


class Reader:
    """Reads the messages of an Arrow stream as rows."""

    def __init__(self, form: Form):
        self._form = form
        self._schema: pa.Schema | None = None

    @property
    def index(self) -> pa.DataType | None:
        """Type of the index column."""
        assert self._schema is not None
        has = "index" in self._schema.names
        return self._schema.field("index").type if has else None

    def read(self, message: Any) -> Piece | None:
        """The rows of a message; None for the schema.

        Raises:
            WireError: it is not as the form says.
        """
        try:
            return self._read(message)
        except (pa.ArrowException, KeyError, AttributeError) as exc:
            raise WireError("bridge-arrow", reason=exc) from None

    def _read(self, message: Any) -> Piece | None:
        if self._schema is None:
            self._schema = pa.ipc.read_schema(pa.py_buffer(message))
            expected = self._form.schema(self.index)
            if not self._schema.equals(expected):
                raise WireError(
                    "bridge-arrow",
                    reason=f"the stream holds {_flat(self._schema)}, not {_flat(expected)}",
                )
            return None
        batch = pa.ipc.read_record_batch(pa.py_buffer(message), self._schema)
        index = batch.column("index") if "index" in self._schema.names else None
        size = memoryview(message).nbytes
        if not self._form.sparse:
            values = batch.column("row").flatten().to_numpy(zero_copy_only=True)
            rows = values.reshape(batch.num_rows, self._form.cols)
            return Piece(batch.num_rows, dense=rows, index=index, bytes=size)
        columns, values = batch.column("columns"), batch.column("values")
        csr = (
            columns.offsets.to_numpy(),
            columns.flatten().to_numpy(zero_copy_only=True),
            values.flatten().to_numpy(zero_copy_only=True),
        )
        batch.validate(full=True)
        indices = csr[1]
        if indices.size and (indices.min() < 0 or indices.max() >= self._form.cols):
            raise WireError(
                "bridge-arrow", reason=f"a column beyond the {self._form.cols} of the matrix"
            )
        return Piece(batch.num_rows, csr=csr, index=index, bytes=size)


def _flat(schema: pa.Schema) -> str:
    return ", ".join(str(schema).splitlines())


def pieces(connection: Connection, form: Form, limit_s: float) -> Iterator[Piece]:
    """The rows of a stream, up to its end.

    Raises:
        WireError: it is cut off, or its end disagrees with what came.
    """
    reader, rows, size = Reader(form), 0, 0
    while True:
        kind, value = connection.receive(limit_s)
        if kind == END:
            check_end(connection, value, rows, size)
            return
        if kind != BATCH:
            continue
        size += memoryview(value).nbytes
        piece = reader.read(value)
        if piece is not None:
            rows += piece.rows
            yield piece
        connection.grant(memoryview(value).nbytes)


def check_end(connection: Connection, claimed: dict[str, Any], rows: int, size: int) -> None:
    """
    Raises:
        WireError: the sender's end disagrees with what came.
    """
    if (claimed.get("rows"), claimed.get("bytes")) != (rows, size):
        raise WireError(
            "bridge-count", who=connection.who, rows=rows, announced=claimed.get("rows")
        )
