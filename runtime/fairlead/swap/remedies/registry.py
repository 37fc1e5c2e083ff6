"""The registry of remedies: one module each, and entry points of the group ``fairlead.swap.remedies``."""

from __future__ import annotations

from fairlead.base.registry import Registry
from fairlead.swap.remedies.model import Remedy

REMEDIES: Registry[Remedy] = Registry("fairlead.swap.remedies", "REMEDY")


def ordered() -> tuple[Remedy, ...]:
    """Every remedy, in the order in which a plan applies them."""
    return tuple(sorted(REMEDIES, key=lambda remedy: (remedy.phase, remedy.name)))
