"""A handle of a matrix that the ranks hold."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fairlead.base.errors import fail
from fairlead.bridge.layout import BlockCyclic
from fairlead.bridge.library import ROWS
from fairlead.bridge.streams import Fetching
from fairlead.bridge.timings import Operation

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

    def __init__(
        self, session: Session, info: Mapping[str, Any], sealed: Mapping[str, float] | None = None
    ):
        self._session, self._info = session, dict(info)
        self._sealed = sealed or {"mean": 0.0, "slowest": 0.0}
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
    def layout(self) -> str:
        """``rows`` or ``block-cyclic``."""
        return str(self._info["layout"])

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
            out = np.empty(self._info["shape"], self.dtype)
            parts = self._parts()

            def fetch(place: int) -> tuple[int, float]:
                begun, (fetching, at) = time.perf_counter(), parts[place]
                got = fetching.dense(place)
                out[at] = got
                return int(got.nbytes), time.perf_counter() - begun

            with (
                self._session.progress.stage(
                    f"fetch {self.name or self.id}", self.nbytes, "B"
                ) as stage,
                ThreadPoolExecutor(_STREAMS) as pool,
            ):
                begun, seconds = time.perf_counter(), []
                for size, spent in pool.map(fetch, parts):
                    stage.advance(size)
                    seconds.append(spent)
            self._fetched("NumPy", seconds, time.perf_counter() - begun)
            return out[:, 0] if self._info["ndim"] == 1 else out

    def _parts(self) -> dict[int, tuple[Fetching, Any]]:
        """For each rank that has some of it, how that is fetched and where it belongs."""
        if not self._info["tiles"]:
            fetching, starts = self._session.fetching(self._info), np.cumsum([0, *self.counts])
            places = [place for place, count in enumerate(self.counts) if count]
            return {p: (fetching, slice(starts[p], starts[p + 1])) for p in places}
        tiles, parts = BlockCyclic(**self._info["tiles"]), {}
        for place in range(len(self.counts)):
            at = tiles.place(place)
            if at and all(tiles.shape(place)):
                form = {**self._info["form"], "cols": tiles.shape(place)[1]}
                where = np.ix_(tiles.down.indices(at[0]), tiles.across.indices(at[1]))
                parts[place] = self._session.fetching({**self._info, "form": form}), where
        return parts

    @property
    def sealed_s(self) -> float:
        """Seconds of the slowest rank to make its block of the rows that came."""
        return self._sealed["slowest"]

    @property
    def sealed_mean_s(self) -> float:
        """The same, the mean over the ranks."""
        return self._sealed["mean"]

    def note(
        self,
        kind: str,
        what: str,
        phases: Mapping[str, tuple[float, float]],
        wall_s: float,
        size: int,
    ) -> None:
        """Tells the session how long something took that this process has done with the matrix."""
        rows, cols = self._info["shape"]
        inputs, outputs = ((), (self.id,)) if kind == "send" else ((self.id,), ())
        done = Operation(kind, what, "", inputs, outputs, rows, cols, size, phases, wall_s)
        self._session.ask("note", operation=asdict(done))

    def _fetched(self, what: str, seconds: list[float], wall_s: float) -> None:
        spread = (sum(seconds) / max(len(seconds), 1), max(seconds, default=0.0))
        self.note("fetch", what, {"fetch": spread}, wall_s, self.nbytes)

    def _in_rows(self, called: str) -> None:
        """
        Raises:
            FairleadError: it is in another layout.
        """
        if self.layout != ROWS:
            raise fail(
                "bridge-layout", called=called, name=self.id, layout=self.layout, wanted=ROWS
            )

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
            self._in_rows("to_arrow")
            if self.nbytes > limit:
                raise fail("bridge-limit", shape=self.shape, size=self.nbytes, limit=int(limit))
            fetching = self._session.fetching(self._info)

            def fetch(place: int) -> tuple[list[Any], float]:
                begun = time.perf_counter()
                return list(fetching.batches(place)), time.perf_counter() - begun

            begun = time.perf_counter()
            with ThreadPoolExecutor(_STREAMS) as pool:
                parts = list(pool.map(fetch, range(len(self.counts))))
            self._fetched("Arrow", [spent for _, spent in parts], time.perf_counter() - begun)
            batches = [batch for part, _ in parts for batch in part]
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

        with self._session.explained():
            self._in_rows("to_dask")
        return to_dask(self._session, self._info)

    def to_spark(self, spark: Any) -> Any:
        """A Spark DataFrame with columns ``index`` and ``row``, fetched by the executors when it is used.

        Args:
            spark: a ``SparkSession``, classic or Connect.
        """
        from fairlead.bridge.client.spark import to_spark

        with self._session.explained():
            self._in_rows("to_spark")
        return to_spark(self._session, self._info, spark)

    def to_parquet(self, path: str, names: list[str] | None = None) -> int:
        """Makes the ranks write a folder of Parquet files, one each.

        Args:
            path: as the ranks see it; or a URL (``s3://…``), below which nothing may be. There the files are a result with
                a list, whole or marked as incomplete; the same call goes on with one that was interrupted.
        Returns:
            Bytes written.
        Raises:
            BridgeError: it cannot be written.
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
