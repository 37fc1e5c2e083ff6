"""The parts of a step of a torch program, for a timeline: what of it waits for a batch, goes forward and backward.

Loaded only where there is a timeline. It stands around ``Tensor.backward`` and around a loader's next batch, which
every training loop goes through, and takes nothing from them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import dataloader

from fairlead.comm.core import Comm
from fairlead.comm.timeline import Timeline

_watched: list[Timeline] = []


def watch(ranks: Comm) -> None:
    """Marks the parts of steps from now on; called again, or without a timeline, it does nothing."""
    timeline = ranks.timeline
    if timeline is None or _watched:
        return
    _watched.append(timeline)
    timeline.open_step(ranks.timings)
    _around(torch.Tensor, "backward", timeline, "forward", "backward")
    # Of every kind of loader; there is no public name for what iterates.
    _around(dataloader._BaseDataLoaderIter, "__next__", timeline, "other", "input")


def _around(owner: Any, name: str, timeline: Timeline, before: str, after: str) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(original)
    def marked(*args: Any, **kwargs: Any) -> Any:
        timeline.mark(before)
        try:
            return original(*args, **kwargs)
        finally:
            timeline.mark(after)

    setattr(owner, name, marked)
