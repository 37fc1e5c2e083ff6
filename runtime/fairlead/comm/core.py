"""The collectives: fuse arrays into one buffer, agree on what is being done, move it, unpack it.

Every collective begins with an agreement: two integers reduced over all ranks, which show whether
every rank called the same function with the same arrays. A mismatch becomes a message that names
the rank and the array; without it, MPI hangs or mixes up gradients. The agreement's time is also a
measurement: it is how long this rank waited for the slowest one.

:mod:`fairlead.comm` is the interface to use; :mod:`fairlead.comm.backend` is the MPI beneath.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fairlead.comm.backend import Backend
from fairlead.findings import FairleadError, fail

Array = npt.NDArray[Any]
Signature = tuple[tuple[str, tuple[int, ...]], ...]

COMPRESSIONS = ("none", "fp16", "bf16")
AVERAGED = ("float32", "float64", "float16", "bfloat16", "complex64", "complex128")
# A bfloat16 for those who have no ml_dtypes, which gives NumPy a real one: its bits.
BFLOAT16 = np.dtype([("bfloat16", np.uint16)])


@dataclass(frozen=True)
class Timings:
    """What this rank spent in collectives since :func:`fairlead.comm.init`.

    Attributes:
        calls: collectives called.
        bytes: bytes of arrays handed over (not what went over the wire).
        wait_s: seconds until every rank had arrived, the agreement itself included.
        move_s: seconds of moving and reducing.
        pack_s: seconds of packing and unpacking.
    """

    calls: int = 0
    bytes: int = 0
    wait_s: float = 0.0
    move_s: float = 0.0
    pack_s: float = 0.0


@dataclass(frozen=True)
class BufferMatch:
    """Whether every rank holds the same bytes.

    Attributes:
        digests: sha256 (hex) over all arrays, one a rank, in rank order.
        first: index of the first array that differs, None when all match.
        ranks: the ranks whose array ``first`` is not what most ranks hold (on a tie: rank 0).
    """

    digests: tuple[str, ...]
    first: int | None = None
    ranks: tuple[int, ...] = ()

    @property
    def matches(self) -> bool:
        return self.first is None


class Pending:
    """An aggregation that was started: :meth:`wait` gives what it came to."""

    def __init__(self, wait: Callable[[], list[Array]], done: Callable[[], bool] = lambda: True):
        self._wait, self._done = wait, done
        self._result: list[Array] | None = None

    def done(self) -> bool:
        """Whether :meth:`wait` would return at once."""
        return self._result is not None or self._done()

    def wait(self) -> list[Array]:
        """The means, as :meth:`Comm.aggregate` returns them; again the same when called again.

        Raises:
            FairleadError: as :meth:`Comm.aggregate`.
        """
        if self._result is None:
            self._result = self._wait()
        return self._result


@dataclass(frozen=True)
class _Layout:
    """Where each array lies in the fused buffers.

    Attributes:
        mark: number that two ranks share only if they do the same thing to the same shapes.
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
    # 62 bits, so that the negative of a mark is an int64 as well
    return _Layout(int.from_bytes(digest[:8], "big") >> 2, tuple(places), tuple(lengths.items()))


