"""TensorFlow without Keras' ``fit``: a loop that trains variables by itself is refused at its first gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairlead.comm.auto.shared import before, in_fit, own_loop


def patch(tf: Any) -> None:
    """Refuses gradients with respect to trainable variables outside of a ``fit``."""

    def gradient(
        original: Callable[..., Any],
        tape: Any,
        target: Any,
        sources: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        _refuse(tf, sources, "GradientTape.gradient")
        return original(tape, target, sources, *args, **kwargs)

    def gradients(original: Callable[..., Any], ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse(tf, xs, "tf.gradients")
        return original(ys, xs, *args, **kwargs)

    before(tf.GradientTape, "gradient", gradient)
    for owner in (tf, tf.compat.v1):
        before(owner, "gradients", gradients)
    before(tf.compat.v1.train.Optimizer, "apply_gradients", _apply)


def _refuse(tf: Any, sources: Any, where: str) -> None:
    # Of a tensor, for example an input, gradients are taken for other ends than training.
    if not in_fit() and any(
        getattr(source, "trainable", False) for source in tf.nest.flatten(sources)
    ):
        raise own_loop(where)


def _apply(original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    if not in_fit():
        raise own_loop(f"{type(optimizer).__name__}.apply_gradients")
    return original(optimizer, *args, **kwargs)
