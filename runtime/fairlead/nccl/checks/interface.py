"""A plugin and a NCCL without a version of the net interface in common: NCCL goes on without the plugin."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, error, warning
from fairlead.nccl.checks.model import Case, Check
from fairlead.nccl.interfaces import is_newer, net_versions


class Interface(Check):
    about = "the plugin exports a version of the net interface that the image's NCCL knows"

    def look(self, case: Case) -> Iterator[Finding]:
        if case.plan is None:
            return
        library, plugin = case.library, case.plan.host.plugin
        known, offered = net_versions(library), plugin.interfaces.get("net", ())
        if not known:
            yield warning("nccl-version-unknown", library=library, plugin=plugin)
        elif not case.plan.interface:
            texts = {"known": versions(known), "offered": versions(offered)}
            advice = "an older" if min(offered, default=0) > max(known) else "a newer"
            yield error("nccl-interface", library=library, plugin=plugin, advice=advice, **texts)
        elif is_newer(library):
            yield warning("nccl-version-newer", library=library, interface=case.plan.interface)


def versions(numbers: tuple[int, ...]) -> str:
    """For messages: ``v5, v6``."""
    return ", ".join(f"v{number}" for number in numbers) or "none"


CHECK = Interface()
