"""The manifest of a split: its files, which of them are whole, and how many rows each has.

Every rank must come to the same manifest, or ranks would share out different rows. It depends on the files alone, not
on the rank; with ``together``, each rank examines its part of the files, and the results are shared, which is also fast
for many files: each of n ranks opens one file in n.

Counting rows by lengths (:mod:`fairlead.ml.data.files`) is cheap. Damage that only checksums show is found by ``verify``,
which reads everything; without it, such a file stops the run when it is read.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fairlead.base.errors import ExitCode, FairleadError, Finding, Severity, fail
from fairlead.ml.data import files
from fairlead.ml.data.damage import DamagedFile
from fairlead.ml.data.formats import HDF5, TFRECORD, Form, form_of
from fairlead.ml.data.samples import Layout

# As published: ImageNet's files have no suffix.
_NAME = re.compile(r"\.(h5|hdf5|tfrecords?|tfr)(\.(gz|zlib))?$|-\d{5}-of-\d{5}$")
_FOLDERS = {"train": ("train", "training"), "val": ("val", "validation")}
_NAMED = 10  # damaged files that one error names


class Together(Protocol):
    """The part of :class:`fairlead.comm.Comm` that is used here."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def gather(self, value: Any, root: int = 0) -> list[Any] | None: ...
    def broadcast(self, arrays: Sequence[Any], root: int = 0) -> list[Any]: ...


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
            "data-form-both-splits",
            both=both[0],
            both_count=len(both),
            named_count=len(named),
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
    together: Together | None = None,
) -> Manifest:
    """Examines every file of ``split`` in ``folder``. Collective if ``together`` is given.

    Args:
        skip_damaged: leave out files that are not whole, instead of stopping.
        verify: read all files, with their checksums; without it, only lengths.
        together: the ranks that share the work: a :class:`fairlead.comm.Comm`.
    Raises:
        FairleadError: there are no files; they are of no known form, or of several; one is not
            whole and ``skip_damaged`` is False. The same on every rank.
    """
    rank, size = (together.rank, together.size) if together else (0, 1)
    paths = [
        Path(name)
        for name in _from_root(together, lambda: [str(p) for p in find_shards(folder, split)])
    ]
    key, look, bad = _from_root(together, lambda: _first(paths))
    form, layout = form_of(key), Layout(**{k: _tuple(v) for k, v in look.items()})
    mine = [_examined(path, form, layout, verify) for path in paths[rank::size]]
    parts = together.gather(mine) if together else [mine]
    every = _from_root(together, lambda: _in_order(parts or [], len(paths)))
    every[: len(bad)] = [("damaged", why) for why in bad]
    return _manifest(split, paths, form, layout, every, skip_damaged)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, (list, tuple)) else value


def _first(paths: Sequence[Path]) -> tuple[tuple[str, ...], dict[str, Any], list[str]]:
    """Form and layout of the first whole file, which all others must have, as plain values; and
    the damage of the files before it."""
    damaged: list[DamagedFile] = []
    for path in paths:
        try:
            file = files.opened(path)
            return file.form.key, asdict(file.layout()), [exc.why for exc in damaged]
        except DamagedFile as exc:
            damaged.append(exc)
    raise FairleadError([finding for exc in damaged[:_NAMED] for finding in exc.findings])


def _examined(path: Path, form: Form, layout: Layout, verify: bool) -> tuple[str, Any]:
    """``rows`` and their number; or ``damaged`` or ``other``, and the reason."""
    try:
        container = files.container_of(path)
        if container != form.container:
            return "other", f"{container} among {form.container}"
        # A TFRecord file's form would need its first record, which may have 64 MiB.
        file = files.opened(path, form if container == TFRECORD else None)
        if container == HDF5 and (file.form, file.layout()) != (form, layout):
            return "other", f"{file.layout()} among {layout}"
        rows = file.verify(layout) if verify else file.rows()
        return ("rows", rows) if rows else ("damaged", "it has no sample")
    except DamagedFile as exc:
        return "damaged", exc.why
    except FairleadError as exc:
        return "other", exc.findings[0].why
    except OSError as exc:
        return "damaged", f"it cannot be read: {exc}"


def _in_order(parts: list[list[tuple[str, Any]]], count: int) -> list[tuple[str, Any]]:
    """The results of the ranks, each of its n-th files, in the order of the files."""
    return [parts[n % len(parts)][n // len(parts)] for n in range(count)]


def _manifest(
    split: str,
    paths: Sequence[Path],
    form: Form,
    layout: Layout,
    every: Sequence[Sequence[Any]],
    skip_damaged: bool,
) -> Manifest:
    results = [(path, word, value) for path, (word, value) in zip(paths, every, strict=True)]
    others = [(path, why) for path, word, why in results if word == "other"]
    if others:
        raise fail(
            "data-form-mixed",
            split=split,
            others=others[0][0],
            others_1=others[0][1],
            others_count=len(others),
            paths_count=len(paths),
        )
    damaged = tuple(Damage(path, why) for path, word, why in results if word == "damaged")
    shards = tuple(Shard(path, rows) for path, word, rows in results if word == "rows")
    if damaged and not (skip_damaged and shards):
        raise FairleadError(
            [f for d in damaged[:_NAMED] for f in DamagedFile(d.path, d.why, form.title).findings]
        )
    return Manifest(split, form, layout, shards, damaged)


def _from_root(together: Together | None, make: Callable[[], Any]) -> Any:
    """The result of ``make`` on rank 0, a JSON value, or its FairleadError, on every rank."""
    if together is None or together.size == 1:
        return make()
    answer: dict[str, Any] = {}
    if together.rank == 0:
        try:
            answer = {"value": make()}
        except FairleadError as exc:
            answer = {"findings": [f.to_json() for f in exc.findings], "code": int(exc.code)}
    text = np.frombuffer(bytearray(json.dumps(answer).encode()), np.uint8)
    (size,) = together.broadcast([np.array([len(text)], np.int64)])
    (text,) = together.broadcast([text if together.rank == 0 else np.empty(int(size[0]), np.uint8)])
    answer = json.loads(text.tobytes())
    if "findings" in answer:
        findings = [
            Finding(**{**f, "severity": Severity(f["severity"])}) for f in answer["findings"]
        ]
        raise FairleadError(findings, ExitCode(answer["code"]))
    return answer["value"]
