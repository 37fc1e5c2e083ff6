"""Single files of samples: those of any form are read; HDF5 as HEP-CNN's published data, and TFRecord, are written.

:func:`opened` recognises a file by its bytes and by the names in it (:mod:`fairlead.ml.data.formats`). What it returns
counts rows cheaply and reads a part of them. :mod:`fairlead.ml.data.manifest` examines all files of a split.

:func:`write_shard` gives a file its name once it is complete, with checksums and with what it was made from, so that
generating data again keeps existing files. Its bytes depend only on its samples, form and ``identity``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from fairlead.base.data_list import NAME, sha256
from fairlead.base.errors import fail
from fairlead.base.paths import atomic_write
from fairlead.ml.data import hdf5, tfrecord
from fairlead.ml.data.example import BadExample, Feature, decode, encode
from fairlead.ml.data.formats import HDF5, TFRECORD, BadSample, Form, forms, looked_for, recognised
from fairlead.ml.data.samples import Array, DamagedFile, Draw, Layout, Samples, UnfitFile
from fairlead.ml.data.values import Unfit, fitted

_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_VERIFY_BYTES = 64 << 20

# Of files that are written, by name, as the command line takes it: the suffix.
FORMATS = {"hdf5": ".h5", "tfrecord": ".tfrecord", "tfrecord-gzip": ".tfrecord.gz"}

_CHUNK = 64  # samples that share a checksum in HDF5, of HEP-CNN 3 MB
_CHUNK_BYTES = 64 << 20
_IDENTITY = "identity"  # a feature of each record, an attribute of an HDF5 file

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


def opened(
    path: Path, form: Form | None = None, external: bool = False, sha256: str = ""
) -> HDF5File | RecordFile:
    """The file of a form that is known already, or recognised.

    Args:
        external: whether an HDF5 file may have its values in other files.
        sha256: that the list of files has of it; empty without a list.
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
    if form.container == HDF5:
        return HDF5File(path, form, external, sha256)
    return RecordFile(path, form)


