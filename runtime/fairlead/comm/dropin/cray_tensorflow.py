"""``dl_comm.tensorflow``: the calls of ``dl_comm``, and an optimizer that averages gradients."""

from __future__ import annotations

from typing import Any

from fairlead.base.errors import fail
from fairlead.comm.dropin import cray, session_hooks
from fairlead.comm.dropin.cray import *  # noqa: F403
from fairlead.comm.dropin.session_hooks import *  # noqa: F403

__all__ = [*cray.__all__, *session_hooks.__all__, "DistributedOptimizer"]


def DistributedOptimizer(opt: Any, team: int = 0) -> Any:
    """``opt`` itself, which from now on applies means over ranks.

    One of Keras goes to :func:`fairlead.comm.keras.DistributedOptimizer`, which averages in ``apply``.

    Raises:
        FairleadError: it is not an optimizer of Keras, nor of ``tf.compat.v1.train``.
    """
    if session_hooks.is_optimizer(opt):

        def mean(gradients: list[Any]) -> list[Any]:
            return cray.averaged(gradients, team, compared=True)

        return session_hooks.averaging(opt, mean, lambda: cray.ranks_of(team), cray.BROADCAST)
    import keras

    if isinstance(opt, keras.optimizers.Optimizer):
        from fairlead.comm.keras import DistributedOptimizer as front

        return front(opt)
    raise fail("comm-dropin-call-optimizer", type=type(opt).__module__, type_2=type(opt).__name__)
