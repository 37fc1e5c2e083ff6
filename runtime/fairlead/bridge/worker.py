"""A rank of the bridge: ``python3 -m fairlead.bridge SETTINGS`` in the image.

The main thread alone calls MPI; it runs one task after the other, in the order in which rank 0's control sends them.
Threads receive and serve rows meanwhile.
"""

from __future__ import annotations

import json
import os
import queue
import resource
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.base import free_memory
from fairlead.base.data_list import ListedFile
from fairlead.base.errors import FairleadError, fail
from fairlead.base.process import raise_open_files
from fairlead.base.serde import from_json, to_json
from fairlead.bridge import files, library, network, region, remote
from fairlead.bridge.arrow import PIECE_BYTES, WINDOW_BYTES, Form, Rows, pieces
from fairlead.bridge.collectives import Collectives, RunAborted
from fairlead.bridge.endpoint import Door
from fairlead.bridge.errors import described
from fairlead.bridge.layout import BlockCyclic, BlockRows, from_cyclic, to_cyclic, to_rows
from fairlead.bridge.library import Block, Tiles, Whole
from fairlead.bridge.settings import CERTIFICATE, ENDED, KEY, Settings, write_private
from fairlead.bridge.store import Budget, Held, Store
from fairlead.bridge.wire import END, Connection, Endpoint, Listener, WireError, dial, here
from fairlead.objects.model import Listing
from fairlead.objects.url import is_url


