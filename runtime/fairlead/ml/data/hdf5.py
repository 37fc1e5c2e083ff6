"""HDF5 files as their authors may have made them: where a dataset's values lie, and whether all of them are there.

HDF5 follows links into other files, reads external files, and assembles virtual datasets from other files. What is
absent there, or was never written, reads as zeros without an error. So values outside of the file are refused unless
they were asked for, and are then looked for; chunks that nobody wrote are refused.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.base.errors import fail
from fairlead.ml.data.samples import DamagedFile, ExternalFile

_LINKS = 16  # soft links in a row
_SOURCES = 8  # virtual datasets of virtual datasets


@contextmanager
def opened(path: Path, title: str) -> Iterator[Any]:
    """An HDF5 file open for reading; errors of h5py become a :class:`DamagedFile`.

    Raises:
        DamagedFile: it is not whole, or the block reads what is not.
        FairleadError: h5py is not installed.
    """
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


def names(file: Any) -> list[str]:
    """The names at the top of a file; what they stand for is not opened."""
    return [name for name in file if isinstance(name, str)]  # in damaged files they may be bytes


def dataset(file: Any, name: str, path: Path, external: bool = False) -> Any:
    """The object called ``name``, a dataset if the file is whole, whose values are in ``path``.

    Args:
        external: whether other files may have its values; :func:`absent` looks for them.
    Raises:
        ExternalFile: other files have its values.
    """
    import h5py

    item = _object(file, name, path, external)
    own = external or not isinstance(item, h5py.Dataset)
    if not own and (item.external or item.is_virtual):
        raise ExternalFile(path, f"`{name}` is in {_elsewhere(item)}")
    return item


def zeroed(array: Any, start: int = 0, stop: int | None = None) -> int | None:
    """The first row of a chunk that consists of zeros together with its checksum, as an erased one does; or None.

    Args:
        start, stop: the rows that chunks have to hold some of; all without them.

    Fletcher-32 of zeros is zero, so HDF5 takes a chunk for whole that a file system has lost. Behind shuffle, and
    where a compression was left out for a chunk, it reads as zeros; deflated zeros do not consist of zeros.
    """
    plan = array.id.get_create_plist()
    filters = [int(plan.get_filter(i)[0]) for i in range(plan.get_nfilters())]
    if _fletcher32() not in filters:
        return None
    rows, *more = (
        range(0, size, step) for size, step in zip(array.shape, array.chunks, strict=True)
    )
    last = len(rows) if stop is None else -(-stop // rows.step)
    with Path(array.file.filename).open("rb") as stream:
        for place in itertools.product(rows[start // rows.step : last], *more):
            if _begins_with_zeros(array, place, stream.fileno()) and _is_zeros(array, place):
                return int(place[0])
    return None


def _is_zeros(array: Any, place: tuple[int, ...]) -> bool:
    """Whether a chunk as it is stored consists of zeros; decoded rows would cost another pass of the checksum."""
    return not np.frombuffer(array.id.read_direct_chunk(place)[1], np.uint8).any()


def _begins_with_zeros(array: Any, place: tuple[int, ...], fd: int) -> bool:
    """Whether a chunk may consist of zeros, by its first bytes: most chunks are not read for that."""
    # Whether chunks are counted from behind a user block depends on HDF5's release.
    if array.file.userblock_size:
        return True
    chunk = array.id.get_chunk_info_by_coord(place)
    return not any(os.pread(fd, min(chunk.size, 256), chunk.byte_offset))


def _fletcher32() -> int:
    import h5py

    return int(h5py.h5z.FILTER_FLETCHER32)


def _object(group: Any, name: str, path: Path, external: bool, links: int = 0) -> Any:
    """What ``name`` leads to; no other file is opened on the way, unless it may be."""
    import h5py

    if links > _LINKS:
        raise OSError(f"more than {_LINKS} soft links lead to `{name}`")
    for part in filter(None, name.split("/")):
        link = group.get(part, getlink=True)
        if isinstance(link, h5py.SoftLink):
            start = group.file if link.path.startswith("/") else group
            group = _object(start, link.path, path, external, links + 1)
            continue
        if isinstance(link, h5py.ExternalLink) and not external:
            raise ExternalFile(path, f"`{name}` is in {link.filename}")
        group = group[part]
    return group


def _elsewhere(array: Any) -> str:
    files = [name for name, _, _ in array.external or ()]
    if array.is_virtual:
        files += [source.file_name for source in array.virtual_sources()]
    return ", ".join(dict.fromkeys(files)) or "files that it does not name"


def absent(array: Any, depth: int = 0) -> str:
    """Why some values of a dataset would be read as zeros, or not at all; "" if they are all there.

    Args:
        depth: of virtual datasets that lead here.
    """
    if array.is_virtual:
        return _unmapped(array, depth)
    if array.external:
        return _short(array)
    if not array.size:
        return ""
    plan = array.id.get_create_plist()
    for number in range(plan.get_nfilters()):
        code, _, _, title = plan.get_filter(number)
        if not _has_filter(code):
            called = title.decode(errors="replace") or "unnamed"
            return f"is encoded by filter {code} ({called}), which this h5py lacks"
    if array.chunks:
        wanted = 1
        for length, chunk in zip(array.shape, array.chunks, strict=True):
            wanted *= -(-length // chunk)
        there = array.id.get_num_chunks()
        return (
            f"has {there} of {wanted} chunks: the others were never written"
            if there < wanted
            else ""
        )
    return "" if array.id.get_storage_size() else "was never written"


def _has_filter(code: int) -> bool:
    import h5py

    return bool(h5py.h5z.filter_avail(code))


def _short(array: Any) -> str:
    """Why external files have too few bytes: HDF5 reads zeros after their end."""
    left = array.size * array.dtype.itemsize
    for name, offset, size in array.external:
        try:
            there = max(Path(name).stat().st_size - offset, 0)
        except OSError as exc:
            return f"is in {name}: {exc.strerror}"
        wanted = min(size, left)
        if there < wanted:
            return f"is in {name}, which lacks {wanted - there} bytes of it"
        left -= wanted
    return f"lacks {left} bytes in its external files" if left else ""


def _unmapped(array: Any, depth: int) -> str:
    """Why a virtual dataset has no value somewhere: HDF5 reads zeros there."""
    if depth > _SOURCES:
        return f"is a virtual dataset of more than {_SOURCES} others"
    mapped = 0
    for source in array.virtual_sources():
        if why := _source_absent(array, source, depth):
            return f"is in `{source.dset_name}` of {source.file_name}: {why}"
        mapped += source.vspace.get_select_npoints()
    missing = array.size - mapped
    return f"is a virtual dataset without a source for {missing} values" if missing > 0 else ""


def _source_absent(array: Any, source: Any, depth: int) -> str:
    own = Path(array.file.filename)
    places = (
        [own]
        if source.file_name == "."
        else [own.parent / source.file_name, Path(source.file_name)]
    )
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        return "there is no such file"
    with opened(path, "HDF5") as file:
        inner = _object(file, source.dset_name, path, external=True)
        # HDF5 does not keep the shape of a source that is used whole, only how many values it gives.
        if source.src_space.get_simple_extent_ndims():
            _, last = source.src_space.get_select_bounds()
            short = any(end >= length for end, length in zip(last, inner.shape, strict=True))
        else:
            short = inner.size < source.vspace.get_select_npoints()
        if short:
            return f"it is {inner.shape}, which is less than is used"
        return absent(inner, depth + 1)
