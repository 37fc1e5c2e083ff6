"""Archives whose extended headers would fill the memory: all who read archives of others refuse them."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.base.errors import FairleadError
from fairlead.base.progress import Silent
from fairlead_build.base.tar import MOST_HEADER
from fairlead_build.registry.archive import lay_out_archive
from fairlead_build.squashfs.tree_stream import tar_members
from fairlead_build.tree.unarchive import untar

SIZE = MOST_HEADER + 1
KINDS = (b"x", b"g", b"L", b"K")


def bomb(kind: bytes) -> bytes:
    """A file after an extended header that is longer than any name."""
    header = tarfile.TarInfo("pax")
    header.type, header.size = kind, SIZE
    file = tarfile.TarInfo("a.json").tobuf()
    padding = bytes(-SIZE % tarfile.BLOCKSIZE)
    return gzip.compress(header.tobuf() + b"0" * SIZE + padding + file + bytes(1024), 1)


def by_image(raw: bytes, folder: Path) -> None:
    (folder / "image.tar").write_bytes(raw)
    lay_out_archive(folder / "image.tar", "", folder / "layout", Silent())


def by_source(raw: bytes, folder: Path) -> None:
    untar(io.BytesIO(raw), 1 << 30)


def by_tree(raw: bytes, folder: Path) -> None:
    with gzip.open(io.BytesIO(raw)) as stream:
        [*tar_members(stream)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("read", [by_image, by_source, by_tree])
def test_header_that_would_fill_the_memory_is_refused(
    read: Callable[[bytes, Path], None], kind: bytes, tmp_path: Path
) -> None:
    with pytest.raises((tarfile.ReadError, FairleadError)) as caught:
        read(bomb(kind), tmp_path)
    exc = caught.value
    why = exc.findings[0].why if isinstance(exc, FairleadError) else str(exc)
    assert "a header claims 1677" in why
