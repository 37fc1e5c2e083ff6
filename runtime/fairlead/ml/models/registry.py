"""The bundled models by name. It imports none of them before it is asked, and no framework at all."""

from __future__ import annotations

import importlib

from fairlead.base.errors import ExitCode, fail
from fairlead.ml.models.task import Task

# Which module makes which task.
_WHERE = {
    "hepcnn": "hepcnn",
    "hepcnn-224": "hepcnn",
    "resnet50": "resnet50",
    "resnet50-v1": "resnet50",
    "resnet50-224": "resnet50",
    "cosmoflow": "cosmoflow",
    "cosmoflow-mlperf": "cosmoflow",
    "cosmoflow-sc18": "cosmoflow",
}
NAMES = tuple(_WHERE)
# Those that a validation trains: small enough for two cores.
SMALL = ("hepcnn", "resnet50", "cosmoflow")


def find(name: str) -> Task:
    """The task of that name.

    Raises:
        FairleadError: there is none.
    """
    if name not in _WHERE:
        raise fail(
            f"there is no bundled model `{name}`" if name else "nothing to train",
            where="MODEL",
            why=f"known: {', '.join(NAMES)}",
            remedy="fairlead train hepcnn, or `--auto SCRIPT` for a script of your own",
            check="train-model",
            code=ExitCode.USAGE,
        )
    module = importlib.import_module(f"fairlead.ml.models.{_WHERE[name]}")
    found: Task = module.TASKS[name]
    return found