def _state(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


@cache
def _digest(path: Path, size: int, mtime_ns: int) -> str:
    """Of a file that has not changed since; read at most once, and only where zeros were found."""
    return sha256(path)


def _names(path: Path, container: str) -> list[str]:
    """Of datasets, or of the first record's features."""
    if container == HDF5:
        with hdf5.opened(path, HDF5) as file:
            return hdf5.names(file)
    for record in tfrecord.records(path, 0, 1):
        return list(_features(path, 0, record))
    raise DamagedFile(path, "it has no sample", TFRECORD)


@dataclass(frozen=True)
class _File:
    path: Path
    form: Form

    def _damaged(self, why: str) -> DamagedFile:
        return DamagedFile(self.path, why, self.form.title)

    def _fitted(
        self, values: Array, dtype: npt.DTypeLike, name: str, numbers: Sequence[int] | Rows
    ) -> Array:
        """``values``, (n, ...), in ``dtype``; ``numbers`` are those of their rows, for the error."""
        try:
            return fitted(values, dtype)
        except Unfit as exc:
            raise UnfitFile(self.path, f"row {numbers[exc.row]} of `{name}` is {exc}") from exc


@dataclass(frozen=True)
class HDF5File(_File):
    """A file with a dataset of inputs and one of targets.

    Attributes:
        external: whether their values may be in other files.
        sha256: that the list of files has of it; empty without a list.
    """

    external: bool = False
    sha256: str = ""

    def rows(self) -> int:
        """Number of samples; reads only lengths, and what says where values lie.

        Raises:
            DamagedFile: these show that it is not whole.
        """
        with hdf5.opened(self.path, self.form.title) as file:
            both = self._datasets(file)
            for name, dataset in zip(self._names, both, strict=True):
                if why := hdf5.absent(dataset):
                    raise self._damaged(f"`{name}` {why}")
            return 1 if self.form.single else len(both[0])

    def layout(self) -> Layout:
        """Shape and dtype of its samples, from the first."""
        with hdf5.opened(self.path, self.form.title) as file:
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
        held = self._read(start, stop, self._find_erased_rows)

        def put(rows: Rows, out: Samples, at: int, draws: Sequence[Draw]) -> None:
            for name, source, target in zip(
                self._names, held, (out.inputs, out.targets), strict=True
            ):
                if source.shape[1:] != target.shape[1:]:
                    raise self._damaged(
                        f"its samples are {source.shape[1:]}, not {target.shape[1:]}"
                    )
                numbers = start + rows
                target[at : at + len(rows)] = self._fitted(
                    source[rows], target.dtype, name, numbers
                )

        return put

    def verify(self, layout: Layout, known: bool = False) -> int:
        """Reads all of it; returns the number of rows.

        Args:
            known: its digest is right, so that zeros are what was written.
        Raises:
            DamagedFile: a checksum is wrong, a value does not fit, or a sample does not have ``layout``.
        """
        rows, own = self.rows(), self.layout()
        if own != layout:
            raise self._damaged(f"it has {own}, not {layout}")
        if not known:
            self._find_erased(layout)
        step = max(_VERIFY_BYTES // layout.bytes, 1)
        for start in range(0, rows, step):
            held = self._read(start, min(start + step, rows))
            kinds = (layout.input_dtype, layout.target_dtype)
            for name, source, kind in zip(self._names, held, kinds, strict=True):
                self._fitted(source, kind, name, range(start, rows))
        return rows

    def _find_erased_rows(self, both: tuple[Any, Any], start: int, stop: int) -> None:
        """Raises DamagedFile where a chunk of these rows was perhaps erased: the file's digest decides, where it is
        listed. Without a list, zeros of targets are left: they may be a class.
        """
        for name, dataset in zip(self._names, both, strict=True):
            if name == self.form.target and not self.sha256:
                continue
            row = hdf5.zeroed(dataset) if self.form.single else hdf5.zeroed(dataset, start, stop)
            if row is None:
                continue
            if not self.sha256 or _digest(self.path, *_state(self.path)) != self.sha256:
                raise self._erased(name, row)

    def _erased(self, name: str, row: int) -> DamagedFile:
        then = (
            f"its sha256 is not the one in {NAME}" if self.sha256
            else "if they are meant, list the files: python3 -m fairlead.ml.data.manifest FOLDER"
        )  # fmt: skip
        return self._damaged(
            f"the chunk of `{name}` at row {row} consists of zeros, for which Fletcher-32 is zero, too; {then}"
        )

    def _find_erased(self, layout: Layout) -> None:
        """Raises DamagedFile where a chunk was perhaps erased. Zeros are also a class: those of targets are left."""
        with hdf5.opened(self.path, self.form.title) as file:
            inputs, targets = self._datasets(file)
            classes = np.dtype(layout.target_dtype).kind == "i"
            for name, dataset in zip(
                self._names, (inputs, *(() if classes else (targets,))), strict=False
            ):
                if (row := hdf5.zeroed(dataset)) is not None:
                    raise self._erased(name, row)

    def _read(
        self, start: int, stop: int, look: Callable[[tuple[Any, Any], int, int], None] | None = None
    ) -> tuple[Array, Array]:
        """Inputs and targets of rows ``start`` to ``stop``, as they are stored; ``look`` is shown their datasets first."""
        with hdf5.opened(self.path, self.form.title) as file:
            inputs, targets = self._datasets(file)
            if not self.form.single and len(inputs) < stop:
                raise self._damaged(f"{len(inputs)} rows, not {stop}")
            if look:
                look((inputs, targets), start, stop)
            if self.form.single:
                return inputs[()][None], targets[()][None]
            return inputs[start:stop], targets[start:stop]

    @property
    def _names(self) -> tuple[str, str]:
        return self.form.input, self.form.target

    def _datasets(self, file: Any) -> tuple[Any, Any]:
        """The two datasets, if they are numeric and of equal length."""
        inputs, targets = (
            hdf5.dataset(file, name, self.path, self.external) for name in self._names
        )
        shapes = [getattr(dataset, "shape", None) or () for dataset in (inputs, targets)]
        kinds = [getattr(dataset, "dtype", "no dataset") for dataset in (inputs, targets)]
        numbers = all(isinstance(kind, np.dtype) and kind.kind in "iuf" for kind in kinds)
        fit = self.form.single or shapes[0][:1] == shapes[1][:1]
        if not (numbers and all(shapes) and len(shapes[0]) > 1 and fit):
            each = zip(self._names, kinds, shapes, strict=True)
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

    def verify(self, layout: Layout, known: bool = False) -> int:
        rows, kinds = 0, (layout.input_dtype, layout.target_dtype)
        for number, record in enumerate(tfrecord.records(self.path)):
            shapes = (layout.input_shape, layout.target_shape)
            for _ in self._checked(number, record, Draw(), shapes, kinds):
                pass
            rows += 1
        return rows

    def _copy(self, number: int, record: memoryview, draw: Draw, out: Samples, at: int) -> None:
        both = (out.inputs, out.targets)
        shapes, kinds = [each.shape[1:] for each in both], [each.dtype for each in both]
        for source, target in zip(
            self._checked(number, record, draw, shapes, kinds), both, strict=True
        ):
            target[at] = source

    def _checked(
        self,
        number: int,
        record: memoryview,
        draw: Draw,
        shapes: Sequence[tuple[int, ...]],
        kinds: Sequence[npt.DTypeLike],
    ) -> Iterator[Array]:
        """Input and target of a record, if they have these shapes and values that fit these types."""
        names = (self.form.input, self.form.target)
        for name, source, shape, kind in zip(
            names, self._sample(number, record, draw), shapes, kinds, strict=True
        ):
            if source.shape != shape:
                raise self._damaged(f"record {number} is {source.shape}, not {shape}")
            yield self._fitted(source[None], kind, name, (number,))[0]

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


def write_shard(
    path: Path, samples: Samples, identity: str, data_set: str = "hep", version: int = 1
) -> None:
    """Writes one file, which gets its name only once it is complete.

    Args:
        path: its suffix selects one of :data:`FORMATS`.
        identity: facts that determine the samples; :func:`is_whole` compares it.
        version: of the generator; HDF5 files have it as a separate attribute.
    """
    kind = format_of(path)
    with atomic_write(path, "w+b") as stream:
        if kind == "hdf5":
            _write_hdf5(stream, _form(data_set, HDF5), samples, identity, version)
        else:
            how = (
                tfrecord.Compression.GZIP if kind == "tfrecord-gzip" else tfrecord.Compression.NONE
            )
            form = _form(data_set, TFRECORD)
            with tfrecord.Writer(stream, how) as out:
                for row in range(len(samples)):
                    out.write(_record(form, samples, row, identity))


def is_whole(path: Path, identity: str, rows: int) -> bool:
    """Whether ``path`` is a readable file of ``rows`` samples made from ``identity``, judged by lengths."""
    try:
        if format_of(path) == "hdf5":
            with hdf5.opened(path, HDF5) as file:
                there = hdf5.names(file)
                name = next(f.input for f in forms() if f.container == HDF5 and f.input in there)
                same = len(hdf5.dataset(file, name, path)) == rows
                return bool(file.attrs[_IDENTITY] == identity and same)
        if tfrecord.count(path) != rows:
            return False
        first = decode(next(tfrecord.records(path, 0, 1)))
    except (OSError, DamagedFile, BadExample, StopIteration):
        return False
    kept = first.get(_IDENTITY)
    return isinstance(kept, tuple) and [bytes(text) for text in kept] == [identity.encode()]


def format_of(path: Path) -> str:
    """The key of :data:`FORMATS` that a file's name ends with."""
    return next(kind for kind, suffix in reversed(FORMATS.items()) if path.name.endswith(suffix))


def _form(data_set: str, container: str) -> Form:
    """The first form of a data set is the one that is written."""
    return next(f for f in forms() if (f.data_set, f.container) == (data_set, container))


def _write_hdf5(
    stream: IO[bytes], form: Form, samples: Samples, identity: str, version: int
) -> None:
    import h5py

    count, row_bytes = len(samples), samples.inputs[:1].nbytes
    rows = min(_CHUNK, count, max(_CHUNK_BYTES // row_bytes, 1))
    with h5py.File(stream, "w") as file:
        file.attrs[_IDENTITY] = identity
        file.attrs["generator"] = version
        for name, values in _columns(form, samples).items():
            chunk = (rows, *values.shape[1:])
            file.create_dataset(name, data=values, chunks=chunk, fletcher32=True)


def _columns(form: Form, samples: Samples) -> dict[str, Array]:
    constants = {name: np.full(len(samples), value, np.float32) for name, value in form.constants}
    return {form.input: samples.inputs, form.target: samples.targets, **constants}


def _record(form: Form, samples: Samples, row: int, identity: str) -> bytes:
    features: dict[str, bytes | Sequence[bytes] | Array] = {_IDENTITY: identity.encode()}
    for name, values in _columns(form, samples).items():
        value = values[row]
        if name == form.input:
            features[name] = value.astype(value.dtype.newbyteorder("<")).tobytes()
        elif name == form.target and values.dtype == np.int32:
            features[name] = np.array([value], np.int64)
        else:
            features[name] = np.atleast_1d(value).astype(np.float32)
    return encode(features)
