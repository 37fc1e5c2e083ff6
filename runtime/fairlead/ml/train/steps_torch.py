"""The parts of a step on torch, under Keras; gradients go by ``fairlead.comm.torch``, those on GPUs by NCCL."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from keras import ops

from fairlead.comm.torch import average_tensors
from fairlead.ml.data.samples import Array
from fairlead.ml.train.steps import Steps


class TorchSteps(Steps):
    """See :class:`fairlead.ml.train.steps.Steps`."""

    def gradients(self, inputs: Array, targets: Array) -> tuple[float, float, Any]:
        self.model.zero_grad()
        loss, _ = self.loss(ops.convert_to_tensor(inputs), ops.convert_to_tensor(targets), True)
        # On a GPU the pass is only queued by now, and waiting for it would delay the next one.
        self.forward_over = None if loss.is_cuda else time.perf_counter_ns()
        self.optimizer.scale_loss(loss).backward()
        gradients = [v.value.grad for v in self.variables]
        with torch.no_grad():
            norm = torch.linalg.vector_norm(
                torch.stack([torch.linalg.vector_norm(g.float()) for g in gradients])
            )
            norm /= self.optimizer.scale_loss(1.0)
        return float(loss.detach()), float(norm), gradients

    def mean(self, gradients: Any, more: Array) -> tuple[Any, Array]:
        # On the same device, so that one call carries all.
        everything = [*gradients, torch.from_numpy(more).to(gradients[0].device)]
        *means, mean_more = average_tensors(everything, everything, self._names, any_values=True)
        return means, mean_more.cpu().numpy()

    def update(self, means: Any) -> None:
        with torch.no_grad():
            self.optimizer.apply(means, self.variables)

    def forward(self, inputs: Array, targets: Array, training: bool) -> tuple[float, Any]:
        tensors = ops.convert_to_tensor(inputs), ops.convert_to_tensor(targets)
        with torch.no_grad():
            loss, outputs = self.loss(*tensors, training)
        return float(loss), outputs

    # Keras leaves dropout to torch, whose random state is not a variable of the model.

    def own_state(self) -> list[Array]:
        states = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
        return [*super().own_state(), *(state.numpy() for state in states)]

    def restore(self, own: Sequence[Array]) -> None:
        variables = len(self._own_variables())
        super().restore(own[:variables])
        host, *gpus = (torch.from_numpy(state) for state in own[variables:])
        torch.set_rng_state(host)
        torch.cuda.set_rng_state_all(gpus)
