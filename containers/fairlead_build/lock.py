"""What exactly goes in an image: ``lock.toml``, every package by version and sha256.

A lock names an index (``PyPI``, ``Debian bookworm main``), never a host: the machine's own
configuration says where that index is. ``resolve.py`` makes locks, ``fetch.py`` brings what they
name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from fairlead.findings import ExitCode, fail
from fairlead.paths import atomic_write
from fairlead.tomlfile import Mistake, Strict, load
from fairlead_build.recipe import AptName, LoadedRecipe, Name, OneLine, PyMinor, Recipe, Suite

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
# One path component or several, none of them special: it becomes a file name and a part of a URL.
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+~%!-]*$")]
PoolPath = Annotated[
    str,
    StringConstraints(
        pattern=r"^([A-Za-z0-9][A-Za-z0-9._+~%:-]*/)+[A-Za-z0-9][A-Za-z0-9._+~%:-]*$"
    ),
]
Version = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+~:!-]*$")]
Size = Annotated[int, Field(ge=1, lt=1 << 40)]


class Inputs(Strict):
    """What was resolved: the part of a recipe, and of fairlead, that a lock depends on."""

    distribution: Literal["debian"]
    suite: Suite
    components: tuple[OneLine, ...]
    apt: tuple[AptName, ...]
    pip: tuple[OneLine, ...]
    python: PyMinor | Literal[""]
    mpi: OneLine
    compressor: Literal["zstd", "gzip"]
    level: int

    @property
    def digest(self) -> str:
        return hashlib.sha256(
            json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()
        ).hexdigest()


class Package(Strict):
    """One file of an index, by its hash; ``size`` in bytes."""

    name: str
    version: Version
    size: Size
    sha256: Sha256
    index: OneLine


class Deb(Package):
    """One Debian package. ``path`` is relative to the archive's root."""

    name: AptName
    architecture: Literal["amd64", "arm64", "all"]
    path: PoolPath

    @property
    def file(self) -> str:
        return f"{self.name}_{self.version.replace(':', '%3a')}_{self.architecture}.deb"


