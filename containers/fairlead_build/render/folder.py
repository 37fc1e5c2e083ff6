"""``fairlead recipe render``: what a rendered recipe's folder holds, and how it is written.

``render.py`` makes the texts. The folder can be handed on by itself: files of the recipe are copied
next to the texts.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fairlead.base.errors import fail
from fairlead.base.paths import atomic_folder, atomic_write, checkout
from fairlead_build.recipe.load import LoadedRecipe, file_name, load_recipe
from fairlead_build.recipe.lock import Lock, load_lock
from fairlead_build.render.render import FORMS, MARK, render
from fairlead_build.tree.wheel import runtime_requirements

# Folders of the recipe's own files, next to the texts.
_FOLDERS = ("files", "given")
Change = Literal["new", "changed", "unchanged", "removed"]
Contents = Mapping[str, tuple[bytes, int]]


@dataclass(frozen=True)
class RenderedFile:
    """One file of the folder, by its path in it."""

    path: str
    change: Change


@dataclass(frozen=True)
class Rendered:
    """What was rendered, or would be. ``pinned``: by a lock."""

    recipe: str
    folder: Path
    pinned: bool
    files: tuple[RenderedFile, ...]


def lock_of(loaded: LoadedRecipe) -> Lock | None:
    """The recipe's lock; None for a recipe on an image of a registry that has none.

    Sources are built from a lock only: it has the packages for building them.

    Raises:
        FairleadError: the lock is invalid, stale, or missing where one is needed.
    """
    unpinned = loaded.recipe.base.image is not None and not loaded.sources
    if unpinned and not loaded.lock_path.is_file():
        return None
    return load_lock(loaded, runtime_requirements() if loaded.recipe.python else ())[0]


def contents(loaded: LoadedRecipe, lock: Lock | None) -> dict[str, tuple[bytes, int]]:
    """Everything in the folder, by path: content and mode."""
    files = {f"files{file.target}": file for file in loaded.files}
    for item in loaded.sources:
        folder = f"given/{item.source.name}"
        files |= {f"{folder}/{patch.target}": patch for patch in item.patches}
        files |= {f"{folder}/tree/{file.target}": file for file in item.tree}
    laid = {path: (file.source.read_bytes(), file.mode) for path, file in files.items()}
    return laid | {str(form): (render(loaded, lock, form).encode(), 0o644) for form in FORMS}


def render_recipe(
    recipe: str | Path, output: Path | None = None, *, dry_run: bool = False
) -> Rendered:
    """Writes the folder of a recipe.

    Args:
        output: the folder; by default ``containers/rendered/NAME`` of a checkout for one of its own
            recipes, ``rendered/NAME`` below the current folder for others.
        dry_run: only says what would change.
    Raises:
        FairleadError: the recipe or lock is invalid, or the folder holds something else.
    """
    loaded = load_recipe(recipe)
    lock = lock_of(loaded)
    root = checkout()
    own = root is not None and loaded.folder.parent == root / "recipes"
    parent = root / "containers" if root is not None and own else Path()
    folder = output or parent / "rendered" / file_name(loaded.name)
    wanted = contents(loaded, lock)
    changes = _changes(folder, wanted)
    ours = folder / FORMS[0]
    if not ours.is_file() or MARK not in ours.read_text("utf-8", "replace"):
        foreign = ", ".join(name for name in (*FORMS, *_FOLDERS) if (folder / name).exists())
        if foreign or (folder.exists() and not folder.is_dir()):
            raise fail("render-folder", folder=folder, existing=foreign, given=loaded.given)
    if not dry_run:
        _write(folder, wanted)
    return Rendered(loaded.name, folder, lock is not None, changes)


def _changes(folder: Path, wanted: Contents) -> tuple[RenderedFile, ...]:
    def change(path: str) -> Change:
        existing = folder / path
        if path not in wanted:
            return "removed"
        if not existing.is_file():
            return "new"
        return "unchanged" if existing.read_bytes() == wanted[path][0] else "changed"

    stale = {
        str(p.relative_to(folder))
        for name in _FOLDERS
        for p in (folder / name).rglob("*")
        if p.is_file()
    }
    return tuple(RenderedFile(path, change(path)) for path in sorted({*wanted, *stale}))


def _write(folder: Path, wanted: Contents) -> None:
    for name in _FOLDERS:
        files = {path: file for path, file in wanted.items() if path.startswith(f"{name}/")}
        if not files:
            shutil.rmtree(folder / name, ignore_errors=True)
            continue
        with atomic_folder(folder / name) as tree:
            for path, (body, mode) in files.items():
                target = tree / path.removeprefix(f"{name}/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(body)
                target.chmod(mode)
    for form in FORMS:
        with atomic_write(folder / form) as out:
            out.write(wanted[form][0])
