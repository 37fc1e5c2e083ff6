"""The native core by ctypes: ranks of a node reduce through shared memory.

The core is one C++ library (``runtime/native``, ``fairlead_comm.h``) that binds to the MPI which this
process has loaded. It is compiled once on a login node, and `fairlead run` passes its path to the ranks in
``FAIRLEAD_COMM_LIBRARY``. Every collective begins with an agreement within the core; if ranks differ, the
error names them and the difference.
"""

from __future__ import annotations

import copy
import ctypes
import hashlib
import math
import os
import pickle
import re
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fairlead.base.errors import FairleadError, fail
from fairlead.comm.core import (
    SUMMED,
    Array,
    Averaged,
    BufferMatch,
    Comm,
    Pending,
    Signature,
    Timings,
    compare,
    digest_of,
    disagreement,
    name_of,
    wire,
)

if TYPE_CHECKING:
    from fairlead.comm.backend import Backend

_SUM, _MEAN, _ANY = 0, 1, 2
_WIRES = {"none": 0, "fp16": 2, "bf16": 3}
_BYTES = 6
# Where `fairlead build` puts the core in an image, for launches without `fairlead run`.
IN_IMAGE = "/usr/local/lib/fairlead"
# Names of NumPy's and ml_dtypes' types: (fairlead_dtype, numbers an element).
_FORMS = {
    "float32": (0, 1), "float64": (1, 1), "float16": (2, 1), "bfloat16": (3, 1),
    "int32": (4, 1), "int64": (5, 1), "complex64": (0, 2), "complex128": (1, 2),
}  # fmt: skip

# fairlead_tensor
_TENSOR = np.dtype(
    [("in", "u8"), ("out", "u8"), ("count", "u8"), ("dtype", "i4"), ("shape", "i4"), ("name", "u8")]
)
_BAD_CALL, _NO_MPI, _DIFFER, _PEER_LOST, _TIMEOUT, _INTERRUPTED = 1, 2, 4, 5, 6, 8
_NONFINITE = 9
_MOST_STARTED = 32  # fairlead_team::MOST_STARTED
_GO_ON = ctypes.CFUNCTYPE(ctypes.c_int)


