"""What :mod:`fairlead.comm.keras` and :mod:`fairlead.comm.torch` share: names in errors, checks.

Nothing here knows a framework. The fronts turn their tensors into NumPy arrays, and the words of
:class:`fairlead.comm.Comm`, which counts arrays, into those of the user, who has named them.
"""

from __future__ import annotations

import atexit
import pickle
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from fairlead import comm
from fairlead.base.errors import FairleadError, fail
from fairlead.comm.core import Array, BufferMatch, Comm

EVEN = (
    "give every rank as many batches: cut the data to a multiple of ranks times batch, or set the"
    " number of steps"
)


# A script that knows nothing of ranks: each decides by itself what it does next.
by_own_loss = False


def aggregate(
    ranks: Comm,
    arrays: Sequence[Array],
    names: Sequence[str],
    out: Sequence[Array] | None = None,
    compression: str | None = None,
    *,
    any_values: bool = False,
) -> list[Array]:
    """:meth:`Comm.aggregate`, whose errors give the name of the array as well as its number."""
    with _restated(lambda exc: of_a_step(exc, names)):
        return ranks.aggregate(arrays, out, compression, names, any_values)


def start(
    ranks: Comm,
    arrays: Sequence[Array],
    names: Sequence[str],
    out: Sequence[Array] | None = None,
    *,
    any_values: bool = False,
) -> Callable[[], list[Array]]:
    """:meth:`Comm.start`, into the arrays themselves or ``out``, with names in errors; returns what waits for the means."""
    naming_each = _restated(lambda exc: of_a_step(exc, names))
    started = naming_each(ranks.start)(arrays, out or arrays, names=names, any_values=any_values)
    return naming_each(started.wait)


def counts(ranks: Comm, *flags: bool) -> list[int]:
    """On how many ranks each is set, in a step. Collective."""
    with _restated(lambda exc: _uneven(exc) or exc):
        (numbers,) = ranks.sum([np.array(flags, np.int64)])
    return [int(number) for number in numbers]


def of_a_step(exc: FairleadError, names: Sequence[str]) -> FairleadError:
    """What an error of the core means where gradients are averaged, which have names."""
    return _uneven(exc) or named(exc, names)


@contextmanager
def _restated(other: Callable[[FairleadError], Exception]) -> Iterator[None]:
    """An error raised within becomes what ``other`` makes of it; a decorator as well."""
    try:
        yield
    except FairleadError as exc:
        raise other(exc) from None


def present(function: Callable[[list[Any]], Sequence[Any]], values: Sequence[Any]) -> list[Any]:
    """``function`` of those of ``values`` that are not None; its results in their places, None in the others."""
    held = [value for value in values if value is not None]
    results = iter(function(held) if held else ())
    return [None if value is None else next(results) for value in values]


def step_averages(ranks: Comm) -> None:
    """The gradients of a step are about to be averaged; for a timeline."""
    if ranks.timeline is not None:
        ranks.timeline.averaging(ranks.timings)


def step_made(ranks: Comm) -> None:
    """The gradients of a step have their means; for a timeline."""
    if ranks.timeline is not None:
        ranks.timeline.averaged(ranks.timings)


def meet(ranks: Comm) -> None:
    """The ranks at the end of an epoch or of the program, where none makes steps any more.

    Raises:
        FairleadError: another rank still makes steps.
    """
    with _restated(lambda exc: _uneven(exc) or exc):
        ranks.barrier()


def match(ranks: Comm, arrays: Sequence[Array], what: str) -> BufferMatch:
    """:meth:`Comm.check_buffers_match` of what all ranks compare now, unless one is elsewhere in its training.

    Args:
        what: is compared, and when; ranks that differ in it are at different points.
    Raises:
        FairleadError: one is.
    """
    with _restated(lambda exc: (by_own_loss and _uneven(exc)) or exc):
        label = np.frombuffer(what.encode(), np.uint8)
        differing = ranks.check_buffers_match([label, *arrays])
    if differing.first is None:
        return differing
    if differing.first == 0:
        odd = ", ".join(map(str, differing.ranks))
        raise _not_together(
            f"rank {odd}", f"rank {ranks.rank} compares {what}, another something else"
        )
    return replace(differing, first=differing.first - 1)


def _uneven(exc: FairleadError) -> FairleadError | None:
    """What it means that a rank averages gradients while another has no more of them."""
    finding = exc.findings[0]
    if finding.check != "comm-order":
        return None
    odd = re.match(r"rank \d+", finding.what)
    return _not_together(odd[0] if odd else finding.where, finding.what)


def _not_together(odd: str, what: str) -> FairleadError:
    if by_own_loss:
        return fail("auto-steps", odd=odd, finding_what=what)
    return fail("comm-steps-made", odd=odd, finding_what=what, even=EVEN)


def broadcast(ranks: Comm, arrays: Sequence[Array], names: Sequence[str], root: int) -> list[Array]:
    """:meth:`Comm.broadcast` of arrays of any dtype, bfloat16 included, with names in errors."""
    with comm.span("broadcast", arrays=len(arrays)), naming(names):
        values = ranks.broadcast([plain(array) for array in arrays], root)
    return [value.view(array.dtype) for array, value in zip(arrays, values, strict=True)]


