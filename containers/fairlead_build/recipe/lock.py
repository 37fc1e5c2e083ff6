"""What exactly goes in an image: ``lock.toml``, every package by version and sha256.

A lock names an index (``PyPI``, ``Debian bookworm main``), never a host: the machine's own
configuration says where that index is. ``resolving.py`` makes locks, :mod:`fairlead_build.resolve.fetch` brings what they
name.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator

from fairlead.base.errors import fail, os_error_as
from fairlead.base.paths import atomic_write
from fairlead.base.toml import Mistake, Strict, load, mistake_at
from fairlead_build.base.digest import json_digest, sha256_of
from fairlead_build.base.platform import Architecture
from fairlead_build.recipe.inherit import project
from fairlead_build.recipe.load import LoadedRecipe
from fairlead_build.recipe.model import (
    AptName,
    ImageReference,
    IndexName,
    OneLine,
    ProjectName,
    PyMinor,
    Recipe,
    Sha256,
    Source,
    Suite,
    Version,
)

# One path component or several, none of them special: it becomes a file name and a part of a URL.
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+~%!-]*$")]
_PART = r"[A-Za-z0-9][A-Za-z0-9._+~%:-]*"
PoolPath = Annotated[str, StringConstraints(pattern=rf"^({_PART}/)+{_PART}$")]
Size = Annotated[int, Field(ge=1, lt=1 << 40)]
_NAME = r"[a-z0-9][a-z0-9-]{0,62}"
RecipeName = Annotated[str, StringConstraints(pattern=rf"^{_NAME}(:{_NAME})?$")]

# By distribution, and by distribution and SECURITY where that is an archive of its own.
_OVERRIDES = {
    "debian": "FAIRLEAD_INDEX_DEBIAN",
    "debian-security": "FAIRLEAD_INDEX_DEBIAN_SECURITY",
    "ubuntu": "FAIRLEAD_INDEX_UBUNTU",
}


@dataclass(frozen=True)
class AptIndex:
    """One signed index of .debs, as a lock names it: ``Debian bookworm main``."""

    distribution: str
    suite: str
    components: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.distribution.capitalize()} {self.suite} {' '.join(self.components)}"

    @property
    def override(self) -> str:
        """The variable that names another mirror of it."""
        security = self.suite.endswith("-security")
        key = f"{self.distribution}-security" if security else self.distribution
        return _OVERRIDES.get(key, _OVERRIDES[self.distribution])

    @property
    def security(self) -> AptIndex:
        """Where this release gets its corrections from."""
        return replace(self, suite=f"{self.suite}-security")

    @classmethod
    def parse(cls, name: str) -> AptIndex | None:
        """The index that a lock calls ``name``; None when it is not one of .debs."""
        distribution, _, rest = name.partition(" ")
        suite, *components = rest.split(" ")
        if distribution.lower() not in ("debian", "ubuntu") or not suite or not components:
            return None
        return cls(distribution.lower(), suite, tuple(components))


class Inputs(Strict):
    """What was resolved: the part of a recipe, and of fairlead, that a lock depends on.

    With a base image, ``distribution``, ``suite`` and ``components`` are empty: the image says
    them itself.
    """

    distribution: Literal["debian", "ubuntu", ""]
    suite: Suite | Literal[""]
    components: tuple[OneLine, ...]
    image: ImageReference | Literal[""] = ""
    apt: tuple[AptName, ...]
    pip: tuple[OneLine, ...]
    index: tuple[OneLine, ...] = ()
    python: PyMinor | Literal[""]
    mpi: OneLine
    source: tuple[OneLine, ...] = ()
    build_apt: tuple[AptName, ...] = ()
    build_pip: tuple[OneLine, ...] = ()
    compressor: Literal["zstd", "gzip"]
    level: int

    @property
    def digest(self) -> str:
        return json_digest(self.model_dump(mode="json"))


class Package(Strict):
    """One file of an index, by its hash; ``size`` in bytes."""

    name: str
    version: Version
    size: Size
    sha256: Sha256
    index: IndexName

    @property
    def pin(self) -> str:
        """A Python package as pip's requirements name it."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


class Deb(Package):
    """One Debian package. ``path`` is relative to the archive's root."""

    name: AptName
    architecture: Literal["amd64", "arm64", "all"]
    path: PoolPath

    @field_validator("index")
    @classmethod
    def _is_an_index_of_debs(cls, value: str) -> str:
        if AptIndex.parse(value) is None:
            raise ValueError("an index of Debian packages is called e.g. `Debian bookworm main`")
        return value

    @property
    def file(self) -> str:
        return f"{self.name}_{self.version.replace(':', '%3a')}_{self.architecture}.deb"


