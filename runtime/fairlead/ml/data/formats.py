"""The ways in which samples lie in files, recognised by the names in a file.

Each model's data declares its own (:class:`fairlead.ml.data.kind.DataKind`). The bundled ones:

| data set | file | input | target | source |
| --- | --- | --- | --- | --- |
| hep | HDF5 | ``data`` float32 (N, 3, S, S) | ``label`` (N,) | sparticlesteve/hep_cnn_benchmark |
| hep | TFRecord | ``data`` float32 bytes (3, S, S) | ``label`` int64 | this package |
| cosmo | TFRecord | ``x`` int16 bytes (S, S, S, C) | ``y`` floats | mlcommons/hpc 2c627d4 |
| cosmo | TFRecord | ``data_raw`` bytes (S, S, S) | ``label_raw`` bytes | NERSC/CosmoFlow |
| cosmo | HDF5 | ``x`` (N, S, S, S, C) | ``y`` (N, P) | this package |
| cosmo | HDF5 | ``full`` (S, S, S, C) | ``unitPar`` (P,) | what mlcommons/hpc converts |
| gratings | HDF5, TFRecord | ``image`` float32 (S, S, 3) | ``label`` | this package |
| imagenet | TFRecord | ``image/encoded`` JPEG | ``image/class/label`` int64 | tensorflow/models |

Bytes are little-endian and in C order. A message has no shapes, so they follow from the number of bytes, where
they can in one way only: a cube is not also four cubes. SC18's voxels are float32 or float64 by the same rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead.ml import registry
from fairlead.ml.data.example import Feature
from fairlead.ml.data.samples import Array, Draw, Layout
from fairlead.ml.task import Task

HDF5, TFRECORD = "HDF5", "TFRecord"


class BadSample(ValueError):
    """A record is not a sample of its data set."""


@dataclass(frozen=True)
class Form:
    """One way of keeping samples in files.

    Attributes:
        data_set: name of what the samples are, the same in all their forms.
        title: that, for people.
        container: :data:`HDF5` or :data:`TFRECORD`.
        input, target: names of the HDF5 datasets, or of the features of a tf.train.Example.
        target_dtype: ``int32`` of classes, ``float32`` of parameters.
        sample: input and target of an Example; raises :class:`BadSample`. None for HDF5.
        single: the file is one sample, its datasets have no dimension for many.
        also: further features that :attr:`sample` looks at, where they are present.
        constants: written besides input and target: names, and a value for each sample.
    """

    data_set: str
    title: str
    container: str
    input: str
    target: str
    target_dtype: str
    sample: Callable[[Mapping[str, Feature], Draw], tuple[Array, Array]] | None = None
    single: bool = False
    also: tuple[str, ...] = ()
    constants: tuple[tuple[str, float], ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """The features that :attr:`sample` looks at."""
        return frozenset((self.input, self.target, *self.also))

    @property
    def key(self) -> tuple[str, ...]:
        """What distinguishes it from all others."""
        return self.data_set, self.container, self.input, self.target

    def layout(
        self, inputs: tuple[int, ...], dtype: np.dtype[Any], targets: tuple[int, ...]
    ) -> Layout:
        """Of samples of these shapes and inputs of this dtype; in memory float64 becomes float32, as networks take it."""
        kept = "float32" if dtype == np.float64 else dtype.newbyteorder("=").name
        return Layout(self.data_set, tuple(inputs), kept, tuple(targets), self.target_dtype)

    def __str__(self) -> str:
        return f"`{self.input}` and `{self.target}` ({self.title})"


def forms() -> Iterator[Form]:
    """The forms of all models' data: of bundled models, then, should the caller get there, of other packages'."""
    bundled = _of(registry.REGISTRY.bundled())
    yield from bundled.values()
    others = _of(registry.REGISTRY.every())
    yield from (form for key, form in others.items() if key not in bundled)


def _of(tasks: Iterable[Task]) -> dict[tuple[str, ...], Form]:
    """The forms of the data of tasks, which may share them, by their keys."""
    return {form.key: form for task in tasks for form in task.data.forms()}


def form_of(key: Sequence[str]) -> Form:
    """The form of that :attr:`Form.key`."""
    return next(form for form in forms() if form.key == tuple(key))


def recognised(container: str, names: Collection[str]) -> Form | None:
    """The form of a file with these names in it; None when none fits, or several."""
    for tasks in (registry.REGISTRY.bundled, registry.REGISTRY.every):
        fitting = [
            form
            for form in _of(tasks()).values()
            if form.container == container and {form.input, form.target} <= set(names)
        ]
        if fitting:
            return fitting[0] if len(fitting) == 1 else None
    return None


def looked_for(container: str) -> str:
    """The names that files of a container may have, for messages."""
    return ", or ".join(str(form) for form in forms() if form.container == container)


def only(features: Mapping[str, Feature], name: str) -> memoryview:
    """The one byte string of a feature."""
    value = features.get(name)
    if not isinstance(value, tuple) or len(value) != 1:
        raise BadSample(f"`{name}` is not one byte string")
    return value[0]


def numbers(features: Mapping[str, Feature], name: str, dtype: str) -> Array:
    """The bytes of a feature as numbers."""
    raw = only(features, name)
    if not len(raw) or len(raw) % np.dtype(dtype).itemsize:
        raise BadSample(f"`{name}` has {len(raw)} bytes, not a multiple of {np.dtype(dtype)}")
    return np.frombuffer(raw, dtype)


def floats(features: Mapping[str, Feature], name: str) -> Array:
    """The list of floats of a feature."""
    value = features.get(name)
    if not isinstance(value, np.ndarray) or value.dtype != np.float32 or not len(value):
        raise BadSample(f"`{name}` is not a list of floats")
    return value


def label(features: Mapping[str, Feature], name: str) -> Array:
    """The one integer of a feature, as an int32 scalar."""
    value = features.get(name)
    if not isinstance(value, np.ndarray) or value.dtype != np.int64 or len(value) != 1:
        raise BadSample(f"`{name}` is not one integer")
    if not -(2**31) <= int(value[0]) < 2**31:
        raise BadSample(f"`{name}` is {value[0]}, not a class")
    return value.astype(np.int32).reshape(())


def root(count: int, channels: int, dimensions: int) -> int:
    """The side of a square or cube of ``count`` / ``channels``; 0 when there is none."""
    if count % channels:
        return 0
    side = round((count // channels) ** (1 / dimensions))
    return side if math.prod([side] * dimensions) == count // channels else 0