class _Stats(ctypes.Structure):
    _fields_ = [
        ("calls", ctypes.c_uint64), ("bytes", ctypes.c_uint64), ("wait_s", ctypes.c_double),
        ("move_s", ctypes.c_double), ("blocked_s", ctypes.c_double), ("stalls", ctypes.c_uint64),
        ("aggregates", ctypes.c_uint64),
    ]  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """How the ranks are placed, and what carries the bytes; the fields are those of fairlead_layout, in its order.

    Attributes:
        nodes: number of groups of ranks that share memory.
        shared_memory: whether the ranks of a node reduce through it.
        mpi: the ABI of the MPI: mpich, openmpi or mpi-abi.
        library: that MPI's path, as this process sees it.
        kernels: the instruction set of the sums.
        why_not: why memory is not shared; "" where it is.
        host: this rank's host name.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    nodes: int
    shared_memory: bool
    mpi: str
    library: str
    kernels: str
    why_not: str
    host: str


class _Layout(ctypes.Structure):
    _fields_ = [
        (field.name, ctypes.c_char_p if field.type == "str" else ctypes.c_int32)
        for field in fields(Layout)
    ]


def operation_of(compression: str | None, any_values: bool) -> int:
    """The core's number for an aggregation.

    Raises:
        FairleadError: the compression is unknown.
    """
    return _MEAN | _ANY * any_values | _WIRES[wire(compression)] << 8


def library_path(environ: Mapping[str, str] = os.environ) -> tuple[str | None, str]:
    """The path of the core and "", or None and the reason why there is none.

    ``FAIRLEAD_COMM_LIBRARY`` names it; otherwise it is the image's own, or the one in this machine's cache.
    """
    named = environ.get("FAIRLEAD_COMM_LIBRARY", "")
    if named:
        if os.path.isfile(named):  # noqa: PTH113, every rank would import pathlib for it
            return named, ""
        return None, f"FAIRLEAD_COMM_LIBRARY={named} is not a file"
    own = f"{IN_IMAGE}/libfairlead_comm.so"
    if os.path.isfile(own):  # noqa: PTH113
        return own, ""
    why = environ.get("FAIRLEAD_COMM_NO_LIBRARY", "")
    if why:
        return None, why
    from fairlead import native
    from fairlead.base.paths import cache_dir

    try:
        path = native.shipped(native.CORE) or native.path_of(native.CORE, cache_dir(environ))
    except OSError as exc:
        return None, f"its source cannot be read: {exc}"
    if path.is_file():
        return str(path), ""
    return None, "it has not been compiled for this machine; `fairlead run` does so"


@lru_cache(maxsize=1)
def load(path: str) -> ctypes.CDLL:
    """The core, with the types of its functions.

    Raises:
        FairleadError: it cannot be loaded.
    """
    try:
        core = ctypes.CDLL(path)
        tensors = (ctypes.c_void_p, ctypes.c_uint64)
        core.fairlead_comm_error.restype = ctypes.c_char_p
        core.fairlead_comm_aggregate.argtypes = (ctypes.c_void_p, *tensors, ctypes.c_int)
        core.fairlead_comm_start.argtypes = (
            *(ctypes.c_void_p, *tensors, ctypes.c_int),
            ctypes.POINTER(ctypes.c_uint64),
        )
        core.fairlead_comm_wait.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
        core.fairlead_comm_done.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
        core.fairlead_comm_broadcast.argtypes = (*tensors, ctypes.c_int)
        core.fairlead_comm_average.argtypes = (ctypes.POINTER(ctypes.c_double), ctypes.c_uint64)
        core.fairlead_comm_gather.argtypes = (ctypes.c_char_p, ctypes.c_uint64, ctypes.c_char_p)
        core.fairlead_comm_team.argtypes = (ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
        core.fairlead_comm_team_name.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
        core.fairlead_comm_stats.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Stats))
        core.fairlead_comm_layout.argtypes = (ctypes.POINTER(_Layout),)
        core.fairlead_comm_alloc.argtypes = (ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p))
        core.fairlead_comm_free.argtypes = (ctypes.c_void_p,)
        core.fairlead_comm_explain.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64)
    except (OSError, AttributeError) as exc:
        raise fail("comm-core-unloadable", path=path, reason=exc) from exc
    return core


class NativeComm(Comm):
    """:class:`Comm` by the native core. MPI must run already; ``backend`` is what ends it."""

    def __init__(self, backend: Backend, path: str):
        """Collective.

        Raises:
            FairleadError: the core cannot be loaded, or cannot use this MPI.
        """
        super().__init__(backend)
        self.core = load(path)
        self._check("comm.init", self.core.fairlead_comm_init())
        layout = _Layout()
        self._check("comm.init", self.core.fairlead_comm_layout(ctypes.byref(layout)))
        values: dict[str, Any] = {name: getattr(layout, name) for name, *_ in _Layout._fields_}
        texts = {n: v.decode(errors="replace") for n, v in values.items() if isinstance(v, bytes)}
        self.layout = Layout(**values | texts | {"shared_memory": bool(layout.shared_memory)})
        self.local_rank = self.layout.local_rank
        self.backend = f"native ({self.layout.mpi})"
        self._raised: list[BaseException] = []
        self._go_on = _GO_ON(self._signals().__next__)
        self.core.fairlead_comm_while_waiting(self._go_on)
        # Blocking calls share one order: a rank that skips one meets the others in another call.
        # Background calls have a team of their own.
        self._team: ctypes.c_void_p | None = None
        self._behind = self._new_team(1, "started calls")
        self._started: dict[int, _Tensors] = {}

    @property
    def timings(self) -> Timings:
        own = self._timings(self._team)
        return own + self._timings(self._behind) if self._team is None else own

    def _timings(self, team: ctypes.c_void_p | None) -> Timings:
        stats = _Stats()
        self.core.fairlead_comm_stats(team, ctypes.byref(stats))
        return Timings(
            stats.calls, stats.bytes, stats.wait_s, stats.move_s, aggregates=stats.aggregates
        )

    @property
    def team_address(self) -> int:
        """The core's ``fairlead_team *`` of blocking calls; 0 for none."""
        return (self._team.value or 0) if self._team else 0

    def raise_interrupt(self) -> None:
        """Raises what a signal handler raised while the core waited, if anything."""
        if self._raised:
            raise self._raised.pop()

    def team(self, threads: int = 1, name: str = "") -> Comm:
        made = copy.copy(self)
        made._name = name or f"team {len(self._teams)}"
        made._team = made._behind = self._new_team(threads, made._name)
        made._started = {}
        self._teams.append(made)
        return made

    def _waits(self) -> list[tuple[str, Timings]]:
        own, started = self._timings(None), self._timings(self._behind)
        first = [(self._name, own), (f"started {self._name}", started)]
        return [*first, *((team._name, team.timings) for team in self._teams)]

    def broadcast(
        self, arrays: Sequence[Array], root: int = 0, out: Sequence[Array] | None = None
    ) -> list[Array]:
        self._check_root(root, "comm.broadcast")
        call = _Tensors(arrays, out, as_bytes=True)
        code = self.core.fairlead_comm_broadcast(call.at, call.count, root)
        self._check("comm.broadcast", code)
        return call.result()

    def sum(self, arrays: Sequence[Array]) -> list[Array]:
        self._check_dtypes(arrays, SUMMED, "comm.sum")
        call = _Tensors(arrays, None)
        code = self.core.fairlead_comm_aggregate(self._team, call.at, call.count, _SUM | _ANY)
        self._check("comm.sum", code)
        return call.result()

    def zeros(self, shape: int | Sequence[int], dtype: Any = "float32") -> Array:
        kind = np.dtype(dtype)
        count = math.prod((shape,) if isinstance(shape, int) else shape)
        if self.size == 1 or not count:
            return np.zeros(shape, kind)
        memory = (ctypes.c_char * (count * kind.itemsize)).from_address(
            self._alloc(count * kind.itemsize)
        )
        # Every view of the array holds the memory's object.
        weakref.finalize(
            memory, self.core.fairlead_comm_free, ctypes.addressof(memory)
        ).atexit = False
        return np.frombuffer(memory, kind).reshape(shape)

    def share(self, address: int, size: int) -> Callable[[], None] | None:
        if self.size == 1:
            return None
        self._alloc(size, address)
        return partial(self.core.fairlead_comm_free, address)

    def explain(self) -> str:
        text = ctypes.create_string_buffer(1 << 16)
        code = self.core.fairlead_comm_explain(self._team, text, len(text))
        self._check("comm.explain", code)
        return text.value.decode()

    def _alloc(self, size: int, address: int | None = None) -> int:
        at = ctypes.c_void_p(address)
        self._check("comm.zeros", self.core.fairlead_comm_alloc(size, ctypes.byref(at)))
        return at.value or 0

    def average(self, value: float) -> float:
        values = (ctypes.c_double * 1)(value)
        self._check("comm.average", self.core.fairlead_comm_average(values, 1))
        return float(values[0])

    def barrier(self) -> None:
        self._check("comm.barrier", self.core.fairlead_comm_barrier())

    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        self._check_root(root, "comm.gather")
        every = self._allgather(value)
        return every if self.rank == root else None

    def agree(self, call: str, signature: Signature = ()) -> None:
        mine = hashlib.sha256(repr((call, signature)).encode()).digest()
        if len(set(self._gather_bytes(mine))) > 1:
            raise disagreement(self._allgather((call, signature, self.layout.host)))

    def check_buffers_match(self, arrays: Sequence[Array]) -> BufferMatch:
        each = [digest_of(array) for array in arrays]
        if self._team is None:
            return compare(each, self._gather_bytes, self._allgather)

        # The core gathers in the order of blocking calls only; a team has an order of its own.
        def gather(digests: list[bytes]) -> list[list[bytes]]:
            table = np.zeros((self.size, len(digests), 4), np.int64)
            table[self.rank] = np.frombuffer(b"".join(digests), np.int64).reshape(-1, 4)
            return [[digest.tobytes() for digest in row] for row in self.sum([table])[0]]

        return compare(each, lambda mine: [row[0] for row in gather([mine])], gather)

    def close(self) -> None:
        self.check_last()
        rows = self._waits()  # the core counts until it ends
        self._check("comm.finalize", self.core.fairlead_comm_finalize())
        if not self._concluded:
            self._conclude(rows)
        self._backend.close()

    def _new_team(self, threads: int, name: str) -> ctypes.c_void_p:
        team = ctypes.c_void_p()
        self._check("comm.team", self.core.fairlead_comm_team(threads, ctypes.byref(team)))
        self._check("comm.team", self.core.fairlead_comm_team_name(team, name.encode()))
        return team

    def _means(self, call: Averaged, background: bool = False) -> Pending:
        self._check_dtypes(call.arrays)
        operation = operation_of(call.compression, call.any_values)
        tensors = _Tensors(call.arrays, call.out, names=call.names)
        if not background:
            code = self.core.fairlead_comm_aggregate(
                self._team, tensors.at, tensors.count, operation
            )
            self._check("comm.aggregate", code)
            return Pending(tensors.result)
        ticket = ctypes.c_uint64()
        code = self.core.fairlead_comm_start(
            self._behind, tensors.at, tensors.count, operation, ctypes.byref(ticket)
        )
        self._check("comm.start", code)

        # The core reads and writes the arrays until then, even if the caller drops the result. It has at most
        # so many calls under way: it has ended the one before them.
        self._started[ticket.value] = tensors
        self._started.pop(ticket.value - _MOST_STARTED, None)

        def wait() -> list[Array]:
            self._check("comm.wait", self.core.fairlead_comm_wait(self._behind, ticket))
            self._started.pop(ticket.value, None)
            return tensors.result()

        return Pending(wait, lambda: bool(self.core.fairlead_comm_done(self._behind, ticket)))

    def _gather_bytes(self, mine: bytes) -> list[bytes]:
        """``mine`` of each rank; as long on all."""
        every = ctypes.create_string_buffer(max(len(mine) * self.size, 1))
        self._check("comm.gather", self.core.fairlead_comm_gather(mine, len(mine), every))
        whole = every.raw
        return [whole[i * len(mine) : (i + 1) * len(mine)] for i in range(self.size)]

    def _allgather(self, value: Any) -> list[Any]:
        mine = pickle.dumps(value)
        lengths = [
            int.from_bytes(n, "little") for n in self._gather_bytes(len(mine).to_bytes(8, "little"))
        ]
        rows = self._gather_bytes(mine.ljust(max(lengths), b"\0"))
        return [pickle.loads(row[:n]) for row, n in zip(rows, lengths, strict=True)]

    def _signals(self) -> Iterator[int]:
        """Asked by the core while it waits: 1, or 0 once a signal's handler has raised something.

        Python runs handlers between its own instructions, of which a wait in the core has none. To go on
        here is one, and within the `try`, where the first of a function would not be.
        """
        while True:
            try:
                while True:
                    yield 1
            except GeneratorExit:  # the last call
                return
            except BaseException as exc:
                self._raised.append(exc)
            yield 0

    def _check(self, where: str, code: int) -> None:
        if code == _INTERRUPTED:
            self.raise_interrupt()
        if code:
            raise failed(where, code, self.core.fairlead_comm_error().decode(errors="replace"))