class Wheel(Package):
    """One wheel.

    ``role`` says where it goes: the Python prefix, the MPI's prefix, or nowhere: ``installer`` is
    the pip that installs the others, ``build`` is there only while sources are built.
    """

    name: ProjectName
    file: FileName
    role: Literal["python", "mpi", "installer", "build"] = "python"


class SourceArchive(Package):
    """The archive of one ``[[source]]``; its index is ``PyPI``, or ``URL``: the recipe names that.

    A source with ``path`` has none: its files are part of the recipe, as those of ``[files]`` are.
    """

    name: ProjectName
    file: FileName


class LockedBase(Strict):
    """The image that a recipe with ``base.image`` starts from, and what was found in it."""

    image: ImageReference
    digest: Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
    distribution: Literal["debian", "ubuntu"]
    suite: Suite
    glibc: Version


class Lock(Strict):
    """A whole ``lock.toml``. ``build_deb`` are there only while sources are built."""

    version: Literal[2]
    recipe: RecipeName
    architecture: Architecture
    source_date_epoch: Annotated[int, Field(ge=315532800, lt=1 << 33)]
    inputs_sha256: Sha256
    packages_sha256: Sha256 | Literal[""] = ""
    base: LockedBase | None = None
    inputs: Inputs
    tools: dict[str, OneLine]
    deb: tuple[Deb, ...]
    build_deb: tuple[Deb, ...] = ()
    wheel: tuple[Wheel, ...] = ()
    source: tuple[SourceArchive, ...] = ()

    @property
    def download_bytes(self) -> int:
        return sum(item.size for item in self.packages)

    @property
    def packages(self) -> tuple[Package, ...]:
        """Every file: .debs, those for building, wheels, sources."""
        return (*self.deb, *self.build_deb, *self.wheel, *self.source)

    @property
    def packages_digest(self) -> str:
        """sha256 of everything this lock puts into the image, tools excluded."""
        names = {"architecture", "base", "deb", "build_deb", "wheel", "source"}
        content = self.model_dump(mode="json", include=names)
        return json_digest({**content, "epoch": self.source_date_epoch})

    @property
    def glibc(self) -> str:
        """The image's glibc, e.g. ``2.36``."""
        if self.base is not None:
            return self.base.glibc
        return upstream(next((d.version for d in self.deb if d.name == "libc6"), "2.17"))


def upstream(version: str) -> str:
    """``2:2.36-9+deb12u10`` -> ``2.36``."""
    return version.split(":")[-1].split("-")[0]


# The minor version from which pip, which installs the wheels, does without distutils; distributions package it apart.
_PIP_WITHOUT_DISTUTILS = 10


