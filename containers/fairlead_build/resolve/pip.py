"""pip as configured on this machine, resolving for an image; and the indexes that it knows.

A lock names an index of wheels by words. ``PyPI`` is whatever this machine's pip calls its index;
``PyTorch CPU`` is what ``FAIRLEAD_INDEX_PYTORCH_CPU`` names, a URL or a folder, and where that is
not set, any of the further places of pip's own configuration.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead.base.errors import FairleadError, fail
from fairlead_build.base import pace
from fairlead_build.base.platform import MACHINES, Architecture
from fairlead_build.base.proc import run

PYPI = "PyPI"
_SLOW = re.compile(r"ERROR: too slow: (\S+) sent (\d+) bytes in ([\d.]+) s$")
_RUNNER = Path(__file__).with_name("pip_runner.py")
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


def pip(target: Target | None = None) -> list[str | Path]:
    """The pip of this Python, without its notices; with a target, as that image's pip would decide."""
    # -P: the current folder may hold a json.py.
    words: list[str | Path] = [sys.executable, "-P"]
    given = {"least": pace.LEAST, "window_s": pace.WINDOW_S}
    words += (
        [_RUNNER, json.dumps({**given, "markers": target.markers})] if target else ["-m", "pip"]
    )
    return [*words, "--disable-pip-version-check", "--no-input"]


def run_pip(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    doing: str,
    remedy: str,
    on_line: Callable[[str], None],
) -> None:
    """Runs pip to its end.

    Raises:
        FairleadError: it failed, or what it reads comes too slowly to ever end.
    """
    slow: list[FairleadError] = []

    def read(line: str) -> None:
        if match := _SLOW.match(line):
            slow.append(pace.too_slow(match[1], int(match[2]), float(match[3])))
        on_line(line)

    try:
        run(argv, env=env, doing=doing, remedy=remedy, on_line=read)
    except FairleadError as exc:
        raise (slow[0] if slow else exc) from None


# What a user's variables and files of pip may set for other work: here it would change the lock, or
# stop pip. A variable counts before a file.
_UNSET = {
    f"PIP_{name}": "0"
    for name in (
        "IGNORE_REQUIRES_PYTHON", "NO_DEPS", "PRE", "REQUIRE_HASHES", "REQUIRE_VIRTUALENV", "USER"
    )
}  # fmt: skip


def pip_environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """This machine's environment and pip configuration, without what would change the result."""
    left_out = (
        "PIP_TARGET", "PIP_PREFIX", "PIP_REQUIREMENT", "PIP_CONSTRAINT", "PIP_NO_BINARY",
        "PIP_EDITABLE", "PIP_ROOT", "PIP_GROUP", "PIP_ALL_RELEASES",
    )  # fmt: skip
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, **_UNSET, "LC_ALL": "C.UTF-8", "PYTHONUTF8": "1", **(changes or {})}


@dataclass(frozen=True)
class Target:
    """The image, as pip describes it.

    Attributes:
        options: which wheels fit, the best platform first.
        markers: what conditions of requirements are evaluated with, as far as images differ (PEP 508).
    """

    options: tuple[str, ...]
    markers: Mapping[str, str]


def target_of(python: str, arch: Architecture, glibc: str, release: str = "") -> Target:
    """The image instead of this machine.

    Args:
        python: its minor version.
        release: all of it, e.g. ``3.9.2``, where that is known.
    """
    machine = MACHINES[arch]
    newest = int(glibc.split(".")[1])
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(newest, 4, -1)]
    for minor, name in _LEGACY.items():
        at = f"manylinux_2_{minor}_{machine}"
        platforms.insert(platforms.index(at) + 1, f"{name}_{machine}")
    platforms.append(f"linux_{machine}")
    options = ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}"]
    options += [f"--abi=cp{python.replace('.', '')}"]
    full = release or f"{python}.0"
    markers = {
        "implementation_name": "cpython",
        "implementation_version": full,
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": full,
        "python_version": python,
        "sys_platform": "linux",
    }
    return Target((*options, *(f"--platform={name}" for name in platforms)), markers)


def variable_of(index: str) -> str:
    """The variable that says where an index is: ``FAIRLEAD_INDEX_PYTORCH_CPU`` for PyTorch CPU."""
    return "FAIRLEAD_INDEX_" + re.sub(r"[^A-Za-z0-9]+", "_", index).strip("_").upper()


def place_of(index: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The URL or the folder of an index that is not PyPI; None when no variable says it.

    Raises:
        FairleadError: the variable names a folder that is not there.
    """
    variable = variable_of(index)
    place = environ.get(variable, "").strip()
    if not place or "://" in place:
        return place.rstrip("/") or None
    folder = Path(place).expanduser()
    if not folder.is_dir():
        raise fail("index-place-missing", index=index, variable=variable, place=place)
    return str(folder.resolve())


def further_places(indexes: Iterable[str]) -> list[str]:
    """pip's options for the indexes that variables name, added to those it is configured for."""
    options = []
    for index in sorted(set(indexes) - {PYPI}):
        if place := place_of(index):
            flag = "--extra-index-url" if "://" in place else "--find-links"
            options += [f"{flag}={place}"]
    return options


def only(index: str, empty: Path) -> dict[str, str]:
    """pip's variables that restrict it to one index.

    Args:
        empty: a folder with nothing in it.
    """
    place = place_of(index)
    nowhere = empty.as_uri()
    if place is None:  # pip's further places, without its main one
        return {"PIP_INDEX_URL": nowhere}
    if "://" in place:
        return {"PIP_INDEX_URL": place, "PIP_EXTRA_INDEX_URL": place, "PIP_FIND_LINKS": str(empty)}
    return {"PIP_INDEX_URL": nowhere, "PIP_EXTRA_INDEX_URL": nowhere, "PIP_FIND_LINKS": place}


@dataclass(frozen=True)
class PipSettings:
    """Where this machine's pip looks.

    Attributes:
        indexes: URLs of simple indexes, the main one first.
        links: folders and pages of ``find-links``.
        certificates: a file of certificates to trust; empty for the usual ones.
    """

    indexes: tuple[str, ...]
    links: tuple[str, ...]
    certificates: str


def settings() -> PipSettings:
    """What pip's own configuration says, files and variables.

    Raises:
        FairleadError: pip cannot read it.
    """
    argv, doing = [*pip(), "config", "list"], "read pip's configuration"
    listing = run(argv, env=pip_environment(), doing=doing, remedy="pip config debug")
    values: dict[str, str] = {}
    rank = {"global": 0, "download": 1, ":env:": 2}
    text = listing.decode("utf-8", "replace")
    rows = re.findall(r"^(\S+)\.([\w-]+)='(.*)'$", text, re.MULTILINE)
    for section, key, value in sorted(rows, key=lambda row: rank.get(row[0], -1)):
        if section in rank and value:
            values[key] = value
    extra = values.get("extra-index-url", "").replace("\\n", " ").split()
    main = [] if values.get("no-index") else [values.get("index-url", "https://pypi.org/simple")]
    return PipSettings(
        indexes=tuple(url.rstrip("/") for url in (*main, *extra)),
        links=tuple(shlex.split(values.get("find-links", "").replace("\\n", " "))),
        certificates=values.get("cert", ""),
    )
