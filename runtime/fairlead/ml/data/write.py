"""Writes samples to files: HDF5 as HEP-CNN's published data, or TFRecord as TensorFlow reads it.

A file gets its name once it is complete, carries checksums, and records what it was made from, so that generating data
again keeps existing files. Its bytes depend only on its samples, form and ``identity``. :mod:`fairlead.ml.data.formats`
defines the names in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from fairlead.base.paths import atomic_write
from fairlead.ml.data import tfrecord
from fairlead.ml.data.example import BadExample, decode, encode
from fairlead.ml.data.formats import HDF5, TFRECORD, Form, forms
from fairlead.ml.data.samples import Array, DamagedFile, Samples
from fairlead.ml.data.tfrecord import Compression

# By name, as the command line takes it: the suffix of files.
FORMATS = {"hdf5": ".h5", "tfrecord": ".tfrecord", "tfrecord-gzip": ".tfrecord.gz"}

_CHUNK = 64  # samples that share a checksum in HDF5, of HEP-CNN 3 MB
_CHUNK_BYTES = 64 << 20
_IDENTITY = "identity"  # a feature of each record, an attribute of an HDF5 file


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
            how = Compression.GZIP if kind == "tfrecord-gzip" else Compression.NONE
            form = _form(data_set, TFRECORD)
            with tfrecord.Writer(stream, how) as out:
                for row in range(len(samples)):
                    out.write(_record(form, samples, row, identity))


def is_whole(path: Path, identity: str, rows: int) -> bool:
    """Whether ``path`` is a readable file of ``rows`` samples made from ``identity``, judged by lengths."""
    if format_of(path) == "hdf5":
        import h5py

        try:
            with h5py.File(path, "r") as file:
                name = next(f.input for f in forms() if f.container == HDF5 and f.input in file)
                return bool(file.attrs["identity"] == identity and len(file[name]) == rows)
        except (OSError, KeyError, StopIteration):
            return False
    try:
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
        file.attrs["identity"] = identity
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
