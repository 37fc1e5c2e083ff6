"""Means of an optimizer's gradients that move while the backward pass still runs.

What DistributedDataParallel does, without it: the order in which gradients become complete is learned in two steps, and
buckets of them leave in that order. A script may still change its gradients afterwards (clip them, zero them, add another
backward pass): what was sent is compared with what ``step()`` finds, and if a rank finds something else, all ranks
average what they have then, as without this module. Each step makes the same calls on every rank, whatever a rank finds.

Buckets are smaller than those of DistributedDataParallel (25 MiB): over a link as slow as a step, the first leave earlier,
and the last is sooner there (``python -m benchmarks comm-link-torch``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairlead.base.errors import FairleadError
from fairlead.comm.frameworks import common
from fairlead.comm.frameworks.torch_buckets import room_for
from fairlead.comm.overlap import Overlap

if TYPE_CHECKING:
    from fairlead.comm.core import Array, Comm

_SMALLEST = 1 << 20  # bytes of a bucket
_MOST = 16  # buckets: the core has 32 calls under way
_LEAST = 1 << 20  # bytes of all gradients; fewer take no time
_LEARNED_IN = (2, 3)  # steps; programs differ in what precedes their first
_MISSES = 3  # steps in which what was sent was not what was needed


class _Bucket:
    """Gradients that travel together.

    Attributes:
        parts: of each its parameter, what was sent, and the mean.
        missing: how many of them the backward pass has not completed.
    """

    def __init__(self, parameters: Sequence[Any], zeros: Callable[[int, Any], Array]):
        count = sum(p.numel() for p in parameters)
        dtype = str(parameters[0].dtype).removeprefix("torch.")
        self._sent, self._means = zeros(count, dtype), zeros(count, dtype)
        sizes = [p.numel() for p in parameters]
        each = [torch.from_numpy(a).split(sizes) for a in (self._sent, self._means)]
        self.parts = [
            (p, sent.view(p.shape), mean.view(p.shape))
            for p, sent, mean in zip(parameters, *each, strict=True)
        ]
        self.missing = len(parameters)

    def start(self, ranks: Comm, name: str) -> Callable[[], object]:
        # Odd values are seen when the gradients are compared, and then reported by their own names.
        return common.start(ranks, [self._sent], [name], [self._means], any_values=True)

    def is_finite(self) -> bool:
        return math.isfinite(torch.linalg.vector_norm(torch.from_numpy(self._sent), math.inf))


class EarlyMeans:
    """Of one optimizer, from its first step. Collective, apart from :meth:`close`."""

    def __init__(self, ranks: Comm, parameters: Sequence[Any]):
        self._ranks, self._parameters = ranks, list(parameters)
        self._overlap = Overlap(common.say if ranks.rank == 0 else lambda text: None)
        self._step = 1  # that is under way, or the next
        # By a parameter's id: how many passes added to its gradient in this step, in the order of the last.
        self._counts: dict[int, int] = {}
        self._learned: list[dict[int, int]] = []
        self._buckets: list[_Bucket] = []
        self._place: dict[int, tuple[_Bucket, Any]] = {}  # its bucket, and what it sends
        self._started: list[Callable[[], object]] = []
        self._late = self._closed = False
        self._missed = 0
        self._hooks = [p.register_post_accumulate_grad_hook(self._added) for p in parameters]

    def close(self) -> None:
        """Nothing leaves early from here on; the other ranks learn of it in the next step."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._closed = [], True

    def means(self, parameters: Sequence[Any], *, other: bool) -> list[Any] | None:
        """The gradients, averaged in place; None if they have to be averaged now.

        Args:
            parameters: of the optimizer, as they are now.
            other: they have to be averaged together with something else, or in another way.
        Raises:
            FairleadError: the ranks disagree, or one has ended.
        """
        means = None
        same = [*map(id, parameters)] == [*map(id, self._parameters)]
        if self._buckets and self._overlap.background:
            means = self._arrived(changed=other or not same)
        elif not self._buckets and self._step in _LEARNED_IN:
            self._learned.append(dict(self._counts))
            if self._step == _LEARNED_IN[-1]:
                self._make_buckets(able=same and not other and not self._closed)
        self._counts.clear()
        self._step += 1
        self._late = False
        return means

    def end_step(self) -> None:
        """The gradients of a step have their means."""
        if self._buckets and not self._overlap.decided and self._overlap.begin_step():
            self._overlap.settle(self._ranks)
            if not self._overlap.background:
                self._end()

    def drain(self) -> None:
        """Has what left on some ranks leave on all: ranks may differ in backward passes that no step follows."""
        if not self._buckets:
            return
        if self._overlap.background:
            self._finish(wanted=False)
            self._late = True
        if any(common.counts(self._ranks, self._closed)):
            self._end()

    def _end(self) -> None:
        """:meth:`close`, on all ranks."""
        self.close()
        self._buckets, self._place = [], {}

    def _added(self, parameter: Any) -> None:
        """A backward pass has added to a gradient."""
        key = id(parameter)
        count = self._counts.pop(key, 0) + 1
        self._counts[key] = count
        if not self._overlap.background:
            return
        due = self._learned[-1][key]
        self._late |= count > due
        if count == due:
            bucket, sent = self._place[key]
            sent.copy_(parameter.grad.detach())
            bucket.missing -= 1
            for bucket in islice(self._buckets, len(self._started), None):
                if bucket.missing:
                    break
                self._start(bucket)

    def _start(self, bucket: _Bucket) -> None:
        self._started.append(
            bucket.start(self._ranks, f"bucket {len(self._started)} of the gradients")
        )

    def _finish(self, *, wanted: bool) -> None:
        """Waits for all buckets; those that are not wanted may have failed."""
        for bucket in self._buckets[len(self._started) :]:
            self._start(bucket)
        for wait in self._started:
            try:
                wait()
            except FairleadError:
                if wanted:
                    raise
        self._started.clear()
        for bucket in self._buckets:
            bucket.missing = len(bucket.parts)

    def _arrived(self, *, changed: bool) -> list[Any] | None:
        sent = [part for bucket in self._buckets for part in bucket.parts]
        changed = (
            changed
            or self._late
            or any(bucket.missing for bucket in self._buckets)
            or not all(p.grad is not None and torch.equal(p.grad, was) for p, was, _ in sent)
        )
        odd = not all(bucket.is_finite() for bucket in self._buckets)
        flags = common.counts(self._ranks, changed and not odd, odd, self._closed)
        self._finish(wanted=not any(flags))
        if not any(flags):
            for p, _, mean in sent:
                p.grad.copy_(mean)
            return [p.grad for p in self._parameters]
        _, odd_on, closed_on = flags
        if closed_on:
            self._end()
        if closed_on or odd_on:
            return None
        self._missed += 1
        if self._missed == _MISSES:
            if self._ranks.rank == 0:
                common.say(
                    f"fairlead.comm: gradients move in `step()` from here: in {_MISSES} steps they were changed after the"
                    " backward pass"
                )
            self._end()
        return None

    def _make_buckets(self, *, able: bool) -> None:
        """As the steps have shown, unless a rank cannot."""
        gradients = [p.grad for p in self._parameters]
        size = sum(0 if g is None else g.nbytes for g in gradients)
        able = (
            able
            and size >= _LEAST
            and len({frozenset(counts.items()) for counts in self._learned}) == 1
            and self._learned[-1].keys() == {*map(id, self._parameters)}
            and all(g is not None and g.layout is torch.strided for g in gradients)
            and {g.device.type for g in gradients} == {"cpu"}
            and {g.dtype for g in gradients} <= {torch.float32, torch.float64}
        )
        # In memory of the node the core adds up in place.
        unable, without = common.counts(self._ranks, not able, not room_for(2 * size))
        if unable:
            return self._end()
        places = {id(p): i for i, p in enumerate(self._parameters)}
        mine = np.array([places[key] for key in self._learned[-1]])
        (order,) = common.broadcast(self._ranks, [mine], ["order of gradients"], 0)
        for some in _split([self._parameters[i] for i in order], max(_SMALLEST, size // _MOST)):
            bucket = _Bucket(some, np.zeros if without else self._ranks.zeros)
            self._buckets.append(bucket)
            self._place |= {id(p): (bucket, sent) for p, sent, _ in bucket.parts}


def _split(parameters: Sequence[Any], size: int) -> list[list[Any]]:
    """Parameters of one dtype that follow each other, of ``size`` bytes or more."""
    parts: list[list[Any]] = []
    left = 0
    for parameter in parameters:
        if left <= 0 or parts[-1][0].dtype != parameter.dtype:
            left = size
            parts.append([])
        parts[-1].append(parameter)
        left -= parameter.nbytes
    return parts
