"""A pipeline's stage of torch layers, on the host: autograd's graph of each microbatch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from fairlead.comm.core import Array


class GraphStage:
    """A :class:`~fairlead.comm.pipeline.Stage` of torch. Gradients add up in the parameters' ``grad``, as torch has it."""

    def __init__(self, call: Callable[[int, Any], Any]):
        """
        Args:
            call: gives a microbatch's activations, or its loss in the last stage, from its number and the activations of the
                stage before; in the first stage these are an empty tensor.
        """
        self._call = call
        self._kept: dict[int, tuple[Any, Any]] = {}

    def forward(self, microbatch: int, inputs: Array | None) -> Array:
        x = torch.empty(0) if inputs is None else torch.from_numpy(inputs).requires_grad_()
        y = self._call(microbatch, x)
        self._kept[microbatch] = x, y
        activations: Array = y.detach().numpy()
        return activations

    def backward(self, microbatch: int, gradient: Array | None) -> Array | None:
        x, y = self._kept.pop(microbatch)
        y.backward(None if gradient is None else torch.from_numpy(gradient))
        return None if x.grad is None else x.grad.numpy()