class Wheel(Package):
    """One wheel. ``role`` says where it goes: the Python prefix, the MPI's, or nowhere (pip)."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")]
    file: FileName
    role: Literal["python", "mpi", "installer"] = "python"


class Lock(Strict):
    """A whole ``lock.toml``."""

    version: Literal[1]
    recipe: Name
    architecture: Literal["amd64", "arm64"]
    source_date_epoch: Annotated[int, Field(ge=315532800, lt=1 << 33)]
    inputs_sha256: Sha256
    inputs: Inputs
    tools: dict[str, OneLine]
    deb: tuple[Deb, ...]
    wheel: tuple[Wheel, ...] = ()

    @property
    def download_bytes(self) -> int:
        return sum(item.size for item in self.packages)

    @property
    def packages(self) -> tuple[Package, ...]:
        """The .debs, then the wheels."""
        return (*self.deb, *self.wheel)


def inputs_of(recipe: Recipe, runtime: tuple[str, ...]) -> Inputs:
    """What a lock of ``recipe`` depends on.

    Args:
        runtime: the requirements of the fairlead runtime that every image with Python carries.
    """
    apt = set(recipe.packages.apt)
    pip = set(recipe.packages.pip)
    mpi = ""
    if recipe.mpi is not None:
        pin = f"=={recipe.mpi.version}" if recipe.mpi.version else ""
        mpi = f"{recipe.mpi.source}:{recipe.mpi.distribution}{pin}"
        if recipe.mpi.source == "apt":
            apt.add(recipe.mpi.distribution)
    if recipe.python is not None:
        # What every manylinux wheel may rely on without carrying it (PEP 600), and minbase lacks.
        apt.update(("python3", "libstdc++6"))
        pip.update(runtime)
    return Inputs(
        distribution=recipe.base.distribution,
        suite=recipe.base.suite,
        components=recipe.base.components,
        apt=tuple(sorted(apt)),
        pip=tuple(sorted(pip)),
        python=recipe.python.version if recipe.python else "",
        mpi=mpi,
        compressor=recipe.image.compressor,
        level=recipe.image.level,
    )


def load_lock(loaded: LoadedRecipe, runtime: tuple[str, ...]) -> tuple[Lock, str]:
    """The lock beside a recipe, and the sha256 of its file.

    Raises:
        FairleadError: there is none, it is unsound, or it does not match its recipe.
    """
    path, command = loaded.lock_path, f"fairlead recipe lock {loaded.given}"
    if not path.is_file():
        raise fail(
            f"recipe `{loaded.name}` has no lock",
            where=str(path),
            why="an image is built from a lock only, so that everybody builds the same one",
            remedy=command,
            check="lock-missing",
            code=ExitCode.USAGE,
        )
    lock = load(path, Lock, command, _cross)
    if lost := differences(lock.inputs, inputs_of(loaded.recipe, runtime)):
        raise fail(
            f"the lock of recipe `{loaded.name}` does not match its recipe",
            where=str(path),
            why="; ".join(lost),
            remedy=command,
            check="lock-stale",
            code=ExitCode.USAGE,
        )
    return lock, hashlib.sha256(path.read_bytes()).hexdigest()


def differences(locked: Inputs, wanted: Inputs) -> list[str]:
    """What the recipe wants that the lock does not have, and the reverse, a phrase each."""
    said = []
    for field in Inputs.model_fields:
        old, new = getattr(locked, field), getattr(wanted, field)
        if isinstance(old, tuple):
            if added := sorted(set(new) - set(old)):
                said.append(f"the recipe now wants {field} {', '.join(added)}")
            if gone := sorted(set(old) - set(new)):
                said.append(f"the lock still has {field} {', '.join(gone)}")
        elif old != new:
            said.append(
                f"{field} is {new or 'none'!s} in the recipe, {old or 'none'!s} in the lock"
            )
    return said


def _cross(data: dict[str, Any]) -> Iterator[Mistake]:
    try:
        inputs = Inputs.model_validate(data.get("inputs"))
    except ValueError:
        return  # reported by the model itself
    if data.get("inputs_sha256") != inputs.digest:
        yield Mistake(
            ("inputs_sha256",),
            "[inputs] was edited by hand",
            f"its digest is {inputs.digest}, the lock says {data.get('inputs_sha256')!r}",
            "lock-edited",
        )


def render(lock: Lock) -> str:
    """The text of ``lock.toml``: one line a package, so that a change of version is one line."""
    head = {
        key: getattr(lock, key)
        for key in ("version", "recipe", "architecture", "source_date_epoch")
    }
    lines = [
        "# Made by `fairlead recipe lock`; edit recipe.toml instead.",
        *(f"{key} = {_toml(value)}" for key, value in head.items()),
        f"inputs_sha256 = {_toml(lock.inputs_sha256)}",
    ]
    for name, array in (("deb", lock.deb), ("wheel", lock.wheel)):
        lines += ["", f"{name} = ["]
        for item in array:
            cells = ", ".join(
                f"{key} = {_toml(value)}" for key, value in item.model_dump(mode="json").items()
            )
            lines.append(f"  {{ {cells} }},")
        lines.append("]")
    for title, table in (("inputs", lock.inputs.model_dump(mode="json")), ("tools", lock.tools)):
        lines += ["", f"[{title}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    # JSON's strings, integers and lists of strings are TOML's.
    return json.dumps(value)


def write_lock(lock: Lock, path: Path) -> None:
    """Writes the lock under its final name, whole or not at all.

    Raises:
        FairleadError: the recipe's folder cannot be written to.
    """
    try:
        with atomic_write(path, "w") as out:
            out.write(render(lock))
    except OSError as exc:
        raise fail(
            "the lock cannot be written",
            where=str(path),
            why=exc.strerror or str(exc),
            remedy="copy the recipe's folder to one of yours, and lock it there",
            check="lock-unwritable",
        ) from None
