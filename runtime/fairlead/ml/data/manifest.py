"""The manifest of a split: its files, which of them are whole, and how many rows each has.

Every rank must come to the same manifest, or ranks would share out different rows. It depends on the files alone, not
on the rank; with ``together``, each rank examines its part of the files, and the results are shared, which is also fast
for many files: each of n ranks opens one file in n.

Counting rows by lengths (:mod:`fairlead.ml.data.files`) is cheap. Damage that only checksums show is found by ``verify``,
which reads everything; without it, such a file stops the run when it is read. Where the folder has a list of its files
(:mod:`fairlead.base.data_list`), they are compared with it.

``python3 -m fairlead.ml.data.manifest FOLDER`` reads all files of a folder and writes that list.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fairlead.base.data_list import NAME, ListedFile, listed, read_list, sha256, write_list
from fairlead.base.errors import FairleadError, Finding, fail
from fairlead.comm import Comm
from fairlead.comm.frameworks.common import broadcast_object
from fairlead.ml.data import files
from fairlead.ml.data.formats import HDF5, TFRECORD, Form, form_of
from fairlead.ml.data.samples import DamagedFile, Layout
from fairlead.ml.train.events import EventLog

T = TypeVar("T")

# As published: ImageNet's files have no suffix.
_NAME = re.compile(r"\.(h5|hdf5|tfrecords?|tfr)(\.(gz|zlib))?$|-\d{5}-of-\d{5}$")
_FOLDERS = {"train": ("train", "training"), "val": ("val", "validation")}
_NAMED = 10  # damaged files that one error names


@dataclass(frozen=True)
class Shard:
    """A whole file and its rows.

    Attributes:
        sha256: that the list of files has of it; empty without a list.
    """

    path: Path
    rows: int
    sha256: str = ""


@dataclass(frozen=True)
class Damage:
    """A file that was left out, and why.

    Attributes:
        path: the file.
        why: the reason.
        findings: what to raise for it.
    """

    path: Path
    why: str
    findings: tuple[Finding, ...] = ()

    @classmethod
    def of(cls, exc: DamagedFile) -> Damage:
        """Of the error that reading the file raised."""
        return cls(exc.path, exc.why, exc.findings)


@dataclass(frozen=True)
class _Other(Damage):
    """A whole file of another form or layout."""


@dataclass(frozen=True)
class Manifest:
    """The files of a split.

    Attributes:
        split: ``train`` or ``val``.
        form: of all files.
        layout: of each sample.
        shards: whole files, in the order of their names.
        damaged: files that were skipped.
        external: whether values may be in other files than these.
        listed: whether the files were compared with the folder's list; without one, lengths alone speak for them.
    """

    split: str
    form: Form
    layout: Layout
    shards: tuple[Shard, ...]
    damaged: tuple[Damage, ...] = ()
    external: bool = False
    listed: bool = False

    @property
    def total(self) -> int:
        """Number of rows in all files."""
        return sum(shard.rows for shard in self.shards)


def find_shards(folder: Path, split: str) -> tuple[Path, ...]:
    """The files of ``split``, sorted: those in a folder of its name, or those that have it in their names.

    Raises:
        FairleadError: there is none, both kinds are there, or a name has both splits in it.
    """
    inside = [
        path
        for name in _FOLDERS.get(split, (split,))
        for path in (folder / name).glob("*")
        if _counts(path)
    ]
    named = [path for path in folder.glob(f"*{split}*") if _counts(path)]
    if inside and named:
        raise fail(
            "data-form-two-sets",
            split=split,
            folder=folder,
            inside_parent_name=inside[0].parent.name,
            inside_name=inside[0].name,
            named_name=named[0].name,
            inside_count=len(inside),
            named_count=len(named),
            quoted_folder=shlex.quote(str(folder / "other")),
        )
    both = [path for path in named if all(word in path.name for word in _FOLDERS)]
    if both:
        raise fail(
            "data-form-both-splits", both=both[0], both_count=len(both), named_count=len(named)
        )
    if not (paths := inside or named):
        raise fail(
            "data-missing", split=split, folder=folder, quoted_folder=shlex.quote(str(folder))
        )
    return tuple(sorted(paths))


def _counts(path: Path) -> bool:
    return not path.name.startswith(".") and bool(_NAME.search(path.name)) and path.is_file()


def read_manifest(
    folder: Path,
    split: str,
    *,
    skip_damaged: bool = False,
    verify: bool = False,
    external: bool = False,
    together: Comm | None = None,
) -> Manifest:
    """Examines every file of ``split`` in ``folder``. Collective if ``together`` is given.

    Args:
        skip_damaged: leave out files that are not whole, instead of stopping.
        verify: read all files, with their checksums and digests; without it, only lengths.
        external: HDF5 files may have values in other files.
        together: the ranks that share the work.
    Raises:
        FairleadError: there are no files; they are of no known form, or of several; they are not those of the
            folder's list; one is not whole and ``skip_damaged`` is False. The same on every rank.
    """
    rank, size = (together.rank, together.size) if together else (0, 1)
    paths, entries = from_root(together, lambda: _listed(folder, split))
    key, layout, bad = from_root(together, lambda: _first(paths, external))
    look = _Look(form_of(key), layout, verify, external)
    form = look.form
    pairs = list(zip(paths, entries, strict=True))
    mine = [look.examined(path, entry) for path, entry in pairs[rank::size]]
    parts = together.gather(mine) if together else [mine]
    every = from_root(
        together, lambda: [(parts or [])[n % size][n // size] for n in range(len(paths))]
    )
    every = [*bad, *every[len(bad) :]]
    others = [file for file in every if isinstance(file, _Other)]
    if others:
        raise fail(
            "data-form-mixed",
            split=split,
            others=others[0].path,
            others_1=others[0].why,
            others_count=len(others),
            paths_count=len(every),
        )
    damaged = tuple(file for file in every if isinstance(file, Damage))
    shards = tuple(file for file in every if isinstance(file, Shard))
    if damaged and not (skip_damaged and shards):
        raise FairleadError([finding for damage in damaged[:_NAMED] for finding in damage.findings])
    return Manifest(split, form, layout, shards, damaged, external, None not in entries)


def _listed(folder: Path, split: str) -> tuple[tuple[Path, ...], list[ListedFile | None]]:
    """The files of a split, and the entry of each in the folder's list, None without a list.

    Raises:
        FairleadError: as :func:`find_shards`; files are missing that the list has, or the other way round.
    """
    paths, entries = find_shards(folder, split), read_list(folder)
    if entries is None:
        return paths, [None] * len(paths)
    names = [path.relative_to(folder).as_posix() for path in paths]
    missing = sorted(name for name in set(entries) - set(names) if not (folder / name).is_file())
    unknown = [name for name in names if name not in entries]
    if missing or unknown:
        raise fail(
            "data-list-differs",
            folder=folder,
            missing=", ".join(missing[:_NAMED]),
            missing_count=len(missing),
            unknown=", ".join(unknown[:_NAMED]),
            unknown_count=len(unknown),
            quoted_folder=shlex.quote(str(folder)),
        )
    return paths, [entries[name] for name in names]


def _first(paths: Sequence[Path], external: bool) -> tuple[tuple[str, ...], Layout, list[Damage]]:
    """Form and layout of the first whole file, which all others must have, and the damage of the files before it."""
    damaged: list[DamagedFile] = []
    for path in paths:
        try:
            file = files.opened(path, external=external)
            return file.form.key, file.layout(), [Damage.of(exc) for exc in damaged]
        except DamagedFile as exc:
            damaged.append(exc)
    raise FairleadError([finding for exc in damaged[:_NAMED] for finding in exc.findings])


@dataclass(frozen=True)
class _Look:
    """How files are examined: what they all have to be, and how thoroughly."""

    form: Form
    layout: Layout
    verify: bool
    external: bool

    def examined(self, path: Path, entry: ListedFile | None) -> Shard | Damage:
        """One file, compared with its entry in the folder's list."""
        try:
            return self._shard(path, entry)
        except DamagedFile as exc:
            return Damage.of(exc)
        except FairleadError as exc:
            return _Other(path, exc.findings[0].why)
        except OSError as exc:
            return Damage.of(DamagedFile(path, f"it cannot be read: {exc}"))

    def _shard(self, path: Path, entry: ListedFile | None) -> Shard | Damage:
        form, title = self.form, self.form.title
        container = files.container_of(path)
        if container != form.container:
            return _Other(path, f"{container} among {form.container}")
        # A TFRecord file's form would need its first record, which may have 64 MiB.
        file = files.opened(path, form if container == TFRECORD else None, self.external)
        if container == HDF5 and (file.form, file.layout()) != (form, self.layout):
            return _Other(path, f"{file.layout()} among {self.layout}")
        rows = file.verify(self.layout, entry is not None) if self.verify else file.rows()
        if not rows:
            raise DamagedFile(path, "it has no sample", title)
        if entry and (why := entry.differs(path, rows)):
            raise DamagedFile(path, why, title)
        if entry and self.verify and sha256(path) != entry.sha256:
            raise DamagedFile(path, f"its sha256 is not the one in {NAME}", title)
        return Shard(path, rows, entry.sha256 if entry else "")


