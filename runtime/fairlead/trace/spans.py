"""Marks named spans of a process's time; without a timeline, nothing is recorded.

:mod:`fairlead.comm.timeline` is the recorder. Code that marks spans, such as the input pipeline, does not depend on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

# Makes the context manager that records a block; of the process's timeline.
recorder: Callable[[str, Mapping[str, Any]], AbstractContextManager[None]] | None = None
_NOTHING = nullcontext()


def span(name: str, **args: Any) -> AbstractContextManager[None]:
    """Shows the block as ``name`` in the timeline, in the row of the calling thread.

        with span("augment", samples=len(batch)):
            batch = augment(batch)

    Args:
        args: JSON values that are shown with it.
    """
    return _NOTHING if recorder is None else recorder(name, args)


def clock_name() -> str:
    """Identifies the clock of this process: equal in processes of one boot and one time namespace."""
    boot = space = "?"
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
        boot = stream.read().strip()
    with suppress(OSError):
        space = os.readlink("/proc/self/ns/time")  # noqa: PTH115
    return f"{boot} {space}"
