"""What the frameworks' patches share: what was shared out so far, and how a method is replaced."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fairlead import comm
from fairlead.base.errors import fail

done: set[str] = set()  # what was shared out: "gradients", "data"
at_end: list[Callable[[], None]] = []  # collective checks, when the script has come to its end
# Called with True before, and with False after a fit: whether each rank draws random numbers of its own.
drawing: list[Callable[[bool], object]] = []
APART = 1_000_003  # seeds of ranks
SUMS = (
    "the loss is a sum over the batch: its gradient's mean over ranks is that of one process divided by the number of ranks."
    " Take a mean instead, or multiply the loss (docs/tutorials/training.md)"
)
_fits: list[tuple[Any, int]] = []
warned: set[str] = set()  # what :func:`say_once` has said


def say_once(text: str) -> None:
    """By one rank."""
    from fairlead.comm.frameworks.common import say

    if text not in warned and comm.rank() == 0:
        say(text)
    warned.add(text)


@contextmanager
def fitting(model: Any, rows: int = 0) -> Iterator[None]:
    """Around a ``fit`` of a model whose data and gradients are shared out, in batches of ``rows``; 0 if that is not known."""
    _fits.append((model, rows))
    for draw in drawing:
        draw(True)
    try:
        yield
    finally:
        _fits.pop()
        for draw in drawing:
            draw(False)


def in_fit() -> bool:
    return bool(_fits)


def fitted() -> Any:
    """The model of the ``fit`` that is under way."""
    return _fits[-1][0]


def fitted_rows() -> int:
    """The samples of its batches; 0 if that is not known."""
    return _fits[-1][1]


def makes_mean(factor: float, rows: int, divides: bool = False) -> bool:
    """Whether a sum over ``rows`` samples that is multiplied by ``factor``, or divided, is at most their mean."""
    return abs(factor) >= rows if divides else abs(factor) * rows <= 1


def before(owner: Any, name: str, change: Callable[..., Any]) -> None:
    """``owner.name`` becomes ``change(original, self, *args, **kwargs)``."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def changed(*args: Any, **kwargs: Any) -> Any:
        return change(original, *args, **kwargs)

    tf = sys.modules.get("tensorflow")  # AutoGraph is to leave it as it is
    left = getattr(getattr(tf, "autograph", None), "experimental", None)
    setattr(owner, name, left.do_not_convert(changed) if left else changed)


def owner(kind: type, name: str) -> type:
    """The class of ``kind``'s bases that defines ``name``: frameworks compare what inherits it with it."""
    return next(each for each in kind.__mro__ if name in vars(each))


def ends_together() -> None:
    """What different steps mean where each rank decides alone what it does next."""
    from fairlead.comm.frameworks import common

    common.by_own_loss = True


def meet() -> None:
    """Waits for all ranks: at the end of the script, or once rank 0 has written. Collective.

    Raises:
        FairleadError: another rank still trains.
    """
    from fairlead.comm.frameworks import common

    common.meet(comm.init())


def require_equal_rates(rates: list[float]) -> None:
    """Compares an optimizer's learning rates over ranks. Collective.

    Raises:
        FairleadError: they differ.
    """
    import numpy as np

    from fairlead.comm.frameworks import common

    ranks = comm.init()
    match = common.match(ranks, [np.array([rate]) for rate in rates], "learning rates")
    if match.first is None:
        return
    table = np.zeros(ranks.size)
    table[ranks.rank] = rates[match.first] if match.first < len(rates) else 0.0
    (means,) = ranks.aggregate([table], any_values=True)
    each = "; ".join(f"rank {r}: {mean * ranks.size:.6g}" for r, mean in enumerate(means[:8]))
    raise fail("auto-learning-rate", group=match.first, rates=each)


def own_loop(where: str) -> Exception:
    """That the script is about to train each rank's model alone."""
    return _through_autograph(fail("auto-own-loop", where=where))


def other_framework(name: str) -> Exception:
    """That the script trains by a framework whose training is not shared out."""
    return _through_autograph(fail("auto-framework", name=name, file=sys.argv[0]))


def _through_autograph(error: Exception) -> Exception:
    # AutoGraph would make its own exception of it.
    setattr(error, "ag_pass_through", True)  # noqa: B010, mypy knows no such attribute
    return error
