"""Sharded HDF5 files of labelled images, in the layout of the published HEP-CNN data.

A file has ``data[N,3,S,S]`` float32, ``label[N]`` int32, ``normweight[N]``, ``weight[N]`` and
``psr[N]`` float32; its name contains ``train`` or ``val``. Files get their names when they are
whole, and carry checksums, so a truncated or altered file is named when it is read.
:class:`Rows` gives each rank its part; :mod:`fairlead.data.generate` writes the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fairlead.data import VERSION
from fairlead.data.hep import Events
from fairlead.findings import FairleadError, fail
from fairlead.paths import atomic_write

_CHUNK = 64  # events that share a checksum, 3 MB


@dataclass(frozen=True)
class Span:
    """A run of rows of one file: ``path[start:stop]``."""

    path: Path
    start: int
    stop: int


def shard_path(folder: Path, split: str, index: int) -> Path:
    """``hep_train_00003.h5``."""
    return folder / f"hep_{split}_{index:05d}.h5"


def write_shard(path: Path, events: Events, identity: str) -> None:
    """Writes one file; it has its name only once it is whole.

    Args:
        identity: what the events were made from; :func:`is_whole` compares it.
    """
    import h5py

    count, *image = events.images.shape
    ones = np.ones(count, np.float32)
    with atomic_write(path, "w+b") as stream, h5py.File(stream, "w") as file:
        file.attrs["identity"] = identity
        file.attrs["generator"] = VERSION
        columns: dict[str, npt.NDArray[Any]] = {
            "data": events.images,
            "label": events.labels,
            "normweight": ones,
            "weight": ones,
            "psr": np.zeros(count, np.float32),
        }
        for name, values in columns.items():
            chunk = (min(_CHUNK, count), *(image if name == "data" else ()))
            file.create_dataset(name, data=values, chunks=chunk, fletcher32=True)


def is_whole(path: Path, identity: str, events: int) -> bool:
    """Whether ``path`` is a readable shard of ``events`` events made from ``identity``."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            return bool(file.attrs["identity"] == identity and len(file["data"]) == events)
    except (OSError, KeyError):
        return False


def find_shards(folder: Path, split: str) -> tuple[Path, ...]:
    """The files of ``split`` in ``folder``, sorted.

    Raises:
        FairleadError: there is none.
    """
    paths = tuple(sorted(folder.glob(f"*{split}*.h5")))
    if not paths:
        raise fail(
            f"no {split} files in the data folder",
            where=f"{folder}/*{split}*.h5",
            why="HEP-CNN data are HDF5 files whose names contain `train` or `val`",
            remedy=f"python3 -m fairlead.data.generate --out {folder}",
            check="data-missing",
        )
    return paths


class Rows:
    """One rank's rows of a split: a contiguous share of all rows, whatever the files' sizes.

    Shares differ by one row at most, and there may be more ranks than files.

    Attributes:
        spans: the rank's share, file by file.
        total: rows of all ranks together.
    """

    def __init__(self, folder: Path, split: str, rank: int, ranks: int):
        paths = find_shards(folder, split)
        ends = np.cumsum([_length(path) for path in paths])
        self.total = int(ends[-1])
        low, high = self.total * rank // ranks, self.total * (rank + 1) // ranks
        self.spans = tuple(
            Span(path, max(low - begin, 0), min(high, end) - begin)
            for path, begin, end in zip(paths, [0, *ends[:-1].tolist()], ends.tolist(), strict=True)
            if low < end and begin < high
        )
        self._smallest_share = self.total // ranks

    def __len__(self) -> int:
        return sum(span.stop - span.start for span in self.spans)

    def batches_per_epoch(self, batch: int) -> int:
        """Full batches that *every* rank has in an epoch, so that all take the same steps."""
        return self._smallest_share // batch

    def in_order(self, batch: int) -> Iterator[Events]:
        """The rank's rows once, in order; the last batch may be smaller."""
        for span in self.spans:
            for start in range(span.start, span.stop, batch):
                yield read(Span(span.path, start, min(start + batch, span.stop)))

    def shuffled(self, batch: int, seed: int, epoch: int) -> Iterator[Events]:
        """Full batches of one epoch: files in a drawn order, rows shuffled within each.

        Holds one file's share at a time. Yields :meth:`batches_per_epoch` batches, the same ones
        for the same arguments.
        """
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(epoch,)))
        left = self.batches_per_epoch(batch)
        over = _NOTHING
        for index in rng.permutation(len(self.spans)):
            held = read(self.spans[index])
            order = rng.permutation(len(held.labels))
            images, labels = held.images[order], held.labels[order]
            if len(over.labels):
                images = np.concatenate([over.images, images])
                labels = np.concatenate([over.labels, labels])
            full = min(len(labels) // batch, left)
            for start in range(0, full * batch, batch):
                yield Events(images[start : start + batch], labels[start : start + batch])
            left -= full
            over = Events(images[full * batch :], labels[full * batch :])


_NOTHING = Events(np.empty((0, 0, 0, 0), np.float32), np.empty(0, np.int32))


def read(span: Span) -> Events:
    """The events of a span.

    Raises:
        FairleadError: the file cannot be read, or its checksums say that it was altered.
    """
    import h5py

    try:
        with h5py.File(span.path, "r") as file:
            rows = slice(span.start, span.stop)
            return Events(file["data"][rows], file["label"][rows].astype(np.int32))
    except (OSError, KeyError) as exc:
        raise _damaged(span.path, exc) from exc


def _length(path: Path) -> int:
    import h5py

    try:
        with h5py.File(path, "r") as file:
            return len(file["data"])
    except (OSError, KeyError) as exc:
        raise _damaged(path, exc) from exc


def _damaged(path: Path, exc: Exception) -> FairleadError:
    return fail(
        f"{path.name} is not a whole HEP-CNN file",
        where=str(path),
        why=f"truncated, altered or of another kind: {exc}",
        remedy=f"rm {path}; generated files come back with the next `fairlead train hepcnn`,"
        " others must be copied again",
        check="data-damaged",
    )