class Comm:
    """The ranks of this run. Every method is collective: all ranks call it, in the same order.

    For one thread at a time, like MPI itself on one communicator.

    Attributes:
        rank, size, local_rank: see the functions of these names in :mod:`fairlead.comm`.
        backend: what moves the bytes, e.g. ``mpi4py 4.1.2``.
    """

    def __init__(self, backend: Backend):
        self._backend = backend
        self._kept: dict[tuple[str, int], Array] = {}
        self.rank, self.size, self.local_rank = backend.rank, backend.size, backend.local_rank
        self.backend = backend.name
        self.timings = Timings()

    def broadcast(
        self, arrays: Sequence[Array], root: int = 0, out: Sequence[Array] | None = None
    ) -> list[Array]:
        """Rank ``root``'s arrays, on every rank, bit for bit.

        Args:
            arrays: any shapes and plain dtypes, the same on every rank; those of other ranks than
                ``root`` only say what to expect.
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
    ) -> list[Array]:
        """The mean of each array over all ranks, through one fused buffer a dtype.

        Args:
            arrays: float32, float64, float16, bfloat16 (of ml_dtypes, or :data:`BFLOAT16`), complex64
                or complex128, any shapes, the same on every rank. Halves are summed in float32, and
                their mean is rounded once.
            out: arrays to fill, of the same shapes and dtypes (``arrays`` itself is allowed). With
                it the fused buffers are kept from call to call.
            compression: how float32 travels: ``fp16``, ``bf16`` or ``none``; by default what
                ``FAIRLEAD_COMM_COMPRESSION`` says. Sums are float32 within a node. Each rank's values
                and the mean are rounded once, each by at most a part 2^-11 (fp16) or 2^-8 (bf16) of
                itself; fp16 overflows above 65504 and loses bits below 6e-5.
        Returns:
            ``out``, or new arrays; same order, shapes and dtypes. All ranks get the same bits
            wherever MPI_Allreduce gives them, as MPI asks of implementations (MPI-4.1, 6.9.1).
        Raises:
            FairleadError: an array has another dtype, or the ranks disagree on number, shape or
                dtype of arrays, or on ``compression``; there is no such compression.
        """
        self._check_averaged(arrays)
        how = wire(compression)
        if how == "none":
            return self._fused("aggregate", arrays, out, self._mean)
        narrow = [rounded(array, how) for array in arrays]
        means = self._fused(f"aggregate({how})", narrow, out, self._mean)
        for mean in means:
            np.copyto(mean, rounded(mean, how))
        return means

    def start(
        self,
        arrays: Sequence[Array],
        out: Sequence[Array] | None = None,
        compression: str | None = None,
    ) -> Pending:
        """:meth:`aggregate` in the background, where the backend can; else it is done on return.

        ``arrays`` must not change, and ``out`` not be read, before :meth:`Pending.wait`.
        """
        result = self.aggregate(arrays, out, compression)
        return Pending(lambda: result)

    def team(self, threads: int = 1) -> Comm:
        """Another communicator over the same ranks, whose aggregations go on beside this one's.

        For two networks that are trained at once, say. Collective: every rank makes its teams in the
        same order. Ends with this one.

        Args:
            threads: helper threads that share its aggregations, 1 to 16.
        Raises:
            FairleadError: the ranks ask for different numbers of threads.
        """
        self._agree(f"team(threads={threads})")
        return Comm(self._backend.another())

    def average(self, value: float) -> float:
        """The mean of ``value`` over all ranks, in double precision; for metrics."""
        self._agree("average")
        buffer = np.array([value], np.float64)
        self._backend.sum(buffer)
        return float(buffer[0]) / self.size

    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        """Each rank's ``value`` (picklable, small), in rank order, on ``root``; None elsewhere.

        Raises:
            FairleadError: there is no rank ``root``, or the ranks disagree on it.
        """
        self._check_root(root, "comm.gather")
        self._agree(f"gather(root={root})")
        return self._backend.gather(value, root)

    def barrier(self) -> None:
        """Returns when every rank has called it."""
        self._agree("barrier")
        self._backend.barrier()

    def check_buffers_match(self, arrays: Sequence[Array]) -> BufferMatch:
        """Compares arrays over ranks by sha256 of dtype, shape and bytes.

        Args:
            arrays: any shapes and dtypes. Ranks may differ in shape and dtype: that is a mismatch.
        Returns:
            The same on every rank. Costs 32 bytes a rank when all match.
        """
        self._agree("check_buffers_match")
        each = [digest_of(array) for array in arrays]
        return compare(each, self._backend.allgather, self._backend.allgather)

    def abort(self, code: int) -> None:
        """Ends every rank now. Not collective."""
        self._backend.abort(code)

    def close(self) -> None:
        """Ends MPI; see :func:`fairlead.comm.finalize`."""
        self._backend.close()

    def _check_root(self, root: int, where: str) -> None:
        if not 0 <= root < self.size:
            raise fail(
                f"there is no rank {root}",
                where=where,
                why=f"ranks are 0 to {self.size - 1}",
                remedy="pass root=0",
                check="comm-root",
            )

    def _check_averaged(self, arrays: Sequence[Array]) -> None:
        for index, array in enumerate(arrays):
            if name_of(array.dtype) not in AVERAGED:
                raise fail(
                    f"array {index} cannot be averaged",
                    where="comm.aggregate",
                    why=f"its dtype is {array.dtype}; known: {', '.join(AVERAGED)}",
                    remedy="pass `array.astype('float32')`",
                    check="comm-dtype",
                )

    def _agree(self, call: str, arrays: Sequence[Array] = ()) -> _Layout:
        signature = tuple((_key(array.dtype), array.shape) for array in arrays)
        layout = _layout(call, signature)
        begun = time.perf_counter()
        # largest(mark) == -largest(-mark), the smallest, only if all marks are equal
        marks = np.array([layout.mark, -layout.mark], np.int64)
        self._backend.largest(marks)
        if marks[0] != -marks[1]:
            raise _disagreement(self._backend.allgather((call, signature)))
        self._add(Timings(calls=1, wait_s=time.perf_counter() - begun))
        return layout

    def _fused(
        self,
        call: str,
        arrays: Sequence[Array],
        out: Sequence[Array] | None,
        move: Callable[[Array], None],
    ) -> list[Array]:
        """Packs arrays into one buffer a dtype, lets ``move`` change it over all ranks, unpacks."""
        layout = self._agree(call, arrays)
        begun = time.perf_counter()
        buffers = {
            dtype: np.empty(length, _held(dtype)) if out is None else self._keep(dtype, length)
            for dtype, length in layout.lengths
        }
        for array, (dtype, start, end, shape) in zip(arrays, layout.places, strict=True):
            np.copyto(buffers[dtype][start:end].reshape(shape), _bits(array))
        packed = time.perf_counter()
        for buffer in buffers.values():
            move(buffer)
        moved = time.perf_counter()
        result = _unpack(layout, buffers, arrays, out)
        self._add(
            Timings(
                bytes=sum(buffer.nbytes for buffer in buffers.values()),
                move_s=moved - packed,
                pack_s=packed - begun + time.perf_counter() - moved,
            )
        )
        return result

    def _keep(self, dtype: str, length: int) -> Array:
        """A buffer that stays: fresh pages for each call would cost as much as the reduction."""
        if (dtype, length) not in self._kept:
            self._kept[dtype, length] = np.empty(length, _held(dtype))
        return self._kept[dtype, length]

    def _mean(self, buffer: Array) -> None:
        if buffer.dtype.itemsize == 2:  # MPI has no sum of halves
            form = np.dtype(np.float16) if buffer.dtype == np.float16 else BFLOAT16
            wide = widened(buffer.view(form))
            self._mean(wide)
            np.copyto(buffer.view(form), narrowed(wide, form))
            return
        self._backend.sum(buffer)
        np.divide(buffer, self.size, out=buffer)

    def _add(self, more: Timings) -> None:
        old = self.timings
        self.timings = Timings(
            old.calls + more.calls,
            old.bytes + more.bytes,
            old.wait_s + more.wait_s,
            old.move_s + more.move_s,
            old.pack_s + more.pack_s,
        )


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
        np.copyto(_bits(target), view, casting="no")
    return list(out)


def name_of(dtype: np.dtype[Any]) -> str:
    """NumPy's name, and ``bfloat16`` for either kind of it."""
    return "bfloat16" if dtype == BFLOAT16 else dtype.name


