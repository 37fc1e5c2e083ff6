"""``horovod``'s elastic states, for a job whose ranks stay the same from its start to its end.

States are kept in memory, restored and made equal as scripts ask for it. Nothing adds or replaces a rank: one that is
lost ends the job, whose error says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from fairlead.base.errors import fail
from fairlead.comm.dropin import hvd
from fairlead.comm.dropin.failures import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["ObjectState", "State", "run", "run_fn"]


class State:
    """What training changes, in memory.

    Args:
        bcast_object, get_rank: as Horovod's subclasses give them.
    """

    def __init__(
        self,
        bcast_object: Callable[[Any], Any] = hvd.broadcast_object,
        get_rank: Callable[[], int] = hvd.rank,
    ):
        self._bcast_object, self._rank = bcast_object, get_rank
        self._reset_callbacks: list[Callable[[], object]] = []

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], object]]) -> None:
        """Called when :class:`HostsUpdatedInterrupt` has ended the training function, before it begins again."""
        self._reset_callbacks += callbacks

    def on_reset(self) -> None:
        self.reset()
        for call in self._reset_callbacks:
            call()

    def commit(self) -> None:
        """:meth:`save`, and :meth:`check_host_updates`."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Does nothing: the hosts of a job stay the same."""

    def save(self) -> None:
        """Keeps what there is now, for :meth:`restore`."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to what was kept last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks rank 0's state, and keeps it. Collective."""
        raise NotImplementedError

    def reset(self) -> None:
        """For subclasses: called before the callbacks of a reset."""


class ObjectState(State):
    """Picklable objects, each an attribute."""

    def __init__(
        self,
        bcast_object: Callable[[Any], Any] = hvd.broadcast_object,
        get_rank: Callable[[], int] = hvd.rank,
        **objects: Any,
    ):
        super().__init__(bcast_object, get_rank)
        self._saved_state = objects
        self._set_attrs()

    def save(self) -> None:
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:
        self._set_attrs()

    def sync(self) -> None:
        if self._saved_state:
            self.save()
            self._saved_state = self._bcast_object(self._saved_state)
            self._set_attrs()

    def _set_attrs(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """``func(state, ...)``, after the state of all ranks was made equal.

    Raises:
        FairleadError: by what it makes, where a collective fails; the job does not go on without its ranks.
    """

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
        equal = False
        while True:
            try:
                if not equal:
                    state.sync()
                return func(state, *args, **kwargs)
            except HorovodInternalError as exc:
                first = exc.findings[0].what if exc.findings else str(exc.args[0])
                raise fail("comm-dropin-elastic", what=first) from exc
            except HostsUpdatedInterrupt as exc:  # by the script itself
                equal = bool(exc.skip_sync)
            state.on_reset()

    return wrapper


def run_fn(func: Callable[..., Any], reset: Callable[[], object]) -> Callable[..., Any]:
    """:func:`run`; ``reset`` is how Horovod starts again with other ranks, which does not happen."""
    return run(func)
