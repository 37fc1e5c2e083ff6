"""Files that the ranks read and write themselves: Parquet and HDF5."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.base.data_list import ListedFile
from fairlead.base.errors import FairleadError, fail
from fairlead.bridge import remote
from fairlead.bridge.arrow import Form, common_dtype, dense_rows, is_list, is_vector, without_nan
from fairlead.bridge.collectives import Collectives
from fairlead.bridge.store import Budget, Held
from fairlead.objects.model import Listing
from fairlead.objects.ranges import Ranged

_FEW_ROWS = 1 << 16
_GROUP_BYTES = 256 << 20  # of rows that are written at once
_BLOCK = 1 << 20  # bytes of a store that are read at once where a program asks for a few
_HDF5_BEGIN, _HDF5_AT = b"\x89HDF\r\n\x1a\n", (0, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class Input:
    """What the ranks read.

    Attributes:
        path: as it was named.
        listing: of a URL; None for a path.
        dataset: of HDF5 in a store; that of a path is in the path.
    """

    path: str
    listing: Listing | None = None
    dataset: str = ""
    _opened: list[Ranged] = field(default_factory=list)

    @property
    def failure(self) -> FairleadError | None:
        """Why a store could not be read."""
        return next((ranged.failure for ranged in self._opened if ranged.failure), None)

    def hdf5(self) -> tuple[Any, str, str] | None:
        """The file, its name and the data set; None of Parquet."""
        if self.listing is None:
            file, _, dataset = self.path.partition(":")
            is_hdf5 = dataset or file.endswith(remote.HDF5)
            return (file, file, dataset) if is_hdf5 else None
        url = self.listing.url
        if not (self.dataset or url.endswith(remote.HDF5)):
            return None
        (ranged,) = self._ranged()
        return io.BufferedReader(ranged, _BLOCK), url, self.dataset

    def tables(self) -> list[Any]:
        """The Parquet files, in the order of their rows.

        Raises:
            FairleadError: there is none.
        """
        if self.listing is not None:
            return list(self._ranged())
        top = Path(self.path)
        if not top.is_dir():
            return [top]
        tables = sorted(path for path in top.rglob("*.parquet") if remote.is_table(path.name))
        if not tables:
            raise fail("bridge-file", path=self.path, reason="no .parquet file is in it")
        return list(tables)

    def _ranged(self) -> list[Ranged]:
        """The objects of its listing, as files."""
        assert self.listing is not None
        self._opened.extend(remote.files(self.listing))
        return self._opened

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Errors of the libraries that read it as errors with a remedy; of a store, what the store has said.

        Raises:
            FairleadError: one came up.
        """
        try:
            yield
        except FairleadError:
            raise
        except (OSError, KeyError, ValueError) as exc:
            if self.failure:
                raise self.failure from None
            if self.listing is not None:
                raise fail("bridge-object", path=self.path, reason=exc) from None
            raise fail("bridge-file", path=self.path, reason=exc) from None


def read(
    source: Input, columns: list[str] | None, comm: Collectives, budget: Budget, *, allow_nan: bool = False
) -> np.ndarray:  # fmt: skip
    """A rank's share of the rows of a file, or of a folder or prefix of files. All ranks of ``comm`` call it.

    Args:
        columns: of Parquet; all by default.
    Returns:
        (rows, columns); its bytes are not counted in the budget.
    Raises:
        FairleadError: it is not there, is not as it should be, or does not fit.
    """
    if source.listing is None and not Path(source.path.partition(":")[0]).exists():
        raise fail("bridge-no-file", path=source.path.partition(":")[0])
    with source.explained():
        if (file := source.hdf5()) is not None:
            return _hdf5(*file, comm, budget, allow_nan)
        return _parquet(source, columns, comm, budget, allow_nan)


def _share(total: int, comm: Collectives) -> tuple[int, int]:
    return total * comm.rank // comm.size, total * (comm.rank + 1) // comm.size


