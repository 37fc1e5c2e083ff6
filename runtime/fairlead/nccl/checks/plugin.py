"""No plugin of the host where one is wanted: NCCL would use TCP, or the image's own plugin."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, error, info, warning
from fairlead.nccl.checks.model import Case, Check
from fairlead.nccl.decide import is_slingshot
from fairlead.nccl.interfaces import common

# NCCL has a network of its own for InfiniBand and RoCE, and none for these.
NEED_A_PLUGIN = ("slingshot", "aries", "omni-path", "efa")


class Plugin(Check):
    about = "the host has the plugin that its profile or the network asks for"

    def look(self, case: Case) -> Iterator[Finding]:
        there, rules = case.ask.host, case.ask.rules
        needed = case.ask.fabric in NEED_A_PLUGIN or is_slingshot(case.ask)
        if case.plan or not (case.across or case.ask.want == "host"):
            return
        if not case.ask.wanted:
            if case.ask.want == "image" and needed and not _own_serves(case):
                yield warning("nccl-image-tcp", library=case.library, fabric=case.ask.fabric)
        elif there is None:
            yield info("nccl-machine-unknown", library=case.library, site=case.site)
        elif there.networks:
            return  # the user's variables leave it no part
        elif there.gone and len(there.gone) == len(rules.folders):
            gone = ", ".join(there.gone)
            yield error("nccl-plugin-gone", gone=gone, source=rules.source, library=case.library)
        elif needed or case.ask.want == "host":
            fabric = case.ask.fabric
            yield error("nccl-plugin-none", library=case.library, fabric=fabric, site=case.site)


def _own_serves(case: Case) -> bool:
    """Whether the image brings a plugin that its NCCL can use."""
    return any(common(case.library, plugin) for plugin in case.facts.net_plugins)


CHECK = Plugin()


def not_in_image(want: str, image: str) -> Finding:
    """A plugin was asked for by ``--nccl``, for an image without NCCL."""
    return warning("nccl-not-in-image", want=want, image=image)
