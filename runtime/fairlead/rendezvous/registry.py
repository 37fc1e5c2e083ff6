"""The registry of frameworks: one module each, and entry points of the group ``fairlead.rendezvous``."""

from __future__ import annotations

from fairlead.base.registry import Registry
from fairlead.rendezvous.model import MODES, Framework

FRAMEWORKS: Registry[Framework] = Registry(
    "fairlead.rendezvous", "FRAMEWORK", ("choose", "dead_ends", "script", "worlds")
)


def modes() -> tuple[str, ...]:
    """The values of ``--rendezvous``."""
    return (MODES[0], *(f.name for f in FRAMEWORKS if not f.launchers), *MODES[1:])
