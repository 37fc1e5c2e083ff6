"""``horovod.tensorflow.util``: what scripts take from it."""

from __future__ import annotations

from fairlead.comm.dropin.hvd_tensorflow import _executing_eagerly

__all__ = ["_executing_eagerly"]
