"""``horovod.torch.elastic``: states of models and optimizers, for ranks that stay the same."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fairlead.comm.dropin import hvd, hvd_torch
from fairlead.comm.dropin.hvd_elastic import ObjectState, run, run_fn

__all__ = ["ElasticSampler", "TorchState", "run", "run_fn"]


class ElasticSampler(torch.utils.data.Sampler):  # type: ignore[misc, unused-ignore]
    """This rank's part of the indices of a dataset that were not processed in this epoch.

    Attributes:
        processed_num: how many samples all ranks have processed.
        num_samples: how many are left for each rank; the last ones are given twice where they do not divide.
    """

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0):
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, in an order of its own. Belongs at the end of the one before."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Every rank has processed a batch of this size."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divides what is left among the ranks."""
        self.num_replicas, self.rank = hvd.size(), hvd.rank()
        every = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(every)
        self.remaining_indices = every[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        left = self.remaining_indices
        left = left + left[: self.total_size - len(left)]
        self.indices = left[self.rank : self.total_size : self.num_replicas]
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples


class _Part:
    """A model, optimizer or sampler of a state."""

    def __init__(self, value: Any, equal: Callable[[Any], None]):
        self.value, self._equal = value, equal
        self.save()

    def save(self) -> None:
        self._kept = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        # Some take over the tensors that they load.
        self.value.load_state_dict(copy.deepcopy(self._kept))

    def sync(self) -> None:
        self._equal(self.value)
        self.save()


_EQUAL: tuple[tuple[Any, Callable[[Any], None]], ...] = (
    (torch.nn.Module, lambda model: hvd_torch.broadcast_parameters(model.state_dict(), 0)),
    (torch.optim.Optimizer, lambda optimizer: hvd_torch.broadcast_optimizer_state(optimizer, 0)),
    (
        ElasticSampler,
        lambda sampler: sampler.load_state_dict(hvd.broadcast_object(sampler.state_dict())),
    ),
)


def _part(value: Any) -> _Part | None:
    return next((_Part(value, equal) for kind, equal in _EQUAL if isinstance(value, kind)), None)


class TorchState(ObjectState):
    """Models, optimizers and samplers by their ``state_dict``, and other objects, each an attribute."""

    def __init__(self, model: Any = None, optimizer: Any = None, **objects: Any):
        given = {**objects, "model": model, "optimizer": optimizer}
        self._parts = {name: part for name, value in given.items() if (part := _part(value))}
        for name, part in self._parts.items():
            setattr(self, name, part.value)
        super().__init__(**{n: value for n, value in given.items() if n not in self._parts})

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(self, name) and name in self._parts:
            self._parts[name].value = value
            self._parts[name].save()
        super().__setattr__(name, value)

    def save(self) -> None:
        for part in self._parts.values():
            part.save()
        super().save()

    def restore(self) -> None:
        for part in self._parts.values():
            part.restore()
        super().restore()

    def sync(self) -> None:
        for part in self._parts.values():
            part.sync()
        super().sync()
