"""What is wrong with a recipe as a whole: tables that contradict each other, paths that cannot be.

Reads the merged, raw recipe of ``inherit.py``: anything may be of any type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from fairlead.base.toml import Mistake
from fairlead_build.recipe.inherit import project

# Which Python a release calls python3.
SUITE_PYTHON = {
    "bullseye": "3.9",
    "bookworm": "3.11",
    "trixie": "3.13",
    "focal": "3.8",
    "jammy": "3.10",
    "noble": "3.12",
}
_COMPONENTS = {
    "debian": ("main", "contrib", "non-free", "non-free-firmware"),
    "ubuntu": ("main", "universe", "restricted", "multiverse"),
}
# Set by fairlead itself, or able to undo the swap of the MPI.
OWN_VARIABLES = ("PATH", "PYTHONNOUSERSITE", "LD_LIBRARY_PATH", "LD_PRELOAD")
_OWN_FOLDERS = ("/.fairlead", "/.singularity.d", "/proc", "/sys", "/dev", "/tmp", "/run")


def cross_mistakes(data: dict[str, Any]) -> Iterator[Mistake]:
    """What single keys cannot show."""
    yield from _base_mistakes(data)
    yield from _mpi_mistakes(data)
    yield from _python_mistakes(data)
    yield from _place_mistakes(data)
    yield from _source_mistakes(data)


def _table(data: dict[str, Any], name: str) -> dict[str, Any]:
    value = data.get(name)
    return value if isinstance(value, dict) else {}


def _base_mistakes(data: dict[str, Any]) -> Iterator[Mistake]:
    if "base" not in data:
        yield Mistake(
            ("base",),
            "`base` is missing",
            "a recipe says what its image starts from, or `extends` one that does",
            "missing-key",
        )
        return
    base = _table(data, "base")
    if "image" in base:
        for key in ("distribution", "suite", "components"):
            if key in base:
                yield Mistake(
                    ("base", key),
                    f"`base.{key}` cannot be combined with `base.image`",
                    "the image says itself what it is made of",
                )
        return
    if "suite" not in base:
        yield Mistake(
            ("base",),
            "`suite` is missing in [base]",
            "a distribution has releases; or give `image`",
            "missing-key",
        )
    distribution = base.get("distribution", "debian")
    allowed = _COMPONENTS.get(distribution) if isinstance(distribution, str) else None
    components = base.get("components")
    for name in components if isinstance(components, list) and allowed else ():
        if isinstance(name, str) and allowed and name not in allowed:
            yield Mistake(
                ("base", "components"),
                f"`base.components` cannot have {name!r}",
                f"{distribution.capitalize()} has {', '.join(allowed)}",
            )


def _mpi_mistakes(data: dict[str, Any]) -> Iterator[Mistake]:
    mpi, python = _table(data, "mpi"), _table(data, "python")
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


def _python_mistakes(data: dict[str, Any]) -> Iterator[Mistake]:
    python, base, packages = _table(data, "python"), _table(data, "base"), _table(data, "packages")
    if packages.get("pip") and not python:
        yield Mistake(
            ("packages", "pip"), "`packages.pip` needs a [python] table", "wheels need a Python"
        )
    suite, version = base.get("suite"), python.get("version")
    expected = SUITE_PYTHON.get(suite) if isinstance(suite, str) else None
    if expected and isinstance(version, str) and version != expected:
        distribution = base.get("distribution", "debian")
        title = distribution.capitalize() if isinstance(distribution, str) else "Debian"
        yield Mistake(
            ("python", "version"),
            f"`python.version` cannot be {version!r}",
            f"{title} {suite} has Python {expected}",
        )
    index = {project(name) for name in _table(packages, "index") if isinstance(name, str)}
    for number, text in enumerate(_list(packages.get("pip"))):
        local = re.search(r"===?\s*[^\s,;]*\+", text) if isinstance(text, str) else None
        if local and project(text) not in index:
            yield Mistake(
                ("packages", "pip", number),
                f"`packages.index` does not say where {text!r} comes from",
                "PyPI has no version with a `+`; "
                f'name its index: `index = {{ {project(text)} = "PyTorch CPU" }}`',
                "index-unnamed",
            )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _place_mistakes(data: dict[str, Any]) -> Iterator[Mistake]:
    mpi, python = _table(data, "mpi"), _table(data, "python")
    python_home = python.get("prefix", "/opt/python")
    mpi_home = mpi.get("prefix", f"/opt/{mpi.get('family', 'mpi')}")
    for name, home in (("python", python_home), ("mpi", mpi_home)):
        if (why := bad_target(home)) is not None:
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
    files = _table(data, "files")
    for target in files:
        if (why := bad_target(target)) is not None:
            yield Mistake(("files", target), f"`files` cannot lay a file at {target!r}", why)
        elif above := [p for p in map(str, PurePosixPath(target).parents) if p in files]:
            yield Mistake(
                ("files", target),
                f"`files` cannot lay a file at {target!r}",
                f"{above[0]} is a file of [files] too, so it cannot be a folder",
            )
    for variable in _table(data, "env"):
        if variable in OWN_VARIABLES:
            yield Mistake(
                ("env", variable),
                f"`env.{variable}` cannot be set by a recipe",
                "fairlead sets it in every image, or it would hide the host's MPI",
            )


def _source_mistakes(data: dict[str, Any]) -> Iterator[Mistake]:
    python = _table(data, "python")
    for number, source in enumerate(_list(data.get("source"))):
        if not isinstance(source, dict):
            continue
        at, name = ("source", number), f"source {source.get('name', number + 1)!r}"
        places = [key for key in ("index", "url", "path", "bundled") if key in source]
        if len(places) != 1:
            yield Mistake(
                (*at, places[1]) if places else at,
                f"{name} needs exactly one of `index`, `url`, `path`, `bundled`",
                f"it has {' and '.join(places) or 'none of them'}",
            )
        if ("url" in source) != ("sha256" in source):
            yield Mistake(
                (*at, "sha256" if "sha256" in source else "url"),
                f"{name} has one of `url` and `sha256` without the other",
                "a checksum is what makes an address safe; archives of an index have theirs there",
            )
        if ("build" in source) == ("run" in source):
            yield Mistake(
                (*at, "run") if "run" in source else at,
                f"{name} needs exactly one of `build`, `run`",
                "it has both" if "run" in source else "nothing says how it is built",
            )
        if "bundled" in source and "build" in source:
            yield Mistake(
                (*at, "build"),
                f"{name} is `bundled`, and cannot be a wheel",
                "its files are laid over the tree, into which wheels are installed",
            )
        if not python and (source.get("build") == "wheel" or source.get("pip")):
            key = "build" if source.get("build") == "wheel" else "pip"
            yield Mistake(
                (*at, key), f"{name} needs a [python] table", "pip and wheels need a Python"
            )


def bad_target(path: Any) -> str | None:
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