class Worker:
    """One rank.

    Args:
        world: the communicator of all ranks.
    """

    def __init__(self, settings: Settings, world: Any):
        self._settings, self._world = settings, world
        self.rank = world.Get_rank()
        self._host = socket.gethostname()
        self.store = Store(Budget(self._memory(), f"rank {self.rank} on {self._host}"))
        self._tasks: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._aborted = threading.Event()
        self._current: int | None = None
        self._left: set[int] = set()  # tasks that another rank has failed in
        self._lock = threading.Lock()
        self._groups: dict[tuple[tuple[int, ...], int], Collectives] = {}
        self._given_up: list[Collectives] = []
        self._answers: Connection | None = None

    def _memory(self) -> int:
        nodes = self._world.allgather(self._host)
        free = min(left for left, _ in free_memory.limits())
        return int(free * self._settings.memory / nodes.count(self._host))

    def listen(self) -> list[Endpoint]:
        """Opens this rank's endpoint; those of all ranks."""
        settings = self._settings
        names = sorted(set(self._world.allgather(self._host)))
        if settings.loopback and len(names) > 1:
            raise fail("bridge-loopback", nodes=len(names), names=", ".join(names[:8]))
        host = "127.0.0.1" if settings.loopback else network.address(settings.interfaces)
        certified = (f"{settings.folder}/{CERTIFICATE}", f"{settings.folder}/{KEY}")
        local = f"fairlead-bridge-{settings.name}-{os.urandom(4).hex()}-{self.rank}"
        self._listener = Listener(host, settings.secret, local, certified if settings.tls else None)
        mine = Endpoint(self.rank, self._host, self._listener.address, local, here())
        return [Endpoint(**e) for e in self._world.allgather(asdict(mine))]

    def serve(self, endpoints: list[Endpoint], more: dict[str, Any]) -> None:
        """Runs tasks until the control says that it is over.

        Args:
            more: roles besides those of every rank.
        """
        roles = {"send": self._receive, "fetch": self._fetch, **more}
        Door(self._listener, roles, self._log).start()
        self._world.Barrier()  # the control of rank 0 is there
        # One connection for each direction: no thread sends on a socket that another one reads from.
        secret = self._settings.secret
        self._answers = dial(endpoints[0], secret, role="answers", rank=self.rank)
        orders = dial(endpoints[0], secret, role="orders", rank=self.rank)
        threading.Thread(target=self._listen, args=(orders,), name="orders", daemon=True).start()
        while (task := self._tasks.get()) is not None:
            self._do(task)

    def end(self) -> None:
        """Takes no more connections; MPI is finalized when the process exits."""
        self._listener.close()

    def _log(self, text: str) -> None:
        print(f"rank {self.rank}: {text}", file=sys.stderr, flush=True)

    # What the control says.

    def _listen(self, orders: Connection) -> None:
        try:
            while True:
                _, order = orders.receive(None)
                if order["do"] == "abort":
                    with self._lock:  # it may come before its task has begun here
                        self._left.add(order["task"])
                        if self._current == order["task"]:
                            self._aborted.set()
                elif order["do"] == "stats":
                    self._answer(order["task"], stats=self._stats())
                elif order["do"] == "end":
                    self._tasks.put(None)
                    return
                else:
                    self._tasks.put(order)
        except WireError as exc:
            self._log(f"the control of rank 0 is gone: {exc}")
            os._exit(1)

    def _answer(self, task: int, **values: Any) -> None:
        assert self._answers
        self._answers.say(task=task, **values)

    def _stats(self) -> dict[str, Any]:
        budget = self.store.budget
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {
            "rank": self.rank, "host": self._host, "used": budget.used, "peak": budget.peak,
            "most": budget.most, "resident_peak": peak, "busy": self._current,
            "arriving": self.store.arriving(),
        }  # fmt: skip

    # Tasks.

    def _do(self, task: dict[str, Any]) -> None:
        number, begun = task["task"], time.perf_counter()
        with self._lock:
            self._current = number
            self._aborted.clear()
            if number in self._left:
                self._aborted.set()
        try:
            done = getattr(self, f"_do_{task['do']}")(task)
            done["seconds"] = time.perf_counter() - begun
        except RunAborted:
            done = {"aborted": True}
        except (FairleadError, WireError) as exc:
            done = {"error": described(exc)}
        except MemoryError as exc:
            own = fail("bridge-out-of-memory", who=f"rank {self.rank} on {self._host}", reason=exc)
            done = {"error": described(own)}
        except BaseException as exc:
            done = {"error": self._raised(exc, task)}
        with self._lock:
            self._current = None
        self._answer(number, **done)

    def _raised(self, exc: BaseException, task: dict[str, Any]) -> dict[str, str]:
        """An exception of a library's function, with the lines it came from."""
        lines = traceback.format_exception(exc)
        self._log("".join(lines))
        last = traceback.extract_tb(exc.__traceback__)[-1]
        called = f"{task.get('library', '')}.{task.get('function', task['do'])}"
        own = fail(
            "bridge-raised", called=called, kind=type(exc).__name__, reason=exc, rank=self.rank,
            host=self._host, file=last.filename, line=last.lineno,
        )  # fmt: skip
        return described(own)

    def _do_seal(self, task: dict[str, Any]) -> dict[str, Any]:
        form = Form(**task["form"])
        held = self.store.seal(task["matrix"], form, [tuple(w) for w in task["wanted"]])
        return {"rows": held.local.shape[0]}

    def _do_free(self, task: dict[str, Any]) -> dict[str, Any]:
        return {"freed": sum(self.store.free(matrix) for matrix in task["matrices"])}

    def _do_load(self, task: dict[str, Any]) -> dict[str, Any]:
        comm = self._group(tuple(task["ranks"]), task["epoch"])
        listing = from_json(Listing, task["listing"]) if task["listing"] else None
        source = files.Input(task["path"], listing, task["dataset"])
        read = files.read(
            source, task["columns"], comm, self.store.budget, allow_nan=task["allow_nan"]
        )
        self.store.put(task["matrix"], Held(read))
        return {"rows": read.shape[0], "cols": read.shape[1], "dtype": str(read.dtype)}

    def _do_write(self, task: dict[str, Any]) -> dict[str, Any]:
        held = self.store.get(task["matrix"])
        if not is_url(task["path"]):
            size = files.write(task["path"], task["part"], held, task["names"])
            return {"bytes": size, "files": []}
        listed = files.send(task["path"], task["part"], held, task["names"], self._leave)
        return {"bytes": sum(file.bytes for file in listed), "files": to_json(listed)}

    def _leave(self) -> None:
        if self._aborted.is_set():
            raise RunAborted

    # Of a URL, one rank lists, and marks what is not whole yet.

    def _do_locate(self, task: dict[str, Any]) -> dict[str, Any]:
        listing, dataset = remote.located(task["path"])
        return {"listing": to_json(listing), "dataset": dataset}

    def _do_begin(self, task: dict[str, Any]) -> dict[str, Any]:
        return {"left": remote.begin(task["path"])}

    def _do_finish(self, task: dict[str, Any]) -> dict[str, Any]:
        remote.finish(task["path"], from_json(list[ListedFile], task["files"]), task["left"])
        return {}

    def _do_run(self, task: dict[str, Any]) -> dict[str, Any]:
        function = library.find(task["library"]).get(task["function"])
        comm = self._group(tuple(task["ranks"]), task["epoch"])
        blocks = {name: self._given(i, comm) for name, i in task["inputs"].items()}
        params = function.checked(task["library"], task["params"])
        comm.redistribute_s = 0.0
        made = function.call(**blocks, **params)
        self._leave()
        outputs, scalars = {}, {}
        for name, value in made.items():
            if isinstance(value, (library.Rows, Whole)):
                outputs[name] = self._kept(f"{task['as']}.{name}", value, comm)
            else:
                scalars[name] = value
        first = self.rank == task["ranks"][0]
        return {
            "outputs": outputs, "scalars": scalars if first else {}, "redistribute": comm.redistribute_s,
        }  # fmt: skip

    def _given(self, given: dict[str, Any], comm: Collectives) -> Block | Tiles:
        """What a function gets of a matrix."""
        local = self.store.get(given["id"]).local
        if given["tiles"]:
            return Tiles(local, BlockCyclic(**given["tiles"]), comm)
        return Block(local, given["offset"], tuple(given["shape"]), comm)

    def _do_layout(self, task: dict[str, Any]) -> dict[str, Any]:
        comm = self._group(tuple(task["ranks"]), task["epoch"])
        local, rows = self.store.get(task["matrix"]).local, BlockRows(tuple(task["counts"]))
        even = BlockRows.even(task["rows"], comm.size)
        new = BlockCyclic(**task["new"]) if task["new"] else None
        shape = new.shape(comm.rank) if new else (even.counts[comm.rank], local.shape[1])
        self.store.budget.room(shape[0] * shape[1] * local.itemsize)
        if task["old"]:
            local, rows = from_cyclic(local, BlockCyclic(**task["old"]), even, comm), even
        local = to_cyclic(local, rows, new, comm) if new else to_rows(local, rows, even, comm)
        self._leave()
        local.flags.writeable = False
        self.store.put(task["as"], Held(local))
        return {"rows": local.shape[0]}

    def _kept(self, matrix: str, value: library.Rows | Whole, comm: Collectives) -> dict[str, Any]:
        array = value.local if isinstance(value, library.Rows) else value.array
        ndim = array.ndim
        if ndim == 1:
            array = array.reshape(-1, 1)
        if isinstance(value, Whole):
            low, high = (array.shape[0] * (comm.rank + i) // comm.size for i in (0, 1))
            array = array[low:high].copy()
        if not hasattr(array, "indptr"):
            array = np.ascontiguousarray(array)
            array.flags.writeable = False
        self.store.put(matrix, Held(array))
        return {
            "rows": array.shape[0], "cols": array.shape[1], "dtype": str(array.dtype),
            "sparse": hasattr(array, "indptr"), "ndim": ndim,
        }  # fmt: skip

    def _group(self, ranks: tuple[int, ...], epoch: int) -> Collectives:
        """The communicator of some ranks; a new one after an aborted run."""
        if (ranks, epoch) not in self._groups:
            for key in [key for key in self._groups if key[0] == ranks]:
                self._given_up.append(self._groups.pop(key))
            group = self._world.Get_group().Incl(ranks)
            comm = self._world.Create_group(group, tag=epoch % 30000)
            self._groups[ranks, epoch] = Collectives(comm, self._aborted)
        return self._groups[ranks, epoch]

    # Rows that come and go, each stream in a thread.

    def _receive(self, connection: Connection, first: dict[str, Any]) -> None:
        form, begun = Form(**first["form"]), time.perf_counter()
        limit_s, shared = first.get("limit_s", 600.0), None
        if first.get("shares") and connection.is_local:
            shared = region.of(form)
            connection.share(shared.fd if shared else None, region.RING_BYTES)
        if shared:
            stream = shared.pieces(connection, limit_s)
        else:
            connection.grant(WINDOW_BYTES)
            stream = pieces(connection, form, limit_s)
        arriving = self.store.receive(
            first["matrix"], int(first["partition"]), int(first["attempt"]), stream
        )
        seconds = time.perf_counter() - begun
        connection.say(END, rows=arriving.rows, bytes=arriving.bytes, seconds=seconds)

    def _fetch(self, connection: Connection, first: dict[str, Any]) -> None:
        begun = time.perf_counter()
        try:
            held = self.store.get(first["matrix"])
        except KeyError:
            raise fail("bridge-freed", matrix=first["matrix"]) from None
        low, high, local = first["low"], first["high"], held.local
        form = Form(local.shape[1], str(local.dtype), hasattr(local, "indptr"), allow_nan=True)
        index = None if held.index is None else held.index[low:high]
        sender = Rows(connection, form, None if index is None else index.type)
        if form.sparse:
            part = local[low:high]
            sender.sparse(part.indptr, part.indices, part.data, index)
        elif local.flags.c_contiguous:
            sender.dense(local[low:high], index)
        else:
            self._send_in_rows(sender, local[low:high])
        sender.end()
        if first.get("by") and self._answers:
            seconds = time.perf_counter() - begun
            done = {
                "matrix": first["matrix"],
                "by": first["by"],
                "bytes": sender.bytes if form.sparse else sender.rows * form.row_bytes,
            }
            self._answers.say(fetched={**done, "seconds": seconds})

    def _send_in_rows(self, sender: Rows, part: Any) -> None:
        """Sends what is in Fortran order, of which a few rows at a time are turned."""
        step = max(PIECE_BYTES // max(part.shape[1] * part.itemsize, 1), 1)
        for low in range(0, part.shape[0], step):
            sender.dense(np.ascontiguousarray(part[low : low + step]))


def main() -> None:
    values = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    settings = Settings(**{**values, "interfaces": tuple(values["interfaces"])})
    raise_open_files()  # each stream, and what is mapped, holds one
    import mpi4py

    with suppress(ImportError):  # what most functions need, before the first one is called
        import scipy.linalg
        import scipy.sparse  # noqa: F401

    mpi4py.rc.thread_level = "funneled"
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    worker = Worker(settings, world)
    try:
        endpoints = worker.listen()
    except FairleadError as exc:
        if worker.rank == 0:
            finding = exc.findings[0]
            write_private(Path(settings.folder, ENDED), f"{finding.what}: {finding.why}")
        raise
    roles = {}
    if worker.rank == 0:
        from fairlead.bridge.control import Control

        control = Control(settings, endpoints)
        roles = control.roles
        control.announce()
    with suppress(KeyboardInterrupt):
        worker.serve(endpoints, roles)
    worker.end()
