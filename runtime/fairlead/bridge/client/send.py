"""What can be sent, and how its rows are made."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fairlead.base.errors import fail
from fairlead.bridge.arrow import (
    DTYPES,
    PIECE_BYTES,
    Form,
    common_dtype,
    dense_rows,
    is_list,
    without_nan,
)
from fairlead.bridge.client.matrix import Matrix, Transfer
from fairlead.bridge.streams import Chunk, Sent
from fairlead.bridge.wire import WireError

if TYPE_CHECKING:
    from fairlead.bridge.client.session import Session

_STREAMS = 8


@dataclass(frozen=True)
class SendOptions:
    """How data is sent.

    Attributes:
        columns: of a table, in this order; all numbers by default.
        index: a column that goes with the rows, to join by.
        name: of the matrix, by which :meth:`Session.matrices` finds it again.
        dtype: ``float32``, ``float64``, ``int32`` or ``int64``; by default what the data has.
        allow_nan: NaN is otherwise refused.
        partitions: in how many streams; by default what the data has, or one for each rank. Spark redistributes rows for
            it, in another order; under Spark Connect it saves the query that counts partitions.
    """

    columns: Sequence[str] | None = None
    index: str | None = None
    name: str = ""
    dtype: str | None = None
    allow_nan: bool = False
    partitions: int | None = None

    def form(self, cols: int, dtype: str, *, sparse: bool = False) -> Form:
        """
        Raises:
            FairleadError: the type is none that a matrix can have.
        """
        if self.dtype and self.dtype not in DTYPES:
            raise fail("bridge-form", cols=cols, dtype=self.dtype, known=", ".join(DTYPES))
        return Form(cols, self.dtype or dtype, sparse, self.allow_nan)


@dataclass(frozen=True)
class Source:
    """Data of this process, as partitions.

    Attributes:
        rows: how many, all in all.
        chunks: makes the rows of a range.
        index: type of the index column.
        size: bytes of the matrix.
    """

    form: Form
    rows: int
    chunks: Callable[[int, int], Iterable[Chunk]]
    size: int
    names: tuple[str, ...] = ()
    index: Any = None
    kind: str = "NumPy"


def send(session: Session, data: Any, **options: Any) -> Matrix:
    """Sends what :meth:`Session.send` takes.

    Raises:
        FairleadError, WireError: it cannot be a matrix, or does not arrive.
        TypeError: nothing is known of such data, or of such an option.
    """
    wanted = SendOptions(**options)
    kind = type(data).__module__.partition(".")[0]
    if isinstance(data, (str, Path)):
        return _read_by_ranks(session, str(data), wanted)
    if kind == "pyspark":
        from fairlead.bridge.client.spark import send_spark

        return send_spark(session, data, wanted)
    if kind in ("dask", "dask_expr"):
        from fairlead.bridge.client.dask import send_dask

        return send_dask(session, data, wanted)
    return _send_here(session, _source(data, wanted), wanted)


def _read_by_ranks(session: Session, path: str, options: SendOptions) -> Matrix:
    columns = list(options.columns) if options.columns else None
    answer = session.ask(
        "load", path=path, columns=columns, name=options.name, allow_nan=options.allow_nan
    )
    return Matrix(session, answer["info"])


def _source(data: Any, options: SendOptions) -> Source:
    if isinstance(data, np.ndarray):
        return _numpy(data, options)
    if hasattr(data, "tocsr"):
        return _sparse(data.tocsr(), options)
    if isinstance(data, (pa.Table, pa.RecordBatch)):
        table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
        return _table(table, options)
    if isinstance(data, pa.RecordBatchReader):
        return _table(data.read_all(), options)
    if hasattr(data, "to_numpy") and hasattr(data, "columns"):
        return _pandas(data, options)
    if hasattr(data, "__array__") or isinstance(data, (list, tuple)):
        return _numpy(np.asarray(data), options)
    raise TypeError(f"no matrix can be made of a {type(data).__module__}.{type(data).__qualname__}")


def _numpy(array: np.ndarray, options: SendOptions) -> Source:
    if array.ndim == 1:
        array = array.reshape(-1, 1)
    if array.ndim != 2:
        raise fail("bridge-shape", path="the array", shape=array.shape)
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise WireError("bridge-column-type", column="", kind=str(array.dtype))
    form = options.form(array.shape[1], common_dtype([pa.from_numpy_dtype(array.dtype)]))

    def chunks(low: int, high: int) -> Iterator[Chunk]:
        for begin, end in _steps(low, high, form):
            part = np.ascontiguousarray(array[begin:end], form.dtype)
            without_nan(part, form, begin)
            yield part, None

    return Source(form, array.shape[0], chunks, array.shape[0] * form.row_bytes)


def _steps(low: int, high: int, form: Form) -> Iterator[tuple[int, int]]:
    """A few messages at a time, so that what is read for NaN is still in the cache when it is sent."""
    step = max(PIECE_BYTES // max(form.row_bytes, 1), 1)
    for begin in range(low, high, step):
        yield begin, min(begin + step, high)


def _sparse(matrix: Any, options: SendOptions) -> Source:
    form = options.form(
        matrix.shape[1], common_dtype([pa.from_numpy_dtype(matrix.dtype)]), sparse=True
    )

    def chunks(low: int, high: int) -> Iterator[Chunk]:
        begin, end = int(matrix.indptr[low]), int(matrix.indptr[high])
        values = np.ascontiguousarray(matrix.data[begin:end], form.dtype)
        without_nan(values, form, low)
        yield (matrix.indptr[low : high + 1] - begin, matrix.indices[begin:end], values), None

    size = matrix.nnz * (8 + np.dtype(form.dtype).itemsize) + matrix.shape[0] * 8
    return Source(form, matrix.shape[0], chunks, size, kind="SciPy")


def _table(table: pa.Table, options: SendOptions) -> Source:
    index = table.column(options.index) if options.index else None
    names = list(options.columns or [n for n in table.column_names if n != options.index])
    for name in names:
        if name not in table.column_names:
            raise fail(
                "bridge-columns",
                path="the table",
                missing=name,
                names=", ".join(table.column_names[:20]),
            )
    chosen = table.select(names)
    kinds = [field.type for field in chosen.schema]
    if len(kinds) == 1 and is_list(kinds[0]):
        cols = len(chosen.column(0)[0]) if table.num_rows else 1
        form, named = options.form(cols, common_dtype([kinds[0].value_type])), ()
    else:
        form, named = options.form(len(names), common_dtype(kinds)), tuple(names)

    def chunks(low: int, high: int) -> Iterator[Chunk]:
        for begin, end in _steps(low, high, form):
            part = chosen.slice(begin, end - begin).combine_chunks().to_batches()
            rows = (
                dense_rows(part[0], form, begin) if part else np.empty((0, form.cols), form.dtype)
            )
            labels = None if index is None else _flat(index.slice(begin, end - begin))
            yield rows, labels

    kind = None if index is None else index.type
    size = table.num_rows * form.row_bytes
    return Source(form, table.num_rows, chunks, size, named, kind, "Arrow")


def _flat(column: pa.ChunkedArray) -> pa.Array:
    joined = column.combine_chunks()
    return joined.chunk(0) if isinstance(joined, pa.ChunkedArray) else joined


def _pandas(frame: Any, options: SendOptions) -> Source:
    names = list(options.columns or [n for n in frame.columns if n != options.index])
    chosen = frame[names]
    kinds = []
    for name in names:
        dtype = chosen[name].dtype
        plain = getattr(dtype, "numpy_dtype", dtype)  # of the nullable types
        if getattr(plain, "kind", "O") not in "fiub":
            raise WireError("bridge-column-type", column=name, kind=str(dtype))
        if plain is not dtype and chosen[name].isna().any():
            row = int(np.flatnonzero(chosen[name].isna().to_numpy())[0])
            raise WireError("bridge-null", column=name, row=row)
        kinds.append(pa.from_numpy_dtype(plain))
    form = options.form(len(names), common_dtype(kinds))
    index = None if options.index is None else pa.array(_labels(frame, options.index))

    def chunks(low: int, high: int) -> Iterator[Chunk]:
        for begin, end in _steps(low, high, form):
            part = np.ascontiguousarray(chosen.iloc[begin:end].to_numpy(form.dtype))
            without_nan(part, form, begin)
            yield part, None if index is None else index[begin:end]

    kind = None if index is None else index.type
    named = tuple(map(str, names))
    return Source(form, len(frame), chunks, len(frame) * form.row_bytes, named, kind, "pandas")


def _labels(frame: Any, index: str) -> Any:
    return frame[index] if index in frame.columns else frame.index


def _send_here(session: Session, source: Source, options: SendOptions) -> Matrix:
    begun = time.perf_counter()
    index = str(source.index) if source.index is not None else ""
    number = session.create(
        source.form, name=options.name, names=source.names, index=index, bytes=source.size
    )
    sending = session.sending(number, source.form, source.index)
    parts = min(options.partitions or len(session.ranks), max(source.rows, 1))
    bounds = [source.rows * part // parts for part in range(parts + 1)]
    with session.progress.stage(f"send {options.name or number}", source.size, "B") as stage:

        def show(rows: int, size: int) -> None:
            stage.advance(size)

        def send_part(part: int) -> Sent:
            low, high = bounds[part], bounds[part + 1]
            return sending.send_again(part, parts, lambda: source.chunks(low, high), show)

        sent = _in_parallel(session, number, send_part, parts)
    matrix = session.seal(number, sent, parts)
    return transferred(matrix, source.kind, sent, time.perf_counter() - begun)


def _in_parallel(
    session: Session, number: str, send_part: Callable[[int], Sent], parts: int
) -> list[Sent]:
    with ThreadPoolExecutor(min(parts, _STREAMS)) as pool:
        waiting = [pool.submit(send_part, part) for part in range(parts)]
        try:
            return [future.result() for future in waiting]
        except BaseException:
            for future in waiting:
                future.cancel()
            freed_quietly(session, number)
            raise


def freed_quietly(session: Session, number: str) -> None:
    """Frees what has arrived of a matrix that failed."""
    from contextlib import suppress

    from fairlead.base.errors import FairleadError

    with suppress(FairleadError):
        session.ask("free", matrix=number)


def transferred(matrix: Matrix, kind: str, sent: Sequence[Sent], wall_s: float) -> Matrix:
    """A matrix that has come, which knows how long that took; so does its session."""
    made = matrix.transfer = summed(sent, matrix.sealed_s, wall_s)
    phases = {
        name: (made.mean[f"{name}_s"], getattr(made, f"{name}_s"))
        for name in ("serialise", "send", "receive")
    }
    phases["seal"] = (matrix.sealed_mean_s, made.seal_s)
    matrix.note("send", kind, phases, wall_s, made.bytes)
    return matrix


def summed(sent: Sequence[Sent], seal_s: float, wall_s: float) -> Transfer:
    """The times of a transfer."""
    phases = ("serialise_s", "send_s", "receive_s")
    every = {p: [getattr(s, p) for s in sent] or [0.0] for p in phases}
    most = {phase: max(values) for phase, values in every.items()}
    mean = {phase: sum(values) / len(values) for phase, values in every.items()}
    rows, size = sum(s.rows for s in sent), sum(s.bytes for s in sent)
    return Transfer(rows, size, **most, seal_s=seal_s, wall_s=wall_s, mean=mean)
