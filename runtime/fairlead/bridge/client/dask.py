"""Dask arrays and DataFrames: their workers send and fetch the chunks."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from fairlead.bridge import arrow, streams, wire
from fairlead.bridge.arrow import Form, common_dtype, dense_rows, without_nan
from fairlead.bridge.client.matrix import Matrix
from fairlead.bridge.streams import Fetching, Sending, Sent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairlead.bridge.client.send import SendOptions
    from fairlead.bridge.client.session import Session


def send_dask(session: Session, data: Any, options: SendOptions) -> Matrix:
    """Sends the chunks of an array, or the partitions of a DataFrame, from the workers that hold them.

    Raises:
        WireError: as the protocol and the data have it.
    """
    import dask
    import pyarrow as pa

    _by_value()
    begun = time.perf_counter()
    names: list[str] = []
    if hasattr(data, "chunks") and not hasattr(data, "columns"):
        if data.ndim == 1:
            data = data.reshape(-1, 1)
        array = data.rechunk({1: -1}) if data.numblocks[1] > 1 else data
        form = options.form(int(array.shape[1]), common_dtype([pa.from_numpy_dtype(array.dtype)]))
        chunks = array.to_delayed().ravel()
        rows = array.shape[0]
        size = 0 if rows != rows else int(rows) * form.row_bytes  # NaN where chunks are unknown
    else:
        names = list(options.columns or [n for n in data.columns if n != options.index])
        frame = data[[*names, options.index] if options.index else names]
        form = options.form(
            len(names), common_dtype([pa.from_numpy_dtype(data[n].dtype) for n in names])
        )
        chunks, size = frame.to_delayed(), 0
    index = None
    if options.index:
        index = pa.array(data[options.index].head(1)).type
    number = session.create(
        form, name=options.name, names=names, index=str(index or ""), bytes=size
    )
    sending = session.sending(number, form, index)
    send_chunk = dask.delayed(_send_chunk, pure=False)
    tasks = [
        send_chunk(chunk, part, len(chunks), sending, options.index)
        for part, chunk in enumerate(chunks)
    ]
    from fairlead.bridge.client.send import freed_quietly, transferred

    try:
        with session.progress.stage(f"send {options.name or number}", size or None, "B"):
            sent: list[Sent] = list(dask.compute(*tasks))
    except BaseException:
        freed_quietly(session, number)
        raise
    matrix = session.seal(number, sent, len(chunks))
    return transferred(matrix, "Dask", sent, time.perf_counter() - begun)


def to_dask(session: Session, info: Mapping[str, Any]) -> Any:
    """A Dask array with a chunk for each rank."""
    import dask
    import dask.array as da

    _by_value()
    fetching = session.fetching(info, "Dask")
    cols = info["shape"][1]
    fetch = dask.delayed(_fetch_chunk, pure=True)
    parts = [
        da.from_delayed(fetch(fetching, place), (count, cols), dtype=info["form"]["dtype"])
        for place, count in enumerate(info["counts"])
    ]
    whole = da.concatenate(parts)
    return whole[:, 0] if info["ndim"] == 1 else whole


def _by_value() -> None:
    """Workers need no fairlead: what they run travels with the task."""
    import cloudpickle

    for module in (wire, arrow, streams, sys.modules[__name__]):
        cloudpickle.register_pickle_by_value(module)


def _send_chunk(chunk: Any, part: int, parts: int, sending: Sending, index: str | None) -> Sent:
    # A task that Dask runs again is another attempt; what it returns says which one counts.
    attempt = time.time_ns() >> 10
    rows, labels = _rows(chunk, sending.form, index)
    return sending.send(part, parts, attempt, [(rows, labels)])


def _rows(chunk: Any, form: Form, index: str | None) -> tuple[np.ndarray, Any]:
    if hasattr(chunk, "columns"):
        import pyarrow as pa

        labels = pa.array(chunk[index]) if index else None
        values = chunk.drop(columns=[index]) if index else chunk
        batch = pa.RecordBatch.from_pandas(values, preserve_index=False) if len(values) else None
        if batch is None:
            return np.empty((0, form.cols), form.dtype), labels
        if form.allow_nan:
            return np.ascontiguousarray(values.to_numpy(form.dtype)), labels
        return dense_rows(batch, form), labels
    rows = np.ascontiguousarray(chunk, form.dtype).reshape(-1, form.cols)
    without_nan(rows, form)
    return rows, None


def _fetch_chunk(fetching: Fetching, place: int) -> np.ndarray:
    return fetching.dense(place)