def broadcast_object(ranks: Comm, value: Any, root: int) -> Any:
    """``root``'s ``value``, which must be picklable, on every rank."""
    data = np.frombuffer(pickle.dumps(value), np.uint8) if ranks.rank == root else None
    (size,) = ranks.broadcast([np.array(0 if data is None else data.size)], root)
    (data,) = ranks.broadcast([np.empty(int(size), np.uint8) if data is None else data], root)
    return pickle.loads(data.tobytes())


ALIKE = (
    "change weights, optimizer and learning rate in the same way on every rank: what decides by a"
    " metric must come after AverageMetrics"
)


UNEQUAL_AT_END = "change weights in the same way on every rank; what one rank does to them alone, it does to a copy"
NOT_COMPARED = "weights were not compared at the end: their process set was removed"


def require_equal(
    ranks: Comm, arrays: Sequence[Array], names: Sequence[str], when: str, remedy: str = ALIKE
) -> None:
    """Compares arrays over ranks, bit by bit.

    Raises:
        FairleadError: they differ; the first that does is named with the ranks that hold it.
    """
    differing = match(ranks, [plain(array) for array in arrays], f"state {when}")
    if differing.first is not None:
        raise fail(
            "state-differs",
            when=when,
            name=names[differing.first]
            if differing.first < len(names)
            else f"array {differing.first}",
            ranks=", ".join(map(str, differing.ranks)),
            digests="; ".join(f"rank {r}: {d[:12]}" for r, d in enumerate(differing.digests[:8])),
            remedy=remedy,
        )


def of_each_rank(ranks: Comm, value: int) -> list[int]:
    """The ``value`` of every rank, in rank order, on every rank."""
    table = np.zeros(ranks.size)
    table[ranks.rank] = value
    return [round(mean * ranks.size) for mean in ranks.aggregate([table])[0]]


def mean_state(ranks: Comm, arrays: Sequence[Array], names: Sequence[str]) -> list[Array]:
    """Arrays that each rank has changed in its own way, made equal.

    Floats become their mean over ranks, everything else what rank 0 holds. What all ranks hold
    alike keeps its bits: the sum of up to 2**29 equal float32 is exact in double precision.
    """
    # NumPy knows bfloat16 only as bytes.
    dtypes = [array.dtype for array in arrays]
    floats = [i for i, t in enumerate(dtypes) if t.kind == "f" or t.name.startswith("bfloat")]
    others = [i for i in range(len(arrays)) if i not in set(floats)]
    wide = [arrays[i].astype(np.float64) for i in floats]
    means = aggregate(ranks, wide, [names[i] for i in floats])
    kept = [arrays[i] for i in others]
    firsts = broadcast(ranks, kept, [names[i] for i in others], 0) if others else []
    result = dict(zip(others, firsts, strict=True))
    result |= {i: mean.astype(dtypes[i]) for i, mean in zip(floats, means, strict=True)}
    return [result[i] for i in range(len(arrays))]


def plain(array: Array) -> Array:
    """``array``, its bytes as integers where NumPy by itself does not know its dtype."""
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array


def named(exc: FairleadError, names: Sequence[str]) -> FairleadError:
    """The error with ``array 3`` made ``array 3 (dense/kernel)``."""

    def name(match: re.Match[str]) -> str:
        index = int(match[1])
        known = match.string[match.end() :].startswith(" (") or index >= len(names)
        return match[0] if known else f"{match[0]} ({names[index]})"

    def with_names(text: str) -> str:
        return re.sub(r"(?:array|tensor) (\d+)", name, text)

    return FairleadError(
        [
            replace(finding, what=with_names(finding.what), where=with_names(finding.where))
            for finding in exc.findings
        ],
        exc.code,
    )


@contextmanager
def naming(names: Sequence[str]) -> Iterator[None]:
    """Errors raised within get :func:`named`."""
    with _restated(lambda exc: named(exc, names)):
        yield


def words(exc: FairleadError) -> str:
    """All four lines of its findings, for a framework that keeps only an exception's text."""
    return "\n".join(
        f"{f.what}\nwhere: {f.where}\nwhy:   {f.why}\nnext:  {f.remedy}" for f in exc.findings
    )


def say(text: str) -> None:
    sys.stderr.write(f"fairlead: {text}\n")
    sys.stderr.flush()


@contextmanager
def in_words() -> Iterator[None]:
    """TensorFlow keeps of an exception its text alone, and whether it is a ValueError."""
    with _restated(
        lambda exc: (ValueError if isinstance(exc, ValueError) else RuntimeError)(words(exc))
    ):
        yield


# Called at the end of a program before its ranks meet: what lets those know that wait elsewhere.
before_meeting: list[Callable[[], object]] = []


@cache
def end_together() -> None:
    """Lets a rank that ends before the others meet them, so that they do not wait for its gradients.

    Their aggregate then finds that this rank has ended, and says so; this rank ends them.
    """

    @atexit.register
    def end() -> None:
        try:
            if comm._comm is not None and comm._comm.here:
                for call in before_meeting:
                    call()
                meet(comm._comm)
                comm._comm.conclude()
        except FairleadError as exc:
            sys.excepthook(type(exc), exc, exc.__traceback__)
