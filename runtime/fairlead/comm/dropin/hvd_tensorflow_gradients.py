"""Means of the gradients of TensorFlow's tapes and of Keras 2's optimizers, by Horovod's options."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import tensorflow

from fairlead import comm
from fairlead.comm.dropin import hvd, rules, tensors, weights
from fairlead.comm.dropin.teams import say_on_rank_0
from fairlead.comm.frameworks import common
from fairlead.comm.frameworks.watched import Watched

_KNOWN = (hvd.Compression.none, hvd.Compression.fp16)


def reduction(op: Any, compression: Any, more: dict[str, Any]) -> rules.Reduction:
    """What is done to gradients.

    Raises:
        FairleadError: Horovod does something else.
    """
    hvd.no_sets(more)
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

    So one learning rate fits both, as the loss that is differentiated is a rank's share of the mean.
    """

    def __init__(
        self,
        reduce: rules.Reduction,
        broadcast: str,
        *,
        compression: Any = hvd.Compression.none,
        scale_local: bool = True,
    ):
        """
        Args:
            broadcast: the call that makes weights equal, for errors.
            compression: a class of Horovod's kind.
            scale_local: whether those of local variables are divided.
        """
        self._reduce, self._broadcast = reduce.at_once(comm.init), broadcast
        self._compression = compression
        self._scale = scale_local
        self._local: dict[int, Any] = {}

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
        reduce = self._reduce
        watched = self._watched([sources[i] for i in shared]) if step else None
        if watched is not None and tensorflow.executing_eagerly():
            watched.step()
        elif watched is not None:  # in each run of what is traced here
            reduce = rules.after(watched.step, reduce)
        reduced = common.present(
            partial(means_of, reduce, self._compression), [gradients[i] for i in shared]
        )
        means = dict(zip(shared, reduced, strict=True))
        return [
            means[i] if i in means else self._divided(gradient)
            for i, gradient in enumerate(gradients)
        ]

    def _watched(self, sources: Sequence[Any]) -> Watched | None:
        if tensorflow.executing_eagerly() or tensorflow.inside_function():
            return weights.of_tape(sources, self._broadcast)
        # A session runs what it is asked for, of which none need be a step.
        say_on_rank_0("weights are not compared between ranks: the tape is in a TF 1 graph")
        return None

    def _divided(self, gradient: Any) -> Any:
        if gradient is None or not self._scale:
            return gradient
        if isinstance(gradient, tensorflow.IndexedSlices):
            values = gradient.values / hvd.size()
            return tensorflow.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return gradient / hvd.size()
