"""From a file to a recipe's folder: ``recipe.toml``, the files it places, and what was not imported."""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.items import Array

from fairlead.base.errors import ExitCode, FairleadError, Finding, error, fail, warning
from fairlead.base.paths import atomic_folder
from fairlead_build.cache.store import scratch_parent, workspace
from fairlead_build.importing import containerfile, definition
from fairlead_build.importing.ledger import Ledger, Loss, plain_name, python_of
from fairlead_build.importing.located import has_content, of_lines, split_lines
from fairlead_build.recipe.load import load_recipe

LOSSES = "not-carried.md"
_GENERIC = ("containerfile", "dockerfile", "singularity", "singularity.def", "apptainer.def")
_MPI_PACKAGES = {
    "mpich": "mpich", "libmpich12": "mpich", "libmpich-dev": "mpich",
    "openmpi-bin": "openmpi", "libopenmpi3": "openmpi", "libopenmpi-dev": "openmpi",
}  # fmt: skip


@dataclass(frozen=True)
class Imported:
    """What an import made, or would make.

    Attributes:
        recipe: the text of recipe.toml.
        files: what is laid, by target: its path in the folder.
        losses: in the order of the file.
        written: the folder exists now.
        base: an image of which not even the name says whether it has apt, which a recipe needs; else empty.
    """

    name: str
    folder: Path
    recipe: str
    files: dict[str, str]
    losses: tuple[Loss, ...]
    written: bool
    base: str = ""


def import_file(
    source: Path, output: Path | None = None, *, allow_loss: bool = False, dry_run: bool = False
) -> Imported:
    """Makes a recipe's folder of a Containerfile or a Singularity.def.

    Args:
        source: the file; what it copies is looked for in its folder.
        output: the folder to make; otherwise one of the file's name, in the current folder.
        allow_loss: write also when not everything could be carried.
    Returns:
        With losses that are not allowed, and with ``dry_run``, nothing was written.
    Raises:
        FairleadError: exit code 2: it cannot be read, has no base that a recipe can have, or the
            folder exists already.
    """
    text = _text(source)
    path = source.resolve()
    stem = path.parent.name if path.name.lower() in _GENERIC else path.name.split(".")[0]
    name = plain_name(output.name if output else stem)
    folder = output if output is not None else Path(name)
    empty = folder.is_dir() and not any(folder.iterdir())
    if not empty and (folder.exists() or folder.is_symlink()):
        raise fail("import-folder", folder=folder, source=shlex.quote(str(source)))
    with workspace(scratch_parent(1 << 20), "fairlead-import-") as scratch:
        ledger = Ledger(str(source), scratch=scratch)
        reader = definition if _is_definition(source, text) else containerfile
        reader.read(text, ledger, path.parent)
        _settle(ledger)
        for number, line in split_lines(text):  # so that no line is lost without notice
            if meaningful(line) and number not in ledger.read:
                place = of_lines([(number, line)])
                ledger.lose(place, "it was not understood", "check what it does")
        losses = tuple(
            sorted(ledger.losses, key=lambda loss: (loss.file != str(source), loss.first))
        )
        if not ledger.base:
            findings = [*(loss.finding() for loss in losses), error("import-base", source=source)]
            raise FairleadError(findings, ExitCode.USAGE)
        recipe = recipe_text(ledger, name, source.name, len(losses))
        tried = scratch / "recipe"
        tried.mkdir()
        _write(tried, ledger, recipe, losses)
        load_recipe(tried)  # reads what would be written as `recipe check` will
        write = not dry_run and (allow_loss or not losses)
        if write:
            with atomic_folder(folder) as tree:
                _write(tree, ledger, recipe, losses)
    files = {target: f"files{target}" for target in sorted(ledger.files)}
    base = ledger.base.get("image", "")
    if re.search(r"(?:[/:-])(debian|ubuntu)(?![a-z])", base):
        base = ""
    return Imported(name, folder, recipe, files, losses, write, base)


def unseen(source: Path, base: str) -> Finding:
    """The doubt about a base that only the registry knows."""
    return warning("import-base-unseen", source=source, base=base)


def lossy(source: Path) -> Finding:
    """Closes the list of losses of an import that was not made."""
    return error("import-lossy", source=source, quoted_source=shlex.quote(str(source)))


