"""Named spans of a process's time, and by which clock they are told. Where there is no timeline, nobody records them.

:mod:`fairlead.comm.timeline` is the recorder. What marks spans, such as the input pipeline, need not know of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Protocol


class Recorder(Protocol):
    """What keeps spans."""

    def doing(self, name: str, args: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Records what is done within, in the row of the calling thread."""


recorder: Recorder | None = None
_NOTHING = nullcontext()


def span(name: str, **args: Any) -> AbstractContextManager[None]:
    """Shows what is done within as ``name`` in the timeline, in the row of the calling thread.

        with span("augment", samples=len(batch)):
            batch = augment(batch)

    Args:
        args: JSON values that are shown with it.
    """
    return _NOTHING if recorder is None else recorder.doing(name, args)


def clock_name() -> str:
    """The same in processes that read one clock: of one start of a machine, in one namespace of time."""
    boot = space = "?"
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as stream:
        boot = stream.read().strip()
    with suppress(OSError):
        space = os.readlink("/proc/self/ns/time")  # noqa: PTH115
    return f"{boot} {space}"
