"""Optimizers of the published trainings that Keras lacks: LARS, and Adam with LARC's local rates.

Both take gradients that are means over ranks already, so that all ranks compute the same norms.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops


def _norms(weights: Any, gradient: Any) -> tuple[Any, Any, Any]:
    """The 2-norms of all elements, of which Keras has those of vectors and matrices only; and whether both are above 0."""
    weight, slope = (ops.sqrt(ops.sum(ops.square(tensor))) for tensor in (weights, gradient))
    return weight, slope, ops.logical_and(weight > 0, slope > 0)


@keras.saving.register_keras_serializable("fairlead")
class Lars(keras.optimizers.Optimizer):  # type: ignore[misc]
    """SGD with a rate for each tensor, by the norms of weights and gradient.

    As in github.com/NERSC/cray-bdc-deeplearning a39eaf0, after You et al., arXiv:1708.03888::

        m <- momentum m + rate l (g + decay w),    w <- w - m
        l  = trust |w| / (|g| + decay |w|)

    There a tensor whose norm is 0, as a bias at its start, has l = 0 and never moves. Here l is 1 where
    either norm is 0.

    Args:
        learning_rate: a number, or a schedule.
        momentum, decay, trust: as above.
    """

    def __init__(
        self,
        learning_rate: Any = 0.1,
        momentum: float = 0.9,
        decay: float = 5e-4,
        trust: float = 1e-3,
        name: str = "lars",
        **more: Any,
    ):
        super().__init__(learning_rate=learning_rate, name=name, **more)
        self.momentum, self.decay, self.trust = momentum, decay, trust

    def build(self, variables: Any) -> None:
        if self.built:
            return
        super().build(variables)
        self._moments = [
            self.add_variable_from_reference(reference_variable=v, name="momentum")
            for v in variables
        ]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        moment = self._moments[self._get_variable_index(variable)]
        weight, slope, both = _norms(variable, gradient)
        # Of two branches both are computed: none may divide by 0.
        local = self.trust * weight / ops.where(both, slope + self.decay * weight, 1.0)
        step = rate * ops.where(both, local, 1.0) * (gradient + self.decay * variable)
        self.assign(moment, self.momentum * moment + step)
        self.assign_sub(variable, moment)

    def get_config(self) -> dict[str, Any]:
        own = {"momentum": self.momentum, "decay": self.decay, "trust": self.trust}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable("fairlead")
class AdamLarc(keras.optimizers.Adam):  # type: ignore[misc]
    """Adam on gradients that are scaled down where they are large relative to their weights.

    As SC18's CosmoFlow (github.com/NERSC/CosmoFlow 128cube, ADAM_LARC)::

        g <- g min(trust |w| / |g|, 1),    or g / 16000 where a norm is 0

    Args:
        trust: as above.
        more: of :class:`keras.optimizers.Adam`.
    """

    def __init__(
        self, learning_rate: Any = 1e-4, trust: float = 2e-3, name: str = "adam_larc", **more: Any
    ):
        super().__init__(learning_rate=learning_rate, name=name, **more)
        self.trust = trust

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        gradient = ops.cast(gradient, variable.dtype)
        weight, slope, both = _norms(variable, gradient)
        ratio = self.trust * weight / ops.where(both, slope, 1.0)
        local = ops.where(both, ops.minimum(ratio, 1.0), 1 / 16000)
        super().update_step(gradient * local, variable, learning_rate)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "trust": self.trust}
