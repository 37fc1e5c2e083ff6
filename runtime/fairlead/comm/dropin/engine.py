"""The collectives of ``horovod``, in any order: what ranks ask for is compared, and carried out when all have asked.

Each process set has a :class:`Channel`. In a turn its ranks exchange what they have newly asked for, and then all of
them find the same responses (:mod:`fairlead.comm.dropin.requests`), which they carry out in the same order. A rank
takes part in turns as long as something that it has asked for is outstanding: nothing can be carried out without it
before.

There is no thread for it: turns are made by the threads that wait, poll or ask, one at a time, so MPI need not allow
calls of several threads. A rank that asks and then computes is waited for until it waits itself, or polls.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairlead.base.errors import FairleadError, fail
from fairlead.comm.core import Array, name_of
from fairlead.comm.dropin.engine_timeline import Timeline
from fairlead.comm.dropin.failures import HorovodInternalError, internal, usage
from fairlead.comm.dropin.groups import Exchange, Single
from fairlead.comm.dropin.moves import MOVES, Done
from fairlead.comm.dropin.requests import END, JOIN, Request, Response, Table

# All ranks of a process set wait, and for other things, for so long: they would wait forever.
STUCK_S = 5.0
_SPINS, _PAUSE_S = 200, 0.0005
_END_S = 1.0


class Handle:
    """A collective that has been asked for.

    Attributes:
        done: whether :meth:`Engine.wait` returns at once.
    """

    def __init__(self, channel: Channel, arrays: Sequence[Array]):
        self.channel, self.arrays = channel, arrays
        self.done = False
        self.result = Done()
        self.error: HorovodInternalError | None = None

    def end(self, result: Done | None = None, error: FairleadError | None = None) -> None:
        self.result = result or self.result
        self.error = None if error is None else internal(error)
        self.arrays = ()
        self.done = True


class Channel:
    """The requests of one process set."""

    def __init__(
        self, group: Single, hosts: Sequence[str], timeline: Callable[[], Timeline | None]
    ):
        self.group = group
        self._hosts = hosts
        self._timeline = timeline
        self._table = Table(hosts)
        self._mine: dict[str, Handle] = {}
        self._queue: list[Request] = []
        self._turn: Exchange | None = None
        self._names: Counter[str] = Counter()

    @property
    def ended(self) -> bool:
        """Whether no rank asks for anything more."""
        return len(self._table.ended) == self.group.size

    def name(self, kind: str) -> str:
        """A name for a request that has none: its number among those of its kind."""
        self._names[kind] += 1
        return f"{kind}.noname.{self._names[kind]}"

    def ask(self, request: Request, arrays: Sequence[Array]) -> Handle:
        """
        Raises:
            UsageError: something of that name is outstanding.
        """
        if request.kind == JOIN:
            request = replace(request, how=tuple(self._names.items()))
        if request.name in self._mine:
            raise usage(fail("comm-dropin-duplicate", name=request.name))
        handle = Handle(self, arrays)
        self._mine[request.name] = handle
        self._queue.append(request)
        if (timeline := self._timeline()) is not None:
            timeline.asked(request)
        return handle

    def step(self, waited_s: float) -> bool:
        """Does what can be done without waiting for ranks that have not asked; returns whether something was.

        Args:
            waited_s: how long this rank has waited for something here, and asked for nothing.
        """
        if self._turn is None:
            if not self._mine:
                return False
            self._turn = self.group.exchange(pickle.dumps((self._queue, waited_s)))
            self._queue = []
        every = self._turn()
        if every is None:
            return False
        self._turn = None
        if (timeline := self._timeline()) is not None:
            timeline.turn()
        turns = [pickle.loads(data) for data in every]
        for rank, (asked, _) in enumerate(turns):
            self._table.add(rank, asked)
        due = self._table.take()
        if not due and min(waited for _, waited in turns) > STUCK_S and not self._table.ended:
            waits = self._table.outstanding()
            due = self._table.take_all(fail("comm-dropin-stuck", waits=waits, seconds=STUCK_S))
        for response in due:
            self._carry_out(response)
        if self.ended:
            self._mine.pop(END, None)
        return bool(due)

    def _carry_out(self, response: Response) -> None:
        handle, timeline = self._mine.pop(response.name, None), self._timeline()
        # What this rank has not asked for, since it has joined, is not in its timeline.
        shown = timeline is not None and handle is not None
        with timeline.carrying_out(response.first) if timeline and shown else nullcontext():
            self._moved(response, handle)

    def _moved(self, response: Response, handle: Handle | None) -> None:
        if response.error is not None:
            if handle is not None:
                handle.end(error=response.error)
            return
        if response.name == JOIN:
            # Ranks that had joined have asked for less: what has no name is numbered alike from here.
            for request in response.each:
                self._names |= Counter(dict(request.how if request else ()))
            result, error = Done(last=response.last), None
        else:
            result, error = Done(), None
            try:
                arrays = None if handle is None else handle.arrays
                result = MOVES[response.first.kind](self.group, response.each, arrays)
            except FairleadError as exc:
                error = exc
        if handle is not None:
            handle.end(result, error)


class Engine:
    """The channels of this process, and who moves them on.

    Attributes:
        hosts: of all ranks.
        all: the channel of all ranks.
        timeline: of what this rank does; None for none.
    """

    def __init__(self, group: Single, hosts: Sequence[str]):
        self.hosts = hosts
        self._lock = threading.RLock()
        self._asked = time.monotonic()
        self.timeline: Timeline | None = None
        self.all = Channel(group, hosts, lambda: self.timeline)
        self._channels = [self.all]

    def channel(self, group: Single) -> Channel:
        """Of some of the ranks."""
        hosts = [self.hosts[member] for member in group.members]
        made = Channel(group, hosts, lambda: self.timeline)
        with self._lock:
            self._channels.append(made)
        return made

    def forget(self, channel: Channel) -> None:
        with self._lock:
            self._channels.remove(channel)
        channel.group.free()

    def ask(
        self,
        channel: Channel,
        kind: str,
        arrays: Sequence[Array] = (),
        name: str | None = None,
        **more: Any,
    ) -> Handle:
        """
        Args:
            arrays: read when it is carried out; they must not change before.
            more: of the :class:`~fairlead.comm.dropin.requests.Request`.
        Raises:
            UsageError: something of that name is outstanding.
        """
        signature = tuple((name_of(array.dtype), array.shape) for array in arrays)
        with self._lock:
            self._asked = time.monotonic()
            whole = name or channel.name(kind)
            return channel.ask(Request(kind, whole, signature, **more), arrays)

    def poll(self, handle: Handle) -> bool:
        """Whether it was done before this call, which moves it on."""
        done = handle.done
        if not done:
            with self._lock:
                self._step()
        return done

    def wait(self, handle: Handle) -> Done:
        """
        Raises:
            HorovodInternalError: the ranks have asked for different things; one has ended; or its move failed.
        """
        self._until(lambda: handle.done, handle.channel)
        if handle.error is not None:
            raise handle.error
        return handle.result

    def run(self, channel: Channel, kind: str, *args: Any, **more: Any) -> Done:
        """:meth:`ask` and :meth:`wait`."""
        return self.wait(self.ask(channel, kind, *args, **more))

    def announce_end(self) -> None:
        """Lets ranks that wait for this one know that it asks for nothing more, if they wait now."""
        with self._lock:
            for channel in self._channels:
                if END not in channel._mine and not channel.ended:
                    channel.ask(Request(END, END), ())
        limit = time.monotonic() + _END_S
        self._until(lambda: self.ended or time.monotonic() > limit)

    def close(self) -> None:
        """Returns when no rank asks for anything more. Collective."""
        self.announce_end()
        self._until(lambda: self.ended)
        self.stop_timeline()
        for channel in self._channels:
            channel.group.free()

    def start_timeline(self, path: str | Path, *, marks_turns: bool) -> None:
        """Records what this rank does from now on; what was recorded before ends.

        Raises:
            OSError: the file cannot be written.
        """
        with self._lock:
            self.stop_timeline()
            self.timeline = Timeline(path, marks_turns=marks_turns)

    def stop_timeline(self) -> None:
        with self._lock:
            if self.timeline is not None:
                self.timeline.close()
            self.timeline = None

    @property
    def ended(self) -> bool:
        return all(channel.ended for channel in self._channels)

    def _until(self, reached: Callable[[], bool], channel: Channel | None = None) -> None:
        """
        Args:
            channel: in which this rank waits for something that it has asked for.
        """
        idle = 0
        while not reached():
            with self._lock:
                # Another thread may have moved it on meanwhile.
                moved = reached() or self._step(channel)
            idle = 0 if moved else idle + 1
            if idle > _SPINS:
                time.sleep(_PAUSE_S)
            elif idle:
                os.sched_yield()

    def _step(self, waiting: Channel | None = None) -> bool:
        # All of them: a rank that waits in one set may be waited for in another.
        waited_s = time.monotonic() - self._asked
        return any(each.step(waited_s if each is waiting else 0.0) for each in [*self._channels])


def report(exc: BaseException) -> None:
    """An error at the end of the program, as an uncaught one."""
    sys.excepthook(type(exc), exc, exc.__traceback__)