def _hdf5(
    file: Any, name: str, dataset: str, comm: Collectives, budget: Budget, allow_nan: bool
) -> np.ndarray:
    import h5py

    _check_hdf5(file, name)
    with h5py.File(file, "r") as opened:
        if dataset not in opened or not hasattr(opened[dataset], "shape"):
            names: list[str] = []
            opened.visititems(
                lambda name, item: names.append(name) if hasattr(item, "shape") else None
            )
            raise fail("bridge-dataset", path=name, dataset=dataset, names=", ".join(names[:10]))
        data = opened[dataset]
        if data.ndim not in (1, 2):
            raise fail("bridge-shape", path=f"{name}:{dataset}", shape=data.shape)
        low, high = _share(data.shape[0], comm)
        cols = data.shape[1] if data.ndim == 2 else 1
        form = Form(cols, _dtype_of(data.dtype), allow_nan=allow_nan)
        budget.room((high - low) * form.row_bytes)
        rows = np.empty((high - low, cols), form.dtype)
        target = rows if data.ndim == 2 else rows[:, 0]
        if high > low:
            data.read_direct(target, np.s_[low:high])
    _without_nan(rows, form, low)
    return rows


def _check_hdf5(file: Any, name: str) -> None:
    """Refuses what is another format."""
    with Path(file).open("rb") if isinstance(file, str) else nullcontext(file) as stream:
        for at in _HDF5_AT:
            stream.seek(at)
            if stream.read(len(_HDF5_BEGIN)) == _HDF5_BEGIN:
                stream.seek(0)
                return
    raise fail("bridge-format", path=name, kind="HDF5", reason="it does not begin like one")


def _dtype_of(dtype: np.dtype) -> str:
    import pyarrow as pa

    return common_dtype([pa.from_numpy_dtype(dtype)])


def _without_nan(rows: np.ndarray, form: Form, low: int) -> None:
    for begin in range(0, rows.shape[0], _FEW_ROWS):
        without_nan(rows[begin : begin + _FEW_ROWS], form, low + begin)


class _Tables:
    """The files of a table, opened when they are needed: of many, a rank looks at few."""

    def __init__(self, source: Input):
        self._source, self._files = source, source.tables()
        self._readers: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if number not in self._readers:
            file = self._files[number]
            how = {"memory_map": True} if isinstance(file, Path) else {"pre_buffer": True}
            try:
                made = pq.ParquetFile(file, page_checksum_verification=True, **how)
            except pa.ArrowInvalid as exc:
                if self._source.failure:
                    raise
                name = file if isinstance(file, Path) else file.name
                raise fail("bridge-format", path=name, kind="Parquet", reason=exc) from None
            self._readers[number] = made
        return self._readers[number]


def _parquet(
    source: Input, columns: list[str] | None, comm: Collectives, budget: Budget, allow_nan: bool
) -> np.ndarray:  # fmt: skip
    tables = _Tables(source)
    counts = _counts(tables, comm)
    low, high = _share(sum(counts), comm)
    schema = tables[0].schema_arrow
    names = columns or schema.names
    if missing := [name for name in names if name not in schema.names]:
        raise fail(
            "bridge-columns",
            path=source.path,
            missing=", ".join(missing),
            names=", ".join(schema.names[:20]),
        )
    kinds = [schema.field(name).type for name in names]

    def width() -> np.ndarray:
        return np.array([_width(kinds, tables, counts, names)], np.int64)

    cols = int(comm.on(0, width, np.zeros(1, np.int64))[0])
    form = Form(cols, _number(kinds), allow_nan=allow_nan)
    budget.room((high - low) * form.row_bytes)
    rows = np.empty((high - low, form.cols), form.dtype)
    for begin, batch in _batches(tables, counts, names, low, high):
        comm.check()
        rows[begin - low : begin - low + batch.num_rows] = dense_rows(batch, form, begin)
    return rows


def _counts(tables: _Tables, comm: Collectives) -> list[int]:
    """Rows of each file; each rank looks at some files."""
    low, high = _share(len(tables), comm)
    mine = [tables[number].metadata.num_rows for number in range(low, high)]
    every = comm.stacked(np.array(mine, np.int64).reshape(-1, 1))
    return [int(count) for count in every[:, 0]]


