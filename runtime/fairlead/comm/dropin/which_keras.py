"""The Keras that scripts of ``horovod`` train with: Keras 2 where TensorFlow gives it as ``tf.keras``, else Keras 3."""

from __future__ import annotations

import importlib
import os
from typing import Any

# The modules for Keras 3, and the same for Keras 2.
_LEGACY = {
    "fairlead.comm.dropin.callbacks": "fairlead.comm.dropin.callbacks2",
    "fairlead.comm.dropin.hvd_keras": "fairlead.comm.dropin.hvd_keras2",
}


def is_legacy() -> bool:
    """Whether ``tf.keras`` is Keras 2, as TensorFlow finds out."""
    return os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")


def of_keras(module: str) -> str:
    """The module that does for this Keras what ``module`` does."""
    return _LEGACY.get(module, module) if is_legacy() else module


def imported() -> Any:
    """This Keras."""
    return importlib.import_module("tf_keras" if is_legacy() else "keras")
