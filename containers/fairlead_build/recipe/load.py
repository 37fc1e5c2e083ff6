"""What goes in an image, as a person writes it: ``recipe.toml``. ``lock.py`` has what it resolves to.

A recipe is addressed by the name of a bundled one (``tensorflow``) or by its folder (``./mine``);
``:VARIANT`` behind either means one of its variants. The keys are in ``model.py``, and
``inherit.py`` lays a recipe over those that it extends.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fairlead import native
from fairlead.base.errors import ExitCode, FairleadError, Finding, fail
from fairlead.base.paths import bundled, real
from fairlead.base.suggest import suggest
from fairlead.base.toml import mistake_at, read
from fairlead_build.base.digest import json_digest, sha256_of
from fairlead_build.base.platform import Architecture
from fairlead_build.base.platform import architecture as this_architecture
from fairlead_build.recipe.checks import cross_mistakes
from fairlead_build.recipe.inherit import Merged, bundled_names, merge, split_variant
from fairlead_build.recipe.model import Recipe, Source

# The folder of the core in an image, and the command of a recipe that asks for no more than that it is there.
CORE_FOLDER = "/usr/local/lib/fairlead"
INSTALL_CORE = f"sh compile.sh $DESTDIR{CORE_FOLDER}"


@dataclass(frozen=True)
class RecipeFile:
    """A file of a recipe's folder that is laid into the image, or applied to a source.

    Attributes:
        target: where it is laid; for a patch, its name.
    """

    target: str
    source: Path
    mode: int
    sha256: str


@dataclass(frozen=True)
class RecipeSource:
    """One ``[[source]]`` with what it takes from the recipe's folder.

    Attributes:
        tree: with ``path`` or ``bundled``, its files, named relative to it; a single file has its own name.
        core_from_wheel: with ``bundled``: our wheel has what it makes, so nothing is compiled.
    """

    source: Source
    patches: tuple[RecipeFile, ...] = ()
    tree: tuple[RecipeFile, ...] = ()
    core_from_wheel: bool = False

    @property
    def digest(self) -> str:
        """sha256 of its table in the recipe, and of its files."""
        content = {
            "source": self.source.model_dump(mode="json"),
            "files": [[f.target, f.mode, f.sha256] for f in (*self.patches, *self.tree)],
        }
        return json_digest(content)


@dataclass(frozen=True)
class LoadedRecipe:
    """A valid recipe and where it came from.

    Attributes:
        folder: that of the recipe itself, not of what it extends.
        paths: every recipe.toml that it is made of, what it extends first.
        given: what the user called it, quoted for a shell; it stands in commands to be typed.
        variant: its name; empty for none.
        bundled: the sources that are fairlead's own; their results are laid over the tree.
    """

    folder: Path
    recipe: Recipe
    files: tuple[RecipeFile, ...]
    given: str
    variant: str = ""
    architecture: Architecture = "amd64"
    sources: tuple[RecipeSource, ...] = ()
    paths: tuple[Path, ...] = ()
    bundled: tuple[RecipeSource, ...] = ()

    @property
    def name(self) -> str:
        """``mpi-base`` or ``mpi-base:openmpi``: also the name of its image."""
        return (
            f"{self.recipe.recipe.name}:{self.variant}" if self.variant else self.recipe.recipe.name
        )

    @property
    def lock_path(self) -> Path:
        """``lock.toml``, ``lock.VARIANT.toml``, ``lock.arm64.toml`` or ``lock.VARIANT.arm64.toml``."""
        other = "" if self.architecture == "amd64" else self.architecture
        return self.folder / ".".join(filter(None, ("lock", self.variant, other, "toml")))

    @property
    def digest(self) -> str:
        """sha256 of the recipe's content, without comments and layout, and of its files."""
        content = {
            "recipe": self.recipe.model_dump(mode="json"),
            "files": [[f.target, f.mode, f.sha256] for f in self.files],
            "sources": [s.digest for s in (*self.sources, *self.bundled)],
        }
        return json_digest(content)


def file_name(name: str) -> str:
    """The name of a recipe or image as a part of a file name: ``mpi-base-openmpi``."""
    return name.replace(":", "-")


def shown_folder(folder: Path) -> str:
    """A folder as a recipe on a command line: quoted, and never taken for a bundled name."""
    text = str(folder)
    return shlex.quote(text if "/" in text else f"./{text}")


def addresses(name: str) -> list[str]:
    """``name`` and its variants, as they are given on a command line."""
    document = read(find(name)[0] / "recipe.toml", "fairlead recipe list")
    variants = document.data.get("variant")
    return [name, *(f"{name}:{v}" for v in variants)] if isinstance(variants, dict) else [name]


def find(given: str | Path) -> tuple[Path, str]:
    """The recipe called ``given``: a bundled name, a folder, or its recipe.toml; with ``:VARIANT``.

    Returns:
        Its folder, and the variant, empty for none.
    Raises:
        FairleadError: there is no such recipe.
    """
    text = str(given)
    for head, variant in ((text, ""), split_variant(text)):
        # A folder whose name has a colon in it comes first.
        if (folder := _folder(head)) is not None:
            return folder, variant
    head = split_variant(text)[0]
    path = Path(head)
    folder = path.parent if path.name == "recipe.toml" else path
    if "/" in head or _is_dir(path):
        why = f"{folder} holds no recipe.toml" if _is_dir(folder) else "there is no such folder"
        remedy = "give the folder that holds recipe.toml, or a name of `fairlead recipe list`"
    else:
        why, remedy = suggest(head, bundled_names()), "fairlead recipe list"
    raise fail("recipe-missing", text=text, why=why, remedy=remedy)


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _folder(text: str) -> Path | None:
    """The folder that holds the recipe ``text``; None when there is none."""
    try:
        if "/" not in text and text not in ("", ".", ".."):
            known = bundled("recipes") / text
            if (known / "recipe.toml").is_file():
                return known
        path = Path(text).expanduser()
        folder = path.parent if path.name == "recipe.toml" else path
        return folder.resolve() if (folder / "recipe.toml").is_file() else None
    except (OSError, ValueError, RuntimeError):
        return None  # e.g. a NUL, a name that is too long, the home of an unknown user


