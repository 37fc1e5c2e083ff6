"""The MPI beneath every backend: mpi4py, or nothing for a single process.

:func:`connect` starts it, and refuses the silent failure of MPI launches: every rank believing that it is alone.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from fairlead.base.comm_names import is_ordered
from fairlead.base.errors import ExitCode, FairleadError, fail

if TYPE_CHECKING:
    import numpy.typing as npt  # two modules that no rank needs

    from fairlead.comm.backend import Backend, Request

# In these, launchers give the number of ranks. The first that is set counts: hydra may itself have been
# started by srun, and then only PMI_SIZE is of this launch.
_SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")

_BEFORE_ABORT_S = 0.5

# MPI before 4.0 counts elements in a C int.
_MAX_COUNT = 1 << 30


class _Complete:
    """A message that is there."""

    def Test(self) -> bool:
        return True

    def Cancel(self) -> None: ...


class AloneLink:
    """Messages of a process to itself: by tag, in order."""

    highest_tag = 32767  # MPI's least

    def __init__(self) -> None:
        self._sent: dict[int, deque[npt.NDArray[np.uint8]]] = {}

    def send(self, buffer: npt.NDArray[np.uint8], to: int, tag: int) -> _Complete:
        self._sent.setdefault(tag, deque()).append(buffer.copy())
        return _Complete()

    def receive(self, buffer: npt.NDArray[np.uint8], source: int, tag: int) -> _Complete:
        buffer[:] = self._sent[tag].popleft()
        return _Complete()

    def arrived(self, source: int, tag: int) -> bool:
        return bool(self._sent.get(tag))


class Mpi4pyLink:
    """Messages by an mpi4py communicator."""

    def __init__(self, mpi: Any, world: Any):
        self._world = world
        self.highest_tag = int(world.Get_attr(mpi.TAG_UB) or 32767)

    def send(self, buffer: npt.NDArray[np.uint8], to: int, tag: int) -> Request:
        request: Request = self._world.Isend(buffer, to, tag)
        return request

    def receive(self, buffer: npt.NDArray[np.uint8], source: int, tag: int) -> Request:
        request: Request = self._world.Irecv(buffer, source, tag)
        return request

    def arrived(self, source: int, tag: int) -> bool:
        return bool(self._world.Iprobe(source, tag))


class Alone:
    """One process, no MPI: every collective already has its result."""

    name, rank, size, local_rank = "none (one process)", 0, 1, 0

    def sum(self, buffer: npt.NDArray[Any]) -> None: ...
    def mean(self, buffer: npt.NDArray[Any]) -> None: ...
    def largest(self, buffer: npt.NDArray[np.int64]) -> None: ...
    def broadcast(self, buffer: npt.NDArray[np.uint8], root: int) -> None: ...
    def barrier(self) -> None: ...
    def close(self) -> None: ...

    def another(self) -> Alone:
        return self

    def split(self, part: int) -> Alone:
        return self

    def link(self) -> AloneLink:
        return AloneLink()

    def clock_of_rank_0(self, ask: Sequence[int], rounds: int) -> None:
        return None

    def allgather(self, value: Any) -> list[Any]:
        return [value]

    def gather(self, value: Any, root: int) -> list[Any]:
        return [value]

    def abort(self, code: int) -> None:
        os._exit(code)


class Mpi4py:
    """``MPI_COMM_WORLD``, or ``world``, by mpi4py, duplicated so that the program's own messages stay apart."""

    def __init__(self, mpi: Any, world: Any = None):
        from mpi4py import __version__

        _start(mpi)

        self._mpi = mpi
        self._world = (mpi.COMM_WORLD if world is None else world).Dup()
        node = self._world.Split_type(mpi.COMM_TYPE_SHARED, key=self._world.rank)
        self.name = f"mpi4py {__version__}"
        self.rank, self.size, self.local_rank = self._world.rank, self._world.size, node.rank
        self._ordered = is_ordered(os.environ)
        node.Free()

    def sum(self, buffer: npt.NDArray[Any]) -> None:
        for start in range(0, buffer.size, _MAX_COUNT):
            part = buffer[start : start + _MAX_COUNT]
            if self._ordered:
                self._sum_in_order(part)
            else:
                self._world.Allreduce(self._mpi.IN_PLACE, part, op=self._mpi.SUM)

    def _sum_in_order(self, part: npt.NDArray[Any]) -> None:
        """As ``sum``, from rank 0 to the last: each rank adds up one piece of every rank's buffer."""
        each = -(-part.size // self.size)
        given = np.zeros((self.size, each), part.dtype)
        given.reshape(-1)[: part.size] = part
        pieces = np.empty_like(given)
        self._world.Alltoall(given, pieces)
        total = pieces[0].copy()
        for piece in pieces[1:]:
            total += piece
        self._world.Allgather(total, pieces)
        part[:] = pieces.reshape(-1)[: part.size]

    def mean(self, buffer: npt.NDArray[Any]) -> None:
        self.sum(buffer)
        np.divide(buffer, self.size, out=buffer)

    def largest(self, buffer: npt.NDArray[np.int64]) -> None:
        self._world.Allreduce(self._mpi.IN_PLACE, buffer, op=self._mpi.MAX)

    def broadcast(self, buffer: npt.NDArray[np.uint8], root: int) -> None:
        for start in range(0, buffer.size, _MAX_COUNT):
            self._world.Bcast(buffer[start : start + _MAX_COUNT], root=root)

    def allgather(self, value: Any) -> list[Any]:
        result: list[Any] = self._world.allgather(value)
        return result

    def gather(self, value: Any, root: int) -> list[Any] | None:
        result: list[Any] | None = self._world.gather(value, root=root)
        return result

    def barrier(self) -> None:
        self._world.Barrier()

    def abort(self, code: int) -> None:
        if self._mpi.Is_finalized():
            os._exit(code)
        self._mpi.COMM_WORLD.Abort(code)

    def another(self) -> Mpi4py:
        return Mpi4py(self._mpi, self._world)

    def split(self, part: int) -> Mpi4py:
        some = self._world.Split(part, self.rank)
        made = Mpi4py(self._mpi, some)
        some.Free()
        return made

    def link(self) -> Mpi4pyLink:
        return Mpi4pyLink(self._mpi, self._world)

    def clock_of_rank_0(self, ask: Sequence[int], rounds: int) -> tuple[int, int, int] | None:
        theirs = np.zeros(1, np.int64)
        if self.rank == 0:
            for other in ask:
                for _ in range(rounds):
                    self._world.Recv(theirs, other)
                    theirs[0] = time.monotonic_ns()
                    self._world.Send(theirs, other)
        if self.rank not in ask:
            return None
        exchanges = []
        for _ in range(rounds):
            begun = time.monotonic_ns()
            self._world.Send(theirs, 0)
            self._world.Recv(theirs, 0)
            ended = time.monotonic_ns()
            middle = (begun + ended) // 2
            exchanges.append((ended - begun, middle, int(theirs[0]) - middle))
        duration, at, offset = min(exchanges)
        return at, offset, duration

    def close(self) -> None:
        if not self._mpi.Is_finalized():
            self._world.Free()
            self._mpi.Finalize()


def ranks_promised(environ: Mapping[str, str]) -> tuple[int, str]:
    """How many ranks the launcher says it started, and the variable that says so.

    >>> ranks_promised({"PMI_SIZE": "4", "PMI_RANK": "0"})
    (4, 'PMI_SIZE')
    >>> ranks_promised({})
    (1, '')
    """
    for variable in _SIZE_VARIABLES:
        if environ.get(variable, "").isdecimal():
            return int(environ[variable]), variable
    return 1, ""


def connect(environ: Mapping[str, str] = os.environ) -> Backend:
    """The backend of this process; with more than one rank, an uncaught exception ends them all.

    Raises:
        FairleadError: see :func:`fairlead.comm.init`.
    """
    promised, variable = ranks_promised(environ)
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as exc:  # mpi4py raises RuntimeError without a libmpi
        if promised > 1:
            raise fail(
                "comm-no-mpi-library",
                promised=promised,
                variable=variable,
                executable=sys.executable,
                reason=exc,
            ) from exc
        return Alone()
    backend = Mpi4py(MPI)
    if variable and promised != backend.size:
        library = MPI.Get_library_version().splitlines()[0].strip("\0 ")
        raise fail(
            "comm-world-size-alone" if backend.size == 1 else "comm-world-size",
            promised=promised,
            variable=variable,
            library=library,
            backend_size=backend.size,
        )
    if backend.size > 1:
        _abort_on_exception(backend)
    return backend


def _start(mpi: Any) -> None:
    """Starts MPI where the program keeps mpi4py from it: ``mpi4py.rc.initialize = False``."""
    if mpi.Is_initialized():
        return
    import atexit

    import mpi4py

    levels = ("single", "funneled", "serialized", "multiple")
    level = mpi4py.rc.thread_level if mpi4py.rc.thread_level in levels else levels[-1]
    mpi.Init_thread(getattr(mpi, f"THREAD_{level.upper()}"))
    # mpi4py ends only what it has started. Of what is registered later, nothing runs after this.
    atexit.register(lambda: mpi.Is_finalized() or mpi.Finalize())


def _abort_on_exception(backend: Backend) -> None:
    """Makes an uncaught exception end every rank; the others would wait for this one forever."""
    report, process = sys.excepthook, os.getpid()

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() != process:  # a fork: its parent deals with its end
            report(kind, value, trace)
            return
        # The caller may hold back what is written here until this returns, which it does not: torch's hook does.
        sys.stderr = sys.__stderr__ or sys.stderr
        report(kind, value, trace)
        if isinstance(value, FairleadError):
            for finding in value.findings:
                sys.stderr.write(f"where: {finding.where}\nwhy:   {finding.why}\n")
                sys.stderr.write(f"next:  {finding.remedy}\n")
        sys.stderr.write(f"rank {backend.rank} of {backend.size} failed; ending the others\n")
        sys.stdout.flush()
        sys.stderr.flush()
        # MPI_Abort overtakes output that is still on its way through the launcher, and Hydra then drops it:
        # the reason must have arrived first.
        time.sleep(_BEFORE_ABORT_S)
        backend.abort(int(ExitCode.FAILED))

    sys.excepthook = hook
