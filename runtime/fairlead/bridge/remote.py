"""URLs of object stores, as the ranks read and write them: one rank lists and marks, all read and write."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

from fairlead.base.data_list import ListedFile
from fairlead.base.errors import FairleadError, fail
from fairlead.objects.model import Listing, Store
from fairlead.objects.ranges import Ranged
from fairlead.objects.registry import open_store
from fairlead.objects.send import Source, begin_result, check_target, end_result, upload
from fairlead.objects.survey import survey
from fairlead.objects.url import hidden, split_name

HDF5 = (".h5", ".hdf5")


def _opened(url: str) -> Store:
    """The store of a URL.

    Raises:
        FairleadError: as :func:`open_store`; the image lacks a package for it.
    """
    try:
        return open_store(url)
    except FairleadError as exc:
        if exc.findings[0].check != "object-package":
            raise
        raise fail("bridge-objects", url=hidden(url), reason=exc.findings[0].why) from None


def located(path: str) -> tuple[Listing, str]:
    """What is at a URL now, whose very versions all ranks then read, and the data set that it names.

    Args:
        path: of Parquet, one file or all below a prefix; or ``URL:DATASET`` of HDF5.
    Raises:
        FairleadError: as :func:`survey`; or no such file is there.
    """
    url, dataset = split_name(path)
    if dataset and not url.endswith(HDF5):
        try:
            return _tables(survey(_opened(path))), ""  # a colon of its own
        except FairleadError as exc:
            if exc.findings[0].check != "object-missing":
                raise
    listing = survey(_opened(url))
    if not dataset and not url.endswith(HDF5):
        return _tables(listing), ""
    if not listing.single:
        raise fail("bridge-format", path=hidden(url), kind="HDF5", reason="it is a prefix")
    return listing, dataset


def _tables(listing: Listing) -> Listing:
    if listing.single:
        return listing
    objects = tuple(each for each in listing.objects if is_table(each.name))
    if not objects:
        raise fail("bridge-format", path=listing.url, kind="Parquet", reason="no .parquet is there")
    return Listing(listing.url, objects)


def is_table(name: str) -> bool:
    """Whether a file of a folder is a part of its table: not a list of them, and not one that is being written."""
    last = PurePosixPath(name).name
    return last.endswith(".parquet") and not last.startswith(("_", "."))


def files(listing: Listing) -> list[Ranged]:
    """The objects of a listing as files."""
    store = _opened(listing.url)
    return [Ranged(store, each) for each in listing.objects]


def begin(url: str) -> list[str]:
    """Makes room for a result; the names of what an interrupted one has left there.

    Raises:
        FairleadError: something else is there, or nothing can be written.
    """
    store = _opened(url)
    check_target(store)
    return begin_result(store)[1]


class Part:
    """A file of a result, made in memory and then sent: an image may have no room for it elsewhere."""

    def __init__(self, url: str, name: str):
        self._url, self._name = url, name

    @contextmanager
    def written(self) -> Iterator[Any]:
        """A stream for its content."""
        with os.fdopen(os.memfd_create(self._name, os.MFD_CLOEXEC), "wb") as stream:
            yield stream
            stream.flush()
            handle = stream.fileno()
            source = Source(self._name, f"/proc/self/fd/{handle}", os.fstat(handle).st_size)
            self._sent = upload(_opened(self._url), [source])
            self._size = source.size

    def listed(self, rows: int) -> ListedFile:
        """What the list of the result says of it."""
        return ListedFile(self._name, rows, self._size, self._sent.files[self._name])


def finish(url: str, listed: Sequence[ListedFile], left: Sequence[str]) -> None:
    """Makes a result whole."""
    names = {file.name for file in listed}
    end_result(_opened(url), listed, [name for name in left if name not in names])
