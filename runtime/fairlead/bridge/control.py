"""Rank 0's control of a session: clients, their workers and matrices, and the tasks of the ranks.

A client's connection is served by a thread. Tasks go to the ranks in one order, so that ranks that belong to several
groups meet the others of each in turn; the threads wait for the answers and say meanwhile whom they wait for.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fairlead import __version__
from fairlead.base.errors import FairleadError, fail
from fairlead.bridge import library
from fairlead.bridge.arrow import DTYPES, Form
from fairlead.bridge.endpoint import Role
from fairlead.bridge.errors import described, translated
from fairlead.bridge.fetches import Fetched, Fetches
from fairlead.bridge.layout import BlockCyclic, grid
from fairlead.bridge.settings import ENDED, OPERATIONS, RANKS, Settings, write_private
from fairlead.bridge.timings import Operation
from fairlead.bridge.wire import ERROR, Connection, Endpoint, WireError
from fairlead.objects.url import is_url, parse

HEARTBEAT_S = 2.0
_MISSED_S = 5.0
_RANKS_S = 60.0  # for all ranks to connect to rank 0
_OPERATIONS = 1000  # that are remembered


@dataclass
class Matrix:
    """A matrix, open while rows arrive and sealed after that.

    Attributes:
        ranks: that hold it, in the order of its rows.
        counts: rows of each of them.
        names: of the columns; empty for none.
        index: whether an index column goes with the rows.
        tiles: its 2-D block-cyclic layout; None for block rows.
        freed: who freed it.
    """

    id: str
    form: Form
    ranks: tuple[int, ...]
    owner: str
    name: str = ""
    names: tuple[str, ...] = ()
    index: str = ""
    counts: tuple[int, ...] = ()
    sealed: bool = False
    ndim: int = 2
    tiles: BlockCyclic | None = None
    freed: str = ""

    @property
    def rows(self) -> int:
        return self.tiles.rows if self.tiles else sum(self.counts)

    @property
    def layout(self) -> str:
        return library.CYCLIC if self.tiles else library.ROWS

    def offset(self, rank: int) -> int:
        return sum(self.counts[: self.ranks.index(rank)])

    def to_json(self) -> dict[str, Any]:
        shown = asdict(self)
        del shown["freed"]
        size = self.rows * self.form.row_bytes
        return {
            **shown,
            "layout": self.layout,
            "shape": [self.rows, self.form.cols],
            "bytes": None if self.form.sparse else size,
        }


@dataclass
class Client:
    """Who uses the session.

    Attributes:
        ranks: its workers.
        exclusive: nobody else gets them.
        left: when it left without closing; None while it is there.
    """

    name: str
    ranks: tuple[int, ...]
    exclusive: bool
    connection: Connection | None
    left: float | None = None
    busy: str = ""


@dataclass
class Task:
    """What ranks are at."""

    number: int
    title: str
    waiting: set[int]
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)
    aborted: float | None = None


class Control:
    """The control of a session; one for all ranks, on rank 0."""

    def __init__(self, settings: Settings, endpoints: list[Endpoint]):
        self._settings, self._endpoints = settings, endpoints
        self._state = threading.Condition()
        self._order = threading.Lock()
        self._ranks: dict[int, Connection] = {}
        self._clients: dict[str, Client] = {}
        self._matrices: dict[str, Matrix] = {}
        self._tasks: dict[int, Task] = {}
        self._epochs: dict[tuple[int, ...], int] = {}
        self._numbers, self._ids = itertools.count(1), itertools.count(1)
        self._started, self._over = time.time(), threading.Event()
        self._operations: deque[Operation] = deque(maxlen=_OPERATIONS)
        self._fetches = Fetches()
        self.roles: dict[str, Role] = {
            "orders": self._keep_orders, "answers": self._hear_rank, "client": self._serve_client,
        }  # fmt: skip

    def announce(self) -> None:
        """Writes where the ranks are, once they listen."""
        shown = {"version": __version__, "endpoints": [asdict(e) for e in self._endpoints]}
        write_private(Path(self._settings.folder, RANKS), json.dumps(shown))
        threading.Thread(target=self._forget_clients, name="clients", daemon=True).start()

    # Ranks.

    def _keep_orders(self, connection: Connection, first: dict[str, Any]) -> None:
        with self._state:
            self._ranks[int(first["rank"])] = connection
            self._state.notify_all()
        self._over.wait()

    def _hear_rank(self, connection: Connection, first: dict[str, Any]) -> None:
        rank = int(first["rank"])
        while True:
            _, answer = connection.receive(None)
            if fetched := answer.get("fetched"):
                self._fetched(Fetched(rank=rank, **fetched))
                continue
            with self._state:
                task = self._tasks.get(answer["task"])
                if task:
                    task.answers[rank] = answer
                    task.waiting.discard(rank)
                    self._state.notify_all()
            if "error" in answer and task:
                self._abort(task)

    def _abort(self, task: Task) -> None:
        """Makes the other ranks leave a run that one of them has failed in."""
        with self._state:
            if task.aborted is not None:
                return
            task.aborted = time.monotonic()
            waiting = sorted(task.waiting)
        for rank in waiting:
            with suppress(WireError):
                self._ranks[rank].say(do="abort", task=task.number)

    def _all_ranks(self) -> None:
        def there() -> bool:
            return len(self._ranks) == len(self._endpoints)

        with self._state:
            if not self._state.wait_for(there, _RANKS_S):
                missing = [e.who for e in self._endpoints if e.rank not in self._ranks]
                raise fail("bridge-ranks-missing", missing=", ".join(missing), seconds=_RANKS_S)

    def _run(
        self, client: Client, title: str, orders: dict[int, dict[str, Any]]
    ) -> dict[int, dict[str, Any]]:
        """Sends a task to ranks and waits for all of them.

        Args:
            orders: what each rank is sent.
        Returns:
            What each has answered.
        Raises:
            FairleadError: the first error of a rank.
        """
        task = Task(next(self._numbers), f"{title} of {client.name}", set(orders))
        with self._state:
            self._tasks[task.number] = task
            client.busy = title
        try:
            with self._order:
                for rank, order in orders.items():
                    self._ranks[rank].say(task=task.number, **order)
            self._await(task, client)
        finally:
            with self._state:
                del self._tasks[task.number]
                client.busy = ""
        errors = [a["error"] for a in task.answers.values() if "error" in a]
        if errors:
            raise translated(WireError("bridge-reported", **errors[0]))
        return task.answers

    def _on(self, rank: int, client: Client, title: str, **order: Any) -> dict[str, Any]:
        """What one rank answers to a task."""
        return self._run(client, title, {rank: order})[rank]

    def _await(self, task: Task, client: Client) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: not task.waiting, HEARTBEAT_S)
                waiting = sorted(task.waiting)
                aborted = task.aborted
            if not waiting:
                return
            if aborted and time.monotonic() - aborted > self._settings.stuck_s:
                self._give_up(task, waiting)
            if client.connection:
                who = [self._endpoints[rank].who for rank in waiting]
                before = self._before(task, waiting)
                try:
                    client.connection.say(waiting=who, doing=task.title, before=before)
                except WireError:
                    client.connection = None
                    self._abort(task)

    def _before(self, task: Task, waiting: list[int]) -> list[str]:
        """Tasks of others that these ranks are at first."""
        with self._state:
            return [
                other.title
                for other in self._tasks.values()
                if other.number < task.number and other.waiting.intersection(waiting)
            ]

    def _give_up(self, task: Task, waiting: list[int]) -> None:
        """Ends the session: ranks that wait inside MPI for one that has failed cannot be called back."""
        who = ", ".join(self._endpoints[rank].who for rank in waiting)
        error: dict[str, Any] = next(
            (a["error"] for a in task.answers.values() if "error" in a), {}
        )
        text = f"{task.title} failed ({error.get('what', '')}), and {who} did not leave it within {self._settings.stuck_s:g} s"
        write_private(Path(self._settings.folder, ENDED), text)
        print(text, file=sys.stderr, flush=True)
        os._exit(1)

    # Clients.

    def _serve_client(self, connection: Connection, first: dict[str, Any]) -> None:
        self._all_ranks()
        client = self._admitted(connection, first)
        connection.say(ok=True, name=client.name, ranks=client.ranks)
        try:
            self._answer_all(client, connection)
        except WireError:
            with self._state:
                client.connection, client.left = None, time.monotonic()
                self._state.notify_all()

    def _answer_all(self, client: Client, connection: Connection) -> None:
        while True:
            _, asked = connection.receive(None)
            if asked.get("op") == "close":
                self._forget(client)
                connection.say(ok=True)
                return
            if asked.get("op") == "stop":
                connection.say(ok=True)
                self._stop()
                return
            handler: Callable[..., dict[str, Any]] | None
            handler = getattr(self, f"_op_{asked.get('op')}", None)
            if handler is None:
                connection.say(ERROR, check="bridge", what=f"no operation {asked.get('op')}")
                continue
            try:
                done = handler(client, asked)
            except (FairleadError, WireError) as exc:
                connection.say(ERROR, **described(exc))
                continue
            connection.say(ok=True, **done)

    def _admitted(self, connection: Connection, first: dict[str, Any]) -> Client:
        name, wanted = str(first.get("name") or ""), first.get("workers")
        with self._state:
            known = self._clients.get(name)
            if known:  # one that has just died may not be missed yet
                self._state.wait_for(lambda: known.left is not None, _MISSED_S)
            if known and known.left is not None:
                known.connection, known.left = connection, None
                return known
            if known:
                raise fail(
                    "bridge-client-name", name=name, who=known.connection and known.connection.who
                )
            name = name or f"client-{next(self._ids)}"
            taken = {r for c in self._clients.values() if c.exclusive for r in c.ranks}
            free = [e.rank for e in self._endpoints if e.rank not in taken]
            if wanted is None:
                ranks = tuple(free)
            else:
                # The last ones first: rank 0 has the control to do besides.
                idle = [r for r in free if not any(r in c.ranks for c in self._clients.values())]
                ranks = tuple(sorted(idle[-int(wanted) :])) if wanted > 0 else ()
            least = first.get("at_least", wanted)
            if not ranks or (least is not None and len(ranks) < least):
                raise fail(
                    "bridge-workers", wanted=wanted or "any", free=len(free) if wanted is None else len(ranks),
                    total=len(self._endpoints), clients=", ".join(self._clients) or "none",
                )  # fmt: skip
            client = Client(name, ranks, wanted is not None, connection)
            self._clients[name] = client
            return client

    def _owned(self, client: Client) -> list[Matrix]:
        return [m for m in self._matrices.values() if m.owner == client.name and not m.freed]

    def _forget_clients(self) -> None:
        """Frees what belongs to clients that vanished and did not come back in time."""
        while True:
            time.sleep(min(self._settings.keep_s, 5.0) or 0.5)
            now = time.monotonic()
            with self._state:
                gone = [
                    c
                    for c in self._clients.values()
                    if c.left is not None and now - c.left > self._settings.keep_s
                ]
            for client in gone:
                self._forget(client)

    def _forget(self, client: Client) -> None:
        owned = self._owned(client)
        with self._state:
            self._clients.pop(client.name, None)
            client.connection = None
        with suppress(FairleadError, WireError):
            self._free(client, owned)

    def _free(self, client: Client, matrices: list[Matrix]) -> int:
        ranks = sorted({rank for matrix in matrices for rank in matrix.ranks})
        for matrix in matrices:
            matrix.freed = client.name
        orders = {
            r: {"do": "free", "matrices": [m.id for m in matrices if r in m.ranks]} for r in ranks
        }
        answers = self._run(client, "free", orders) if orders else {}
        return sum(answer["freed"] for answer in answers.values())

    def _matrix(self, number: str, *, sealed: bool | None = True) -> Matrix:
        matrix = self._matrices.get(str(number))
        if matrix is None:
            raise fail("bridge-no-matrix", matrix=number)
        if matrix.freed:
            raise fail("bridge-freed-by", matrix=number, who=matrix.freed)
        if sealed is not None and matrix.sealed != sealed:
            raise fail("bridge-not-sealed" if sealed else "bridge-is-sealed", matrix=number)
        return matrix

    # Operations.

    def _op_create(self, client: Client, asked: dict[str, Any]) -> dict[str, Any]:
        form = _checked(Form(**asked["form"]), least=0 if asked.get("cols_later") else 1)
        if asked.get("bytes"):
            self._fits(client, int(asked["bytes"]))
        matrix = Matrix(
            f"m{next(self._ids)}", form, client.ranks, client.name, str(asked.get("name") or ""),
            tuple(asked.get("names") or ()), str(asked.get("index") or ""),
        )  # fmt: skip
        with self._state:
            self._matrices[matrix.id] = matrix
        return {"matrix": matrix.id}

    def _fits(self, client: Client, size: int) -> None:
        """Refuses a matrix before its first byte."""
        share = size / len(client.ranks)
        for rank, stats in self._stats(client, client.ranks).items():
            if stats["used"] + share > stats["most"]:
                raise fail(
                    "bridge-memory", who=self._endpoints[rank].who, needs=int(share), used=stats["used"],
                    most=stats["most"],
                )  # fmt: skip

    def _op_seal(self, client: Client, asked: dict[str, Any]) -> dict[str, Any]:
        """The rows that count; ``parts``: partition, attempt, rows and place of its rank in the matrix's ranks.

        ``cols``: of a matrix that was created without knowing them.
        """
        matrix = self._matrix(asked["matrix"], sealed=False)
        matrix.form = _checked(
            replace(matrix.form, cols=int(asked.get("cols") or matrix.form.cols))
        )
        parts = sorted((int(p), int(a), int(rows), int(at)) for p, a, rows, at in asked["parts"])
        numbers = [part for part, *_ in parts]
        if len(set(numbers)) != len(numbers):
            twice = next(p for p, q in itertools.pairwise(numbers) if p == q)
            raise fail("bridge-partition-twice", partition=twice)
        if expected := asked.get("partitions"):
            missing = sorted(set(range(int(expected))) - set(numbers))
            if missing:
                raise fail(
                    "bridge-partition-missing",
                    missing=", ".join(map(str, missing[:8])),
                    total=expected,
                )
        places = [at for *_, at in parts]
        if places != sorted(places):
            raise fail("bridge-order")
        orders = {
            rank: {
                "do": "seal", "matrix": matrix.id, "form": asdict(matrix.form),
                "wanted": [(p, a, rows) for p, a, rows, at in parts if at == place],
            }
            for place, rank in enumerate(matrix.ranks)
        }  # fmt: skip
        answers = self._run(client, "seal", orders)
        matrix.counts = tuple(answers[rank]["rows"] for rank in matrix.ranks)
        matrix.sealed = True
        return {"info": matrix.to_json(), "timing": _timing(answers)}

    def _op_load(self, client: Client, asked: dict[str, Any]) -> dict[str, Any]:
        number, path = f"m{next(self._ids)}", str(asked["path"])
        order = {
            "do": "load", "matrix": number, "path": path, "columns": asked.get("columns"),
            "allow_nan": bool(asked.get("allow_nan")), "listing": None, "dataset": "",
        }  # fmt: skip
        begun = time.monotonic()
        if is_url(path):
            parse(path)  # what it refuses is not to be shown
            located = self._on(client.ranks[0], client, f"list {path}", do="locate", path=path)
            order |= {name: located[name] for name in ("listing", "dataset")}
        answers = self._together(
            client, f"read {path}", {rank: dict(order) for rank in client.ranks}
        )
        first = answers[client.ranks[0]]
        form = Form(first["cols"], first["dtype"], allow_nan=True)
        matrix = Matrix(number, form, client.ranks, client.name, str(asked.get("name") or ""))
        matrix.counts = tuple(answers[rank]["rows"] for rank in client.ranks)
        matrix.sealed = True
        with self._state:
            self._matrices[number] = matrix
        self._noted(
            Operation(
                "read", path, client.name, (), (number,), matrix.rows, form.cols,
                matrix.rows * form.row_bytes, {"read": _spread(answers)}, time.monotonic() - begun,
            )
        )  # fmt: skip
        return {"info": matrix.to_json(), "timing": _timing(answers)}

    def _op_write(self, client: Client, asked: dict[str, Any]) -> dict[str, Any]:
        matrix = self._matrix(asked["matrix"])
        if matrix.tiles:
            raise fail(
                "bridge-layout",
                called="to_parquet",
                name=matrix.id,
                layout=matrix.layout,
                wanted=library.ROWS,
            )
        path, first = str(asked["path"]), matrix.ranks[0]
        orders = {
            rank: {
                "do": "write", "matrix": matrix.id, "path": path, "part": place,
                "names": asked.get("names") or matrix.names,
            }
            for place, rank in enumerate(matrix.ranks)
        }  # fmt: skip
        begun = time.monotonic()
        left: list[str] = []
        if is_url(path):
            parse(path)  # what it refuses is not to be shown
            left = self._on(first, client, f"begin {path}", do="begin", path=path)["left"]
        answers = self._run(client, f"write {path}", orders)
        if is_url(path):
            files = [file for answer in answers.values() for file in answer["files"]]
            order = {"do": "finish", "path": path, "files": files, "left": left}
            self._on(first, client, f"finish {path}", **order)
        size = sum(answer["bytes"] for answer in answers.values())
        self._noted(
            Operation(
                "write", path, client.name, (matrix.id,), (), matrix.rows, matrix.form.cols,
                size, {"write": _spread(answers)}, time.monotonic() - begun,
            )
        )  # fmt: skip
        return {"bytes": size, "timing": _timing(answers)}

    def _op_run(self, client: Client, asked: dict[str, Any]) -> dict[str, Any]:
        named, function_name = str(asked["library"]), str(asked["function"])
        function = library.find(named).get(function_name)
        params = function.checked(named, asked["params"])
        inputs = {name: self._matrix(number) for name, number in asked["inputs"].items()}
        called = f"{named}.{function_name}"
        for name, optional in function.inputs.items():
            if not optional and name not in inputs:
                raise fail("bridge-input", called=called, name=name, signature=function.signature)
        for name in inputs:
            if name not in function.inputs:
                raise fail(
                    "bridge-input-unknown", called=called, name=name, signature=function.signature
                )
            _laid_out(called, name, inputs[name], function.layouts[name])
        groups = {matrix.ranks for matrix in inputs.values()} or {client.ranks}
        if len(groups) > 1:
            raise fail(
                "bridge-groups", called=called, groups="; ".join(str(list(g)) for g in groups)
            )
        ranks = groups.pop()
        number = f"r{next(self._ids)}"
        orders = {
            rank: {
                "do": "run", "library": named, "function": function_name, "params": params, "as": number,
                "inputs": {
                    name: {
                        "id": m.id, "offset": m.offset(rank), "shape": (m.rows, m.form.cols),
                        "tiles": m.tiles and asdict(m.tiles),
                    }
                    for name, m in inputs.items()
                },
            }
            for rank in ranks
        }  # fmt: skip
        begun = time.monotonic()
        answers = self._together(client, called, orders)
        wall = time.monotonic() - begun
        outputs = self._outputs(client, number, ranks, answers)
        for answer in answers.values():
            answer["compute"] = answer["seconds"] - answer["redistribute"]
        moved, timing = _spread(answers, "redistribute"), _timing(answers)
        phases = {"redistribute": moved} if moved[1] else {}
        phases["compute"] = _spread(answers, "compute")
        first = next(iter(inputs.values()), None)
        self._noted(
            Operation(
                "run", called, client.name, tuple(m.id for m in inputs.values()),
                tuple(info["id"] for info in outputs.values()), first.rows if first else 0,
                first.form.cols if first else 0, 0, phases, wall, timing["rank"],
                {name: str(value) for name, value in params.items()},
            )
        )  # fmt: skip
        return {
            "outputs": outputs, "scalars": answers[ranks[0]]["scalars"],
            "timing": {**timing, "redistribute": moved[1], "wall": wall},
        }  # fmt: skip

    def _together(
        self, client: Client, title: str, orders: dict[int, dict[str, Any]]
    ) -> dict[int, dict[str, Any]]:
        """Runs a task in which ranks wait for each other."""
        ranks = tuple(orders)
        epoch = self._epochs.get(ranks, 0)
        for order in orders.values():
            order.update(ranks=ranks, epoch=epoch)
        try:
            return self._run(client, title, orders)
        except FairleadError:
            # Its communicator may have collectives that nobody will join.
            self._epochs[ranks] = epoch + 1
            raise

    def _op_layout(self, client: Client, asked: dict[str, Any]) -> dict[str, Any]:
        old = self._matrix(asked["matrix"])
        if old.form.sparse:
            size, remedy = f"{old.rows} × {old.form.cols}", "call functions that take it as it is"
            raise fail("bridge-sparse", called="layout", size=size, remedy=remedy)
        tiles = _tiles(old, asked)
        number = f"m{next(self._ids)}"
        order = {
            "do": "layout", "matrix": old.id, "as": number, "rows": old.rows, "counts": old.counts,
            "old": old.tiles and asdict(old.tiles), "new": tiles and asdict(tiles),
        }  # fmt: skip
        title, begun = f"layout of {old.name or old.id}", time.monotonic()
        answers = self._together(client, title, {rank: dict(order) for rank in old.ranks})
        new = Matrix(
            number, old.form, old.ranks, client.name, str(asked.get("name") or ""), old.names,
            counts=tuple(answers[rank]["rows"] for rank in old.ranks), sealed=True, ndim=old.ndim, tiles=tiles,
        )  # fmt: skip
        with self._state:
            self._matrices[number] = new
        self._noted(
            Operation(
                "layout", new.layout, client.name, (old.id,), (number,), new.rows, new.form.cols,
                new.rows * new.form.row_bytes, {"redistribute": _spread(answers)}, time.monotonic() - begun,
            )
        )  # fmt: skip
        return {"info": new.to_json(), "timing": _timing(answers)}

    def _outputs(
        self,
        client: Client,
        number: str,
        ranks: tuple[int, ...],
        answers: dict[int, dict[str, Any]],
    ) -> dict[str, Any]:
        made = {}
        for name, first in answers[ranks[0]]["outputs"].items():
            each = [answers[rank]["outputs"][name] for rank in ranks]
            form = Form(first["cols"], first["dtype"], first["sparse"], allow_nan=True)
            matrix = Matrix(f"{number}.{name}", form, ranks, client.name, ndim=first["ndim"])
            matrix.counts = tuple(answer["rows"] for answer in each)
            matrix.sealed = True
            with self._state:
                self._matrices[matrix.id] = matrix
            made[name] = matrix.to_json()
        return made

    def _op_info(self, client: Client, asked: dict[str, Any]) -> dict[str, Any]:
        return {"info": self._matrix(asked["matrix"], sealed=None).to_json()}

    def _op_arriving(self, client: Client, asked: dict[str, Any]) -> dict[str, Any]:
        matrix = self._matrix(asked["matrix"], sealed=None)
        parts = [
            stats["arriving"].get(matrix.id, (0, 0))
            for stats in self._stats(client, matrix.ranks).values()
        ]
        return {"rows": sum(rows for rows, _ in parts), "bytes": sum(size for _, size in parts)}

    def _op_list(self, client: Client, asked: dict[str, Any]) -> dict[str, Any]:
        return {"matrices": [m.to_json() for m in self._matrices.values() if not m.freed]}

    def _op_free(self, client: Client, asked: dict[str, Any]) -> dict[str, Any]:
        return {"freed": self._free(client, [self._matrix(asked["matrix"], sealed=None)])}

    def _op_libraries(self, client: Client, asked: dict[str, Any]) -> dict[str, Any]:
        return {"libraries": library.described()}

    def _noted(self, operation: Operation) -> None:
        """Remembers what was done, for the client and for the report of the session."""
        line = json.dumps(asdict(operation))
        with (
            self._state,
            Path(self._settings.folder, OPERATIONS).open("a", encoding="utf-8") as stream,
        ):
            self._operations.append(operation)
            stream.write(line + "\n")

    def _fetched(self, fetched: Fetched) -> None:
        matrix = self._matrices[fetched.matrix]
        ranks = {rank for rank, rows in zip(matrix.ranks, matrix.counts, strict=True) if rows}
        with self._state:
            for done in list(self._fetches.add(fetched, ranks)):
                self._noted_fetch(done)

    def _noted_fetch(self, done: Operation) -> None:
        matrix = self._matrices[done.inputs[0]]
        rows, cols = matrix.rows, matrix.form.cols
        self._noted(replace(done, client=matrix.owner, rows=rows, cols=cols))

    def _op_note(self, client: Client, asked: dict[str, Any]) -> dict[str, Any]:
        """What only a client knows: how long its sending and fetching took."""
        self._noted(Operation.from_json({**asked["operation"], "client": client.name}))
        return {}

    def _op_timings(self, client: Client, asked: dict[str, Any]) -> dict[str, Any]:
        with self._state:
            own = {m.id for m in self._matrices.values() if m.owner == client.name}
            for done in list(self._fetches.rest(own)):
                self._noted_fetch(done)
            chosen = [
                asdict(operation)
                for operation in self._operations
                if operation.client == client.name
            ]
        return {"operations": chosen, "cores": self._cores()}

    def _cores(self) -> int:
        return int(os.environ.get("OMP_NUM_THREADS") or 1) * len(self._endpoints)

    def _op_status(self, client: Client, asked: dict[str, Any]) -> dict[str, Any]:
        stats = self._stats(client, tuple(self._ranks))
        with self._state:
            clients = [
                {"name": c.name, "workers": len(c.ranks), "exclusive": c.exclusive, "busy": c.busy,
                 "connected": c.connection is not None}
                for c in self._clients.values() if c is not client
            ]  # fmt: skip
            busy = {n: t.title for n, t in self._tasks.items()}
            operations = [asdict(operation) for operation in self._operations]
        for entry in stats.values():
            del entry["arriving"]
            entry["busy"] = busy.get(entry["busy"], "") if entry["busy"] else ""
        return {
            "ranks": list(stats.values()), "clients": clients, "up_s": time.time() - self._started,
            "matrices": [m.to_json() for m in self._matrices.values() if not m.freed],
            "operations": operations, "cores": self._cores(),
        }  # fmt: skip

    def _stop(self) -> None:
        with self._order:  # this rank last: once it finalizes MPI, its threads stop
            for rank in sorted(self._ranks, reverse=True):
                self._ranks[rank].say(do="end")

    def _stats(self, client: Client, ranks: tuple[int, ...]) -> dict[int, dict[str, Any]]:
        answers = self._run(client, "stats", {rank: {"do": "stats"} for rank in ranks})
        return {rank: answers[rank]["stats"] for rank in ranks}


def _laid_out(called: str, name: str, matrix: Matrix, layouts: frozenset[str]) -> None:
    if matrix.layout not in layouts:
        wanted = min(layouts)
        raise fail("bridge-layout", called=called, name=name, layout=matrix.layout, wanted=wanted)


def _tiles(matrix: Matrix, asked: dict[str, Any]) -> BlockCyclic | None:
    """The 2-D layout that a client asks for; None for block rows.

    Raises:
        FairleadError: there is no such layout, or the ranks cannot hold it.
    """
    if asked["to"] not in (library.ROWS, library.CYCLIC):
        known = f"{library.ROWS}, {library.CYCLIC}"
        raise fail("bridge-layout-unknown", layout=asked["to"], known=known)
    if asked["to"] == library.ROWS:
        return None
    down, across = asked.get("grid") or grid(len(matrix.ranks))
    block = int(asked["block"])
    for name, value in (("block", block), ("grid", min(down, across))):
        if value < 1:
            raise fail("bridge-value", called="layout", name=name, value=value, least=1)
    if down * across > len(matrix.ranks):
        raise fail("bridge-grid", rows=down, columns=across, ranks=len(matrix.ranks))
    return BlockCyclic(matrix.rows, matrix.form.cols, block, int(down), int(across))


def _timing(answers: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Seconds over the ranks: the mean, and the slowest rank."""
    seconds = {rank: float(answer["seconds"]) for rank, answer in answers.items()}
    slowest = max(seconds, key=lambda rank: seconds[rank])
    return {
        "mean": sum(seconds.values()) / len(seconds), "slowest": seconds[slowest], "rank": slowest,
    }  # fmt: skip


def _checked(form: Form, least: int = 1) -> Form:
    """
    Raises:
        FairleadError: no matrix has such a form.
    """
    if form.dtype not in DTYPES or form.cols < least:
        raise fail("bridge-form", cols=form.cols, dtype=form.dtype, known=", ".join(DTYPES))
    return form


def _spread(answers: dict[int, dict[str, Any]], name: str = "seconds") -> tuple[float, float]:
    """Seconds of the mean and the slowest rank."""
    seconds = [float(answer[name]) for answer in answers.values()]
    return sum(seconds) / len(seconds), max(seconds)
