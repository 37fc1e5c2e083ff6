"""The collectives: fuse arrays into one buffer, agree on the call, move the buffer, unpack it.

Every collective begins with an agreement: two integers reduced over all ranks, which show whether
every rank called the same function with the same arrays. A mismatch becomes a message that names
the rank and the array; without the agreement, MPI hangs or mixes up gradients. Its duration is also
how long this rank waited for the slowest one.

:mod:`fairlead.comm` is the interface to use; :mod:`fairlead.comm.mpi` is the MPI beneath.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from fairlead.base.errors import FairleadError, fail

if TYPE_CHECKING:
    import numpy.typing as npt  # two modules that no rank needs

    from fairlead.comm.backend import Backend
    from fairlead.comm.point_to_point import PointToPoint
    from fairlead.comm.timeline import Timeline

Array: TypeAlias = "npt.NDArray[Any]"
Signature = tuple[tuple[str, tuple[int, ...]], ...]

COMPRESSIONS = ("none", "fp16", "bf16")
_NO_TEAM = "without a team"
AVERAGED = ("float32", "float64", "float16", "bfloat16", "complex64", "complex128")
SUMMED = (*AVERAGED, "int32", "int64")
# bfloat16 as its bits, without ml_dtypes, which gives NumPy a real one.
BFLOAT16 = np.dtype([("bfloat16", np.uint16)])


@dataclass(frozen=True)
class Timings:
    """The time this rank spent in collectives since :func:`fairlead.comm.init`.

    Attributes:
        calls: number of collectives.
        bytes: bytes of arrays passed (not bytes on the wire).
        wait_s: seconds until every rank had arrived, including the agreement itself.
        move_s: seconds of moving and reducing.
        pack_s: seconds of packing and unpacking.
        aggregates: number of calls that averaged arrays.
    """

    calls: int = 0
    bytes: int = 0
    wait_s: float = 0.0
    move_s: float = 0.0
    pack_s: float = 0.0
    aggregates: int = 0

    def __add__(self, other: Timings) -> Timings:
        return Timings(*map(add, vars(self).values(), vars(other).values()))


@dataclass(frozen=True)
class BufferMatch:
    """Whether every rank holds the same bytes.

    Attributes:
        digests: sha256 (hex) over all arrays, one per rank, in rank order.
        first: index of the first array that differs, None if all match.
        ranks: the ranks whose array ``first`` differs from that of most ranks (on a tie: from rank 0's).
    """

    digests: tuple[str, ...]
    first: int | None = None
    ranks: tuple[int, ...] = ()

    @property
    def matches(self) -> bool:
        return self.first is None


class Pending:
    """An aggregation in the background; :meth:`wait` returns its result."""

    def __init__(self, wait: Callable[[], list[Array]], done: Callable[[], bool] = lambda: True):
        self._wait, self._done = wait, done
        self._result: list[Array] | None = None

    def done(self) -> bool:
        """Whether :meth:`wait` would return at once."""
        return self._result is not None or self._done()

    def wait(self) -> list[Array]:
        """The means, as :meth:`Comm.aggregate` returns them; the same again when called again.

        Raises:
            FairleadError: as :meth:`Comm.aggregate`.
        """
        if self._result is None:
            self._result = self._wait()
        return self._result


class Averaged(NamedTuple):
    """What :meth:`Comm.aggregate` is called with."""

    arrays: Sequence[Array]
    out: Sequence[Array] | None = None
    compression: str | None = None
    names: Sequence[str] = ()
    any_values: bool = False


@dataclass(frozen=True)
class _Layout:
    """Where each array lies in the fused buffers.

    Attributes:
        mark: hash of the call, the dtypes and the shapes.
        places: for each array: its dtype, start and end (elements) in that dtype's buffer, shape.
        lengths: elements of each dtype's buffer.
    """

    mark: int
    places: tuple[tuple[str, int, int, tuple[int, ...]], ...]
    lengths: tuple[tuple[str, int], ...]


@lru_cache(maxsize=256)
def _layout(call: str, signature: Signature) -> _Layout:
    digest = hashlib.sha256(repr((call, signature)).encode()).digest()
    lengths: dict[str, int] = {}
    places = []
    for dtype, shape in signature:
        start = lengths.get(dtype, 0)
        lengths[dtype] = end = start + int(np.prod(shape, dtype=np.int64))
        places.append((dtype, start, end, shape))
    # 62 bits, so that the negative of a mark is an int64, too
    return _Layout(int.from_bytes(digest[:8], "big") >> 2, tuple(places), tuple(lengths.items()))


class Comm:
    """The ranks of this run. Every method is collective: all ranks call it, in the same order.

    For one thread at a time, like MPI itself on one communicator.

    Attributes:
        rank: as :func:`fairlead.comm.rank`; ``size`` and ``local_rank`` likewise.
        backend: library that moves the bytes, and its version, e.g. ``mpi4py 4.1.2``.
        forced: the backend that was requested by name; "" if it was chosen automatically.
    """

    forced = ""

    def __init__(self, backend: Backend):
        self._backend = backend
        self._kept: dict[tuple[str, int], Array] = {}
        self.rank, self.size, self.local_rank = backend.rank, backend.size, backend.local_rank
        self.backend = backend.name
        self._spent = Timings()
        self.timeline: Timeline | None = None
        self._name = _NO_TEAM
        self._teams: list[Comm] = []
        self._begun = self._agreed = 0.0
        self._concluded = False
        self._before_end: list[Callable[[], object]] = []
        self._odd: set[int] = set()  # ranks that have passed NaN or infinity, and were named
        self._process = os.getpid()

    @property
    def _of(self) -> str:
        """The name of these ranks in messages, the same as in the core's."""
        return "all" if self._name == _NO_TEAM else self._name

    @property
    def here(self) -> bool:
        """Whether this process is the rank itself, not a fork of it."""
        return os.getpid() == self._process

    @property
    def timings(self) -> Timings:
        """The time this rank has spent in collectives of this communicator."""
        return self._spent

    def broadcast(
        self, arrays: Sequence[Array], root: int = 0, out: Sequence[Array] | None = None
    ) -> list[Array]:
        """Rank ``root``'s arrays, on every rank, bit for bit.

        Args:
            arrays: any shapes and plain dtypes, the same on every rank; on ranks other than ``root``
                they only give the shapes to expect.
            out: arrays to fill, of the same shapes and dtypes (``arrays`` itself is allowed).
        Returns:
            ``out``, or new arrays; same order, shapes and dtypes.
        Raises:
            FairleadError: the ranks disagree on ``root``, or on number, shape or dtype of arrays.
        """
        self._check_root(root, "comm.broadcast")
        return self._fused(
            f"broadcast(root={root})",
            arrays,
            out,
            lambda buffer: self._backend.broadcast(buffer.view(np.uint8), root),
        )

    def aggregate(
        self,
        arrays: Sequence[Array],
        out: Sequence[Array] | None = None,
        compression: str | None = None,
        names: Sequence[str] = (),
        any_values: bool = False,
    ) -> list[Array]:
        """The mean of each array over all ranks, through one fused buffer per dtype.

        Args:
            arrays: float32, float64, float16, bfloat16 (of ml_dtypes, or :data:`BFLOAT16`), complex64
                or complex128, any shapes, the same on every rank. Halves are summed in float32, and
                their mean is rounded once.
            out: arrays to fill, of the same shapes and dtypes (``arrays`` itself is allowed). With
                it, the fused buffers are reused from call to call.
            compression: how float32 travels: ``fp16``, ``bf16`` or ``none``; by default what
                ``FAIRLEAD_COMM_COMPRESSION`` says. Sums are float32 within a node. Each rank's values
                and the mean are rounded once, each by at most a part 2^-11 (fp16) or 2^-8 (bf16) of
                itself; fp16 overflows above 65504 and loses bits below 6e-5.
            names: of the arrays, for messages.
            any_values: accept NaN and infinities, as under loss scaling. Otherwise
                ``FAIRLEAD_COMM_NONFINITE`` decides: name the rank that passes one on stderr, once
                (`warn`), fail the call on every rank (`stop`), or do nothing (`ignore`).
        Returns:
            ``out``, or new arrays; same order, shapes and dtypes. All ranks get the same bits
            wherever MPI_Allreduce gives them, as MPI asks of implementations (MPI-4.1, 6.9.1).
        Raises:
            FairleadError: an array has another dtype; the ranks disagree on number, shape or
                dtype of arrays, or on ``compression``; the compression is unknown; a rank passed NaN or
                infinity under ``FAIRLEAD_COMM_NONFINITE=stop``. The contents of ``out`` are then undefined.
        """
        return self._means(Averaged(arrays, out, compression, names, any_values)).wait()

    def sum(self, arrays: Sequence[Array]) -> list[Array]:
        """The sum of each array over all ranks, through one fused buffer per dtype.

        Args:
            arrays: as for :meth:`aggregate`, and int32 and int64, whose sums are exact, modulo 2^32 and 2^64. NaN
                and infinities are accepted.
        Returns:
            New arrays; same order, shapes and dtypes.
        Raises:
            FairleadError: an array has another dtype; the ranks disagree on number, shape or dtype of arrays.
        """
        self._check_dtypes(arrays, SUMMED, "comm.sum")
        return self._fused("sum", arrays, None, partial(self._wide, self._backend.sum))

    def start(
        self,
        arrays: Sequence[Array],
        out: Sequence[Array] | None = None,
        compression: str | None = None,
        names: Sequence[str] = (),
        any_values: bool = False,
    ) -> Pending:
        """:meth:`aggregate` in the background if the backend supports it; otherwise it is complete on return.

        ``arrays`` must not change, and ``out`` must not be read, before :meth:`Pending.wait`.
        """
        call = Averaged(arrays, out, compression, names, any_values)
        return self._means(call, background=True)

    def zeros(self, shape: int | Sequence[int], dtype: Any = "float32") -> Array:
        """A new array for what is to be averaged: with the native core, in memory that ranks of a node share.

        An aggregation whose arrays, and ``out``, are all of this kind and made in the same order on all ranks adds
        them in place, without copies. Collective.

        Args:
            shape: the same on every rank, like ``dtype``.
        """
        return np.zeros(shape, dtype)

    def share(self, address: int, size: int) -> Callable[[], None] | None:
        """Moves memory of another library's to memory that ranks of a node share, at the same address.

        Collective.

        Args:
            address: where ``size`` bytes of whole pages of 4096 bytes start, which are mapped for themselves (not part of
                a heap), and written by no other thread meanwhile.
        Returns:
            A function to call before they are unmapped; None where this backend has no such memory.
        """
        return None

    def explain(self) -> str:
        """What the first calls with arrays of a size have shown to be fastest on this node, a line for each size.

        Not collective. "" with backends that do not choose, and before there is a choice.
        """
        return ""

    def _means(self, call: Averaged, background: bool = False) -> Pending:
        """:meth:`aggregate`, or :meth:`start` if ``background``."""
        arrays, out, compression, names, any_values = call
        self._check_dtypes(arrays)
        how = wire(compression)
        policy = odd_values() if not any_values and self.size > 1 else "ignore"
        move = partial(self._watched_mean, policy, arrays, names)
        if how == "none":
            means = self._fused("aggregate", arrays, out, move)
        else:
            narrow = [rounded(array, how) for array in arrays]
            means = self._fused(f"aggregate({how})", narrow, out, move)
            for mean in means:
                np.copyto(mean, rounded(mean, how))
        return Pending(lambda: means)

    def team(self, threads: int = 1, name: str = "") -> Comm:
        """Another communicator over the same ranks, whose aggregations run concurrently with this one's.

        For example for two networks that are trained at once. Collective: every rank makes its teams in
        the same order. A team ends with this communicator.

        Args:
            threads: helper threads that share its aggregations, 1 to 16.
            name: its name in messages and in the report at the end; without it ``team N``, from 0.
        Raises:
            FairleadError: the ranks request different numbers of threads.
        """
        self.agree(f"team(threads={threads})")
        made = self._another()
        self._ended("team")
        made.timeline, made._teams, made._odd = self.timeline, self._teams, self._odd
        made._before_end = self._before_end
        made._name = name or f"team {len(self._teams)}"
        self._teams.append(made)
        return made

    def split(self, part: int, name: str = "") -> Comm:
        """The ranks that pass the same ``part``, numbered in their order: for ranks that share a stage, or a network.

        mpi4py carries their arrays. Collective over these ranks, afterwards over the part only. It ends with this
        communicator.

        Args:
            part: 0 or higher.
            name: of the part in messages; without it ``part N``.
        Raises:
            FairleadError: ``part`` is negative; the ranks are in different calls.
        """
        if part < 0:
            raise fail("comm-part", part=part)
        self.agree("split")
        made = Comm(self._backend.split(part))
        made.timeline = self.timeline
        made._name = name or f"part {part}"
        return made

    def point_to_point(self) -> PointToPoint:
        """Messages from one of these ranks to another. Collective; what it returns is not."""
        from fairlead.comm.point_to_point import PointToPoint

        self.agree("point_to_point")
        return PointToPoint(self._backend.another())

    def _another(self) -> Comm:
        return Comm(self._backend.another())

    def average(self, value: float) -> float:
        """The mean of ``value`` over all ranks, in double precision; for metrics."""
        self.agree("average")
        buffer = np.array([value], np.float64)
        self._backend.sum(buffer)
        self._ended("average")
        return float(buffer[0]) / self.size

    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        """Each rank's ``value`` (picklable, small), in rank order, on ``root``; None elsewhere.

        Raises:
            FairleadError: there is no rank ``root``, or the ranks disagree on it.
        """
        self._check_root(root, "comm.gather")
        self.agree(f"gather(root={root})")
        every = self._backend.gather(value, root)
        self._ended("gather")
        return every

    def barrier(self) -> None:
        """Returns when every rank has called it."""
        self.agree("barrier")
        self._backend.barrier()
        self._ended("barrier")

    def check_buffers_match(self, arrays: Sequence[Array]) -> BufferMatch:
        """Compares arrays over ranks by sha256 of dtype, shape and bytes.

        Args:
            arrays: any shapes and dtypes. Ranks may differ in shape and dtype: that is a mismatch.
        Returns:
            The same on every rank. Costs 32 bytes per rank if all match.
        """
        self.agree("check_buffers_match")
        each = [digest_of(array) for array in arrays]
        match = compare(each, self._backend.allgather, self._backend.allgather)
        self._ended("match")
        return match

    def abort(self, code: int) -> None:
        """Ends every rank now. Not collective."""
        self._backend.abort(code)

    def before_end(self, check: Callable[[], object]) -> None:
        """Has ``check`` called once, when these ranks are about to end; it may be collective."""
        self._before_end.append(check)

    def check_last(self) -> None:
        """Calls what :meth:`before_end` was given. Collective."""
        checks, self._before_end[:] = [*self._before_end], []
        if checks:
            import gc

            gc.collect()  # what is still alive is then the same on every rank
        for check in checks:
            check()

    def close(self) -> None:
        """Ends MPI; see :func:`fairlead.comm.finalize`."""
        self.check_last()
        if self.size > 1:
            self.agree("finalize")
        self.conclude()
        self._backend.close()

    def conclude(self) -> None:
        """Reports on rank 0 how long each team waited, and merges a timeline. Collective, and the last
        collective before :meth:`close`; a second call does nothing."""
        if not self._concluded:
            self.check_last()
            self._conclude(self._waits())

    def _waits(self) -> list[tuple[str, Timings]]:
        """Name and timings of these ranks and of each team, for the report at the end."""
        return [(each._name, each.timings) for each in (self, *self._teams)]

    def _conclude(self, rows: list[tuple[str, Timings]]) -> None:
        self._concluded = True
        if self.size > 1:
            from fairlead.comm.wait_report import report

            report(rows, self._backend)
        if self.timeline is not None:
            self.timeline.end()

    def _check_root(self, root: int, where: str) -> None:
        if not 0 <= root < self.size:
            raise fail("comm-root", root=root, where=where, size=self.size - 1)

    def _check_dtypes(
        self,
        arrays: Sequence[Array],
        allowed: Sequence[str] = AVERAGED,
        where: str = "comm.aggregate",
    ) -> None:
        for index, array in enumerate(arrays):
            if name_of(array.dtype) not in allowed:
                names = ", ".join(allowed)
                raise fail(
                    "comm-dtype-array", index=index, dtype=array.dtype, allowed=names, where=where
                )

    def agree(self, call: str, signature: Signature = ()) -> None:
        """Returns when every rank has called it with the same arguments. Moves nothing.

        For libraries that move tensors by themselves, and hang or mix them up where ranks differ.

        Args:
            call: what the ranks are about to do.
            signature: dtype and shape of each tensor.
        Raises:
            FairleadError: the ranks differ, and the message names rank and tensor; this is a fork of the rank.
        """
        pid, host, rank = os.getpid(), os.uname().nodename, self.rank
        if pid != self._process:
            raise fail(
                "comm-call-in-fork", call=call, pid=pid, rank=rank, host=host, process=self._process
            )
        mark = _layout(call, signature).mark
        begun = time.perf_counter()
        # largest(mark) == -largest(-mark), the smallest, only if all marks are equal
        marks = np.array([mark, -mark], np.int64)
        self._backend.largest(marks)
        if marks[0] != -marks[1]:
            at = f": call {self._spent.calls + 1} of {self._of}"
            raise disagreement(self._backend.allgather((call, signature, host)), at)
        self._begun, self._agreed = begun, time.perf_counter()
        self._spent += Timings(calls=1, wait_s=self._agreed - begun)

    def _ended(self, call: str, arrays: Sequence[Array] = (), **parts_s: float) -> None:
        """Records the end of the call that was agreed on last."""
        if self.timeline is not None:
            size = sum(array.nbytes for array in arrays)
            times = [round(1e9 * s) for s in (self._begun, time.perf_counter(), self._agreed)]
            self.timeline.span(
                self._of, call, "call", times[0], times[1],
                {"call": self.timings.calls, "bytes": size, "tensors": len(arrays)}, agreed=times[2],
                call=self.timings.calls, move={f"{n}_ms": 1e3 * s for n, s in parts_s.items()},
            )  # fmt: skip

    def _fused(
        self,
        call: str,
        arrays: Sequence[Array],
        out: Sequence[Array] | None,
        move: Callable[[Array], None],
    ) -> list[Array]:
        """Packs arrays into one buffer per dtype, lets ``move`` change it over all ranks, unpacks."""
        signature = tuple((key_of(array.dtype), array.shape) for array in arrays)
        self.agree(call, signature)
        layout = _layout(call, signature)
        begun = time.perf_counter()
        buffers = {
            dtype: np.empty(length, _held(dtype)) if out is None else self._keep(dtype, length)
            for dtype, length in layout.lengths
        }
        for array, (dtype, start, end, shape) in zip(arrays, layout.places, strict=True):
            # CuPy would take the copy over, and fail in it; asked for NumPy's form it says what to do.
            np.copyto(buffers[dtype][start:end].reshape(shape), bits_of(np.asarray(array)))
        packed = time.perf_counter()
        for buffer in buffers.values():
            move(buffer)
        moved = time.perf_counter()
        result = _unpack(layout, buffers, arrays, out)
        taken = time.perf_counter()
        self._spent += Timings(
            bytes=sum(buffer.nbytes for buffer in buffers.values()),
            move_s=moved - packed,
            pack_s=packed - begun + taken - moved,
            aggregates=call.startswith("aggregate"),
        )
        self._ended(call, arrays, pack=packed - begun, network=moved - packed, take=taken - moved)
        return result

    def _keep(self, dtype: str, length: int) -> Array:
        """A buffer that is reused: fresh pages for each call would cost as much as the reduction."""
        if (dtype, length) not in self._kept:
            self._kept[dtype, length] = np.empty(length, _held(dtype))
        return self._kept[dtype, length]

    def _wide(self, move: Callable[[Array], None], buffer: Array) -> None:
        """``move`` of ``buffer``; of halves in float32, for MPI has no sum of them."""
        if buffer.dtype.itemsize != 2:
            move(buffer)
            return
        form = np.dtype(np.float16) if buffer.dtype == np.float16 else BFLOAT16
        wide = widened(buffer.view(form))
        move(wide)
        np.copyto(buffer.view(form), narrowed(wide, form))

    def _watched_mean(
        self, policy: str, arrays: Sequence[Array], names: Sequence[str], buffer: Array
    ) -> None:
        """The mean; if it is not finite, which all ranks see, they find out which rank passed what."""
        self._wide(self._backend.mean, buffer)
        if policy == "ignore" or _finite(buffer):
            return
        every = self._backend.allgather((os.uname().nodename, first_odd(arrays)))
        for rank, (host, odd) in enumerate(every):
            if odd is None or (policy == "warn" and rank in self._odd):
                continue
            what, index, element = odd
            name = f" ({names[index]})" if index < len(names) else ""
            what_happened = (
                f"rank {rank} ({host}) passed {what} as element {element} of tensor {index}{name} to aggregate"
                f" (mean), call {self.timings.calls} of {self._of}"
            )
            if policy == "stop":
                raise fail(
                    "comm-nonfinite-stop", what_happened=what_happened, where="comm.aggregate"
                )
            self._odd.add(rank)
            if rank == self.rank:
                once = "reported once per rank (FAIRLEAD_COMM_NONFINITE)"
                sys.stderr.write(f"fairlead.comm: {what_happened}; {once}\n")


def _unpack(
    layout: _Layout,
    buffers: dict[str, Array],
    arrays: Sequence[Array],
    out: Sequence[Array] | None,
) -> list[Array]:
    views = [buffers[dtype][start:end].reshape(shape) for dtype, start, end, shape in layout.places]
    if out is None:
        return [view.view(array.dtype) for view, array in zip(views, arrays, strict=True)]
    for target, view in zip(out, views, strict=True):
        np.copyto(bits_of(target), view, casting="no")
    return list(out)


@lru_cache(maxsize=64)  # NumPy makes its name again each time
def name_of(dtype: np.dtype[Any]) -> str:
    """NumPy's name, and ``bfloat16`` for either kind of it."""
    return "bfloat16" if dtype == BFLOAT16 else dtype.name


def key_of(dtype: np.dtype[Any]) -> str:
    """The name of a dtype in an agreement."""
    return "bfloat16" if name_of(dtype) == "bfloat16" else dtype.str


def _held(key: str) -> np.dtype[Any]:
    """The dtype of a fused buffer: bfloat16 is held as bits."""
    return np.dtype(np.uint16 if key == "bfloat16" else key)


def dtype_of_key(key: str) -> np.dtype[Any]:
    """What :func:`key_of` has named."""
    return BFLOAT16 if key == "bfloat16" else np.dtype(key)


def bits_of(array: Array) -> Array:
    """The array; bfloat16, of which NumPy knows nothing, as integers."""
    return array.view(np.uint16) if name_of(array.dtype) == "bfloat16" else array


def widened(array: Array) -> Array:
    """Halves as float32; wider types unchanged."""
    if name_of(array.dtype) == "bfloat16":
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if array.dtype == np.float16 else array


def narrowed(array: Array, dtype: np.dtype[Any]) -> Array:
    """float32 as ``dtype``, halves rounded to nearest even; wider types unchanged."""
    if name_of(dtype) == "bfloat16":
        bits = rounded(array, "bf16").view(np.uint32) >> 16
        return bits.astype(np.uint16).view(dtype)
    if dtype == np.float16:
        with np.errstate(over="ignore", under="ignore"):
            return array.astype(np.float16)
    return array


def odd_values() -> str:
    """The policy for NaN and infinities, from ``FAIRLEAD_COMM_NONFINITE``.

    Raises:
        FairleadError: its value is unknown.
    """
    asked = os.environ.get("FAIRLEAD_COMM_NONFINITE") or "warn"
    if asked not in ("warn", "stop", "ignore"):
        raise fail("comm-nonfinite-mode", asked=asked)
    return asked


def first_odd(arrays: Sequence[Array]) -> tuple[str, int, int] | None:
    """The first NaN or infinity: (name, index of the array, element); None if all values are finite.

    >>> first_odd([np.ones(3), np.array([1.0, -np.inf, np.nan])])
    ('-infinity', 1, 1)
    """
    for index, array in enumerate(arrays):
        array = widened(array)
        odd = ~np.isfinite(array).ravel()
        if odd.any():
            element = int(odd.argmax())
            value = complex(array.ravel()[element])
            what = "NaN" if value != value else "-infinity" if value.real < 0 else "infinity"
            return what, index, element
    return None


def _finite(buffer: Array) -> bool:
    """Whether all values are finite: one pass over the memory, a second one if the sum of squares overflows."""
    if buffer.dtype == np.uint16:
        buffer = widened(buffer.view(BFLOAT16))
    flat = buffer.view(buffer.real.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.dot(flat, flat))) or bool(np.isfinite(flat).all())


