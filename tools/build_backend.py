"""The build backend: hatchling, and the compiler that only a wheel needs.

hatchling asks for the same packages before a wheel and before an editable install. The compiler is 100 MB, and an
editable install compiles nothing.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from hatchling import build
from hatchling.build import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """What hatchling asks for, and the pinned compiler of the extra ``native``."""
    project = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]
    pinned = project["optional-dependencies"]["native"]
    return [*build.get_requires_for_build_wheel(config_settings), *pinned]
