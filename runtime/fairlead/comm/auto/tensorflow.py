"""TensorFlow: within Keras' ``fit`` a tape gives the mean of gradients; a loop without it is refused at its first one."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from typing import Any

from fairlead import comm
from fairlead.comm.auto.shared import (
    APART,
    SUMS,
    before,
    drawing,
    fitted,
    fitted_rows,
    in_fit,
    makes_mean,
    other_framework,
    own_loop,
    say_once,
)

_FEW = 64  # parts of a loss that are looked at


def patch(tf: Any) -> None:
    """Averages gradients with respect to trainable variables in a ``fit``, and refuses them elsewhere."""

    def gradient(
        original: Callable[..., Any],
        tape: Any,
        target: Any,
        sources: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        _refuse(tf, sources, "GradientTape.gradient")
        result = original(tape, target, sources, *args, **kwargs)
        if not in_fit():
            return result
        if any(_adds_up(tf, each, fitted_rows()) for each in tf.nest.flatten(target)):
            say_once(SUMS)
        return _means(tf, result, sources)

    def gradients(original: Callable[..., Any], ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse(tf, xs, "tf.gradients")
        return original(ys, xs, *args, **kwargs)

    before(tf.GradientTape, "gradient", gradient)
    for owner in (tf, tf.compat.v1):
        before(owner, "gradients", gradients)
    before(tf.compat.v1.train.Optimizer, "apply_gradients", _apply)
    before(tf.summary, "create_file_writer", functools.partial(_writer, tf))
    drawing.append(functools.partial(_draw, tf))


def _writer(tf: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Event files have the process's number in their names: TensorBoard would draw those of all ranks as one curve."""
    return tf.summary.create_noop_writer() if comm.rank() else original(*args, **kwargs)


def _draw(tf: Any, own: bool) -> None:
    """Seeds what ``tf.random`` draws, in a ``train_step``, for example."""
    from tensorflow.python.eager import context

    seed = context.global_seed() or 0
    rank = comm.rank() if own else -comm.rank()
    if own and not rank:
        return  # as in one process
    tf.random.set_seed(seed + rank * APART + (not own))


def _trained(source: Any) -> bool:
    """Of a tensor, for example an input, gradients are taken for other ends than training."""
    return bool(getattr(source, "trainable", False))


def _adds_up(tf: Any, loss: Any, rows: int) -> bool:
    """Whether a loss of a step that is traced, or a part of it, is a sum over the batch, whose size may be left open."""
    ahead = [loss]
    for tensor in itertools.islice(ahead, _FEW):
        op = getattr(tensor, "op", None) if tf.is_symbolic_tensor(tensor) else None
        if op is None:
            continue
        if op.type in ("Add", "AddV2", "AddN", "Sub", "Neg", "Identity", "Cast") or (
            op.type in ("Mul", "RealDiv") and not _makes_mean(tf, op, rows)
        ):
            ahead += op.inputs
        elif op.type == "Sum":
            shape, axes = op.inputs[0].shape, tf.get_static_value(op.inputs[1])
            over = (
                {int(axis) % shape.rank for axis in axes.reshape(-1)}
                if shape.rank and axes is not None
                else ()
            )
            if 0 in over and shape[0] in (None, rows):
                return True
    return False


def _makes_mean(tf: Any, op: Any, rows: int) -> bool:
    """Whether a product or quotient may be a mean: what a tensor divides, by a count for example, is taken for one."""
    divides: bool = op.type == "RealDiv"
    for factor in list(op.inputs)[divides:]:
        number = tf.get_static_value(factor)
        if number is not None and number.size == 1:
            return makes_mean(float(number), rows, divides)
    return divides


def _means(tf: Any, result: Any, sources: Any) -> Any:
    """Gradients of what is trained are averaged before a ``train_step`` clips or applies them.

    Not those of a tape within another, which is to differentiate them; what applies them averages.
    """
    from tensorflow.python.eager import record

    variables, gradients = tf.nest.flatten(sources), tf.nest.flatten(result)
    places = [i for i, source in enumerate(variables) if _trained(source)]
    if not places or record.could_possibly_record():
        return result
    from fairlead.comm.keras import IS_MEAN, is_scaled
    from fairlead.comm.tensorflow import averaged

    names = [getattr(variables[i], "path", variables[i].name) for i in places]
    means = averaged(
        comm.init(),
        [gradients[i] for i in places],
        names,
        "GradientTape.gradient",
        any_values=is_scaled(fitted().optimizer),
        step=True,
    )
    for i, mean in zip(places, means, strict=True):
        if mean is not None:
            setattr(mean, IS_MEAN, True)
            gradients[i] = mean
    return tf.nest.pack_sequence_as(result, gradients)


def _refuse(tf: Any, sources: Any, where: str) -> None:
    if not in_fit() and any(map(_trained, tf.nest.flatten(sources))):
        raise _not_shared(where)


def _not_shared(where: str) -> Exception:
    """Of a gradient or an update outside of a ``fit`` of Keras 3: `tf.keras` may be Keras 2, with a ``fit`` of its own."""
    return other_framework("tf_keras") if "tf_keras" in sys.modules else own_loop(where)


def _apply(original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    if not in_fit():
        raise _not_shared(f"{type(optimizer).__name__}.apply_gradients")
    return original(optimizer, *args, **kwargs)
