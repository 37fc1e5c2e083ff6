"""The values of this package: samples, how they look, and what a random change of one is drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Samples:
    """Some samples of one data set, as its files have them.

    Attributes:
        inputs: (n, ...).
        targets: int32 (n,) of classes, or float32 (n, parameters).
    """

    inputs: Array
    targets: Array

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class Layout:
    """How one sample of a data set looks: the same in all of its files.

    Attributes:
        data_set: ``hep``, ``cosmo``, ``gratings`` or ``imagenet``.
        input_shape, input_dtype: of an input; channels are first in ``hep``, last elsewhere.
        target_shape, target_dtype: of a target.
    """

    data_set: str
    input_shape: tuple[int, ...]
    input_dtype: str
    target_shape: tuple[int, ...]
    target_dtype: str

    @property
    def bytes(self) -> int:
        """Of one input."""
        return int(np.prod(self.input_shape)) * np.dtype(self.input_dtype).itemsize

    def empty(self, count: int) -> Samples:
        """Room for ``count`` samples."""
        return Samples(
            np.empty((count, *self.input_shape), self.input_dtype),
            np.empty((count, *self.target_shape), self.target_dtype),
        )

    def __str__(self) -> str:
        return f"{self.data_set} {self.input_dtype}{list(self.input_shape)}"


@dataclass(frozen=True)
class Draw:
    """What random changes of one sample are drawn from: not from who reads it, nor when.

    Attributes:
        training: False for none: samples as they are held out.
        row: the number of the sample among all of its split.
    """

    training: bool = False
    seed: int = 0
    epoch: int = 0
    row: int = 0

    def generator(self) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence((self.seed, self.epoch, self.row)))
