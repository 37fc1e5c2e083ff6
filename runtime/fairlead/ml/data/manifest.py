"""The manifest of a split: its files, which of them are whole, and how many rows each has.

Every rank must come to the same manifest, or ranks would share out different rows. It depends on the files alone, not
on the rank; with ``together``, each rank examines its part of the files, and the results are shared, which is also fast
for many files: each of n ranks opens one file in n.

Counting rows by lengths (:mod:`fairlead.ml.data.files`) is cheap. Damage that only checksums show is found by ``verify``,
which reads everything; without it, such a file stops the run when it is read.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fairlead.base.errors import FairleadError, fail
from fairlead.comm import Comm
from fairlead.comm.frameworks.common import broadcast_object
from fairlead.ml.data import files
from fairlead.ml.data.formats import HDF5, TFRECORD, Form, form_of
from fairlead.ml.data.samples import DamagedFile, Layout

T = TypeVar("T")

# As published: ImageNet's files have no suffix.
_NAME = re.compile(r"\.(h5|hdf5|tfrecords?|tfr)(\.(gz|zlib))?$|-\d{5}-of-\d{5}$")
_FOLDERS = {"train": ("train", "training"), "val": ("val", "validation")}
_NAMED = 10  # damaged files that one error names


@dataclass(frozen=True)
class Shard:
    """A whole file and its rows."""

    path: Path
    rows: int


@dataclass(frozen=True)
class Damage:
    """A file that was left out, and why."""

    path: Path
    why: str


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
    """

    split: str
    form: Form
    layout: Layout
    shards: tuple[Shard, ...]
    damaged: tuple[Damage, ...] = ()

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
    together: Comm | None = None,
) -> Manifest:
    """Examines every file of ``split`` in ``folder``. Collective if ``together`` is given.

    Args:
        skip_damaged: leave out files that are not whole, instead of stopping.
        verify: read all files, with their checksums; without it, only lengths.
        together: the ranks that share the work.
    Raises:
        FairleadError: there are no files; they are of no known form, or of several; one is not
            whole and ``skip_damaged`` is False. The same on every rank.
    """
    rank, size = (together.rank, together.size) if together else (0, 1)
    paths = from_root(together, lambda: find_shards(folder, split))
    key, layout, bad = from_root(together, lambda: _first(paths))
    form = form_of(key)
    mine = [_examined(path, form, layout, verify) for path in paths[rank::size]]
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
        raise FairleadError(
            [f for d in damaged[:_NAMED] for f in DamagedFile(d.path, d.why, form.title).findings]
        )
    return Manifest(split, form, layout, shards, damaged)


def _first(paths: Sequence[Path]) -> tuple[tuple[str, ...], Layout, list[Damage]]:
    """Form and layout of the first whole file, which all others must have, and the damage of the files before it."""
    damaged: list[DamagedFile] = []
    for path in paths:
        try:
            file = files.opened(path)
            return file.form.key, file.layout(), [Damage(exc.path, exc.why) for exc in damaged]
        except DamagedFile as exc:
            damaged.append(exc)
    raise FairleadError([finding for exc in damaged[:_NAMED] for finding in exc.findings])


def _examined(path: Path, form: Form, layout: Layout, verify: bool) -> Shard | Damage:
    try:
        container = files.container_of(path)
        if container != form.container:
            return _Other(path, f"{container} among {form.container}")
        # A TFRecord file's form would need its first record, which may have 64 MiB.
        file = files.opened(path, form if container == TFRECORD else None)
        if container == HDF5 and (file.form, file.layout()) != (form, layout):
            return _Other(path, f"{file.layout()} among {layout}")
        rows = file.verify(layout) if verify else file.rows()
        return Shard(path, rows) if rows else Damage(path, "it has no sample")
    except DamagedFile as exc:
        return Damage(path, exc.why)
    except FairleadError as exc:
        return _Other(path, exc.findings[0].why)
    except OSError as exc:
        return Damage(path, f"it cannot be read: {exc}")


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
