"""Wheels that were built from source, compared with what the recipe says of them and with what is in the image.

pip builds them without their requirements, so nothing has looked for these.
"""

from __future__ import annotations

import email.parser
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from fairlead.base.errors import Finding, fail, warning
from fairlead_build.base.requirements import parse_requirement
from fairlead_build.recipe.inherit import project
from fairlead_build.recipe.load import LoadedRecipe, RecipeSource
from fairlead_build.recipe.lock import Lock, upstream
from fairlead_build.resolve.pip import target_of
from fairlead_build.tree.wheel_staging import Built

_MOST_METADATA = 4 << 20
_UNREADABLE = (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


@dataclass(frozen=True)
class Metadata:
    """What a wheel says of itself."""

    name: str
    version: str
    requires: tuple[Requirement, ...]


def metadata_of(wheel: Path) -> Metadata:
    """What a wheel says of itself.

    Raises:
        ValueError: it cannot be read, or names no project or version.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            for item in archive.infolist():
                if re.fullmatch(r"[^/]+\.dist-info/METADATA", item.filename):
                    with archive.open(item) as stream:
                        return read_metadata(stream.read(_MOST_METADATA))
    except _UNREADABLE as exc:
        raise ValueError(f"it cannot be read: {exc}") from None
    raise ValueError("it has no METADATA")


def read_metadata(text: bytes) -> Metadata:
    """What a METADATA says; what cannot be read of its requirements is left out.

    Raises:
        ValueError: it names no project, or no version.
    """
    fields = email.parser.BytesParser().parsebytes(text, headersonly=True)
    name, version = (str(fields[key] or "").strip() for key in ("Name", "Version"))
    if not name or not version:
        raise ValueError("it has no name or no version")
    requires = []
    for line in fields.get_all("Requires-Dist", ()):
        with suppress(InvalidRequirement):
            requires.append(parse_requirement(str(line)))
    return Metadata(name, version, tuple(requires))


def check_declared(loaded: LoadedRecipe, source: RecipeSource, built: Built) -> None:
    """Refuses a wheel of another name or version than the recipe declares: the image's records would be false.

    Raises:
        FairleadError: exit code 2.
    """
    if built.wheel is None:
        return
    made, declared = metadata_of(built.wheel), source.source
    same = project(made.name) == project(declared.name)
    if same and _same_version(made.version, declared.version):
        return
    raise fail("source-declared", source=declared, made=made, loaded=loaded)


def _same_version(made: str, declared: str) -> bool:
    try:
        mine, theirs = Version(made), Version(declared)
    except InvalidVersion:
        return made == declared
    # A local part, as in 1.0+cu12, says how it was built.
    return mine == theirs or (not theirs.local and mine.public == theirs.public)


def requirement_findings(
    loaded: LoadedRecipe, lock: Lock, built: Sequence[Built], wheels: Mapping[str, Path]
) -> tuple[Finding, ...]:
    """A warning for each source whose wheel requires what the image lacks.

    Args:
        built: the results of all sources.
        wheels: the other wheels of the image, by name.
    """
    made = [metadata_of(each.wheel) for each in built if each.wheel is not None]
    versions = {project(w.name): w.version for w in lock.wheel if w.role in ("python", "mpi")}
    versions |= {project(each.name): each.version for each in made}
    python = loaded.recipe.python
    if not made or python is None:
        return ()
    release = upstream(
        next((d.version for d in lock.deb if d.name == f"python{python.version}"), "")
    )
    markers = target_of(python.version, lock.architecture, lock.glibc, release).markers
    return tuple(
        warning("source-requires", made=each, lacking=", ".join(lacking), loaded=loaded)
        for each in made
        if (lacking := list(_unmet(each, versions, markers, wheels)))
    )


def _unmet(
    made: Metadata,
    versions: Mapping[str, str],
    markers: Mapping[str, str],
    wheels: Mapping[str, Path],
) -> Iterator[str]:
    for wanted in made.requires:
        if wanted.marker and not wanted.marker.evaluate({**markers, "extra": ""}):
            continue
        present = versions.get(project(wanted.name))
        if present is None and not _provided(wanted.name, wheels):
            yield str(wanted).partition(";")[0].strip()
        elif present and not wanted.specifier.contains(present, prereleases=True):
            yield f"{wanted.name}{wanted.specifier} (it has {present})"


def _provided(name: str, wheels: Mapping[str, Path]) -> bool:
    """Whether another project's wheel brings the module, as tensorflow_cpu brings tensorflow."""
    module = name.replace("-", "_").lower()
    for project_name, wheel in wheels.items():
        if not project_name.replace("-", "_").startswith(f"{module}_"):
            continue
        with suppress(*_UNREADABLE), zipfile.ZipFile(wheel) as archive:
            if any(entry.lower() == f"{module}/__init__.py" for entry in archive.namelist()):
                return True
    return False
