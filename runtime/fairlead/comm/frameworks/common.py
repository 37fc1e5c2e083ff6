"""What :mod:`fairlead.comm.keras` and :mod:`fairlead.comm.torch` share: names in errors, checks.

Nothing here knows a framework. The fronts turn their tensors into NumPy arrays, and the words of
:class:`fairlead.comm.Comm`, which counts arrays, into those of the user, who has named them.
"""

from __future__ import annotations

import atexit
import pickle
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from fairlead import comm
from fairlead.base.errors import FairleadError, fail
from fairlead.comm.core import Array, Comm, Pending

EVEN = (
    "give every rank as many batches: cut the data to a multiple of ranks times batch, or set the"
    " number of steps"
)


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
    try:
        return ranks.aggregate(arrays, out, compression, names, any_values)
    except FairleadError as exc:
        raise of_a_step(exc, names) from None


def of_a_step(exc: FairleadError, names: Sequence[str]) -> FairleadError:
    """What an error of the core means to who averages gradients, which have names."""
    return _uneven(exc) or named(exc, names)


def started(ranks: Comm, arrays: Sequence[Array], names: Sequence[str]) -> Pending:
    """:meth:`Comm.start`, into the arrays themselves, with names in errors."""
    try:
        return ranks.start(arrays, arrays, names=names)
    except FairleadError as exc:
        raise _uneven(exc) or named(exc, names) from None


def waited(pending: Pending, names: Sequence[str]) -> list[Array]:
    """:meth:`Pending.wait`, with names in errors."""
    try:
        return pending.wait()
    except FairleadError as exc:
        raise _uneven(exc) or named(exc, names) from None


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
    try:
        ranks.barrier()
    except FairleadError as exc:
        raise _uneven(exc) or exc from None


def _uneven(exc: FairleadError) -> FairleadError | None:
    """What it means that a rank averages gradients while another has no more of them."""
    finding = exc.findings[0]
    if finding.check != "comm-order":
        return None
    odd = re.match(r"rank \d+", finding.what)
    return fail(
        "comm-steps-made",
        odd=odd[0] if odd else finding.where,
        finding_what=finding.what,
        even=EVEN,
    )


def broadcast(ranks: Comm, arrays: Sequence[Array], names: Sequence[str], root: int) -> list[Array]:
    """:meth:`Comm.broadcast` of arrays of any dtype, bfloat16 included, with names in errors."""
    try:
        if ranks.timeline is None:
            values = ranks.broadcast([plain(array) for array in arrays], root)
        else:
            with ranks.timeline.doing("broadcast", {"arrays": len(arrays)}):
                values = ranks.broadcast([plain(array) for array in arrays], root)
    except FairleadError as exc:
        raise named(exc, names) from None
    return [value.view(array.dtype) for array, value in zip(arrays, values, strict=True)]


def broadcast_object(ranks: Comm, value: Any, root: int) -> Any:
    """``root``'s ``value``, which must be picklable, on every rank."""
    data = np.frombuffer(pickle.dumps(value), np.uint8) if ranks.rank == root else None
    (size,) = ranks.broadcast([np.array(0 if data is None else data.size)], root)
    (data,) = ranks.broadcast([np.empty(int(size), np.uint8) if data is None else data], root)
    return pickle.loads(data.tobytes())


_ALIKE = (
    "change weights, optimizer and learning rate in the same way on every rank: what decides by a"
    " metric must come after AverageMetrics"
)


def require_equal(
    ranks: Comm, arrays: Sequence[Array], names: Sequence[str], when: str, remedy: str = _ALIKE
) -> None:
    """Compares arrays over ranks, bit by bit.

    Raises:
        FairleadError: they differ; the first that does is named with the ranks that hold it.
    """
    match = ranks.check_buffers_match([plain(array) for array in arrays])
    if match.first is None:
        return
    raise (
        fail(
            "state-differs",
            when=when,
            names=names[match.first],
            ranks=", ".join(map(str, match.ranks)),
            digests="; ".join(f"rank {r}: {d[:12]}" for r, d in enumerate(match.digests[:8])),
            remedy=remedy,
        )
        if match.first < len(names)
        else fail(
            "state-differs-array",
            when=when,
            first=match.first,
            ranks=", ".join(map(str, match.ranks)),
            digests="; ".join(f"rank {r}: {d[:12]}" for r, d in enumerate(match.digests[:8])),
            remedy=remedy,
        )
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
    floats = [i for i, array in enumerate(arrays) if is_float(array)]
    others = [i for i in range(len(arrays)) if i not in set(floats)]
    means = aggregate(
        ranks, [arrays[i].astype(np.float64) for i in floats], [names[i] for i in floats]
    )
    firsts = broadcast(ranks, [arrays[i] for i in others], [names[i] for i in others], 0)
    result = dict(zip(others, firsts, strict=True))
    result |= {i: m.astype(arrays[i].dtype) for i, m in zip(floats, means, strict=True)}
    return [result[i] for i in range(len(arrays))]


def is_float(array: Array) -> bool:
    """Whether it can be averaged; NumPy knows bfloat16 only as bytes.

    >>> is_float(np.zeros(1, np.float16)), is_float(np.zeros(1, bool))
    (True, False)
    """
    return array.dtype.kind == "f" or array.dtype.name.startswith("bfloat")


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


def words(exc: FairleadError) -> str:
    """All four lines of its findings, for a framework that keeps only an exception's text."""
    lines: Iterable[str] = (
        f"{f.what}\nwhere: {f.where}\nwhy:   {f.why}\nnext:  {f.remedy}" for f in exc.findings
    )
    return "\n".join(lines)


@contextmanager
def in_words() -> Iterator[None]:
    """TensorFlow keeps of an exception its text alone."""
    try:
        yield
    except FairleadError as exc:
        raise RuntimeError(words(exc)) from None


@cache
def end_together() -> None:
    """Lets a rank that ends before the others meet them, so that they do not wait for its gradients.

    Their aggregate then finds that this rank has ended, and says so; this rank ends them.
    """

    @atexit.register
    def end() -> None:
        try:
            if comm._comm is not None and comm._comm.here:
                meet(comm._comm)
                comm._comm.conclude()
        except FairleadError as exc:
            sys.excepthook(type(exc), exc, exc.__traceback__)
