"""What goes in an image, as a person writes it: ``recipe.toml``. ``lock.py`` says what came of it.

A recipe is addressed by the name of a bundled one (``tensorflow``) or by its folder (``./mine``).
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator

from fairlead.findings import ExitCode, FairleadError, Finding, error, fail
from fairlead.paths import bundled
from fairlead.suggest import suggest
from fairlead.tomlfile import Mistake, Strict, load

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
AptName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9+.-]+$")]
Suite = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]*$")]
PyMinor = Annotated[str, StringConstraints(pattern=r"^3\.[0-9]{1,2}$")]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
OneLine = Annotated[
    str, StringConstraints(pattern=r"^[^\x00-\x08\x0a-\x1f\x7f]*$", max_length=4096)
]

# Which Python a Debian release calls python3.
SUITE_PYTHON = {"bullseye": "3.9", "bookworm": "3.11", "trixie": "3.13"}
# Set by fairlead itself, or able to undo the swap of the MPI.
_OWN_VARIABLES = ("PATH", "PYTHONNOUSERSITE", "LD_LIBRARY_PATH", "LD_PRELOAD")
_OWN_FOLDERS = ("/.fairlead", "/.singularity.d", "/proc", "/sys", "/dev", "/tmp", "/run")


class Head(Strict):
    """``[recipe]``: what it is called and what it is for."""

    name: Name
    summary: OneLine = ""


class Base(Strict):
    """``[base]``: the distribution that the image starts from."""

    distribution: Literal["debian"] = "debian"
    suite: Suite
    components: tuple[Literal["main", "contrib", "non-free", "non-free-firmware"], ...] = ("main",)


class Mpi(Strict):
    """``[mpi]``: the image's own MPI, the one that the host's replaces."""

    family: Literal["mpich", "openmpi"]
    source: Literal["wheel", "apt"]
    package: AptName | None = None
    version: Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)+$")] | None = None
    prefix: str | None = None

    @property
    def distribution(self) -> str:
        """The wheel or Debian package."""
        return self.package or self.family

    @property
    def home(self) -> str:
        """Where a wheel is installed: outside every Python prefix, or mpi4py finds it first."""
        return self.prefix or f"/opt/{self.family}"


class Python(Strict):
    """``[python]``: a virtual environment on the distribution's own Python."""

    version: PyMinor
    prefix: str = "/opt/python"

    @property
    def site(self) -> str:
        """Where wheels are installed."""
        return f"{self.prefix}/lib/python{self.version}/site-packages"


