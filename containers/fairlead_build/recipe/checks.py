"""What is wrong with a recipe as a whole: tables that contradict each other, paths that cannot be.

Reads the merged, raw recipe of ``inherit.py``: anything may be of any type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from fairlead.base.toml import Mistake, mistake_at
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
        yield mistake_at(("base",), "missing-key-base")
        return
    base = _table(data, "base")
    if "image" in base:
        for key in ("distribution", "suite", "components"):
            if key in base:
                yield mistake_at(("base", key), "contradiction-base-key-with-image", key=key)
        return
    if "suite" not in base:
        yield mistake_at(("base",), "missing-key-base-suite")
    distribution = base.get("distribution", "debian")
    allowed = _COMPONENTS.get(distribution) if isinstance(distribution, str) else None
    components = base.get("components")
    for name in components if isinstance(components, list) and allowed else ():
        if isinstance(name, str) and allowed and name not in allowed:
            yield mistake_at(
                ("base", "components"),
                "contradiction-base-component-unknown",
                name=name,
                distribution=distribution.capitalize(),
                allowed=", ".join(allowed),
            )


def _mpi_mistakes(data: dict[str, Any]) -> Iterator[Mistake]:
    mpi, python = _table(data, "mpi"), _table(data, "python")
    if mpi.get("source") == "wheel" and "version" not in mpi:
        yield mistake_at(("mpi",), "contradiction-mpi-version-missing")
    if mpi.get("source") == "apt" and "prefix" in mpi:
        yield mistake_at(("mpi", "prefix"), "contradiction-mpi-prefix-with-apt")
    if mpi.get("source") == "wheel" and not python:
        yield mistake_at(("mpi", "source"), "contradiction-mpi-wheel-needs-python")


def _python_mistakes(data: dict[str, Any]) -> Iterator[Mistake]:
    python, base, packages = _table(data, "python"), _table(data, "base"), _table(data, "packages")
    if packages.get("pip") and not python:
        yield mistake_at(("packages", "pip"), "contradiction-packages-pip-needs-python")
    suite, version = base.get("suite"), python.get("version")
    expected = SUITE_PYTHON.get(suite) if isinstance(suite, str) else None
    if expected and isinstance(version, str) and version != expected:
        distribution = base.get("distribution", "debian")
        title = distribution.capitalize() if isinstance(distribution, str) else "Debian"
        yield mistake_at(
            ("python", "version"),
            "contradiction-python-version-cannot",
            version=version,
            title=title,
            suite=suite,
            expected=expected,
        )
    index = {project(name) for name in _table(packages, "index") if isinstance(name, str)}
    for number, text in enumerate(_list(packages.get("pip"))):
        local = re.search(r"===?\s*[^\s,;]*\+", text) if isinstance(text, str) else None
        if local and project(text) not in index:
            yield mistake_at(
                ("packages", "pip", number),
                "index-unnamed-in-packages",
                text=text,
                project=project(text),
            )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _place_mistakes(data: dict[str, Any]) -> Iterator[Mistake]:
    mpi, python = _table(data, "mpi"), _table(data, "python")
    python_home = python.get("prefix", "/opt/python")
    mpi_home = mpi.get("prefix", f"/opt/{mpi.get('family', 'mpi')}")
    for name, home in (("python", python_home), ("mpi", mpi_home)):
        if (why := bad_target(home)) is not None:
            yield mistake_at(
                (name, "prefix"), "contradiction-prefix-cannot", name=name, home=home, why=why
            )
    own_mpi = mpi.get("source") == "wheel" or "prefix" in mpi
    if own_mpi and isinstance(mpi_home, str) and isinstance(python_home, str):
        inside = PurePosixPath(mpi_home).is_relative_to(python_home)
        if inside or PurePosixPath(python_home).is_relative_to(mpi_home):
            yield mistake_at(
                ("mpi", "prefix"),
                "contradiction-mpi-prefix-overlaps-python",
                mpi_home=mpi_home,
                python_home=python_home,
            )
    files = _table(data, "files")
    for target in files:
        if (why := bad_target(target)) is not None:
            yield mistake_at(
                ("files", target), "contradiction-files-target", target=target, why=why
            )
        elif above := [p for p in map(str, PurePosixPath(target).parents) if p in files]:
            yield mistake_at(
                ("files", target), "contradiction-files-nested", target=target, above=above[0]
            )
    for variable in _table(data, "env"):
        if variable in OWN_VARIABLES:
            yield mistake_at(("env", variable), "contradiction-env-reserved", variable=variable)


def _source_mistakes(data: dict[str, Any]) -> Iterator[Mistake]:
    python = _table(data, "python")
    for number, source in enumerate(_list(data.get("source"))):
        if not isinstance(source, dict):
            continue
        at, name = ("source", number), f"source {source.get('name', number + 1)!r}"
        places = [key for key in ("index", "url", "path", "bundled") if key in source]
        if len(places) != 1:
            yield mistake_at(
                (*at, places[1]) if places else at,
                "contradiction-source-origin",
                name=name,
                places=" and ".join(places),
            )
        if ("url" in source) != ("sha256" in source):
            yield mistake_at(
                (*at, "sha256" if "sha256" in source else "url"),
                "contradiction-url-without-sha256",
                name=name,
            )
        if ("build" in source) == ("run" in source):
            yield mistake_at(
                (*at, "run"),
                "contradiction-build-and-run"
                if "run" in source
                else "contradiction-neither-build-nor-run",
                name=name,
            )
        if "bundled" in source and "build" in source:
            yield mistake_at((*at, "build"), "contradiction-bundled-wheel", name=name)
        if not python and (source.get("build") == "wheel" or source.get("pip")):
            key = "build" if source.get("build") == "wheel" else "pip"
            yield mistake_at((*at, key), "contradiction-source-needs-python", name=name)


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
