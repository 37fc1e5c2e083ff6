"""Single files of samples, in any form: their rows and layout.

:func:`opened` recognises a file by its bytes and by the names in it (:mod:`fairlead.ml.data.formats`). What it returns
counts rows cheaply and reads a part of them. :mod:`fairlead.ml.data.manifest` examines all files of a split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fairlead.base.errors import fail
from fairlead.ml.data import tfrecord
from fairlead.ml.data.example import BadExample, Feature, decode
from fairlead.ml.data.formats import HDF5, TFRECORD, BadSample, Form, looked_for, recognised
from fairlead.ml.data.samples import Array, DamagedFile, Draw, Layout, Samples

_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_VERIFY_BYTES = 64 << 20

Rows = npt.NDArray[np.int64]
# ``put(rows, out, at, draws)`` copies rows, numbered from the first that is held, to ``out`` from ``at`` on. It raises
# DamagedFile where one is not a sample, or of another shape than the others.
Put = Callable[[Rows, Samples, int, Sequence[Draw]], None]


def container_of(path: Path) -> str:
    """:data:`HDF5` or :data:`TFRECORD`, by the first bytes.

    Raises:
        DamagedFile: it is neither, or empty.
    """
    try:
        with path.open("rb") as stream:
            if not stream.read(1):
                raise DamagedFile(path, "it is empty")
            # HDF5 may begin after a user block of 512, 1024, 2048, … bytes.
            for at in (0, 512, 1024, 2048):
                stream.seek(at)
                if stream.read(len(_HDF5_MAGIC)) == _HDF5_MAGIC:
                    return HDF5
        if tfrecord.compression(path) is not None:
            return TFRECORD
    except OSError as exc:
        raise DamagedFile(path, f"it cannot be read: {exc}") from exc
    raise DamagedFile(
        path, "looked for HDF5's magic bytes, a TFRecord's length and its checksum, gzip, zlib"
    )


def opened(path: Path, form: Form | None = None) -> HDF5File | RecordFile:
    """The file of a form that is known already, or recognised.

    Raises:
        DamagedFile: it is not whole, or neither HDF5 nor TFRecord.
        FairleadError: it is of no known form.
    """
    if form is None:
        container = container_of(path)
        names = _names(path, container)
        form = recognised(container, names)
        if form is None:
            raise fail(
                "data-form-unknown",
                path=path,
                names=", ".join(f"`{n}`" for n in sorted(names)[:12]),
                looked_for=looked_for(container),
            )
    return HDF5File(path, form) if form.container == HDF5 else RecordFile(path, form)


def _names(path: Path, container: str) -> list[str]:
    """Of datasets, or of the first record's features."""
    if container == HDF5:
        with _hdf5(path, HDF5) as file:
            # In damaged files, names may not be text.
            return [name for name in file if isinstance(name, str)]
    for record in tfrecord.records(path, 0, 1):
        return list(_features(path, 0, record))
    raise DamagedFile(path, "it has no sample", TFRECORD)


@contextmanager
def _hdf5(path: Path, title: str) -> Iterator[Any]:
    """An HDF5 file open for reading; errors of h5py become a :class:`DamagedFile`."""
    try:
        import h5py
    except ImportError as exc:
        raise fail("data-decoder-hdf5", path=path, reason=exc) from exc
    try:
        file = h5py.File(path, "r")
    except (OSError, RuntimeError, ValueError) as exc:
        raise DamagedFile(path, f"truncated or altered: {exc}", title) from exc
    with file:
        try:
            yield file
        # The place of the damage determines which of these h5py raises.
        except (OSError, KeyError, RuntimeError, ValueError, TypeError) as exc:
            why = f"truncated, altered or of another kind: {exc}"
            raise DamagedFile(path, why, title) from exc


@dataclass(frozen=True)
class _File:
    path: Path
    form: Form

    def _damaged(self, why: str) -> DamagedFile:
        return DamagedFile(self.path, why, self.form.title)


