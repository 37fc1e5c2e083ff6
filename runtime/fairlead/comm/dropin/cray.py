"""``ml_comm`` and ``dl_comm``: the calls of the Cray PE ML (later DL) Plugin.

import ml_comm as mc

mc.init(1, 1, size, "tensorflow")
mc.config_team(0, 0, ksteps, max_steps, 2, 200)
...
gradients = mc.gradients(gradients, 0)      # their mean over ranks
...
mc.finalize()
"""

from __future__ import annotations

from typing import Any

from fairlead.comm.dropin import cray_calls
from fairlead.comm.dropin.absent import refuse
from fairlead.comm.dropin.cray_calls import *  # noqa: F403

__all__ = [*cray_calls.__all__]

_HOOKS = ("AverageEvalMetrics", "AverageTrainMetrics", "BcastTensors", "InitConfigBcastTensors")


def __getattr__(name: str) -> Any:
    if name in _HOOKS:
        from fairlead.comm.dropin import session_hooks  # and TensorFlow with it

        return getattr(session_hooks, name)
    refuse("ml_comm", name)
    raise AttributeError(f"the Cray plugin has no attribute {name!r}")