def inputs_of(recipe: Recipe, runtime: tuple[str, ...]) -> Inputs:
    """What a lock of ``recipe`` depends on.

    Args:
        runtime: the requirements of the fairlead runtime, where the image carries it.
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
        if int(recipe.python.version.split(".")[1]) < _PIP_WITHOUT_DISTUTILS:
            apt.add("python3-distutils")
        pip.update(runtime)
    base = recipe.base
    build_apt = {name for s in recipe.source for name in s.apt}
    if any(s.patches for s in recipe.source):
        build_apt.add("patch")
    return Inputs(
        distribution="" if base.image else base.distribution,
        suite=base.suite or "",
        components=() if base.image else base.components,
        image=base.image or "",
        apt=tuple(sorted(apt)),
        pip=tuple(sorted(pip)),
        index=tuple(sorted(f"{project(k)}: {v}" for k, v in recipe.packages.index.items())),
        python=recipe.python.version if recipe.python else "",
        mpi=mpi,
        source=tuple(sorted(map(_source_phrase, recipe.source))),
        build_apt=tuple(sorted(build_apt - apt)),
        build_pip=tuple(sorted({text for s in recipe.source for text in s.pip})),
        compressor=recipe.image.compressor,
        level=recipe.image.level,
    )


def _source_phrase(source: Source) -> str:
    if source.url is not None:
        return f"{source.name} {source.version} with sha256 {source.sha256}"  # no host in a lock
    origin = source.index or ("fairlead" if source.bundled else "the recipe")
    return f"{source.name} {source.version} from {origin}"


def load_lock(loaded: LoadedRecipe, runtime: tuple[str, ...]) -> tuple[Lock, str]:
    """The lock next to a recipe, and the sha256 of its file.

    Raises:
        FairleadError: it is missing, invalid, or does not match its recipe.
    """
    path = loaded.lock_path
    if not path.is_file():
        raise fail("lock-missing", loaded=loaded, why_unlocked=why_unlocked(loaded))
    lock = load(path, Lock, f"fairlead recipe lock {loaded.given}", _cross)
    lost = differences(lock.inputs, inputs_of(loaded.recipe, runtime))
    if lock.architecture != loaded.architecture:
        lost.append(f"it is a lock for {lock.architecture}, and {loaded.architecture} is wanted")
    if lost:
        raise fail("lock-stale", loaded=loaded, lost="; ".join(lost))
    return lock, sha256_of(path)


def why_unlocked(loaded: LoadedRecipe) -> str:
    """Why a recipe may have come without a lock, in words that follow "because"."""
    recipe = loaded.recipe
    if recipe.base.image is not None:
        image = recipe.base.image.removeprefix("docker://")
        return f"it starts from {image}, and only that registry knows the digest to pin"
    if recipe.recipe.accelerator != "none":
        return (
            f"its packages are for {recipe.recipe.accelerator} accelerators, and who locks it "
            "should try them on one"
        )
    if recipe.packages.index:
        indexes = ", ".join(sorted(set(recipe.packages.index.values())))
        return f"it takes packages from {indexes}, which only a machine that knows this index can resolve"
    return "it has not been resolved yet"


# What people call the fields of Inputs; the others are called as in the recipe.
_WORDS = {
    "image": "base image",
    "index": "index",
    "mpi": "MPI",
    "source": "source",
    "build_apt": "apt for building",
    "build_pip": "pip for building",
}


def differences(locked: Inputs, wanted: Inputs) -> list[str]:
    """What the recipe wants that the lock does not have, and the reverse, a phrase each."""
    phrases = []
    for field in Inputs.model_fields:
        old, new = getattr(locked, field), getattr(wanted, field)
        word = _WORDS.get(field, field)
        if isinstance(old, tuple):
            if added := sorted(set(new) - set(old)):
                phrases.append(f"the recipe now wants {word} {', '.join(added)}")
            if gone := sorted(set(old) - set(new)):
                phrases.append(f"the lock still has {word} {', '.join(gone)}")
        elif old != new:
            phrases.append(
                f"{word} is {new or 'none'!s} in the recipe, {old or 'none'!s} in the lock"
            )
    return phrases


def _cross(data: dict[str, Any]) -> Iterator[Mistake]:
    try:
        lock = Lock.model_validate(data)
    except ValueError:
        return  # reported by the model itself
    for what, key, digest in (
        ("[inputs] was", "inputs_sha256", lock.inputs.digest),
        ("the packages were", "packages_sha256", lock.packages_digest),
    ):
        if data.get(key) != digest:
            yield mistake_at((key,), "lock-edited", what=what, digest=digest, data=data.get(key))


def render(lock: Lock) -> str:
    """The text of ``lock.toml``: one line a package, so that a change of version is one line.

    JSON's strings, integers and lists of strings are TOML's.
    """
    head = ("version", "recipe", "architecture", "source_date_epoch")
    lines = [
        "# Made by `fairlead recipe lock`; edit recipe.toml instead.",
        *(f"{key} = {json.dumps(getattr(lock, key))}" for key in head),
        f"inputs_sha256 = {json.dumps(lock.inputs.digest)}",
        f"packages_sha256 = {json.dumps(lock.packages_digest)}",
    ]
    if lock.base is not None:
        lines.append(f"base = {_inline(lock.base)}")
    for name in ("deb", "build_deb", "wheel", "source"):
        array: tuple[Package, ...] = getattr(lock, name)
        if array or name == "deb":
            lines += ["", *array_lines(name, array)]
    for title, table in (("inputs", lock.inputs.model_dump(mode="json")), ("tools", lock.tools)):
        lines += [
            "",
            f"[{title}]",
            *(f"{key} = {json.dumps(value)}" for key, value in table.items()),
        ]
    return "\n".join(lines) + "\n"


def array_lines(name: str, packages: Iterable[Package]) -> Iterator[str]:
    """``name = [...]`` in TOML, a line a package."""
    yield f"{name} = ["
    for item in packages:
        yield f"  {_inline(item)},"
    yield "]"


def _inline(item: Strict) -> str:
    cells = (f"{key} = {json.dumps(value)}" for key, value in item.model_dump(mode="json").items())
    return f"{{ {', '.join(cells)} }}"


def check_writable(path: Path) -> None:
    """Refuses a lock that could not be written once everything is resolved.

    Raises:
        FairleadError: the folder cannot be written to.
    """
    with os_error_as("lock-unwritable", path=path), tempfile.TemporaryFile(dir=path.parent):
        pass


def write_text(path: Path, text: str) -> None:
    """Writes a lock's text, whole or not at all.

    Raises:
        FairleadError: the folder cannot be written to.
    """
    with os_error_as("lock-unwritable", path=path), atomic_write(path, "w") as out:
        out.write(text)
