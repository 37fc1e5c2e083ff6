"""The names of Alchemist's clients ACIPython and ACISpark, on a session of the bridge.

An old script runs with its import line changed: ``from fairlead.bridge.alchemist import *`` in place of
``from alchemist import *``. Host and port, which Alchemist's users read from a file, have no meaning here: the session
is the one that ``fairlead bridge serve`` has started. What Alchemist printed, this returns.

Source of the names: project-alchemist/ACIPython and ACISpark, last commits of 2019.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fairlead.base.errors import fail
from fairlead.bridge.client.matrix import Matrix
from fairlead.bridge.client.session import Session, connect
from fairlead.bridge.errors import BridgeError

__all__ = ["AlchemistSession", "LibraryHandle", "MatrixHandle", "Parameter"]

# Alchemist's TestLib and its Elemental wrappers, and what does the same here.
_LIBRARIES = {"TestLib": "linalg", "ElementalLib": "linalg", "libA": "linalg"}
_TASKS = {"truncated_svd": "svd", "truncatedSVD": "svd", "SVD": "svd", "kmeans": "kmeans",
          "matrixMul": "matmul", "matmul": "matmul", "transpose": "transpose"}  # fmt: skip
_PARAMETERS = {"rank": "k", "num_centers": "k", "numCenters": "k", "max_iterations": "iterations"}


class MatrixHandle:
    """A matrix on the workers, with the attributes of Alchemist's handle."""

    def __init__(self, matrix: Matrix):
        self.matrix = matrix
        self.id, self.name = matrix.id, matrix.name
        shape = matrix.shape if len(matrix.shape) == 2 else (*matrix.shape, 1)
        self.num_rows, self.num_cols = shape
        self.sparse, self.num_partitions = matrix.sparse, len(matrix.counts)

    def meta(self) -> str:
        """What Alchemist printed of a matrix."""
        return f"ID: {self.id}\nNumber of rows: {self.num_rows}\nNumber of columns: {self.num_cols}"

    def __repr__(self) -> str:
        return repr(self.matrix)


class Parameter:
    """A parameter of a task; the type code that Alchemist needed is ignored."""

    datatypes: Mapping[str, int] = dict.fromkeys(
        (
            "BYTE",
            "CHAR",
            "SHORT",
            "INT",
            "LONG",
            "FLOAT",
            "DOUBLE",
            "STRING",
            "MATRIX_ID",
            "ARRAY_ID",
        ),
        0,
    )

    def __init__(self, name: str, datatype: int | str, value: Any = None):
        self.name, self.datatype, self.value = name, datatype, value


class LibraryHandle:
    """A library: its functions under their own names and Alchemist's."""

    def __init__(self, session: AlchemistSession, name: str):
        self._session, self.name = session, name

    def truncated_svd(self, A: Any, rank: int, method: Any = None) -> tuple[MatrixHandle, ...]:
        """Alchemist's order: S, U, V. ``method`` meant opposite things in its two generations, and is ignored."""
        out = self._session.run_task(self, "truncated_svd", {"A": A, "rank": rank})
        return out["s"], out["u"], out["v"]

    def __getattr__(self, task: str) -> Any:
        if task.startswith("_"):
            raise AttributeError(task)
        return lambda **params: self._session.run_task(self, task, params)


