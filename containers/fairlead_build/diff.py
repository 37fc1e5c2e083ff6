"""What two images differ in: packages, MPI, environment, labels, and every file.

Equal digests end the comparison early: two images that fairlead built are compared without being
read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead.base.paths import cache_dir
from fairlead.base.progress import Progress
from fairlead.elf.mpi_standard import standard_floor
from fairlead.image.contents import known_tree
from fairlead.image.open import Image
from fairlead.image.tree_digest import Entry, Tree
from fairlead_build.base.digest import sha256_of
from fairlead_build.squashfs.tree_stream import image_tree


@dataclass(frozen=True)
class Change:
    """One difference. ``old`` is empty for what was added, ``new`` for what was removed."""

    name: str
    old: str
    new: str


@dataclass(frozen=True)
class FileChange:
    """One path that differs.

    Attributes:
        kind: ``added``, ``removed`` or ``changed``.
        what: of a change, in words: ``content``, ``mode 644 -> 755``, …; else what it is.
        bytes: by how much the file is larger in the second image.
    """

    kind: str
    path: str
    what: str
    bytes: int


@dataclass(frozen=True)
class Difference:
    """The answer.

    Attributes:
        same_bits: the two files are equal, byte by byte.
        same_tree: they hold the same tree, whatever it is wrapped in.
        system: distribution, glibc, Python, recipe and lock.
        files: sorted by path; empty when the trees are the same.
    """

    same_bits: bool
    same_tree: bool
    system: tuple[Change, ...] = ()
    packages: tuple[Change, ...] = ()
    mpi: tuple[Change, ...] = ()
    environment: tuple[Change, ...] = ()
    labels: tuple[Change, ...] = ()
    files: tuple[FileChange, ...] = ()


def compare(a: Image, b: Image, progress: Progress) -> Difference:
    """What ``b`` has that ``a`` has not, and the reverse.

    Raises:
        FairleadError: one of them is damaged.
        OSError: a part of a folder cannot be read.
    """
    comparable = "sandbox" not in (a.format, b.format) and a.bytes == b.bytes
    same_bits = comparable and sha256_of(Path(a.path)) == sha256_of(Path(b.path))
    facts = cache_dir() / "facts"
    known = [known_tree(i.digest, facts) for i in (a, b) if i.digest]
    same_squashfs = bool(a.digest) and a.digest == b.digest
    if same_bits or same_squashfs or (len(known) == 2 and known[0] and known[0] == known[1]):
        return Difference(same_bits, True)
    trees = []
    for path in (Path(a.path), Path(b.path)):
        with progress.stage(f"reading {path.name}", unit="B") as stage:
            trees.append(image_tree(path, stage.advance))
    files = compare_trees(*trees)
    if not files:
        return Difference(False, True)
    return Difference(
        same_bits=False,
        same_tree=False,
        system=changes(_system(a), _system(b)),
        packages=changes(_packages(a), _packages(b)),
        mpi=changes(_mpi(a), _mpi(b)),
        environment=changes(a.env, b.env),
        labels=changes(a.record.get("labels", {}), b.record.get("labels", {})),
        files=files,
    )


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[Change, ...]:
    """The differences of two tables, sorted by name."""
    return tuple(
        Change(name, old.get(name, ""), new.get(name, ""))
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    )


def _system(image: Image) -> dict[str, str]:
    facts, record = image.facts, image.record
    return {
        "system": f"{facts.os}, {facts.arch}",
        "glibc": facts.glibc,
        "glibc needed": facts.glibc_floor,
        "Python": facts.python,
        "recipe": str(record.get("recipe", "")),
        "lock": str(record.get("lock_sha256", "")),
        "fairlead": str(record.get("fairlead_version", "")),
    }


def _packages(image: Image) -> dict[str, str]:
    names = {"deb": "Debian", "wheel": "Python"}
    return {
        f"{names.get(kind, kind)}: {name}": version
        for kind, table in image.packages.items()
        for name, version in table.items()
    }


def _mpi(image: Image) -> dict[str, str]:
    table = {m.path: f"{m.title} ({m.family.value}, MPI {m.level})" for m in image.facts.mpis}
    for elf in image.facts.consumers:
        if floor := standard_floor(elf.mpi_imports):
            table[elf.path] = f"calls up to MPI {floor}"
    return table


def compare_trees(old: Tree, new: Tree) -> tuple[FileChange, ...]:
    """The paths in which two trees differ, sorted."""
    differing = []
    for path in sorted(path for path in {*old, *new} if old.get(path) != new.get(path)):
        before, after = old.get(path), new.get(path)
        growth = _size(after) - _size(before)
        if before is not None and after is not None:
            differing.append(FileChange("changed", path, _what(before, after), growth))
        elif after is not None:
            differing.append(FileChange("added", path, _named(after), growth))
        elif before is not None:
            differing.append(FileChange("removed", path, _named(before), growth))
    return tuple(differing)


def _size(entry: Entry | None) -> int:
    return int(entry.detail) if entry is not None and entry.kind == "file" else 0


def _named(entry: Entry) -> str:
    return f"link to {entry.detail}" if entry.kind == "link" else entry.kind


def _what(old: Entry, new: Entry) -> str:
    if old.kind != new.kind:
        return f"{_named(old)} -> {_named(new)}"
    differences = []
    if old.kind == "link":
        differences.append(f"link to {old.detail} -> {new.detail}")
    elif old.sha256 != new.sha256:
        differences.append("content")
    elif old.detail != new.detail:
        differences.append(f"device {old.detail} -> {new.detail}")
    if old.mode != new.mode:
        differences.append(f"mode {old.mode:o} -> {new.mode:o}")
    return ", ".join(differences)
