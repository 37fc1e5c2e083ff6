"""What is done to arrays when all ranks of a process set have asked for it, by the kind of request.

Sums, means and broadcasts go by the core, for all ranks, and by mpi4py for fewer; the rest by MPI.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fairlead.comm.core import BFLOAT16, Array, Signature, narrowed, widened
from fairlead.comm.dropin import rules
from fairlead.comm.dropin.groups import Single
from fairlead.comm.dropin.requests import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BROADCAST,
    REDUCESCATTER,
    Request,
)


@dataclass(frozen=True)
class Done:
    """What has come of a request.

    Attributes:
        arrays: new ones.
        received: of an alltoall, the rows of each rank.
        last: of a join, the rank that was last.
    """

    arrays: list[Array] = field(default_factory=list)
    received: tuple[int, ...] = ()
    last: int = -1


# Every rank's request, None of ranks that have joined; this rank's arrays, None if it has.
Move = Callable[[Single, Sequence["Request | None"], "Sequence[Array] | None"], Done]


def _allreduce(
    group: Single, each: Sequence[Request | None], arrays: Sequence[Array] | None
) -> Done:
    request = next(r for r in each if r is not None)
    given = _zeros(request.tensors) if arrays is None else arrays
    return Done(request.how.of(group, given))


def _zeros(tensors: Signature) -> list[Array]:
    return [
        np.zeros(shape, BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype))
        for dtype, shape in tensors
    ]


def _allgather(
    group: Single, each: Sequence[Request | None], arrays: Sequence[Array] | None
) -> Done:
    assert arrays is not None
    rows = [[shape[0] if shape else 1 for _, shape in r.tensors] for r in each if r is not None]
    return Done(
        [
            group.gathered(np.atleast_1d(array), [counts[i] for counts in rows])
            for i, array in enumerate(arrays)
        ]
    )


def _broadcast(
    group: Single, each: Sequence[Request | None], arrays: Sequence[Array] | None
) -> Done:
    assert arrays is not None
    request = next(r for r in each if r is not None)
    return Done(group.broadcast(arrays, request.how))


def _alltoall(
    group: Single, each: Sequence[Request | None], arrays: Sequence[Array] | None
) -> Done:
    assert arrays is not None
    table = [request.splits for request in each if request is not None]
    received = tuple(splits[group.rank] for splits in table)
    return Done([group.exchanged(a, table[group.rank], received) for a in arrays], received)


def rows_of(length: int, size: int) -> list[int]:
    """The rows of each rank after a reducescatter: as many for all, and one more for the first ones.

    >>> rows_of(7, 3)
    [3, 2, 2]
    """
    return [length // size + (rank < length % size) for rank in range(size)]


def _reducescatter(
    group: Single, each: Sequence[Request | None], arrays: Sequence[Array] | None
) -> Done:
    assert arrays is not None
    request = next(r for r in each if r is not None)
    reduction = request.how
    results = []
    for array in arrays:
        scaled = rules.scaled(array, reduction.before)
        mean = reduction.op == rules.AVERAGE
        wide = rules.countable(scaled, mean=mean) if array.dtype.kind in "iub" else widened(scaled)
        part = group.scattered(wide, rows_of(len(array), group.size))
        if array.dtype.kind in "iub":
            part = rules.counted(part, array.dtype, group.size if mean else 1)
        else:
            part = narrowed(part / group.size if mean else part, array.dtype)
        results.append(rules.scaled(part.astype(array.dtype, copy=False), reduction.after))
    return Done(results)


def _barrier(group: Single, each: Sequence[Request | None], arrays: Sequence[Array] | None) -> Done:
    return Done()


MOVES: Mapping[str, Move] = {
    ALLREDUCE: _allreduce,
    ALLGATHER: _allgather,
    BROADCAST: _broadcast,
    ALLTOALL: _alltoall,
    REDUCESCATTER: _reducescatter,
    BARRIER: _barrier,
}
