"""Frameworks whose training is not shared out: refused where the script itself imports them."""

from __future__ import annotations

import os
from types import ModuleType

from fairlead import comm
from fairlead.base.errors import fail
from fairlead.comm.auto.imports import importer

# Libraries import some of them for purposes of their own, Keras jax for example.
NAMES = (
    "catboost",
    "flax",
    "jax",
    "lightgbm",
    "mindspore",
    "mxnet",
    "paddle",
    "tf_keras",
    "xgboost",
)


def refuse(folder: str, module: ModuleType) -> None:
    """
    Args:
        folder: of the script.
    Raises:
        FairleadError: a file in or below ``folder`` imports it, on more than one rank.
    """
    file = importer()
    path = os.path.abspath(file)  # noqa: PTH100, every rank would import pathlib for it
    own = path.startswith(folder + os.sep) and "site-packages" not in path
    if comm.size() > 1 and own:
        raise fail("auto-framework", name=module.__name__, file=file)
