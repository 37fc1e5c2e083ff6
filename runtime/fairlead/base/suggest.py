"""``Did you mean``: only for a near match; otherwise the valid names, sorted."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggest(given: str, known: Iterable[str]) -> str:
    """A hint for a user who typed ``given`` instead of one of ``known``.

    >>> suggest("verson", ["family", "version"])
    'Did you mean `version`?'
    >>> suggest("zzz", ["b", "a"])
    'Known: a, b.'
    """
    names = sorted(known)
    # 0.66 still takes two exchanged letters of three: `rnu` for `run`.
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.66)
    return f"Did you mean `{near[0]}`?" if near else f"Known: {', '.join(names) or 'none'}."
