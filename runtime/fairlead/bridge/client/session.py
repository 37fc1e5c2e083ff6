"""A client of a session: ``fairlead.bridge.connect()``."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fairlead.base.errors import FairleadError, fail
from fairlead.base.progress import Progress
from fairlead.bridge import sessions
from fairlead.bridge.arrow import Form
from fairlead.bridge.client.matrix import Matrix
from fairlead.bridge.client.result import Result
from fairlead.bridge.client.screen import progress_here
from fairlead.bridge.errors import BridgeError, translated
from fairlead.bridge.streams import Fetching, Sending, Sent
from fairlead.bridge.timings import Operation, Timings
from fairlead.bridge.wire import Endpoint, WireError, dial

SILENT_S = 30.0  # the control says every two seconds whom it waits for
_READY_S = 120.0
_REASON_S = 10.0


def connect(
    session: str | Path | None = None,
    *,
    name: str = "",
    workers: int | None = None,
    at_least: int | None = None,
    wait_s: float = _READY_S,
    progress: Progress | None = None,
) -> Session:
    """Connects to a session that ``fairlead bridge serve`` has started.

    Args:
        session: its name or folder; ``FAIRLEAD_BRIDGE`` by default, else the only one of this user.
        name: of this client. After the process ends without :meth:`Session.close`, one that gives the same name gets its
            matrices.
        workers: ranks that nobody else gets; by default all that nobody has, shared.
        at_least: with fewer idle workers than ``workers``, so many will do.
        wait_s: how long to wait for a session that is still starting.
        progress: where progress is shown; on a terminal by default.
    Raises:
        BridgeError: there is no session, it does not answer, or has not as many workers.
    """
    try:
        server = _started(sessions.find(session), wait_s)
        return Session(server, name, workers, at_least, progress)
    except (FairleadError, WireError) as exc:
        raise _as_bridge(exc) from None


def _started(server: sessions.ServerState, wait_s: float) -> sessions.ServerState:
    deadline = time.monotonic() + wait_s
    while not server.endpoints:
        if server.ended:
            break
        if time.monotonic() > deadline:
            raise fail(
                "bridge-not-started", name=server.name, seconds=wait_s, log=server.folder / "log"
            )
        time.sleep(0.1)
        server = sessions.read(server.folder)
    if server.ended:
        raise fail("bridge-ended", name=server.name, reason=server.ended)
    return server


def _as_bridge(exc: BaseException) -> BridgeError:
    if isinstance(exc, BridgeError):
        return exc
    return BridgeError(translated(exc) if isinstance(exc, WireError) else exc)  # type: ignore[arg-type]


class Session:
    """A connection to the ranks; a context manager that frees this client's matrices at its end.

    Attributes:
        ranks: numbers of the workers of this client.
    """

    def __init__(
        self,
        server: sessions.ServerState,
        name: str,
        workers: int | None,
        at_least: int | None,
        progress: Progress | None,
    ):
        self._found, self.secret = server, server.secret
        self.progress = progress or progress_here(sys.stderr)
        self._lock = threading.Lock()
        self._control = dial(
            server.endpoints[0], self.secret, role="client", name=name, workers=workers, at_least=at_least,
            pid=os.getpid(),
        )  # fmt: skip
        _, hello = self._control.receive(_READY_S)
        self.name: str = hello["name"]
        self.ranks: tuple[int, ...] = tuple(hello["ranks"])
        self._endpoints = {e.rank: e for e in server.endpoints}
        self._libraries: list[dict[str, Any]] | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<session {self._found.name}, {len(self.ranks)} workers>"

    # What a session is asked.

    def ask(self, op: str, **values: Any) -> dict[str, Any]:
        """Asks the control; waits as long as it says that it is there.

        Raises:
            BridgeError: it reports an error, or the session is over.
        """
        with self._lock:
            if self._closed:
                raise BridgeError(fail("bridge-closed"))
            try:
                self._control.say(op=op, **values)
                while True:
                    answer: dict[str, Any] = self._control.receive(SILENT_S)[1]
                    if "ok" in answer:
                        return answer
            except WireError as exc:
                if exc.check == "bridge-reported":
                    raise _as_bridge(exc) from None
                self._closed = True
                self._control.close()
                raise BridgeError(self._why_over(exc)) from None
            except BaseException:  # an interrupt: its answer would be taken for the next one's
                self._closed = True
                self._control.close()
                raise

    def _why_over(self, exc: WireError) -> FairleadError:
        """Why the control is gone: the session says, a moment later than its connections break."""
        deadline = time.monotonic() + _REASON_S
        while time.monotonic() < deadline:
            with suppress(FairleadError):
                if ended := sessions.read(self._found.folder).ended:
                    return fail("bridge-ended", name=self._found.name, reason=ended)
            time.sleep(0.2)
        return translated(exc)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turns errors of the protocol into errors with a remedy."""
        try:
            yield
        except WireError as exc:
            if exc.check in ("bridge-lost", "bridge-unreachable", "bridge-refused"):
                raise BridgeError(self._why_over(exc)) from None
            raise _as_bridge(exc) from None
        except FairleadError as exc:
            raise _as_bridge(exc) from None

    # Matrices.

    def send(self, data: Any, **options: Any) -> Matrix:
        """Sends a matrix to the ranks.

        Args:
            data: a NumPy array, a SciPy sparse matrix, a pandas DataFrame, an Arrow table, a Dask array or DataFrame, a
                Spark DataFrame; or a path or URL (``s3://…``) of Parquet or HDF5 (``FILE:DATASET``), which the ranks read
                themselves.
            options: of :func:`fairlead.bridge.client.send.send`: ``columns``, ``index``, ``name``, ``dtype``,
                ``allow_nan``, ``partitions``.
        Raises:
            BridgeError: it holds nulls, NaN, rows of different lengths, no numbers; it does not fit; a rank is lost.
        """
        from fairlead.bridge.client.send import send

        with self.explained():
            return send(self, data, **options)

    def create(self, form: Form, **values: Any) -> str:
        """A new matrix, to which partitions can be sent."""
        from dataclasses import asdict

        return str(self.ask("create", form=asdict(form), **values)["matrix"])

    def sending(self, matrix: str, form: Form, index: Any = None) -> Sending:
        return Sending(matrix, form, self._of(self.ranks), self.secret, index)

    def fetching(self, info: Mapping[str, Any], by: str = "") -> Fetching:
        form = Form(**{**info["form"], "allow_nan": True})
        counts = tuple(info["counts"])
        return Fetching(info["id"], form, self._of(info["ranks"]), counts, self.secret, by)

    def _of(self, ranks: Any) -> tuple[Endpoint, ...]:
        return tuple(self._endpoints[rank] for rank in ranks)

    def seal(self, matrix: str, sent: list[Sent], partitions: int | None = None) -> Matrix:
        """The matrix of the partitions that count.

        Raises:
            WireError: their rows are not of one length.
        """
        parts = [(s.partition, s.attempt, s.rows, s.place) for s in sent]
        filled = [s for s in sent if s.rows]
        cols = filled[0].cols if filled else 0
        for other in filled:
            if other.cols != cols:
                row = f"0 of partition {other.partition}"
                raise WireError("bridge-ragged", row=row, length=other.cols, cols=cols)
        answer = self.ask("seal", matrix=matrix, parts=parts, partitions=partitions, cols=cols)
        return Matrix(self, answer["info"], answer["timing"])

    def matrices(self) -> dict[str, Matrix]:
        """The matrices of the session, by their names, or numbers where they have none."""
        made = [Matrix(self, info) for info in self.ask("list")["matrices"] if info["sealed"]]
        return {matrix.name or matrix.id: matrix for matrix in made}

    def layout(
        self,
        matrix: Matrix,
        to: str = "block-cyclic",
        *,
        block: int = 64,
        grid: tuple[int, int] | None = None,
        name: str = "",
    ) -> Matrix:
        """The same numbers in another layout, as a matrix of its own; an index column stays with the first.

        Args:
            matrix: a dense one.
            to: ``block-cyclic``, ScaLAPACK's two-dimensional layout, or ``rows``, as many for each rank.
            block: rows and columns of a block.
            grid: rows and columns of ranks; as square as their number allows by default.
        Raises:
            BridgeError: it is sparse, does not fit, or the grid has more ranks than hold it.
        """
        answer = self.ask(
            "layout", matrix=matrix.id, to=to, block=block, grid=grid and list(grid), name=name
        )
        return Matrix(self, answer["info"])

    # Functions.

    def libraries(self) -> list[dict[str, Any]]:
        """The libraries that the image has, with their functions and signatures."""
        if self._libraries is None:
            self._libraries = self.ask("libraries")["libraries"]
        return self._libraries

    def run(
        self, library: str, function: str, inputs: Mapping[str, Matrix], params: Mapping[str, Any]
    ) -> Result:
        """Runs a function on the ranks.

        Raises:
            BridgeError: it refuses its arguments, or a rank has failed in it.
        """
        answer = self.ask(
            "run", library=library, function=function, params=dict(params),
            inputs={name: matrix.id for name, matrix in inputs.items()},
        )  # fmt: skip
        matrices = {name: Matrix(self, info) for name, info in answer["outputs"].items()}
        return Result(f"{library}.{function}", matrices, answer["scalars"], answer["timing"])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        from fairlead.bridge.client.result import Functions

        known = {library["name"].replace("-", "_"): library for library in self.libraries()}
        if name not in known:
            raise AttributeError(f"the session has no library {name}; it has {', '.join(known)}")
        return Functions(self, known[name])

    # The session itself.

    def timings(self, mllib_s: Mapping[str, float] | None = None) -> Timings:
        """What this client has had done, by phase, and whether it paid; printed, a line for each.

        Args:
            mllib_s: seconds that MLlib takes for a function, as you have measured them: ``{"linalg.svd": 61.5}``. Those of
                others are estimated, and said to be.
        """
        answer = self.ask("timings")
        return Timings(map(Operation.from_json, answer["operations"]), answer["cores"], mllib_s)

    def status(self) -> dict[str, Any]:
        """Ranks with their memory, clients, matrices."""
        return self.ask("status")

    def stop(self) -> None:
        """Ends the session for everybody."""
        self.ask("stop")
        self._closed = True

    def close(self) -> None:
        """Frees this client's matrices and leaves."""
        if not self._closed:
            with suppress(BridgeError):
                self.ask("close")
            self._closed = True
            self._control.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
