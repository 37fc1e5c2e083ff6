"""A handle of a matrix that the ranks hold."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fairlead.base.errors import fail

if TYPE_CHECKING:
    from fairlead.bridge.client.session import Session

LIMIT = 4 << 30  # bytes that a process takes unless it says more
_STREAMS = 8


@dataclass(frozen=True)
class Transfer:
    """How a matrix came to the ranks.

    Attributes:
        serialise_s, send_s, receive_s: of the slowest partition.
        seal_s: of the slowest rank.
        wall_s: from the call to the sealed matrix.
        mean: the same by phase, over the partitions.
    """

    rows: int
    bytes: int
    serialise_s: float
    send_s: float
    receive_s: float
    seal_s: float
    wall_s: float
    mean: Mapping[str, float]

    def __str__(self) -> str:
        rate = self.bytes / self.wall_s / 1e9 if self.wall_s else 0.0
        return (
            f"{self.rows:,} rows, {self.bytes / 1e6:,.1f} MB in {self.wall_s:.2f} s ({rate:.2f} GB/s): serialise "
            f"{self.serialise_s:.2f}, send {self.send_s:.2f}, receive {self.receive_s:.2f}, seal {self.seal_s:.2f} s"
        )


class Matrix:
    """A matrix on the ranks. Nothing of it is in this process until it is asked for.

    Attributes:
        id: its number in the session.
        shape: (rows, columns); (rows,) for a vector.
        transfer: how it was sent; None for a result.
    """

    def __init__(self, session: Session, info: Mapping[str, Any], sealed_s: float = 0.0):
        self._session, self._info = session, dict(info)
        self.sealed_s = sealed_s
        self.transfer: Transfer | None = None

    @property
    def id(self) -> str:
        return str(self._info["id"])

    @property
    def name(self) -> str:
        return str(self._info["name"])

    @property
    def shape(self) -> tuple[int, ...]:
        rows, cols = self._info["shape"]
        return (rows,) if self._info["ndim"] == 1 else (rows, cols)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(str(self._info["form"]["dtype"]))

    @property
    def sparse(self) -> bool:
        return bool(self._info["form"]["sparse"])

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers, were it dense."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def counts(self) -> tuple[int, ...]:
        """Rows of each rank."""
        return tuple(self._info["counts"])

    def __repr__(self) -> str:
        kind = "sparse " if self.sparse else ""
        return f"<{kind}matrix {self.name or self.id} {self.shape} {self.dtype} on {len(self.counts)} ranks>"

    def to_numpy(self, limit: float = LIMIT) -> np.ndarray:
        """The matrix, in this process.

        Args:
            limit: bytes that it may take.
        Raises:
            BridgeError: it is larger; a rank is lost.
        """
        with self._session.explained():
            if self.nbytes > limit:
                raise fail("bridge-limit", shape=self.shape, size=self.nbytes, limit=int(limit))
            fetching = self._session.fetching(self._info)
            rows, cols = self._info["shape"]
            out = np.empty((rows, cols), self.dtype)
            starts = np.cumsum([0, *self.counts])

            def fetch(place: int) -> None:
                out[starts[place] : starts[place + 1]] = fetching.dense(place)

            with (
                self._session.progress.stage(
                    f"fetch {self.name or self.id}", self.nbytes, "B"
                ) as stage,
                ThreadPoolExecutor(_STREAMS) as pool,
            ):
                places = [place for place, count in enumerate(self.counts) if count]
                for place, _ in zip(places, pool.map(fetch, places), strict=True):
                    stage.advance(self.counts[place] * cols * self.dtype.itemsize)
            return out[:, 0] if self._info["ndim"] == 1 else out

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        array = self.to_numpy()
        return array if dtype is None else array.astype(dtype)

    def to_arrow(self, limit: float = LIMIT) -> Any:
        """An Arrow table with a column ``row`` of lists, or one column for each name; and ``index``.

        Raises:
            BridgeError: as :meth:`to_numpy`.
        """
        import pyarrow as pa

        with self._session.explained():
            if self.nbytes > limit:
                raise fail("bridge-limit", shape=self.shape, size=self.nbytes, limit=int(limit))
            fetching = self._session.fetching(self._info)
            with ThreadPoolExecutor(_STREAMS) as pool:
                places = range(len(self.counts))
                batches = [
                    b
                    for part in pool.map(lambda p: list(fetching.batches(p)), places)
                    for b in part
                ]
        if not batches:
            return pa.table({"row": pa.array([], pa.list_(pa.from_numpy_dtype(self.dtype)))})
        return _named(pa.Table.from_batches(batches), self._info["names"])

    def to_pandas(self, limit: float = LIMIT) -> Any:
        """A pandas DataFrame, with the names and the index that came with the matrix."""
        import pandas as pd

        array = self.to_numpy(limit)
        frame = pd.DataFrame(
            array.reshape(self._info["shape"]), columns=self._info["names"] or None
        )
        if self._info["index"]:
            frame.index = self.to_arrow(limit).column("index").to_pandas()
        return frame

    def to_dask(self) -> Any:
        """A Dask array with a chunk for each rank, fetched by Dask's workers."""
        from fairlead.bridge.client.dask import to_dask

        return to_dask(self._session, self._info)

    def to_spark(self, spark: Any) -> Any:
        """A Spark DataFrame with columns ``index`` and ``row``, fetched by the executors when it is used.

        Args:
            spark: a ``SparkSession``, classic or Connect.
        """
        from fairlead.bridge.client.spark import to_spark

        return to_spark(self._session, self._info, spark)

    def to_parquet(self, path: str, names: list[str] | None = None) -> int:
        """Makes the ranks write a folder of Parquet files, one each.

        Args:
            path: as the ranks see it.
        Returns:
            Bytes written.
        """
        return int(self._session.ask("write", matrix=self.id, path=str(path), names=names)["bytes"])

    def free(self) -> int:
        """Frees the matrix on the ranks; how many bytes that gives back.

        Raises:
            BridgeError: it is freed already; the error says by whom.
        """
        return int(self._session.ask("free", matrix=self.id)["freed"])


def _named(table: Any, names: list[str]) -> Any:
    """A table with a column for each of the names in place of ``row``."""
    import pyarrow as pa

    if not names:
        return table
    values = table.column("row").combine_chunks().flatten().to_numpy().reshape(table.num_rows, -1)
    columns = {"index": table.column("index")} if "index" in table.column_names else {}
    return pa.table(
        {**columns, **{name: np.ascontiguousarray(values[:, i]) for i, name in enumerate(names)}}
    )