def wire(compression: str | None) -> str:
    """The requested compression, from the argument or the environment.

    Raises:
        FairleadError: it is unknown.
    """
    asked = compression or os.environ.get("FAIRLEAD_COMM_COMPRESSION") or "none"
    if asked not in COMPRESSIONS:
        raise fail(
            "comm-compression-aggregate" if compression else "comm-compression-fairlead",
            asked=asked,
            compressions=", ".join(COMPRESSIONS),
        )
    return asked


def rounded(array: Array, compression: str) -> Array:
    """A float32 array with its values rounded as they travel, to nearest even; any other array unchanged."""
    if array.dtype != np.float32:
        return array
    if compression == "fp16":
        with np.errstate(over="ignore"):
            return array.astype(np.float16).astype(np.float32)
    bits = np.asarray(array, order="C").view(np.uint32)
    up = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(array), array, up.view(np.float32)).astype(np.float32)


def digest_of(array: Array) -> bytes:
    """sha256 of dtype, shape and bytes."""
    state = hashlib.sha256(repr((array.dtype.str, array.shape)).encode())
    state.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
    return state.digest()


def compare(
    each: Sequence[bytes],
    gather_digest: Callable[[bytes], list[bytes]],
    gather_all: Callable[[Any], list[Any]],
) -> BufferMatch:
    """Compares digests over ranks: one of all arrays, then one per array where those differ."""
    whole = gather_digest(hashlib.sha256(b"".join(each)).digest())
    digests = tuple(digest.hex() for digest in whole)
    if len(set(digests)) == 1:
        return BufferMatch(digests)
    table = gather_all(list(each))
    first = next(
        i
        for i in range(max(map(len, table)))
        if len({row[i] if i < len(row) else b"" for row in table}) > 1
    )
    held = [row[first] if first < len(row) else b"" for row in table]
    counts = Counter(held)
    usual = held[0] if counts[held[0]] == max(counts.values()) else counts.most_common(1)[0][0]
    return BufferMatch(digests, first, tuple(r for r, d in enumerate(held) if d != usual))


def disagreement(calls: list[tuple[str, Signature, str]], at: str = "") -> FairleadError:
    """The error that names the rank which differs from rank 0, and how.

    Args:
        calls: per rank: the call, its arrays, the host's name.
        at: number of the call, appended to the message.
    """
    rank = next(r for r, call in enumerate(calls) if call[:2] != calls[0][:2])
    (call, ours, first_host), (other, theirs, host) = calls[0], calls[rank]
    odd, first = f"rank {rank} ({host})", f"rank 0 ({first_host})"
    if call != other:
        return fail(
            "comm-order-other-call", odd=odd, other=other, first=first, call=call, at=at, rank=rank
        )
    index = next(
        (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
        min(len(ours), len(theirs)),
    )

    def shown(signature: Signature) -> str:
        if index >= len(signature):
            return f"no array {index} ({len(signature)} in all)"
        dtype, shape = signature[index]
        return f"{dtype if dtype == 'bfloat16' else np.dtype(dtype).name} {shape}"

    return fail(
        "comm-signature-other-array",
        odd=odd,
        index=index,
        call=call,
        first=first,
        at=at,
        rank=rank,
        shown=shown(ours),
        shown_2=shown(theirs),
    )