class HDF5File(_File):
    """A file with a dataset of inputs and one of targets."""

    def rows(self) -> int:
        """Number of samples; reads only lengths.

        Raises:
            DamagedFile: the lengths show that it is not whole.
        """
        with _hdf5(self.path, self.form.title) as file:
            inputs, _ = self._datasets(file)
            return 1 if self.form.single else len(inputs)

    def layout(self) -> Layout:
        """Shape and dtype of its samples, from the first."""
        with _hdf5(self.path, self.form.title) as file:
            inputs, targets = self._datasets(file)
            first = 0 if self.form.single else 1
            if first and not len(inputs):
                raise self._damaged("it has no sample")
            layout = self.form.layout(inputs.shape[first:], inputs.dtype, targets.shape[first:])
        if layout.bytes > tfrecord.LIMIT:
            raise self._damaged(f"a sample of {layout.bytes} bytes")
        return layout

    def hold(self, start: int, stop: int, threads: int = 1) -> Put:
        """Reads its rows ``start`` to ``stop``. ``threads`` decode pictures.

        Raises:
            DamagedFile: they are not whole.
        """
        with _hdf5(self.path, self.form.title) as file:
            inputs, targets = self._datasets(file)
            if self.form.single:
                held = inputs[()][None], targets[()][None]
            elif len(inputs) < stop:
                raise self._damaged(f"{len(inputs)} rows, not {stop}")
            else:
                held = inputs[start:stop], targets[start:stop]

        def put(rows: Rows, out: Samples, at: int, draws: Sequence[Draw]) -> None:
            for source, target in zip(held, (out.inputs, out.targets), strict=True):
                if source.shape[1:] != target.shape[1:]:
                    raise self._damaged(
                        f"its samples are {source.shape[1:]}, not {target.shape[1:]}"
                    )
                target[at : at + len(rows)] = source[rows]

        return put

    def verify(self, layout: Layout) -> int:
        """Reads all of it; returns the number of rows.

        Raises:
            DamagedFile: a checksum is wrong, or a sample does not have ``layout``.
        """
        rows, own = self.rows(), self.layout()
        if own != layout:
            raise self._damaged(f"it has {own}, not {layout}")
        step = max(_VERIFY_BYTES // layout.bytes, 1)
        for start in range(0, rows, step):
            self.hold(start, min(start + step, rows))
        return rows

    def _datasets(self, file: Any) -> tuple[Any, Any]:
        """The two datasets, if they are numeric and of equal length."""
        names = (self.form.input, self.form.target)
        inputs, targets = (file[name] for name in names)
        shapes = [getattr(dataset, "shape", None) or () for dataset in (inputs, targets)]
        kinds = [getattr(dataset, "dtype", "no dataset") for dataset in (inputs, targets)]
        numbers = all(isinstance(kind, np.dtype) and kind.kind in "iuf" for kind in kinds)
        fit = self.form.single or shapes[0][:1] == shapes[1][:1]
        if not (numbers and all(shapes) and len(shapes[0]) > 1 and fit):
            each = zip(names, kinds, shapes, strict=True)
            raise self._damaged(
                ", ".join(f"`{name}` is {kind} {shape}" for name, kind, shape in each)
            )
        return inputs, targets


class RecordFile(_File):
    """A file of tf.train.Example messages; its methods are those of :class:`HDF5File`."""

    def rows(self) -> int:
        return tfrecord.count(self.path)

    def layout(self) -> Layout:
        for record in tfrecord.records(self.path, 0, 1):
            inputs, target = self._sample(0, record, Draw())
            return self.form.layout(inputs.shape, inputs.dtype, target.shape)
        raise DamagedFile(self.path, "it has no sample", TFRECORD)

    def hold(self, start: int, stop: int, threads: int = 1) -> Put:
        records = tuple(tfrecord.records(self.path, start, stop))

        # Decoded when they are copied: a photograph is 20 times larger than its JPEG.
        def put(rows: Rows, out: Samples, at: int, draws: Sequence[Draw]) -> None:
            def put_one(place: int) -> None:
                row = int(rows[place])
                self._copy(start + row, records[row], draws[place], out, at + place)

            if threads == 1:
                list(map(put_one, range(len(rows))))
            else:
                with ThreadPoolExecutor(threads) as pool:
                    list(pool.map(put_one, range(len(rows))))

        return put

    def verify(self, layout: Layout) -> int:
        rows, room = 0, layout.empty(1)
        for number, record in enumerate(tfrecord.records(self.path)):
            self._copy(number, record, Draw(), room, 0)
            rows += 1
        return rows

    def _copy(self, number: int, record: memoryview, draw: Draw, out: Samples, at: int) -> None:
        sample = self._sample(number, record, draw)
        for source, target in zip(sample, (out.inputs, out.targets), strict=True):
            if source.shape != target.shape[1:]:
                raise self._damaged(f"record {number} is {source.shape}, not {target.shape[1:]}")
            target[at] = source

    def _sample(self, number: int, record: memoryview, draw: Draw) -> tuple[Array, Array]:
        features = _features(self.path, number, record, self.form.names)
        if not {self.form.input, self.form.target} <= set(features):
            raise self._damaged(f"record {number} lacks {self.form}")
        assert self.form.sample is not None  # as every form of TFRecord has it
        try:
            return self.form.sample(features, draw)
        except BadSample as exc:
            raise self._damaged(f"record {number}: {exc}") from exc


def _features(
    path: Path, number: int, record: memoryview, names: frozenset[str] | None = None
) -> dict[str, Feature]:
    try:
        return decode(record, names)
    except BadExample as exc:
        raise DamagedFile(
            path, f"record {number} is not a tf.train.Example: {exc}", TFRECORD
        ) from exc