class AlchemistSession:
    """Alchemist's session, on one of the bridge.

    Args:
        given: buffer lengths and other settings of Alchemist's, which have no counterpart.
    """

    def __init__(self, *given: Any, **settings: Any):
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        """
        Raises:
            BridgeError: ``connect_to_alchemist`` was not called.
        """
        if self._session is None:
            raise BridgeError(fail("bridge-alchemist-order"))
        return self._session

    def connect_to_alchemist(self, address: str = "", port: int = 0) -> None:
        """Connects to the session of this user; address and port are those of its file."""
        self._session = connect()

    def request_workers(self, number: int) -> list[int]:
        """Workers of this client alone; as many as are idle, if fewer are. Alchemist had rank 0 apart."""
        if self._session:
            self._session.close()
        self._session = connect(workers=number, at_least=1)
        return list(self._session.ranks)

    def yield_workers(self, workers: Iterable[int] = ()) -> list[int]:
        """Gives the workers back, and frees their matrices."""
        ranks = list(self.session.ranks)
        self.session.close()
        self._session = connect()
        return ranks

    def _listed(self, wanted: bool | None) -> list[str]:
        answered = self.session.status()
        busy = {r["rank"] for r in answered["ranks"] if r["busy"]}
        return [
            f"Worker-{r['rank']} on {r['host']}"
            for r in answered["ranks"]
            if wanted is None or (r["rank"] in busy) == wanted
        ]

    def list_all_workers(self, preamble: str = "") -> list[str]:
        return self._listed(None)

    list_alchemist_workers = list_all_workers

    def list_active_workers(self, preamble: str = "") -> list[str]:
        return self._listed(True)

    def list_inactive_workers(self, preamble: str = "") -> list[str]:
        return self._listed(False)

    def list_assigned_workers(self, preamble: str = "") -> list[str]:
        return [f"Worker-{rank}" for rank in self.session.ranks]

    def send_matrix(self, data: Any, print_times: bool = False, layout: str = "") -> MatrixHandle:
        """Sends anything that the bridge sends; layouts of Elemental have no counterpart."""
        return MatrixHandle(self.session.send(data))

    send_array = send_matrix

    def send_hdf5(self, data: Any, *_: Any) -> MatrixHandle:
        """Sends an open HDF5 data set; as float64, as Alchemist did."""
        return MatrixHandle(self.session.send(np.asarray(data, np.float64)))

    def read_from_hdf5(self, filename: str) -> Any:
        import h5py

        return h5py.File(filename, "r")

    def load_from_hdf5(self, file_name: str, dataset_name: str) -> MatrixHandle:
        """Read by the workers."""
        return MatrixHandle(self.session.send(f"{file_name}:{dataset_name}"))

    def sendIndexedRowMatrix(self, matrix: Any) -> MatrixHandle:
        """A Spark DataFrame, or an ``IndexedRowMatrix`` of MLlib."""
        if hasattr(matrix, "rows"):
            rows = matrix.rows.map(
                lambda row: (int(row.index), [float(x) for x in row.vector.toArray()])
            )
            frame = rows.toDF("index bigint, row array<double>").orderBy("index")
            return MatrixHandle(self.session.send(frame, index="index"))
        return MatrixHandle(self.session.send(matrix))

    def getIndexedRowMatrix(self, handle: MatrixHandle, spark: Any) -> Any:
        """A Spark DataFrame; ACISpark returned an ``IndexedRowMatrix``."""
        return handle.matrix.to_spark(spark)

    def fetch_matrix(self, handle: MatrixHandle) -> np.ndarray:
        """The matrix, with two dimensions as Alchemist's."""
        array = handle.matrix.to_numpy()
        return array.reshape(handle.num_rows, handle.num_cols)

    def get_array(
        self, handle: MatrixHandle, rows: Iterable[int] = (-1,), cols: Iterable[int] = (-1,)
    ) -> np.ndarray:
        """Rows and columns of a matrix; all by default."""
        array, some, those = self.fetch_matrix(handle), list(rows), list(cols)
        array = array if some[:1] == [-1] else array[some]
        return array if those[:1] == [-1] else array[:, those]

    def load_library(self, name: str, path: str = "") -> LibraryHandle:
        """A library of the session. ``TestLib`` is :mod:`fairlead.bridge.libraries.linalg`; ``path`` is ignored."""
        name = _LIBRARIES.get(name, name)
        getattr(self.session, name.replace("-", "_"))
        return LibraryHandle(self, name)

    def unload_library(self, library: LibraryHandle) -> None:
        """Does nothing: libraries take no memory of workers."""

    def run_task(
        self, library: LibraryHandle | str, name: str, in_args: Any = None, out_args: Any = None
    ) -> dict[str, Any]:
        """Runs a task.

        Args:
            name: of Alchemist's task, or of the library's function.
            in_args: values by name: handles, numbers, :class:`Parameter`.
            out_args: ignored; every output is returned.
        Returns:
            Handles and scalars by name.
        """
        name = _TASKS.get(name, name)
        library = library.name if isinstance(library, LibraryHandle) else library
        values = _values(in_args)
        signature = next(
            f for entry in self.session.libraries() if entry["name"] == library
            for f in entry["functions"] if f["name"] == name
        )  # fmt: skip
        matrices = [v for v in values.values() if isinstance(v, (Matrix, MatrixHandle))]
        inputs = {
            key: value.matrix if isinstance(value, MatrixHandle) else value
            for key, value in zip(signature["inputs"], matrices, strict=False)
        }
        params = {
            _PARAMETERS.get(key, key): value
            for key, value in values.items()
            if not isinstance(value, (Matrix, MatrixHandle))
        }
        result = self.session.run(library, name, inputs, params)
        handles = {key: MatrixHandle(matrix) for key, matrix in result.matrices.items()}
        return {**handles, **result.scalars}

    def close(self) -> None:
        if self._session:
            self._session.close()
            self._session = None

    stop = close

    def __enter__(self) -> AlchemistSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _values(given: Any) -> dict[str, Any]:
    pairs = given.items() if isinstance(given, Mapping) else ((p.name, p) for p in given or ())
    return {name: value.value if isinstance(value, Parameter) else value for name, value in pairs}