def _text(source: Path) -> str:
    try:
        text = source.read_bytes().decode("utf-8-sig")
    except OSError as exc:
        why = exc.strerror or str(exc)
        raise fail("import-unreadable-cannot-read", source=source, it_is=why) from None
    except UnicodeDecodeError:
        raise fail("import-unreadable-encoding", source=source) from None
    return text.replace("\x00", "\ufffd")


def _is_definition(source: Path, text: str) -> bool:
    lines = [line for _, line in split_lines(text) if has_content(line)]
    first = lines[0] if lines else ""
    if re.match(r"(?i)\s*(from|arg)\s+[^\s:]", first):
        return False  # whatever a here-document of it holds
    if re.match(r"(?i)\s*bootstrap\s*:|\s*%\w", first) or any(
        re.match(r"(?i)bootstrap:", line) for line in lines
    ):
        return True
    if any(re.match(r"(?i)\s*(from|arg)\s", line) for line in lines):
        return False
    raise fail("import-unreadable-unknown-kind", source=source)  # fmt: skip


def _settle(ledger: Ledger) -> None:
    """What follows from the whole: the image's Python and its MPI."""
    wanted = bool(ledger.pip) or any(n == "python3" or n[:8] == "python3-" for n in ledger.apt)
    version = python_of(ledger.base)
    if ledger.mpi.get("source") == "wheel" and not version:
        ledger.mpi = {}
    if not ledger.mpi:
        package = next((n for n in ledger.apt if n in _MPI_PACKAGES), "")
        if package:
            ledger.mpi = {"family": _MPI_PACKAGES[package], "source": "apt", "package": package}
    wanted = wanted or ledger.mpi.get("source") == "wheel"
    if version and wanted:
        ledger.python_version = version
    if not version:
        for text in ledger.pip:
            why = "which Python the base image has is not known here"
            ledger.lose(
                ledger.places[text], why, "[python] with its version, and packages.pip", text
            )
        ledger.pip = []
    if ledger.pip and "image" in ledger.base and ledger.base_place is not None:
        why, lost = "[python] is an environment of its own", "the Python packages of the base image"
        ledger.lose(ledger.base_place, why, "those that you use in packages.pip", lost)


def meaningful(line: str) -> bool:
    """Whether a line has content: not a comment, and more than separators of commands."""
    return not line.lstrip().startswith("#") and re.fullmatch(r"[\s;&\\`]*", line) is None


def _write(folder: Path, ledger: Ledger, recipe: str, losses: tuple[Loss, ...]) -> None:
    (folder / "recipe.toml").write_text(recipe, "utf-8")
    for target, laid in ledger.files.items():
        place = folder / f"files{target}"
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(laid.source, place)
        place.chmod(0o755 if laid.executable else 0o644)
    if losses:
        (folder / LOSSES).write_text(_losses_text(ledger.file, losses), "utf-8")


def _losses_text(file: str, losses: tuple[Loss, ...]) -> str:
    rows = [("where", "what", "why", "instead"), ("---",) * 4]
    rows += [(loss.place, loss.text, loss.why, loss.instead) for loss in losses]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return f"What of {file} is not in recipe.toml.\n\n" + "\n".join(lines) + "\n"


# --- recipe.toml ------------------------------------------------------------------------------


def recipe_text(ledger: Ledger, name: str, source: str, losses: int) -> str:
    document = tomlkit.document()
    document.add(
        tomlkit.comment(f"Made from {' '.join(source.split())} by `fairlead recipe import`.")
    )
    if losses:
        parts = f"{losses} part{'s' if losses > 1 else ''}"
        document.add(tomlkit.comment(f"{parts} of it could not be carried: {LOSSES}"))
    tables: dict[str, Any] = {
        "recipe": {"name": name},
        "base": ledger.base,
        "mpi": ledger.mpi,
        "python": {"version": ledger.python_version} if ledger.python_version else {},
        "packages": {k: _array(v) for k, v in (("apt", ledger.apt), ("pip", ledger.pip)) if v},
        "files": {target: f"files{target}" for target in sorted(ledger.files)},
        "env": ledger.env,
        "labels": ledger.labels,
    }
    for title, table in tables.items():
        if table:
            document.add(tomlkit.nl())
            document.add(title, tomlkit.item(table))
    return tomlkit.dumps(document)


def _array(values: list[str]) -> Array:
    array = tomlkit.array()
    array.extend(values)
    return array.multiline(len(array.as_string()) > 80)
