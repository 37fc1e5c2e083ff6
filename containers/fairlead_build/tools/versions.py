"""This machine as a lock must know it: its architecture, and the versions of the tools."""

from __future__ import annotations

import platform
from typing import Literal

from fairlead.base.errors import fail


def architecture() -> Literal["amd64", "arm64"]:
    """Debian's name of this machine's architecture.

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


def versions() -> dict[str, str]:
    """The tools whose output is part of an image's bytes, as a lock names them."""
    from fairlead_build.tools import tool_tree

    return tool_tree.versions()
