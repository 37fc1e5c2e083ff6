"""Optimizers of TensorFlow, of TF 1 and of Keras 3, that average gradients over ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow

from fairlead.base.errors import fail

_MARK = "_fairlead_averages"


def averaging(optimizer: Any, mean: Callable[[list[Any]], list[Any]]) -> Any:
    """``optimizer`` itself, which from now on averages by ``mean`` what it computes.

    An optimizer of ``tf.compat.v1.train`` does so in ``compute_gradients``, hence before the program
    clips them or unscales the loss. One of Keras goes to
    :func:`fairlead.comm.keras.DistributedOptimizer`, which does it in ``apply``.

    Raises:
        FairleadError: it is neither.
    """
    if isinstance(optimizer, tensorflow.compat.v1.train.Optimizer):
        if not hasattr(optimizer, _MARK):
            setattr(optimizer, _MARK, True)
            computed = optimizer.compute_gradients

            def compute_gradients(*args: Any, **named: Any) -> list[tuple[Any, Any]]:
                pairs = computed(*args, **named)
                means = mean([gradient for gradient, _ in pairs])
                return [(g, variable) for g, (_, variable) in zip(means, pairs, strict=True)]

            optimizer.compute_gradients = compute_gradients
        return optimizer
    import keras

    if isinstance(optimizer, keras.optimizers.Optimizer):
        from fairlead.comm.keras import DistributedOptimizer

        return DistributedOptimizer(optimizer)
    raise fail(
        "comm-dropin-call-optimizer",
        type=type(optimizer).__module__,
        type_2=type(optimizer).__name__,
    )