def load_recipe(given: str | Path, architecture: Architecture | None = None) -> LoadedRecipe:
    """Reads and checks a recipe, all that it extends, and the files they name.

    Args:
        architecture: the one to build for; this machine's otherwise.
    Raises:
        FairleadError: exit code 2; one finding a mistake.
    """
    folder, variant = find(given)
    shown = shlex.quote(str(given))
    arch = architecture or this_architecture()
    merged = merge(folder, variant, arch, f"fairlead recipe check {shown}")
    wrong = [*merged.findings]
    if merged.layers:
        wrong += [merged.finding(m) for m in cross_mistakes(merged.data)]
    if wrong:
        raise FairleadError(list(dict.fromkeys(wrong)), ExitCode.USAGE)
    recipe = Recipe.model_validate(merged.data)
    files = _Files(merged)
    laid = (files.file(("files", t), t, source) for t, source in sorted(recipe.files.items()))
    placed = tuple(filter(None, laid))
    every = [
        _source(files, n, source, recipe.ships_fairlead) for n, source in enumerate(recipe.source)
    ]
    sources = tuple(s for s in every if s.source.bundled is None)
    own = tuple(s for s in every if s.source.bundled is not None)
    if files.wrong:
        raise FairleadError(files.wrong, ExitCode.USAGE)
    paths = tuple(dict.fromkeys(layer.document.path for layer in merged.layers))
    return LoadedRecipe(folder, recipe, placed, shown, variant, arch, sources, paths, own)


def _source(files: _Files, number: int, source: Source, shipped: bool) -> RecipeSource:
    if source.bundled is not None:
        # Other commands than the usual one get all files, and compile them as they say.
        usual = " ".join((source.run or "").split()) == INSTALL_CORE and not source.env
        ours = shipped and usual
        if ours:
            return RecipeSource(source, core_from_wheel=True)
        folder = native.core_folder()
        paths = {str(p.relative_to(folder)): p for p in folder.rglob("*") if p.is_file()}
        needed = tuple(
            RecipeFile(name, path, 0o644, sha256_of(path))
            for name, path in sorted(paths.items(), key=lambda item: item[1])
        )
        return RecipeSource(source, (), needed)
    loc = ("source", number, "patches")
    patches = (files.file(loc, Path(name).name, name) for name in source.patches)
    tree = files.tree(("source", number, "path"), source.path) if source.path is not None else ()
    return RecipeSource(source, tuple(filter(None, patches)), tuple(tree))


class _Files:
    """Files of the folders that a recipe is made of; collects what is wrong with them."""

    def __init__(self, merged: Merged):
        self.merged = merged
        self.wrong: list[Finding] = []

    def file(self, loc: tuple[str | int, ...], target: str, source: str) -> RecipeFile | None:
        """The file called ``source`` in the folder of the recipe that names it at ``loc``."""
        path = self._path(loc, source)
        if path is None:
            return None
        if not path.is_file():
            self._refuse(loc, source, f"{path} is not a file")
            return None
        return self._read(loc, target, path)

    def tree(self, loc: tuple[str | int, ...], source: str) -> Iterator[RecipeFile]:
        """All files below the folder called ``source``, or that one file."""
        path = self._path(loc, source)
        if path is None:
            return
        top = path.parent if path.is_file() else path
        below = [path] if path.is_file() else path.rglob("*")
        inner_paths = {str(p.relative_to(top)): p for p in below if p.is_file() or p.is_symlink()}
        if not inner_paths:
            self._refuse(loc, source, f"{path} is not a file and holds none")
        folder = self.merged.place(loc)[0].folder.resolve()
        for name, inner in sorted(inner_paths.items()):
            if not real(inner).is_relative_to(folder):
                self._refuse(loc, source, f"{inner} lies outside the recipe's folder")
            elif (file := self._read(loc, name, inner)) is not None:
                yield file

    def _path(self, loc: tuple[str | int, ...], source: str) -> Path | None:
        folder = self.merged.place(loc)[0].folder
        try:
            path = real(folder / source)
            path.is_file()  # raises for a name that is too long, which real() passes over
        except (OSError, ValueError) as exc:
            self._refuse(loc, source, str(exc))
            return None
        if not path.is_relative_to(folder.resolve()):
            self._refuse(loc, source, "it lies outside the recipe's folder")
            return None
        return path

    def _read(self, loc: tuple[str | int, ...], target: str, path: Path) -> RecipeFile | None:
        try:
            mode = 0o755 if path.stat().st_mode & 0o111 else 0o644
            digest = sha256_of(path)
        except OSError as exc:
            self._refuse(loc, path.name, exc.strerror or str(exc))
            return None
        return RecipeFile(target, path, mode, digest)

    def _refuse(self, loc: tuple[str | int, ...], source: str, why: str) -> None:
        mistake = mistake_at(loc, "recipe-file", table=str(loc[0]), source=source, why=why)
        self.wrong.append(self.merged.finding(mistake))
