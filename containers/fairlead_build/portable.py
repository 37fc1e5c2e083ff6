"""Recipes as texts that travel: what ``best.toml`` of a search holds, from which its image is built again anywhere.

The runtime, which does not import this package, asks by the entry point group ``fairlead.recipes``.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from fairlead.base.errors import FairleadError
from fairlead.base.paths import atomic_folder
from fairlead.base.progress import Progress
from fairlead.base.toml_text import value_text
from fairlead_build.base.digest import sha256_of
from fairlead_build.build import build
from fairlead_build.cache.store import Cache, holding
from fairlead_build.formats.images import read_entry, write_entry
from fairlead_build.recipe.load import LoadedRecipe, load_recipe

_MOST_BYTES = 1 << 20  # of all files together
_EXECUTABLE = "executable"  # lists the files that are


def files_of(record: Mapping[str, object]) -> dict[str, str]:
    """The files that an image's recipe and lock come to, by name, with what the recipe extends laid into it.

    Args:
        record: the image's own.
    Returns:
        Nothing where they are not those that the image was built from, are larger than 1 MiB, or not text.
    """
    name, lock = str(record.get("recipe", "")), str(record.get("lock_sha256", ""))
    for given in _places(name):
        try:
            loaded = load_recipe(given)
        except FairleadError:
            continue
        same = loaded.digest == record.get("recipe_sha256") and loaded.lock_path.is_file()
        if same and sha256_of(loaded.lock_path) == lock:
            return _flat(loaded)
    return {}


def rebuilt(files: Mapping[str, str], name: str, progress: Progress) -> Path:
    """The image of such files, built unless it is in the cache; the name keeps its meaning.

    Args:
        name: of the recipe, with its variant.
    Raises:
        FairleadError: as :func:`fairlead_build.build.build`.
    """
    cache = Cache.default()
    digest = hashlib.sha256(json.dumps(dict(files), sort_keys=True).encode()).hexdigest()
    folder = cache.root / "recipes" / digest[:16]
    if not folder.is_dir():
        with atomic_folder(folder) as made:
            _write(made, files)
    before = read_entry(cache, name)
    built = build(_addressed(folder, name), progress=progress, cache=cache)
    assert built.entry is not None
    if before is not None and before.key != built.entry.key:
        with holding(cache, f"recipe-{name}", progress, f"is building `{name}` too"):
            write_entry(cache, before)
    return Path(built.entry.path)


def _places(name: str) -> Iterator[str]:
    """Where the recipe of an image may be: where that image was last built from, and among the bundled ones."""
    known = read_entry(Cache.default(), name) if name else None
    if known is not None:
        yield _addressed(Path(known.recipe_path), name)
    if name:
        yield name


def _addressed(folder: Path, name: str) -> str:
    variant = name.partition(":")[2]
    return f"{folder}:{variant}" if variant else str(folder)


def _flat(loaded: LoadedRecipe) -> dict[str, str]:
    tables = loaded.recipe.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    if loaded.variant:
        tables["variant"] = {loaded.variant: {}}
    lines = [f"{name} = {value_text(value)}" for name, value in tables.items()]
    try:
        files = {loaded.lock_path.name: loaded.lock_path.read_text("utf-8")}
        executable = []
        for name, path in _named(loaded):
            text = path.read_bytes().decode("utf-8")
            if files.setdefault(name, text) != text:  # two recipes have a file of this name
                return {}
            executable += [name] if path.stat().st_mode & 0o111 else []
    except (OSError, UnicodeDecodeError):
        return {}
    files = {"recipe.toml": "\n".join(lines) + "\n", **files}
    if executable:
        files[_EXECUTABLE] = "\n".join(sorted(executable))
    if sum(map(len, files.values())) > _MOST_BYTES:
        return {}
    return files if _is_same(files, loaded) else {}


def _named(loaded: LoadedRecipe) -> Iterator[tuple[str, Path]]:
    """The files that a recipe names, as it names them."""
    for (_, name), file in zip(sorted(loaded.recipe.files.items()), loaded.files, strict=True):
        yield name, file.source
    for each in loaded.sources:
        yield from (
            (name, patch.source)
            for name, patch in zip(each.source.patches, each.patches, strict=True)
        )
        path = each.source.path or ""
        single = len(each.tree) == 1 and Path(path).name == each.tree[0].target
        yield from (
            (path if single else f"{path}/{file.target}", file.source) for file in each.tree
        )


def _is_same(files: Mapping[str, str], loaded: LoadedRecipe) -> bool:
    """Whether the files come to the same recipe."""
    with tempfile.TemporaryDirectory(prefix="fairlead-recipe-") as name:
        _write(Path(name), files)
        try:
            return load_recipe(_addressed(Path(name), loaded.name)).digest == loaded.digest
        except FairleadError:
            return False


def _write(folder: Path, files: Mapping[str, str]) -> None:
    executable = files.get(_EXECUTABLE, "").splitlines()
    for name, text in files.items():
        path = folder / name
        if name == _EXECUTABLE or not path.resolve().is_relative_to(folder.resolve()):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if name in executable:
            path.chmod(0o755)
