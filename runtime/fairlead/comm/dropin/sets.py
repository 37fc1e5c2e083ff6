"""Process sets of ``horovod``: some of the ranks, which have collectives of their own."""

from __future__ import annotations

import atexit
import itertools
import socket
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fairlead import comm
from fairlead.base.errors import fail
from fairlead.comm.core import Array, Comm
from fairlead.comm.dropin import requests
from fairlead.comm.dropin.absent import not_offered
from fairlead.comm.dropin.engine import Channel, Engine, Handle, report
from fairlead.comm.dropin.failures import usage
from fairlead.comm.dropin.groups import of_all
from fairlead.comm.dropin.moves import Done
from fairlead.comm.frameworks import common

__all__ = [
    "ProcessSet",
    "add_process_set",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "remove_process_set",
]

_ALL = 0


class ProcessSet:
    """Some of the ranks.

    Attributes:
        ranks: of them, sorted; None for all before ``init``.
        process_set_id: its number; None as long as it has not been added.
    """

    def __init__(self, ranks: Any):
        """
        Args:
            ranks: numbers, or a communicator of mpi4py, whose ranks they are.
        Raises:
            UsageError: a rank is negative, or there twice.
        """
        self.mpi_comm = ranks if hasattr(ranks, "Get_group") else None
        self.ranks = None if ranks is None else ranks_of(ranks)
        if self.ranks is not None and (
            len({*self.ranks}) < len(self.ranks) or min(self.ranks, default=0) < 0
        ):
            raise usage(fail("comm-dropin-set-ranks", ranks=self.ranks))
        self.process_set_id: int | None = None
        self._channel: Channel | None = None

    def __repr__(self) -> str:
        # As Horovod's; scripts print it.
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks},"
            f" mpi_comm={self.mpi_comm})"
        )

    def size(self) -> int:
        return len(self._of())

    def rank(self) -> int:
        """This process among them.

        Raises:
            UsageError: it is not one of them.
        """
        me = comm.rank()
        if me not in self._of():
            raise self._not_included()
        return self._of().index(me)

    def included(self) -> bool:
        """Whether this process is one of them."""
        return comm.rank() in self._of()

    def exists(self) -> bool:
        """Whether it was added, and is not removed."""
        number = self.process_set_id
        return number is not None and _sets.get(number) is self

    def _of(self) -> list[int]:
        if self.ranks is None or not self.exists():
            raise usage(fail("comm-dropin-set-absent", ranks=self.ranks))
        return self.ranks

    def channel(self) -> Channel:
        """
        Raises:
            UsageError: this process is not one of them; it has not been added, or is removed.
        """
        self._of()
        if self._channel is None:
            raise self._not_included()
        return self._channel

    def core_comm(self) -> Comm:
        """Sums and means of its ranks.

        Raises:
            UsageError: as :meth:`channel`.
        """
        return self.channel().group.ranks

    def _not_included(self) -> Exception:
        return usage(fail("comm-dropin-set-included", rank=comm.rank(), ranks=self.ranks))

    def ask(self, kind: str, arrays: Sequence[Array] = (), **more: Any) -> Handle:
        """:meth:`~fairlead.comm.dropin.engine.Engine.ask`."""
        return engine().ask(self.channel(), kind, arrays, **more)

    def run(self, kind: str, arrays: Sequence[Array] = (), **more: Any) -> Done:
        """:meth:`~fairlead.comm.dropin.engine.Engine.run`."""
        return engine().run(self.channel(), kind, arrays, **more)

    def root(self, rank: int) -> int:
        """The place of a rank, as numbered among all, in this set.

        Raises:
            FairleadError: it is not one of them.
        """
        if rank not in self._of():
            raise fail("comm-dropin-set-root", root=rank, ranks=self.ranks)
        return self._of().index(rank)


global_process_set = ProcessSet(None)
_sets: dict[int, ProcessSet] = {}
_engines: list[Engine] = []


def engine() -> Engine:
    """
    Raises:
        FairleadError: before ``init``.
    """
    if not _engines:
        raise fail("comm-dropin-init-horovod-missing")
    return _engines[0]


def of(given: Any) -> ProcessSet:
    """The process set that is an argument of a call; without one, that of all ranks.

    Raises:
        UsageError: it is none, was not added, or is removed.
    """
    if given is None:
        return global_process_set
    if not isinstance(given, ProcessSet):
        raise usage(fail("comm-dropin-set-absent", ranks=given))
    given._of()
    return given


def ranks_of(given: Any) -> list[int]:
    """The ranks, sorted, of a communicator of mpi4py or of a list."""
    if not hasattr(given, "Get_group"):
        return sorted(int(rank) for rank in given)
    from mpi4py import MPI

    world, members = MPI.COMM_WORLD.Get_group(), given.Get_group()
    return sorted(members.Translate_ranks(list(range(members.size)), world))


