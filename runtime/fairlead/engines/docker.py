"""Docker: recognised on a machine; its daemon makes it no engine of ranks."""

from __future__ import annotations

from fairlead.engines.model import Driver


class Docker(Driver):
    kind = "docker"
    title = "Docker"
    programs = ("docker",)
    driven = False
    inside_files = ("/.dockerenv",)


ENGINE = Docker()
