"""What the frameworks' patches share: what was shared out so far, and how a method is replaced."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fairlead import comm
from fairlead.base.errors import fail

PART = "_fairlead_part"  # of a torch DataLoader: it gives this rank's part
done: set[str] = set()  # what was shared out: "gradients", "data"
at_end: list[Callable[[], None]] = []  # collective checks, when the script has come to its end
_fits: list[None] = []


@contextmanager
def fitting() -> Iterator[None]:
    """Around a ``fit`` whose data and gradients are shared out."""
    _fits.append(None)
    try:
        yield
    finally:
        _fits.pop()


def in_fit() -> bool:
    return bool(_fits)


def before(owner: Any, name: str, change: Callable[..., Any]) -> None:
    """``owner.name`` becomes ``change(original, self, *args, **kwargs)``."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def changed(*args: Any, **kwargs: Any) -> Any:
        return change(original, *args, **kwargs)

    tf = sys.modules.get("tensorflow")  # AutoGraph is to leave it as it is
    left = getattr(getattr(tf, "autograph", None), "experimental", None)
    setattr(owner, name, left.do_not_convert(changed) if left else changed)


def on_rank_0(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return original(*args, **kwargs) if comm.rank() == 0 else None


def own_loop(where: str) -> Exception:
    """That the script is about to train each rank's model alone."""
    error = fail("auto-own-loop", where=where)
    # AutoGraph would make its own exception of it.
    setattr(error, "ag_pass_through", True)  # noqa: B010, mypy knows no such attribute
    return error