def by_number(number: int) -> ProcessSet:
    """
    Raises:
        FairleadError: there is none.
    """
    if number not in _sets:
        raise fail("comm-dropin-set-absent", ranks=f"of number {number}")
    return _sets[number]


def hosts() -> Sequence[str]:
    """Of each rank; none before ``init`` and after ``shutdown``."""
    return _engines[0].hosts if _engines else []


def start(of_ranks: Any = None) -> Comm:
    """Starts MPI. Collective.

    Args:
        of_ranks: all ranks, as :func:`ranks_of` takes them.
    Raises:
        FairleadError: they are not all.
    """
    ranks = comm.init()
    every = list(range(ranks.size))
    if of_ranks is not None and ranks_of(of_ranks) not in ([], every):
        raise not_offered(
            "init of a subset of the ranks", "init() of all of them, and process sets"
        )
    group = of_all(ranks)
    names = [name.decode() for name in _of_each(group.exchange(socket.gethostname().encode()))]
    made = Engine(group, names)
    _engines[:] = [made]
    global_process_set.ranks = every
    global_process_set.mpi_comm = of_ranks if hasattr(of_ranks, "Get_group") else None
    global_process_set.process_set_id, global_process_set._channel = _ALL, made.all
    _sets.clear()
    _sets[_ALL] = global_process_set
    common.before_meeting[:] = [made.announce_end]
    atexit.register(_finish)
    return ranks


def _of_each(arrived: Callable[[], list[bytes] | None]) -> list[bytes]:
    while (every := arrived()) is None:
        pass
    return every


def _finish() -> None:
    if _engines and comm._comm is not None and comm._comm.here:
        try:
            _engines[0].close()
        except Exception as exc:
            report(exc)


def stop() -> None:
    """Collective."""
    if _engines:
        common.before_meeting.clear()
        _engines.pop().close()
    for known in _sets.values():
        known.process_set_id = known._channel = None
    _sets.clear()


def add_process_set(process_set: Any) -> ProcessSet:
    """Makes a process set of ranks, or of one that has not been added. All ranks call it.

    Raises:
        UsageError: there is one of these ranks, or a rank that does not exist.
        HorovodInternalError: other ranks add another one.
    """
    return add_process_sets([process_set])[0]


def add_process_sets(given: Sequence[Any]) -> list[ProcessSet]:
    """:func:`add_process_set` of each, all or none of them.

    Where one is of a communicator, each rank passes its own, and so do those of the other ranks become process sets.
    """
    wanted = [each if isinstance(each, ProcessSet) else ProcessSet(each) for each in given]
    how = tuple("of a communicator" if w.mpi_comm else tuple(w.ranks or ()) for w in wanted)
    engine().run(engine().all, requests.BARRIER, name="add_process_set", how=how)
    lists = [ranks for each in wanted for ranks in _lists(each)]
    known = [each.ranks for each in _sets.values()]
    for i, ranks in enumerate(lists):
        if ranks in known + lists[:i]:
            raise usage(fail("comm-dropin-set-twice", ranks=ranks))
        if any(rank >= comm.size() for rank in ranks):
            raise usage(fail("comm-dropin-set-ranks", ranks=ranks))
    for ranks in lists:
        made = next((each for each in wanted if each.ranks == ranks), None)
        _add(made or ProcessSet(ranks))
    return wanted


def _lists(wanted: ProcessSet) -> list[list[int]]:
    """The ranks of a process set; of one of a communicator, those of each rank's. Collective."""
    mine = wanted.ranks or []
    if wanted.mpi_comm is None:
        return [mine]
    every = engine().run(
        engine().all, requests.ALLGATHER, [np.array([len(mine), *mine])], name="add_process_set"
    )
    left = every.arrays[0].tolist()
    lists: list[list[int]] = []
    while left:
        ranks, left = left[1 : 1 + left[0]], left[1 + left[0] :]
        if ranks not in lists:
            lists.append(ranks)
    return lists


def _add(made: ProcessSet) -> None:
    group = engine().all.group.split(made.ranks or ())
    if group is not None:
        made._channel = engine().channel(group)
    # Numbers are used again, as Horovod's are.
    made.process_set_id = next(number for number in itertools.count() if number not in _sets)
    _sets[made.process_set_id] = made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Returns whether it was there. All ranks call it."""
    number = process_set.process_set_id
    if number is None or number == _ALL:
        return False
    engine().run(
        engine().all, requests.BARRIER, name="remove_process_set", how=tuple(process_set._of())
    )
    channel, process_set._channel = process_set._channel, None
    if channel is not None:
        engine().forget(channel)
    process_set.process_set_id = None
    del _sets[number]
    return True


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    return {number: list(known.ranks or ()) for number, known in sorted(_sets.items())}
