"""An image's recipe and lock as texts, which the image builder knows: this package does not import it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlead.base.progress import Progress, Silent
from fairlead.base.registry import entry_points

_GROUP = "fairlead.recipes"


def recipe_files(record: Mapping[str, Any]) -> dict[str, str]:
    """The texts that an image was built from, by name; nothing where they are not known any more.

    Args:
        record: the image's own.
    """
    builder_files = _builder("files")
    files: dict[str, str] = builder_files(record) if builder_files and record.get("recipe") else {}
    return files


def rebuilt(files: Mapping[str, str], name: str, progress: Progress | None = None) -> Path | None:
    """The image that such texts come to, built unless it is there; None without a builder.

    Args:
        name: of the recipe, with its variant.
    Raises:
        FairleadError: it cannot be built.
    """
    builder = _builder("build")
    path: Path | None = builder(files, name, progress or Silent()) if builder else None
    return path


def _builder(name: str) -> Any:
    provider = next((entry for entry in entry_points(_GROUP) if entry.name == name), None)
    return provider.load() if provider else None