def from_root(together: Comm | None, make: Callable[[], T]) -> T:
    """The result of ``make`` on rank 0, or its FairleadError, on every rank."""
    if together is None or together.size == 1:
        return make()
    value = error = None
    if together.rank == 0:
        try:
            value = make()
        except FairleadError as exc:
            error = exc
    value, error = broadcast_object(together, (value, error), 0)
    if error is not None:
        raise error
    made: T = value
    return made


def list_folder(folder: Path, external: bool = False) -> int:
    """Reads the files of every split in ``folder``, writes their list, and returns how many there are.

    Raises:
        FairleadError: there are none, or one is damaged.
    """
    entries: list[ListedFile] = []
    for split in _FOLDERS:
        try:
            paths = find_shards(folder, split)
        except FairleadError as exc:
            if exc.findings[0].check != "data-missing":
                raise
            continue
        _, layout, _ = _first(paths, external)
        for path in paths:
            rows = files.opened(path, external=external).verify(layout, known=True)
            entries.append(listed(folder, path, rows))
    if not entries:
        find_shards(folder, "train")
    write_list(folder, entries)
    return len(entries)


def main() -> None:
    """The command line; see ``--help``."""
    parser = argparse.ArgumentParser(
        prog="python3 -m fairlead.ml.data.manifest",
        description="Read all data files of a folder, and list them in its data.json.",
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--external-data", action="store_true", help="HDF5 files may have values in other files"
    )
    given = parser.parse_args()
    try:
        count = list_folder(given.folder, given.external_data)
    except FairleadError as exc:
        EventLog(None).errors(exc)
        raise SystemExit(int(exc.code)) from None
    print(f"{given.folder / NAME}: {count} files")


if __name__ == "__main__":
    main()
