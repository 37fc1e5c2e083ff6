"""What is installed in a tree, from what its package managers left behind: dpkg and Python.

Nothing in the tree is executed, and links in it lead nowhere on this machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from fairlead.base.paths import resolve_in
from fairlead.image.budget import Budget

# dpkg reports the Python modules that Debian packages; what a wheel carries along is its own.
_OUTSIDE = re.compile(r"usr/lib/python3(\.\d+)?/dist-packages$|\.dist-info(/|$)")


@dataclass(frozen=True)
class Package:
    """One installed package.

    Attributes:
        kind: ``deb`` or ``wheel``.
        architecture: of a .deb.
        licence: an SPDX expression when ``spdx``, else in the package's own words; of a .deb empty.
    """

    kind: str
    name: str
    version: str
    architecture: str = ""
    licence: str = ""
    spdx: bool = False


@dataclass(frozen=True)
class Installed:
    """All packages of a tree, sorted. ``distribution`` and ``suite`` are empty if unknown."""

    distribution: str = ""
    suite: str = ""
    packages: tuple[Package, ...] = ()

    def versions(self) -> dict[str, dict[str, str]]:
        """``{"deb": {name: version}, "wheel": {…}}``, as an image's record has them."""
        versions: dict[str, dict[str, str]] = {"deb": {}, "wheel": {}}
        for package in self.packages:
            versions[package.kind][package.name] = package.version
        return versions


# A tree's folders, each with the names of the folders and of the other files in it.
Folders = Sequence[tuple[Path, list[str], list[str]]]


def installed(
    root: Path, budget: Budget | None = None, folders: Folders | None = None
) -> Installed:
    """The packages of the tree at ``root``.

    Args:
        folders: what :func:`walk` yields of it.
    Raises:
        FairleadError: it takes more than ``budget``.
        OSError: a part of it cannot be read.
    """
    budget = budget or Budget(root)
    release = os_release(root, budget)
    folders = list(walk(root, budget)) if folders is None else folders
    packages = {*_debs(root, budget), *_wheels(root, folders, budget)}
    return Installed(
        distribution=release.get("ID", ""),
        suite=release.get("VERSION_CODENAME", ""),
        packages=tuple(sorted(packages, key=lambda p: (p.kind, p.name.lower(), p.version))),
    )


def text_in(root: Path, name: str | Path, budget: Budget) -> str:
    """A file of the tree at ``root``; empty when there is none that can be read.

    Raises:
        FairleadError: it is longer than such files are.
    """
    try:
        inner = resolve_in(root, root / name)
        return budget.text(inner) if inner else ""
    except OSError:
        return ""


def os_release(root: Path, budget: Budget) -> Mapping[str, str]:
    """The fields of the tree's os-release(5)."""
    text = text_in(root, "etc/os-release", budget)
    return dict(re.findall(r'^(\w+)=["\']?([^"\'\n]*)', text, re.MULTILINE))


def belongs_to_kernel(name: str) -> bool:
    """Whether a folder of that name, at the top of a tree, has nothing of the tree's own."""
    return name in ("proc", "sys", "dev")


def walk(root: Path, budget: Budget) -> Iterator[tuple[Path, list[str], list[str]]]:
    """As ``os.walk``, sorted, without the file systems of the kernel, and without folders that may not be read.

    Raises:
        FairleadError: the tree is larger or deeper than ``budget`` allows.
        OSError: a folder cannot be read, as when the image is damaged.
    """
    pending = [(os.fspath(root), 0)]
    while pending:
        folder, depth = pending.pop()
        folders: list[str] = []
        files: list[str] = []
        try:
            with os.scandir(folder) as listing:
                for item in listing:
                    budget.entry(item.path, depth)
                    if not item.is_dir(follow_symlinks=False):
                        files.append(item.name)
                    elif depth or not belongs_to_kernel(item.name):
                        folders.append(item.name)
        except PermissionError:
            continue
        folders.sort()
        yield Path(folder), folders, sorted(files)
        pending += [(os.path.join(folder, name), depth + 1) for name in reversed(folders)]  # noqa: PTH118


def _debs(root: Path, budget: Budget) -> Iterator[Package]:
    dpkg = root / "var/lib/dpkg"
    folder = resolve_in(root, dpkg / "status.d")  # of images without a package manager
    parts = sorted(folder.iterdir()) if folder and folder.is_dir() else []
    texts = [text_in(root, path, budget) for path in (dpkg / "status", *parts)]
    for stanza in re.split(r"\n{2,}", "\n\n".join(texts)):
        keys = dict(re.findall(r"^([\w-]+): (.*)$", stanza, re.MULTILINE))
        state = keys.get("Status", "install ok installed").split()
        if "Package" in keys and "Version" in keys and state[-1:] == ["installed"]:
            yield Package("deb", keys["Package"], keys["Version"], keys.get("Architecture", ""))


def _wheels(root: Path, folders: Folders, budget: Budget) -> Iterator[Package]:
    for folder, inner, _ in folders:
        infos = [folder / name for name in inner if name.endswith(".dist-info")]
        if infos and not _OUTSIDE.search(str(folder)):
            texts = (text_in(root, info / "METADATA", budget) for info in infos)
            yield from filter(None, map(_wheel, texts))


def _wheel(metadata: str) -> Package | None:
    head = HeaderParser().parsestr(metadata.partition("\n\n")[0], headersonly=True)
    name, version = head.get("Name"), head.get("Version")
    if not name or not version:
        return None
    # The core metadata specification: License-Expression is SPDX, License is anything, be it a
    # whole text, and the classifiers have names of their own.
    if expression := head.get("License-Expression"):
        return Package("wheel", name, version, licence=expression.strip(), spdx=True)
    free = (head.get("License") or "").strip()
    if not free or "\n" in free or len(free) > 100 or free.upper() == "UNKNOWN":
        classifiers = [c for c in head.get_all("Classifier", []) if c.startswith("License ::")]
        free = "; ".join(sorted({c.rpartition("::")[2].strip() for c in classifiers}))
    return Package("wheel", name, version, licence=free)


# What people call frameworks, by normalised name; some projects are installed under another name.
_FRAMEWORKS = ("dask", "horovod", "jax", "jupyterlab", "keras", "mpi4py", "pyspark", "pytorch-lightning",
               "tensorflow", "torch")  # fmt: skip
_KNOWN_AS = {
    **{name: name for name in _FRAMEWORKS},
    "tensorflow-cpu": "tensorflow",
    "tensorflow-rocm": "tensorflow",
}


def frameworks(packages: Mapping[str, str]) -> dict[str, str]:
    """Versions of the frameworks among Python ``packages``, by the name they are known by.

    >>> frameworks({"numpy": "2.4.1", "tensorflow_cpu": "2.21.0"})
    {'tensorflow': '2.21.0'}
    """
    versions = {}
    for name, version in packages.items():
        # PEP 503: runs of ``-``, ``_`` and ``.`` are one.
        if known := _KNOWN_AS.get(re.sub(r"[-_.]+", "-", name).lower()):
            versions[known] = version
    return dict(sorted(versions.items()))