def _number(kinds: list[Any]) -> str:
    """The type of the numbers in columns."""
    if len(kinds) == 1 and is_list(kinds[0]):
        return common_dtype([kinds[0].value_type])
    return "float64" if len(kinds) == 1 and is_vector(kinds[0]) else common_dtype(kinds)


def _width(kinds: list[Any], tables: _Tables, counts: Sequence[int], names: list[str]) -> int:
    """How many numbers a row has."""
    import pyarrow as pa

    kind = kinds[0]
    if len(kinds) > 1 or not (is_list(kind) or is_vector(kind)):
        return len(kinds)
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size)
    number = next((number for number, count in enumerate(counts) if count), None)
    first = None
    if number is not None:
        batch = next(tables[number].iter_batches(1, columns=names))
        first = batch.column(0)[0].as_py()
    if first is None:
        raise fail("bridge-empty", column=names[0])
    return len(first) if is_list(kind) else first["size"] or len(first["values"])


def _batches(
    tables: _Tables, counts: Sequence[int], names: list[str], low: int, high: int
) -> Iterator[tuple[int, Any]]:
    """The batches that hold rows of a range, cut to it, with the number of the first row."""
    at = 0
    for file, count in enumerate(counts):
        if at < high and at + count > low:
            yield from _of_file(tables[file], names, at, low, high)
        at += count


def _of_file(
    reader: Any, names: list[str], at: int, low: int, high: int
) -> Iterator[tuple[int, Any]]:
    for group in range(reader.metadata.num_row_groups):
        count = reader.metadata.row_group(group).num_rows
        if at < high and at + count > low:
            yield from _of_group(reader, group, names, at, low, high)
        at += count


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
    import pyarrow.parquet as pq

    folder = Path(path)
    final, partial = folder / f"part-{part:05d}.parquet", folder / f".part-{part:05d}.partial"
    groups = _groups(held, names)
    first = next(groups)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(partial, first.schema, write_page_checksum=True) as writer:
            writer.write_table(first)
            for group in groups:
                writer.write_table(group)
        partial.replace(final)
    except OSError as exc:
        with suppress(OSError):
            partial.unlink()
        raise fail("bridge-file", path=str(final), reason=exc) from None
    return final.stat().st_size


def send(
    url: str, part: int, held: Held, names: list[str], check: Callable[[], None]
) -> list[ListedFile]:
    """Writes a rank's rows below a URL as ``part-NNNNN.parquet``, or several of them.

    Args:
        check: called before each file; raises where another rank has failed.
    Raises:
        FairleadError: the store fails or refuses.
    """
    import pyarrow.parquet as pq

    listed = []
    several = held.local.shape[0] > _step(held)
    for number, group in enumerate(_groups(held, names)):
        check()
        more = f"-{number:05d}" if several else ""
        file = remote.Part(url, f"part-{part:05d}{more}.parquet")
        with file.written() as stream:
            pq.write_table(group, stream, write_page_checksum=True)
        listed.append(file.listed(group.num_rows))
    return listed


def _step(held: Held) -> int:
    """How many rows are written at once."""
    row_bytes = int(held.local.shape[1]) * int(held.local.dtype.itemsize)
    return max(_GROUP_BYTES // max(row_bytes, 1), 1)


def _groups(held: Held, names: list[str]) -> Iterator[Any]:
    """A rank's rows as tables, of some rows each; one table where there is no row."""
    import pyarrow as pa

    (total, cols), step = held.local.shape, _step(held)
    for low in range(0, max(total, 1), step):
        local = held.local[low : low + step]
        local = local.toarray() if hasattr(local, "indptr") else local
        columns: dict[str, Any] = {}
        if held.index is not None:
            columns["index"] = held.index[low : low + step]
        if names:
            columns |= {name: np.ascontiguousarray(local[:, i]) for i, name in enumerate(names)}
        else:
            values = pa.array(np.ascontiguousarray(local).reshape(-1))
            columns["row"] = pa.FixedSizeListArray.from_arrays(values, cols)
        yield pa.table(columns)
