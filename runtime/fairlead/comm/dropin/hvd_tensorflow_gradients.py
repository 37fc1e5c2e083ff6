"""Means of the gradients of TensorFlow's tapes and of Keras 2's optimizers, by Horovod's options."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import tensorflow

from fairlead.comm.core import Comm
from fairlead.comm.dropin import hvd, rules, tensors, weights
from fairlead.comm.dropin.teams import say_on_rank_0
from fairlead.comm.frameworks import common
from fairlead.comm.frameworks.watched import Watched

_KNOWN = (hvd.Compression.none, hvd.Compression.fp16)


def reduction(op: Any, compression: Any) -> rules.Reduction:
    """What is done to gradients.

    Raises:
        FairleadError: Horovod does something else.
    """
    hvd.require(op in (hvd.Average, hvd.Sum), f"op={op} of gradients", "op=Average or op=Sum")
    methods = ("compress", "decompress")
    hvd.require(
        all(callable(getattr(compression, name, None)) for name in methods),
        f"compression={compression} of gradients",
        "Compression.none, Compression.fp16 or a class with compress and decompress",
    )
    return hvd.reduction(op=op, compression=compression)


def means_of(
    reduce: tensors.Collective | rules.Operation, compression: Any, gradients: Sequence[Any]
) -> list[Any]:
    """Gradients reduced as ``compression`` makes them; as in Horovod, sparse ones travel as they are."""
    if compression in _KNOWN:  # the core does it
        return tensors.gradients(reduce, gradients)
    sent = [
        (gradient, None)
        if isinstance(gradient, tensorflow.IndexedSlices)
        else compression.compress(gradient)
        for gradient in gradients
    ]
    reduced = tensors.gradients(reduce, [tensor for tensor, _ in sent])
    return [
        mean
        if isinstance(gradient, tensorflow.IndexedSlices)
        else compression.decompress(mean, context)
        for gradient, mean, (_, context) in zip(gradients, reduced, sent, strict=True)
    ]


class Gradients:
    """Of variables, but of local ones, which are each rank's own; their gradients are divided by the number of ranks.

    So one learning rate fits both, as the loss that is differentiated is a rank's share of the mean. Ranks outside of
    the process set keep their gradients.
    """

    def __init__(
        self,
        op: Any,
        compression: Any,
        broadcast: str,
        *,
        process_set: Any = None,
        scale_local: bool = True,
    ):
        """
        Args:
            compression: a class of Horovod's kind.
            broadcast: the call that makes weights equal, for errors.
            process_set: the ranks that train together; all without it.
            scale_local: whether those of local variables are divided.
        Raises:
            FairleadError: as :func:`reduction`.
        """
        self._members = hvd.member_set(process_set)
        self._reduce, self._broadcast = reduction(op, compression).at_once(self._ranks), broadcast
        self._compression = compression
        self._scale = scale_local
        self._local: dict[int, Any] = {}

    def _ranks(self) -> Comm:
        return self._members.core_comm()

    def keep_local(self, variables: Iterable[Any]) -> None:
        self._local |= {id(tensors.value_of(variable)): variable for variable in variables}

    def is_local(self, variable: Any) -> bool:
        return id(tensors.value_of(variable)) in self._local

    def means(self, gradients: Sequence[Any], sources: Sequence[Any], *, step: bool) -> list[Any]:
        """
        Args:
            step: whether these are the first ones of a step, in which weights may be compared.
        """
        shared = [i for i, source in enumerate(sources) if not self.is_local(source)]
        means = dict(zip(shared, [gradients[i] for i in shared], strict=True))
        if self._members.included():
            means = dict(zip(shared, self._shared(gradients, sources, shared, step), strict=True))
        return [
            means[i] if i in means else self._divided(gradient)
            for i, gradient in enumerate(gradients)
        ]

    def _shared(
        self, gradients: Sequence[Any], sources: Sequence[Any], shared: Sequence[int], step: bool
    ) -> list[Any]:
        reduce = self._reduce
        watched = self._watched([sources[i] for i in shared]) if step else None
        if watched is not None and tensorflow.executing_eagerly():
            watched.step()
        elif watched is not None:  # in each run of what is traced here
            reduce = rules.after(watched.step, reduce)
        return common.present(
            partial(means_of, reduce, self._compression), [gradients[i] for i in shared]
        )

    def _watched(self, sources: Sequence[Any]) -> Watched | None:
        if tensorflow.executing_eagerly() or tensorflow.inside_function():
            return weights.of_tape(sources, self._ranks, self._broadcast)
        # A session runs what it is asked for, of which none need be a step.
        say_on_rank_0("weights are not compared between ranks: the tape is in a TF 1 graph")
        return None

    def _divided(self, gradient: Any) -> Any:
        if gradient is None or not self._scale:
            return gradient
        if isinstance(gradient, tensorflow.IndexedSlices):
            values = gradient.values / self._members.size()
            return tensorflow.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return gradient / self._members.size()