class Packages(Strict):
    """``[packages]``: what is installed, dependencies excluded."""

    apt: tuple[AptName, ...] = ()
    pip: tuple[str, ...] = ()

    @field_validator("pip")
    @classmethod
    def _are_requirements(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        from packaging.requirements import InvalidRequirement, Requirement

        for text in value:
            try:
                requirement = Requirement(text)
            except InvalidRequirement as exc:
                raise ValueError(
                    f"{text!r} is not a requirement: {str(exc).splitlines()[0]}"
                ) from None
            if requirement.url:
                raise ValueError(
                    f"{text!r} names a URL; a lock names an index: write `{requirement.name}`"
                )
        return value


class Image(Strict):
    """``[image]``: how it is squashed. gzip is for kernels without zstd, at 20 times the work."""

    compressor: Literal["zstd", "gzip"] = "zstd"
    level: Annotated[int, Field(ge=1, le=22)] = 3


class Recipe(Strict):
    """A whole ``recipe.toml``."""

    recipe: Head
    base: Base
    mpi: Mpi | None = None
    python: Python | None = None
    packages: Packages = Packages()
    files: dict[str, str] = Field(default_factory=dict)
    env: dict[Variable, OneLine] = Field(default_factory=dict)
    labels: dict[str, OneLine] = Field(default_factory=dict)
    image: Image = Image()


@dataclass(frozen=True)
class RecipeFile:
    """A file of the recipe's folder that is laid into the image."""

    target: str
    source: Path
    mode: int
    sha256: str


@dataclass(frozen=True)
class LoadedRecipe:
    """A sound recipe and where it came from."""

    folder: Path
    recipe: Recipe
    files: tuple[RecipeFile, ...]
    given: str

    @property
    def name(self) -> str:
        return self.recipe.recipe.name

    @property
    def lock_path(self) -> Path:
        return self.folder / "lock.toml"

    @property
    def digest(self) -> str:
        """sha256 of all that the recipe says, comments and layout apart, and of its files."""
        told = {
            "recipe": self.recipe.model_dump(mode="json"),
            "files": [[f.target, f.mode, f.sha256] for f in self.files],
        }
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def names() -> list[str]:
    """The bundled recipes."""
    folder = bundled("recipes")
    return sorted(p.parent.name for p in folder.glob("*/recipe.toml"))


def find(given: str | Path) -> Path:
    """The folder of the recipe called ``given``: a bundled name, a folder, or its recipe.toml.

    Raises:
        FairleadError: there is no such recipe.
    """
    text = str(given)
    if (
        "/" not in text
        and text not in (".", "..")
        and (bundled("recipes") / text / "recipe.toml").is_file()
    ):
        return bundled("recipes") / text
    path = Path(text).expanduser()
    folder = path.parent if path.name == "recipe.toml" else path
    if (folder / "recipe.toml").is_file():
        return folder.resolve()
    if "/" in text or path.is_dir():
        why = f"{folder} holds no recipe.toml" if folder.is_dir() else "there is no such folder"
        remedy = "give the folder that holds recipe.toml, or a name of `fairlead recipe list`"
    else:
        why, remedy = suggest(text, names()), "fairlead recipe list"
    raise fail(
        f"no recipe `{text}`",
        where=text,
        why=why,
        remedy=remedy,
        check="recipe-missing",
        code=ExitCode.USAGE,
    )


def load_recipe(given: str | Path) -> LoadedRecipe:
    """Reads and checks a recipe and the files it names.

    Raises:
        FairleadError: exit code 2; one finding a mistake.
    """
    folder = find(given)
    shown = shlex.quote(str(given))  # it stands in commands to be typed
    recipe = load(folder / "recipe.toml", Recipe, f"fairlead recipe check {shown}", cross_mistakes)
    files, wrong = [], []
    for target, source in sorted(recipe.files.items()):
        found = _file(folder, target, source, shown)
        if isinstance(found, Finding):
            wrong.append(found)
        else:
            files.append(found)
    if wrong:
        raise FairleadError(wrong, ExitCode.USAGE)
    return LoadedRecipe(folder, recipe, tuple(files), shown)


def cross_mistakes(data: dict[str, Any]) -> Iterator[Mistake]:
    """What single keys cannot show. ``data`` is raw: anything may be of any type."""

    def table(name: str) -> dict[str, Any]:
        value = data.get(name)
        return value if isinstance(value, dict) else {}

    mpi, python, base, packages = table("mpi"), table("python"), table("base"), table("packages")
    if mpi.get("source") == "wheel" and "version" not in mpi:
        yield Mistake(
            ("mpi",), "`version` is missing in [mpi]", 'an MPI from a wheel is pinned, e.g. "3.4.3"'
        )
    if mpi.get("source") == "apt" and "prefix" in mpi:
        yield Mistake(
            ("mpi", "prefix"),
            '`mpi.prefix` cannot be set when `mpi.source` is "apt"',
            "a Debian package lies where Debian puts it",
        )
    if mpi.get("source") == "wheel" and not python:
        yield Mistake(
            ("mpi", "source"), "an MPI from a wheel needs a [python] table", "pip installs it"
        )
    if packages.get("pip") and not python:
        yield Mistake(
            ("packages", "pip"), "`packages.pip` needs a [python] table", "wheels need a Python"
        )
    suite, version = base.get("suite"), python.get("version")
    expected = SUITE_PYTHON.get(suite) if isinstance(suite, str) else None
    if expected and isinstance(version, str) and version != expected:
        yield Mistake(
            ("python", "version"),
            f"`python.version` cannot be {version!r}",
            f"Debian {suite} has Python {expected}",
        )
    python_home = python.get("prefix", "/opt/python")
    mpi_home = mpi.get("prefix", f"/opt/{mpi.get('family', 'mpi')}")
    for name, home in (("python", python_home), ("mpi", mpi_home)):
        if (why := _bad_target(home)) is not None:
            yield Mistake((name, "prefix"), f"`{name}.prefix` cannot be {home!r}", why)
    own_mpi = mpi.get("source") == "wheel" or "prefix" in mpi
    if own_mpi and isinstance(mpi_home, str) and isinstance(python_home, str):
        inside = PurePosixPath(mpi_home).is_relative_to(python_home)
        if inside or PurePosixPath(python_home).is_relative_to(mpi_home):
            yield Mistake(
                ("mpi", "prefix"),
                f"`mpi.prefix` {mpi_home} overlaps the Python prefix {python_home}",
                "mpi4py looks for an MPI in its own prefix first, so the host's could never replace it",
            )
    for target in table("files"):
        if (why := _bad_target(target)) is not None:
            yield Mistake(("files", target), f"`files` cannot lay a file at {target!r}", why)
        elif above := [p for p in map(str, PurePosixPath(target).parents) if p in table("files")]:
            yield Mistake(
                ("files", target),
                f"`files` cannot lay a file at {target!r}",
                f"{above[0]} is a file of [files] too, so it cannot be a folder",
            )
    for variable in table("env"):
        if variable in _OWN_VARIABLES:
            yield Mistake(
                ("env", variable),
                f"`env.{variable}` cannot be set by a recipe",
                "fairlead sets it in every image, or it would hide the host's MPI",
            )


def _bad_target(path: Any) -> str | None:
    """Why nothing may be put at ``path`` in an image; None when it may."""
    if not isinstance(path, str):
        return "it must be a path"
    if not path.startswith("/") or re.search(r"[\x00-\x20\"'\\$`:]", path):
        return "it must be an absolute path without spaces, quotes, colons or `$`"
    if str(PurePosixPath(path)) != path or ".." in path.split("/") or path == "/":
        return "it must be a plain path: no `..`, no double or closing slash"
    if any(PurePosixPath(path).is_relative_to(own) for own in _OWN_FOLDERS):
        return f"{', '.join(_OWN_FOLDERS)} belong to fairlead and the engines"
    return None


def _file(folder: Path, target: str, source: str, given: str) -> RecipeFile | Finding:
    what = f"`files` names a source that cannot be used: {source!r}"
    remedy = f"edit [files], then `fairlead recipe check {given}`"
    try:
        path = (folder / source).resolve()
        if not path.is_relative_to(folder.resolve()):
            why = "it lies outside the recipe's folder"
        elif not path.is_file():
            why = f"{path} is not a file"
        else:
            mode = 0o755 if path.stat().st_mode & 0o111 else 0o644
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            return RecipeFile(target, path, mode, digest)
    except (OSError, ValueError) as exc:
        why = str(exc)
    return error(
        what,
        where=f"{folder / 'recipe.toml'}, files.{target}",
        why=why,
        remedy=remedy,
        check="recipe-file",
    )