class _Tensors:
    """Arrays as the core takes them: where each is read, where its result goes."""

    def __init__(
        self,
        arrays: Sequence[Array],
        out: Sequence[Array] | None,
        *,
        as_bytes: bool = False,
        names: Sequence[str] = (),
    ):
        # What is not contiguous is copied: once in, and once out where the result must go there.
        self._arrays = [np.asarray(array, order="C") for array in arrays]
        self._out = out
        self._results = [
            np.empty(a.shape, a.dtype) if out is None or not _whole(a) else a
            for a in (self._arrays if out is None else out)
        ]
        rows = []
        for array, result in zip(self._arrays, self._results, strict=True):
            dtype = name_of(array.dtype)
            form, each = (_BYTES, array.itemsize) if as_bytes else _FORMS[dtype]
            at = array.ctypes.data
            to = at if result is array else result.ctypes.data
            rows.append((at, to, array.size * each, form, _shape(dtype, array.shape), 0))
        table = np.array(rows, _TENSOR)
        if names:
            self._names, addresses = _c_strings(tuple(names))
            table["name"][: len(addresses)] = addresses[: len(table)]
        self._table = table
        self.at, self.count = table.ctypes.data, len(table)

    def result(self) -> list[Array]:
        if self._out is None:
            return self._results
        for target, result in zip(self._out, self._results, strict=True):
            if target is not result:
                np.copyto(target, result, casting="no")
        return list(self._out)


