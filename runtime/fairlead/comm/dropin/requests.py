"""Which collectives can be carried out, by what each rank has asked for so far. Nothing here moves a byte.

Ranks ask in any order. What all of them have asked for under one name is carried out, and every rank finds the same
responses in the same order, since :class:`Table` is filled with the same requests on all of them. Requests that do
not fit each other become an error on every rank, which leaves the ranks in step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.base.errors import FairleadError, fail
from fairlead.comm.core import Signature, disagreement

ALLREDUCE, ALLGATHER, BROADCAST = "allreduce", "allgather", "broadcast"
ALLTOALL, REDUCESCATTER, BARRIER = "alltoall", "reducescatter", "barrier"
# No script names its collectives so.
JOIN, END = "<join>", "<end>"
# Their first dimension may be another on each rank.
_ANY_ROWS = (ALLGATHER, ALLTOALL)


@dataclass(frozen=True)
class Request:
    """What a rank asks for.

    Attributes:
        kind: of collective.
        name: the same on all ranks; those without a name are numbered.
        tensors: dtype and shape of each.
        how: what must be the same on all ranks: the reduction, the root. Of a join, how many requests had no name.
        splits: the rows that go to each rank, of an alltoall.
        zeros: whether a rank that has joined may take part with zeros.
    """

    kind: str
    name: str
    tensors: Signature = ()
    how: Any = None
    splits: tuple[int, ...] = ()
    zeros: bool = False

    @property
    def call(self) -> str:
        how = "" if self.how is None else f"({self.how})"
        return f"{self.kind}{how} `{self.name}`"

    @property
    def fixed(self) -> Signature:
        """The tensors, without what may differ between ranks."""
        if self.kind not in _ANY_ROWS:
            return self.tensors
        return tuple((dtype, shape[1:]) for dtype, shape in self.tensors)


@dataclass(frozen=True)
class Response:
    """What is to be done now, on every rank.

    Attributes:
        name: of the request.
        each: every rank's request; None for a rank that has joined.
        error: why it cannot be done; None if it can.
        last: of a join, the rank that was last to join.
    """

    name: str
    each: tuple[Request | None, ...]
    error: FairleadError | None = None
    last: int = -1

    @property
    def first(self) -> Request:
        """The request of the first rank that has one."""
        return next(request for request in self.each if request is not None)


class Table:
    """What the ranks of a process set have asked for, and not got yet.

    Attributes:
        joined: ranks in :data:`JOIN`, in their order.
        ended: ranks that ask for nothing more.
    """

    def __init__(self, hosts: Sequence[str]):
        self._hosts = hosts
        self._waiting: list[dict[str, Request]] = [{} for _ in hosts]
        self.joined: dict[int, Request] = {}
        self.ended: set[int] = set()

    def add(self, rank: int, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.kind == JOIN:
                self.joined[rank] = request
            elif request.kind == END:
                self.ended.add(rank)
            else:
                self._waiting[rank][request.name] = request

    def take(self) -> list[Response]:
        """The responses that are due; the table no longer has their requests."""
        return list(self._due())

    def take_all(self, error: FairleadError) -> list[Response]:
        """A response with ``error`` for everything."""
        left = [Response(name, self._taken(name), error) for name in self._names()]
        if self.joined:
            left.append(Response(JOIN, (), error))
            self.joined.clear()
        return left

    def outstanding(self) -> str:
        """What each rank waits for, in words."""
        rows = []
        for rank, (waiting, host) in enumerate(zip(self._waiting, self._hosts, strict=True)):
            called = [request.call for request in waiting.values()]
            called += ["join"] * (rank in self.joined)
            more = f" and {len(called) - 3} more" if len(called) > 3 else ""
            rows.append(f"rank {rank} ({host}): {', '.join(called[:3]) or 'nothing'}{more}")
        return "; ".join(rows)

    def _due(self) -> Iterator[Response]:
        for name in self._names():
            absent = [r for r, waiting in enumerate(self._waiting) if name not in waiting]
            gone = [rank for rank in absent if rank in self.ended]
            if not gone and any(rank not in self.joined for rank in absent):
                continue
            each = self._taken(name)
            yield Response(name, each, self._wrong(each, absent, gone))
        if self.joined and self.ended:
            yield Response(JOIN, (), self._left(sorted(self.ended)[0], "join"))
            self.joined.clear()
        if len(self.joined) == len(self._waiting):
            yield Response(JOIN, (*self.joined.values(),), last=[*self.joined][-1])
            self.joined.clear()

    def _names(self) -> list[str]:
        return list(dict.fromkeys(name for waiting in self._waiting for name in waiting))

    def _taken(self, name: str) -> tuple[Request | None, ...]:
        return tuple(waiting.pop(name, None) for waiting in self._waiting)

    def _wrong(
        self, each: Sequence[Request | None], absent: Sequence[int], gone: Sequence[int]
    ) -> FairleadError | None:
        given = [(rank, request) for rank, request in enumerate(each) if request is not None]
        _, first = given[0]
        if gone:
            return self._left(gone[0], first.call)
        calls = [(r.kind, r.how, r.fixed) for _, r in given]
        if any(call != calls[0] for call in calls):
            # In the order of ranks; those that have joined as the first one, which they cannot differ from.
            rows = [request or first for request in each]
            return disagreement(
                [(r.call, r.fixed, h) for r, h in zip(rows, self._hosts, strict=True)]
            )
        if absent and not first.zeros:
            return fail("comm-dropin-joined", call=first.call, rank=absent[0])
        return None

    def _left(self, rank: int, call: str) -> FairleadError:
        return fail("comm-dropin-ended", rank=rank, host=self._hosts[rank], call=call)
