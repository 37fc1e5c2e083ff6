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
            raise fail(
                f"images cannot be made on {other}",
                where="this machine",
                why="images are made for amd64 and arm64, on a machine of the same kind",
                remedy="build on an x86_64 or aarch64 machine",
                check="architecture",
            )
