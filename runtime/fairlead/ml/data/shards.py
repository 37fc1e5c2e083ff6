"""Rows of a data set, shared out over ranks: whole batches, shuffled by epoch, from any step on.

:class:`Rows` gives each rank its part of a split, whatever its files are: :mod:`fairlead.ml.data.formats` lists the
data sets, :mod:`fairlead.ml.data.manifest` finds the files and their damage. :mod:`fairlead.ml.data.prefetch` reads ahead
in a thread, :mod:`fairlead.ml.data.speed` measures the speed, and :mod:`fairlead.ml.data.files` writes such files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from fairlead.base.errors import fail
from fairlead.ml.data import files
from fairlead.ml.data.manifest import Manifest, Shard, read_manifest
from fairlead.ml.data.samples import Draw, Samples
from fairlead.trace.spans import span as recorded

# Bytes of inputs that are held at once: a larger file is read and shuffled in parts.
_PIECE_BYTES = 256 << 20


@dataclass(frozen=True)
class Span:
    """A run of rows of one file, ``path[start:stop]``.

    Attributes:
        first: the number of row ``start`` among all rows of the split.
        sha256: that the list of files has of the file; empty without a list.
    """

    path: Path
    start: int
    stop: int
    first: int = 0
    sha256: str = ""

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Step:
    """A batch and where in the training it belongs."""

    epoch: int
    step: int
    batch: Samples


class Rows:
    """One rank's rows of a split: a contiguous share of all rows, whatever the files' sizes.

    Shares differ by one row at most, and there may be more ranks than files.

    Args:
        source: the folder of the files, or its manifest from :func:`fairlead.ml.data.manifest.read_manifest`, which
            can skip damaged files, verify all of them, and share that work among ranks.
        split: ``train`` or ``val``.
        rank, ranks: the share, and how many there are.
        piece_bytes: of the inputs that are held at once.
        threads: that decode pictures.
    Raises:
        FairleadError: there are no files, or one is damaged.

    Attributes:
        manifest: the files.
        layout: of a sample.
        spans: the rank's share, file by file; of a large file, part by part.
        total: rows of all ranks together.
    """

    def __init__(
        self,
        source: Path | Manifest,
        split: str,
        rank: int,
        ranks: int,
        *,
        piece_bytes: int = _PIECE_BYTES,
        threads: int = 1,
    ):
        self.manifest = source if isinstance(source, Manifest) else read_manifest(source, split)
        self.layout, self.total = self.manifest.layout, self.manifest.total
        low, high = self.total * rank // ranks, self.total * (rank + 1) // ranks
        most = max(piece_bytes // max(self.layout.bytes, 1), 1)
        self.spans = tuple(_spans(self.manifest.shards, low, high, most))
        self._smallest_share = self.total // ranks
        self._threads = threads

    def __len__(self) -> int:
        return sum(map(len, self.spans))

    def batches_per_epoch(self, batch: int) -> int:
        """Full batches that *every* rank has in an epoch, so that all take the same steps."""
        return self._smallest_share // batch

    def in_order(self, batch: int) -> Iterator[Samples]:
        """The rank's rows once, in order, pictures as they are evaluated; the last batch may be smaller."""
        orders = [np.arange(len(span)) for span in self.spans]
        return self._batches(zip(self.spans, orders, strict=True), batch, Draw())

    def shuffled(self, batch: int, seed: int, epoch: int, first: int = 0) -> Iterator[Samples]:
        """Full batches of one epoch: files in a drawn order, rows shuffled within each.

        Holds one span at a time. Yields :meth:`batches_per_epoch` less ``first`` batches, the same ones for
        the same arguments: those of the epoch from its step ``first`` on, without reading earlier ones.
        """
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(epoch,)))
        spans = [self.spans[index] for index in rng.permutation(len(self.spans))]
        orders = [rng.permutation(len(span)) for span in spans]
        training = Draw(self.manifest.split == "train", seed, epoch)
        batches = self._batches(zip(spans, orders, strict=True), batch, training, first * batch)
        return islice(batches, max(self.batches_per_epoch(batch) - first, 0))

    def steps(
        self, batch: int, seed: int, first: int = 0, epochs: int | None = None
    ) -> Iterator[Step]:
        """Batches of epoch after epoch, from step ``first`` of the whole training on.

        Args:
            batch: samples of this rank in a step.
            seed: of the order.
            first: steps that were taken before, in the run that this one continues; ranks, files, ``batch`` and
                ``seed`` must be the same.
            epochs: where it ends; None for never.
        Raises:
            FairleadError: some rank has no full batch.
        """
        each = self.batches_per_epoch(batch)
        if each == 0:
            raise fail(
                "data-too-small",
                shards_path_parent=next((str(s.path.parent) for s in self.manifest.shards), ""),
                total=self.total,
                batch=batch,
            )
        epoch, begin = divmod(first, each)
        while epochs is None or epoch < epochs:
            for step, samples in enumerate(self.shuffled(batch, seed, epoch, begin), begin):
                yield Step(epoch, epoch * each + step, samples)
            epoch, begin = epoch + 1, 0

    def _opened(self, span: Span) -> files.HDF5File | files.RecordFile:
        return files.opened(span.path, self.manifest.form, self.manifest.external, span.sha256)

    def _batches(
        self, plan: Iterable[tuple[Span, files.Rows]], batch: int, draw: Draw, skip: int = 0
    ) -> Iterator[Samples]:
        """Batches of the planned rows after the first ``skip``; the last may be smaller."""
        out, filled = None, 0
        for span, whole in plan:
            order = whole[skip:]
            skip = max(skip - len(whole), 0)
            put = None
            while len(order):
                if put is None:
                    with recorded("read", file=span.path.name, rows=len(span)):
                        file = self._opened(span)
                        put = file.hold(span.start, span.stop, self._threads)
                out = out or self.layout.empty(batch)
                rows, order = order[: batch - filled], order[batch - filled :]
                draws = [replace(draw, row=span.first + int(row)) for row in rows]
                with recorded("decode", rows=len(rows)):
                    put(rows, out, filled, draws)
                filled += len(rows)
                if filled == batch:
                    yield out
                    out, filled = None, 0
        if out is not None:
            yield Samples(out.inputs[:filled], out.targets[:filled])


def _spans(shards: Iterable[Shard], low: int, high: int, most: int) -> Iterator[Span]:
    """Rows ``low`` to ``high`` of all, in runs of ``most`` at most, none over two files."""
    begin = 0
    for shard in shards:
        start, stop = max(low - begin, 0), min(high - begin, shard.rows)
        for at in range(start, stop, most):
            yield Span(shard.path, at, min(at + most, stop), begin + at, shard.sha256)
        begin += shard.rows


def read(span: Span) -> Samples:
    """The samples of a span; pictures as they are evaluated.

    Raises:
        FairleadError: the file cannot be read, or its checksums say that it was altered.
    """
    file = files.opened(span.path, sha256=span.sha256)
    out = file.layout().empty(len(span))
    rows = np.arange(len(span))
    file.hold(span.start, span.stop)(rows, out, 0, [Draw()] * len(span))
    return out
