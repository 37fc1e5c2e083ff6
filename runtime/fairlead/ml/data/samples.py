"""The values of this package: samples, their layout, random numbers, and the error of a damaged file."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fairlead.base.errors import FairleadError, error

Array = npt.NDArray[Any]
_SPLITS = {"train": 0, "val": 1}


@dataclass(frozen=True)
class Samples:
    """Samples of one data set, as in its files.

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
    """Shape and dtype of the samples of a data set, the same in all of its files.

    Attributes:
        data_set: name of the data set, e.g. ``hep`` or ``cosmo``.
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
        """Uninitialised arrays for ``count`` samples."""
        return Samples(
            np.empty((count, *self.input_shape), self.input_dtype),
            np.empty((count, *self.target_shape), self.target_dtype),
        )

    def __str__(self) -> str:
        return f"{self.data_set} {self.input_dtype}{list(self.input_shape)}"


@dataclass(frozen=True)
class Draw:
    """The seed of a sample's random augmentation, which depends neither on the rank that reads it nor on when.

    Attributes:
        training: False for no augmentation, as for held-out samples.
        row: number of the sample in its split.
    """

    training: bool = False
    seed: int = 0
    epoch: int = 0
    row: int = 0

    def generator(self) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence((self.seed, self.epoch, self.row)))


def stream(seed: int, split: str, index: int) -> np.random.Generator:
    """The generator of one shard, which no other shard, split or seed shares.

    Args:
        seed: of the whole data set.
        split: ``train`` or ``val``.
        index: the shard's number in its split, from 0.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_SPLITS[split], index)))


class DamagedFile(FairleadError):
    """A file cannot be used: it is truncated, altered, or of another kind than its name says. Skipping recognises it by
    this class.

    Attributes:
        path: the file.
        why: the damage, with its record and byte where they are known.
    """

    def __init__(self, path: Path, why: str, kind: str = "data"):
        self.path, self.why = path, why
        super().__init__(
            error("data-damaged", path=path, kind=kind, why=why, quoted_path=shlex.quote(str(path)))
        )


class UnfitFile(DamagedFile):
    """A whole file with a value that training cannot use."""

    def __init__(self, path: Path, why: str):
        self.path, self.why = path, why
        FairleadError.__init__(self, error("data-unfit", path=path, why=why))


class ExternalFile(DamagedFile):
    """A whole file whose values are in other files, for which nobody asked."""

    def __init__(self, path: Path, why: str):
        self.path, self.why = path, why
        quoted = shlex.quote(str(path))
        FairleadError.__init__(self, error("data-external", path=path, why=why, quoted_path=quoted))
