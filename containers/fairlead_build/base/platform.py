"""This machine's architecture, as Debian names it."""

from __future__ import annotations

import platform
from typing import Literal

from fairlead.base.errors import fail

Architecture = Literal["amd64", "arm64"]
# As the kernel and the tags of wheels name them.
MACHINES: dict[Architecture, str] = {"amd64": "x86_64", "arm64": "aarch64"}


def architecture() -> Architecture:
    """The architecture of this machine.

    Raises:
        FairleadError: it is one that images are not made for.
    """
    machine = platform.machine()
    if known := next((arch for arch, name in MACHINES.items() if name == machine), None):
        return known
    raise fail("architecture-unsupported", other=machine)