def _key(dtype: np.dtype[Any]) -> str:
    """What a dtype is called in an agreement."""
    return "bfloat16" if name_of(dtype) == "bfloat16" else dtype.str


def _held(key: str) -> np.dtype[Any]:
    """What a fused buffer of it is made of: bfloat16 is bits there."""
    return np.dtype(np.uint16 if key == "bfloat16" else key)


def _bits(array: Array) -> Array:
    return array.view(np.uint16) if name_of(array.dtype) == "bfloat16" else array


def widened(array: Array) -> Array:
    """Halves as float32; what is wider as it is."""
    if name_of(array.dtype) == "bfloat16":
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if array.dtype == np.float16 else array


def narrowed(array: Array, dtype: np.dtype[Any]) -> Array:
    """float32 in the form of ``dtype``, halves rounded to nearest even; what is wider as it is."""
    if name_of(dtype) == "bfloat16":
        bits = rounded(array, "bf16").view(np.uint32) >> 16
        return bits.astype(np.uint16).view(dtype)
    if dtype == np.float16:
        with np.errstate(over="ignore", under="ignore"):
            return array.astype(np.float16)
    return array


def wire(compression: str | None) -> str:
    """The compression that is asked for, by argument or by environment.

    Raises:
        FairleadError: there is none of that name.
    """
    asked = compression or os.environ.get("FAIRLEAD_COMM_COMPRESSION") or "none"
    if asked not in COMPRESSIONS:
        raise fail(
            f"there is no compression `{asked}`",
            where="comm.aggregate" if compression else f"FAIRLEAD_COMM_COMPRESSION={asked}",
            why=f"known: {', '.join(COMPRESSIONS)}",
            remedy="pass one of them",
            check="comm-compression",
        )
    return asked


def rounded(array: Array, compression: str) -> Array:
    """A float32 array with the values that travel, to nearest even; any other array as it is."""
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
    """Compares digests over ranks: one of all, then each of them where those differ."""
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


def _disagreement(calls: list[tuple[str, Signature]]) -> FairleadError:
    """Says which rank differs from rank 0, and in what."""
    rank = next(r for r, call in enumerate(calls) if call != calls[0])
    (call, ours), (other, theirs) = calls[0], calls[rank]
    remedy = "make every rank call the same function with the same arrays in the same order"
    if call != other:
        return fail(
            f"rank {rank} called {other} while rank 0 called {call}",
            where=f"rank {rank}",
            why="a collective needs every rank",
            remedy=remedy,
            check="comm-order",
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
        f"rank {rank} passed other arrays to {call} than rank 0",
        where=f"rank {rank}, array {index}",
        why=f"rank 0 has {shown(ours)}, rank {rank} has {shown(theirs)}",
        remedy=remedy,
        check="comm-signature",
    )
