"""This machine's architecture, as Debian names it."""

from __future__ import annotations

import platform
from typing import Literal

from fairlead.base.errors import fail

Architecture = Literal["amd64", "arm64"]


def architecture() -> Architecture:
    """The architecture of this machine.

    Raises:
        FairleadError: it is one that images are not made for.
    """
    match platform.machine():
        case "x86_64":
            return "amd64"
        case "aarch64":
            return "arm64"
        case other:
            raise fail("architecture-unsupported", other=other)
