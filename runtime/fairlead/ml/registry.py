"""The models by name: bundled ones, a module of :mod:`fairlead.ml.models` each, and those of other packages.

Another package adds a model by an entry point of the group ``fairlead.models``, which loads its
:class:`fairlead.ml.task.Task`. Nothing here imports NumPy or a framework, nor any model before it is needed.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from fairlead.base.errors import fail
from fairlead.base.registry import NamedRegistry
from fairlead.ml.data.kind import DataKind
from fairlead.ml.task import Task

# A bundled model's name begins with that of its module: `hepcnn-224` is one of hepcnn.
REGISTRY: NamedRegistry[Task] = NamedRegistry(
    "fairlead.ml.models",
    "TASKS",
    "fairlead.models",
    module_of=lambda name: name.partition("-")[0],
    order=lambda task: task.position,
)


def names() -> tuple[str, ...]:
    """Of all models, bundled ones first."""
    return REGISTRY.names()


def validated() -> tuple[str, ...]:
    """The bundled models that a validation trains unless others are named: small enough for two cores."""
    return tuple(task.name for task in REGISTRY.bundled() if task.validated)


def find(name: str) -> Task:
    """The model of that name.

    Raises:
        FairleadError: there is none, or the package that declares it cannot be loaded.
    """
    task = REGISTRY.find(name) if name else None
    if task is None:
        if name and Path(name).is_file():
            raise fail("train-model-script", name=name, words=shlex.quote(name))
        raise fail(
            "train-model-unknown" if name else "train-model-nothing",
            name=name,
            names=", ".join(names()),
        )
    return task


def data_kinds() -> dict[str, DataKind]:
    """The data of all models, by name."""
    return {task.data.name: task.data for task in REGISTRY.every()}


def data_kind(name: str) -> DataKind:
    """The data of that name; those of bundled models are found without a look at other packages.

    Raises:
        KeyError: there are none.
    """
    for task in REGISTRY.bundled():
        if task.data.name == name:
            return task.data
    return data_kinds()[name]
