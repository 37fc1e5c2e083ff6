"""``fairlead site export``: what fairlead knows of a site, as configuration of other tools.

One module a target, each a pure function from :class:`~fairlead.export.model.Facts` to files.
:mod:`~fairlead.export.gather` finds the facts, on this machine or in the capture of another;
:mod:`~fairlead.export.staged` is the folder with the host's MPI that most targets name;
:mod:`~fairlead.export.write` is the one place that writes.
"""

from __future__ import annotations

from fairlead.base.registry import Registry
from fairlead.export.model import ExportFile, Facts, Target

TARGETS: Registry[Target] = Registry(
    "fairlead.export", "EXPORT", ("gather", "lua", "staged", "write")
)


def export(target: str, facts: Facts) -> tuple[ExportFile, ...]:
    """The files of one target.

    Raises:
        FairleadError: the target's format cannot hold a value, or the facts do not allow it.
    """
    return TARGETS.get(target).files(facts)
