"""The checks: a module each, and entry points of the group ``fairlead.doctor.checks``."""

from __future__ import annotations

from fairlead.base.registry import Registry
from fairlead.doctor.diagnosis import Check, Topic

CHECKS: Registry[Check] = Registry("fairlead.doctor.checks", "CHECK")


def ordered() -> tuple[Check, ...]:
    """Every check, in the order in which they are made: what fixes one may be what the next needs."""
    topics = {topic: position for position, topic in enumerate(Topic)}
    return tuple(sorted(CHECKS, key=lambda check: (topics[check.topic], check.order, check.name)))
