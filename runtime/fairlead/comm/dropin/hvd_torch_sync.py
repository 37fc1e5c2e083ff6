"""``horovod.torch.sync_batch_norm``, on CPUs."""

from __future__ import annotations

from typing import Any

import torch

from fairlead.comm.dropin import hvd

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(torch.nn.modules.batchnorm._BatchNorm):  # type: ignore[misc, unused-ignore]
    """Batch normalization by the mean and variance of all ranks' batches, which may have other sizes."""

    def _check_input_dim(self, given: Any) -> None:
        if given.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {given.dim()}D input)")

    def forward(self, given: Any) -> Any:
        own = self.training or not self.track_running_stats
        if not own or hvd.size() == 1:
            return super().forward(given)
        self._check_input_dim(given)
        over = [axis for axis in range(given.dim()) if axis != 1]
        shape = [1, -1, *(1 for _ in over[1:])]
        wide = given.double()  # of halves, too
        count = torch.full((1,), given.numel() // given.size(1), dtype=wide.dtype)
        # By Horovod's rule the gradient of a sum is the sum of all ranks' gradients.
        summed = hvd.allreduce(torch.cat([wide.sum(over), count]), op=hvd.Sum)
        every = summed[-1].detach()
        mean = summed[:-1] / every
        centred = wide - mean.reshape(shape)
        variance = hvd.allreduce((centred * centred).sum(over), op=hvd.Sum) / every
        if self.training and self.track_running_stats:
            self._count(mean.detach(), (variance * every / (every - 1)).detach())
        result = (centred / (variance.reshape(shape) + self.eps).sqrt()).to(given.dtype)
        if self.affine:
            result = result * self.weight.reshape(shape) + self.bias.reshape(shape)
        return result

    def _count(self, mean: Any, variance: Any) -> None:
        self.num_batches_tracked += 1
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        for running, new in ((self.running_mean, mean), (self.running_var, variance)):
            running.mul_(1 - share).add_(new.to(running.dtype), alpha=share)
