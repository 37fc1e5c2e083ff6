"""What is wrong with a recipe as a whole: tables that contradict each other, paths that cannot be.

Reads the merged, raw recipe of ``inherit.py``: anything may be of any type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from fairlead.base.toml import Mistake, mistake_at
from fairlead_build.recipe.inherit import project, table

# Which Python a release calls python3.
SUITE_PYTHON = {
    "bullseye": "3.9", "bookworm": "3.11", "trixie": "3.13",
    "focal": "3.8", "jammy": "3.10", "noble": "3.12",
}  # fmt: skip
_COMPONENTS = {
    "debian": ("main", "contrib", "non-free", "non-free-firmware"),
    "ubuntu": ("main", "universe", "restricted", "multiverse"),
}
# Set by fairlead itself, or able to undo the swap of the MPI.
OWN_VARIABLES = ("PATH", "PYTHONNOUSERSITE", "LD_LIBRARY_PATH", "LD_PRELOAD")
_OWN_FOLDERS = ("/.fairlead", "/.singularity.d", "/proc", "/sys", "/dev", "/tmp", "/run")


def cross_mistakes(data: dict[str, Any]) -> Iterator[Mistake]:
    """Mistakes that no single key shows."""
    base, mpi, python = table(data.get("base")), table(data.get("mpi")), table(data.get("python"))
    if "base" in data:
        yield from _base_mistakes(base)
    else:
        yield mistake_at(("base",), "missing-key-base")
    if mpi.get("source") == "wheel" and "version" not in mpi:
        yield mistake_at(("mpi",), "contradiction-mpi-version-missing")
    if mpi.get("source") == "apt" and "prefix" in mpi:
        yield mistake_at(("mpi", "prefix"), "contradiction-mpi-prefix-with-apt")
    if mpi.get("source") == "wheel" and not python:
        yield mistake_at(("mpi", "source"), "contradiction-mpi-wheel-needs-python")
    yield from _python_mistakes(python, base, table(data.get("packages")))
    yield from _place_mistakes(mpi, python, table(data.get("files")))
    for variable in table(data.get("env")):
        if variable in OWN_VARIABLES:
            yield mistake_at(("env", variable), "contradiction-env-reserved", variable=variable)
    for number, source in enumerate(_list(data.get("source"))):
        if isinstance(source, dict):
            yield from _source_mistakes(("source", number), source, python)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _base_mistakes(base: dict[str, Any]) -> Iterator[Mistake]:
    if "image" in base:
        for key in ("distribution", "suite", "components"):
            if key in base:
                yield mistake_at(("base", key), "contradiction-base-key-with-image", key=key)
        return
    if "suite" not in base:
        yield mistake_at(("base",), "missing-key-base-suite")
    distribution = base.get("distribution", "debian")
    allowed = _COMPONENTS.get(distribution, ()) if isinstance(distribution, str) else ()
    for name in _list(base.get("components")) if allowed else ():
        if isinstance(name, str) and name not in allowed:
            loc, given = ("base", "components"), {"name": name, "allowed": ", ".join(allowed)}
            title = distribution.capitalize()
            yield mistake_at(loc, "contradiction-base-component-unknown", title=title, **given)


def _python_mistakes(
    python: dict[str, Any], base: dict[str, Any], packages: dict[str, Any]
) -> Iterator[Mistake]:
    if packages.get("pip") and not python:
        yield mistake_at(("packages", "pip"), "contradiction-packages-pip-needs-python")
    suite, version = base.get("suite"), python.get("version")
    expected = SUITE_PYTHON.get(suite) if isinstance(suite, str) else None
    if expected and isinstance(version, str) and version != expected:
        distribution = base.get("distribution", "debian")
        title = distribution.capitalize() if isinstance(distribution, str) else "Debian"
        given = {"version": version, "title": title, "suite": suite, "expected": expected}
        yield mistake_at(("python", "version"), "contradiction-python-version-cannot", **given)
    index = {project(name) for name in table(packages.get("index")) if isinstance(name, str)}
    for number, text in enumerate(_list(packages.get("pip"))):
        local = re.search(r"===?\s*[^\s,;]*\+", text) if isinstance(text, str) else None
        if local and project(text) not in index:
            loc, name = ("packages", "pip", number), project(text)
            yield mistake_at(loc, "index-unnamed-in-packages", text=text, project=name)


def _place_mistakes(
    mpi: dict[str, Any], python: dict[str, Any], files: dict[str, Any]
) -> Iterator[Mistake]:
    python_home = python.get("prefix", "/opt/python")
    mpi_home = mpi.get("prefix", f"/opt/{mpi.get('family', 'mpi')}")
    for name, home in (("python", python_home), ("mpi", mpi_home)):
        if (why := bad_target(home)) is not None:
            loc = (name, "prefix")
            yield mistake_at(loc, "contradiction-prefix-cannot", name=name, home=home, why=why)
    own_mpi = mpi.get("source") == "wheel" or "prefix" in mpi
    if own_mpi and isinstance(mpi_home, str) and isinstance(python_home, str):
        inside = PurePosixPath(mpi_home).is_relative_to(python_home)
        if inside or PurePosixPath(python_home).is_relative_to(mpi_home):
            homes = {"mpi_home": mpi_home, "python_home": python_home}
            yield mistake_at(("mpi", "prefix"), "contradiction-mpi-prefix-overlaps-python", **homes)
    for target in files:
        loc = ("files", target)
        if (why := bad_target(target)) is not None:
            yield mistake_at(loc, "contradiction-files-target", target=target, why=why)
        elif above := [p for p in map(str, PurePosixPath(target).parents) if p in files]:
            yield mistake_at(loc, "contradiction-files-nested", target=target, above=above[0])


def _source_mistakes(
    at: tuple[str, int], source: dict[str, Any], python: dict[str, Any]
) -> Iterator[Mistake]:
    name = f"source {source.get('name', at[1] + 1)!r}"
    places = [key for key in ("index", "url", "path", "bundled") if key in source]
    if len(places) != 1:
        shown = " and ".join(places)
        yield mistake_at(
            (*at, *places[1:2]), "contradiction-source-origin", name=name, places=shown
        )
    if ("url" in source) != ("sha256" in source):
        key = "sha256" if "sha256" in source else "url"
        yield mistake_at((*at, key), "contradiction-url-without-sha256", name=name)
    if "build" in source and "run" in source:
        yield mistake_at((*at, "run"), "contradiction-build-and-run", name=name)
    if "build" not in source and "run" not in source:
        yield mistake_at((*at, "run"), "contradiction-neither-build-nor-run", name=name)
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
