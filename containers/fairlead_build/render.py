"""``fairlead recipe render``: a recipe and its lock as a Containerfile and a Singularity.def.

They are for people without fairlead, in a folder that can be handed on by itself: files of the recipe
are copied next to the texts. Both texts do the same. A first stage downloads the locked files and
checks their hashes; a second installs them into a root that holds nothing else. So the package set is
that of `fairlead build`, whatever the base image was. ``tree/steps.py`` has the steps; here they get
their form.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fairlead.base.errors import fail
from fairlead.base.paths import atomic_folder, atomic_write, checkout
from fairlead_build.recipe.load import LoadedRecipe, file_name, load_recipe
from fairlead_build.recipe.lock import Lock, load_lock
from fairlead_build.tree import steps
from fairlead_build.tree.payload import environment
from fairlead_build.tree.wheel import requirements_in

Form = Literal["Containerfile", "Singularity.def"]
FORMS: tuple[Form, ...] = ("Containerfile", "Singularity.def")

# Stands in every text, and shows that a file is one.
MARK = "Made by `fairlead recipe render"
_RUNSCRIPT = ("[ $# -gt 0 ] || set -- /bin/bash", 'exec "$@"')
# Folders of the recipe's own files, next to the texts.
_FOLDERS = ("files", "given")
Change = Literal["new", "changed", "unchanged", "removed"]
Contents = Mapping[str, tuple[bytes, int]]


# --- the folder --------------------------------------------------------------------------------


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
    return load_lock(loaded, requirements_in(loaded.recipe))[0]


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


# --- the texts ---------------------------------------------------------------------------------


def render(loaded: LoadedRecipe, lock: Lock | None, form: Form) -> str:
    """The text of one form; equal recipes and locks give equal texts.

    Args:
        lock: None only for a recipe on an image of a registry: then versions are not pinned, and
            the text says so.
    """
    if lock is not None and not loaded.sources:
        # What is for fairlead's own parts, which no text has: it is for people without fairlead.
        lock = lock.model_copy(update={"build_deb": ()})
    return _containerfile(loaded, lock) if form == "Containerfile" else _definition(loaded, lock)


@dataclass(frozen=True)
class _Stage:
    """One stage of a build: what it starts from, what is copied into it, and what it runs.

    Attributes:
        copies: stage (none for the folder of the text), source and target of each.
    """

    name: str
    scratch: bool
    copies: tuple[tuple[str, str, str], ...]
    lines: list[str]


def _stages(loaded: LoadedRecipe, lock: Lock | None) -> list[_Stage]:
    """From the arguments to the finished root file system."""
    lay = (("", "files", f"{steps.WORK}/lay"),) if loaded.files else ()
    if lock is None:
        return [_Stage("root", False, lay, _finish(loaded, steps.unpinned(loaded)))]
    scratch = lock.base is None
    root = steps.unpack(lock) if scratch else []
    files = _Stage("files", False, (), [*steps.download(loaded, lock), *root])
    # The closing slash makes Apptainer copy what is in the folder, its symlinks as they are.
    inner, outer = (f"{steps.WORK}/root/", "/") if scratch else (f"{steps.WORK}/",) * 2
    unpacked = (("files", inner, outer),)
    if not loaded.sources:
        lines = _finish(loaded, _install(loaded, lock))
        return [files, _Stage("root", scratch, (*unpacked, *lay), lines)]
    needed = any(item.patches or item.tree for item in loaded.sources)
    given = (("", "given", f"{steps.WORK}/given"),) if needed else ()
    work = [*_install(loaded, lock), *steps.build_sources(loaded, lock)]
    built = (("build", f"{steps.BUILT}/", f"{steps.WORK}{steps.BUILT}/"),)
    lines = _finish(loaded, _install(loaded, lock, built=True))
    return [
        files,
        _Stage("build", scratch, (*unpacked, *given), work),
        _Stage("root", scratch, (*unpacked, *built, *lay), lines),
    ]


# --- Containerfile ----------------------------------------------------------------------------


def _containerfile(loaded: LoadedRecipe, lock: Lock | None) -> str:
    name = file_name(loaded.name)
    scratch = lock is not None and lock.base is None
    lines = [*_head(loaded, lock, f"podman build -t {name} ."), f"ARG BASE={_base(loaded, lock)}"]
    for number, stage in enumerate(_stages(loaded, lock)):
        named = f" AS {stage.name}" if stage.name != "root" or scratch else ""
        lines += ["", f"FROM {'scratch' if stage.scratch else '${BASE}'}{named}"]
        if number == 0:
            lines += [f"ARG {argument}=" for argument in _arguments(lock)]
        for origin, source, target in stage.copies:
            words = f"--from={origin} {source} {target}" if origin else f"{source}/ {target}/"
            lines.append(f"COPY {words}")
        lines.append("RUN set -e; \\\n    " + "; \\\n    ".join(stage.lines))
    if scratch:
        # Copied once more, so that no layer holds what was deleted.
        lines += ["", "FROM scratch", "COPY --from=root / /"]
    lines += [
        *(f"ENV {k}={_quoted(v)}" for k, v in environment(loaded.recipe).items()),
        *(f"LABEL {_quoted(k)}={_quoted(v)}" for k, v in _labels(loaded).items()),
        'CMD ["/bin/bash"]',
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return '"' + re.sub(r'([\\"$])', r"\\\1", text) + '"'


# --- Singularity.def --------------------------------------------------------------------------


def _definition(loaded: LoadedRecipe, lock: Lock | None) -> str:
    name = file_name(loaded.name)
    lines = _head(loaded, lock, f"apptainer build --fakeroot {name}.sif Singularity.def")
    arguments = [f'{argument}="{{{{ {argument} }}}}"' for argument in _arguments(lock)]
    # apt's is a variable of the script alone; pip reads its own from the environment.
    exported = [*arguments[:-2], f"export {' '.join(arguments[-2:])}"]
    for number, stage in enumerate(_stages(loaded, lock)):
        lines += (
            ["Bootstrap: scratch"] if stage.scratch else ["Bootstrap: docker", "From: {{ BASE }}"]
        )
        lines += [f"Stage: {stage.name}", ""]
        if number == 0:
            lines += ["%arguments", f"    BASE={_base(loaded, lock)}"]
            lines += [*(f"    {argument}=" for argument in _arguments(lock)), ""]
        for origin, source, target in stage.copies:
            lines += [f"%files from {origin}" if origin else "%files", f"    {source} {target}", ""]
        work = stage.lines if number else [*exported, *stage.lines]
        lines += ["%post", *(f"    {line}" for line in work), ""]
    lines += ["%environment"]
    lines += [
        f"    export {k}={steps.shell_word(v)}" for k, v in environment(loaded.recipe).items()
    ]
    lines += ["", "%labels", *(f"    {k} {v}" for k, v in _labels(loaded).items())]
    lines += ["", "%runscript", *(f"    {line}" for line in _RUNSCRIPT)]
    return "\n".join(lines) + "\n"


# --- both -------------------------------------------------------------------------------------


def _head(loaded: LoadedRecipe, lock: Lock | None, command: str) -> list[str]:
    """What the text is, and the command that builds it."""
    text = [f"{loaded.name}: {loaded.recipe.recipe.summary}".rstrip(": ")]
    text.append(f"{MARK} {loaded.name}`; edit recipe.toml instead.")
    if lock is None:
        text.append("Versions are NOT pinned: this recipe has no lock yet.")
    if loaded.bundled:
        text.append("fairlead and its native core are not in it; `fairlead build` lays them in.")
    text += [
        "",
        "Build it in this folder:",
        f"    {command}",
        "Arguments, each with --build-arg NAME=VALUE:",
    ]
    if lock is not None and lock.base is None:
        text.append(
            f"    BASE                 an image with apt to download with, {lock.inputs.distribution}"
            f" {lock.inputs.suite}; none of its files stays"
        )
    else:
        text.append("    BASE                 the same image, in a registry of yours")
    if lock is not None:
        text.append(
            "    MIRROR               URLs of package mirrors; otherwise those that BASE knows"
        )
    text += [
        "    PIP_INDEX_URL        URL of a Python package index; otherwise PyPI",
        "    PIP_EXTRA_INDEX_URL  URLs of further ones",
    ]
    if lock is not None and (names := sorted({w.index for w in lock.wheel} - {"PyPI"})):
        text[-1] += f"; needed for {', '.join(names)}"
    return [f"# {line}".rstrip() for line in text] + [""]


def _arguments(lock: Lock | None) -> list[str]:
    """Besides BASE. No text holds a host: empty means what the base image's own apt and pip know."""
    return [*(["MIRROR"] if lock is not None else []), "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"]


def _base(loaded: LoadedRecipe, lock: Lock | None) -> str:
    """The default of BASE, without `docker://`."""
    base = loaded.recipe.base
    if lock is not None and lock.base is not None:
        # A digest says it all; some engines refuse a tag next to it.
        repository = re.sub(r"(@.*|:[^:/]*)$", "", lock.base.image.removeprefix("docker://"))
        return f"{repository}@{lock.base.digest}"
    if base.image is not None:
        return base.image.removeprefix("docker://")
    slim = "-slim" if base.distribution == "debian" else ""
    return f"docker.io/library/{base.distribution}:{base.suite}{slim}"


def _labels(loaded: LoadedRecipe) -> dict[str, str]:
    return {**dict(sorted(loaded.recipe.labels.items())), "org.fairlead.recipe": loaded.name}


def _install(loaded: LoadedRecipe, lock: Lock, *, built: bool = False) -> list[str]:
    return [*steps.install_debs(lock), *steps.install_wheels(loaded, lock, built=built)]


def _finish(loaded: LoadedRecipe, installed: Sequence[str]) -> list[str]:
    return [*installed, *steps.lay_files(loaded.files), *steps.clean()]
