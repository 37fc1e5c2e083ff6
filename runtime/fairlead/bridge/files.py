"""Files that the ranks read and write themselves: Parquet and HDF5."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.base.errors import fail
from fairlead.bridge.arrow import Form, common_dtype, dense_rows, is_list, is_vector, without_nan
from fairlead.bridge.store import Budget, Held

_FEW_ROWS = 1 << 16


def read(
    path: str, columns: list[str] | None, part: int, parts: int, budget: Budget, *, allow_nan: bool = False
) -> np.ndarray:  # fmt: skip
    """A rank's share of the rows of a file or of a folder of files.

    Args:
        path: of Parquet, or ``FILE:DATASET`` of HDF5.
        columns: of Parquet; all by default.
        part, parts: which share, of how many.
    Returns:
        (rows, columns); its bytes are not counted in the budget.
    Raises:
        FairleadError: it is not there, is not as it should be, or does not fit.
    """
    file, _, dataset = path.partition(":")
    if not Path(file).exists():
        raise fail("bridge-no-file", path=file)
    try:
        if dataset or Path(file).suffix in (".h5", ".hdf5"):
            return _hdf5(file, dataset, part, parts, budget, allow_nan)
        return _parquet(file, columns, part, parts, budget, allow_nan)
    except (OSError, KeyError, ValueError) as exc:
        raise fail("bridge-file", path=path, reason=exc) from None


def _hdf5(
    file: str, dataset: str, part: int, parts: int, budget: Budget, allow_nan: bool
) -> np.ndarray:
    import h5py

    with h5py.File(file, "r") as opened:
        if dataset not in opened or not hasattr(opened[dataset], "shape"):
            names: list[str] = []
            opened.visititems(
                lambda name, item: names.append(name) if hasattr(item, "shape") else None
            )
            raise fail("bridge-dataset", path=file, dataset=dataset, names=", ".join(names[:10]))
        data = opened[dataset]
        if data.ndim not in (1, 2):
            raise fail("bridge-shape", path=f"{file}:{dataset}", shape=data.shape)
        low, high = (data.shape[0] * (part + i) // parts for i in (0, 1))
        cols = data.shape[1] if data.ndim == 2 else 1
        form = Form(cols, _dtype_of(data.dtype), allow_nan=allow_nan)
        budget.room((high - low) * form.row_bytes)
        rows = np.empty((high - low, cols), form.dtype)
        target = rows if data.ndim == 2 else rows[:, 0]
        if high > low:
            data.read_direct(target, np.s_[low:high])
    _without_nan(rows, form, low)
    return rows


def _dtype_of(dtype: np.dtype) -> str:
    import pyarrow as pa

    return common_dtype([pa.from_numpy_dtype(dtype)])


def _without_nan(rows: np.ndarray, form: Form, low: int) -> None:
    for begin in range(0, rows.shape[0], _FEW_ROWS):
        without_nan(rows[begin : begin + _FEW_ROWS], form, low + begin)


def _parquet(
    path: str, columns: list[str] | None, part: int, parts: int, budget: Budget, allow_nan: bool
) -> np.ndarray:  # fmt: skip
    import pyarrow.parquet as pq

    files = [Path(path)]
    if files[0].is_dir():
        files = sorted(p for p in files[0].rglob("*.parquet") if not p.name.startswith(("_", ".")))
    if not files:
        raise fail("bridge-file", path=path, reason="no .parquet file is in it")
    readers = [pq.ParquetFile(file, memory_map=True) for file in files]
    total = sum(reader.metadata.num_rows for reader in readers)
    low, high = (total * (part + i) // parts for i in (0, 1))
    schema = readers[0].schema_arrow
    names = columns or schema.names
    if missing := [name for name in names if name not in schema.names]:
        raise fail(
            "bridge-columns",
            path=path,
            missing=", ".join(missing),
            names=", ".join(schema.names[:20]),
        )
    kinds = [schema.field(name).type for name in names]
    form = _form(kinds, readers, names, allow_nan)
    budget.room((high - low) * form.row_bytes)
    rows = np.empty((high - low, form.cols), form.dtype)
    for begin, batch in _batches(readers, names, low, high):
        rows[begin - low : begin - low + batch.num_rows] = dense_rows(batch, form, begin)
    return rows


def _form(kinds: list[Any], readers: list[Any], names: list[str], allow_nan: bool) -> Form:
    if len(kinds) == 1 and is_list(kinds[0]):
        first = next(batch for reader in readers for batch in reader.iter_batches(1, columns=names))
        return Form(
            len(first.column(0)[0]), common_dtype([kinds[0].value_type]), allow_nan=allow_nan
        )
    if len(kinds) == 1 and is_vector(kinds[0]):
        first = next(batch for reader in readers for batch in reader.iter_batches(1, columns=names))
        one = first.column(0)[0].as_py()
        return Form(one["size"] or len(one["values"]), "float64", allow_nan=allow_nan)
    return Form(len(kinds), common_dtype(kinds), allow_nan=allow_nan)


def _batches(
    readers: list[Any], names: list[str], low: int, high: int
) -> Iterator[tuple[int, Any]]:
    """The batches that hold rows of a range, cut to it, with the number of the first row."""
    at = 0
    for reader in readers:
        for group in range(reader.metadata.num_row_groups):
            number = reader.metadata.row_group(group).num_rows
            if at < high and at + number > low:
                yield from _of_group(reader, group, names, at, low, high)
            at += number


def _of_group(
    reader: Any, group: int, names: list[str], at: int, low: int, high: int
) -> Iterator[tuple[int, Any]]:
    for batch in reader.iter_batches(_FEW_ROWS, row_groups=[group], columns=names):
        begin, end = max(low - at, 0), min(high - at, batch.num_rows)
        if begin < end:
            yield at + begin, batch.slice(begin, end - begin)
        at += batch.num_rows


def write(path: str, part: int, held: Held, names: list[str]) -> int:
    """Writes a rank's rows as ``part-NNNNN.parquet`` in a folder; how many bytes.

    Args:
        names: of the columns; one column ``row`` of lists where there are none.
    Raises:
        FairleadError: it cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    local = held.local.toarray() if hasattr(held.local, "indptr") else held.local
    columns: dict[str, Any] = {}
    if held.index is not None:
        columns["index"] = held.index
    if names:
        columns.update({name: np.ascontiguousarray(local[:, i]) for i, name in enumerate(names)})
    else:
        values = pa.array(np.ascontiguousarray(local).reshape(-1))
        columns["row"] = pa.FixedSizeListArray.from_arrays(values, local.shape[1])
    folder = Path(path)
    final, partial = folder / f"part-{part:05d}.parquet", folder / f".part-{part:05d}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), partial)
        partial.replace(final)
    except OSError as exc:
        raise fail("bridge-file", path=str(final), reason=exc) from None
    return final.stat().st_size