def _whole(array: Array) -> bool:
    return bool(array.flags.c_contiguous and array.flags.writeable)


@lru_cache(maxsize=64)
def _c_strings(names: tuple[str, ...]) -> tuple[Any, tuple[int, ...]]:
    """C strings and their addresses; the strings must live as long as the addresses are used."""
    kept = [ctypes.create_string_buffer(name.encode()) for name in names]
    return kept, tuple(ctypes.addressof(string) for string in kept)


@lru_cache(maxsize=4096)
def _shape(dtype: str, shape: tuple[int, ...]) -> int:
    """A hash of dtype and shape, by which ranks compare their arrays."""
    return zlib.crc32(repr((dtype, shape)).encode()) - (1 << 31)


def failed(where: str, code: int, message: str) -> FairleadError:
    """The core's message, which names rank, host and tensor, as an error."""
    odd = re.match(r"(rank \d+) \(.*?\) passed (?:.*? as tensor (\d+))?", message)
    if code == _DIFFER and odd:
        if odd[2]:
            return fail("comm-signature-array", text=message, odd=odd[1], odd_2=odd[2])
        return fail("comm-signature", text=message, odd=odd[1])
    if code == _DIFFER:
        return fail("comm-order-from-core", text=message, where=where)
    if code == _PEER_LOST:
        return _lost(where, message)
    if code == _NONFINITE:
        return fail("comm-nonfinite-stop", what_happened=message, where=where)
    if code == _TIMEOUT:
        return fail("comm-timeout", text=message, where=where)
    if code == _BAD_CALL:
        return fail("comm-call-invalid", text=message, where=where)
    if code == _NO_MPI:
        return fail("comm-no-mpi-in-process", text=message, where=where)
    if code == _INTERRUPTED:
        return fail("comm-interrupted", text=message, where=where)
    return fail("comm-mpi", text=message, where=where)


def _lost(where: str, message: str) -> FairleadError:
    if "its host cannot be reached" in message:
        return fail("comm-host-unreachable", text=message, where=where)
    return fail("comm-peer-lost", text=message, where=where)
