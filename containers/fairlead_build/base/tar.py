"""Members of tar streams as bytes: ``tarfile`` closes each archive with an end mark and padding."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from typing import IO, Literal

from fairlead_build.base.digest import Advance, unseen

CHUNK = 1 << 20
BLOCK = tarfile.BLOCKSIZE
END = bytes(2 * BLOCK)
MOST_HEADER = 16 << 20
_EXTENSIONS = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)


class Bounded(tarfile.TarInfo):
    """For ``tarfile.open(tarinfo=…)`` of archives of others: ``tarfile`` reads the content of an extended header whole,
    and a few compressed bytes may stand for gigabytes of it.
    """

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo | None:
        if self.type in _EXTENSIONS and self.size > MOST_HEADER:
            raise tarfile.ReadError(f"a header claims {self.size} bytes")
        made: tarfile.TarInfo | None = super()._proc_member(archive)  # type: ignore[misc]
        return made


def header(info: tarfile.TarInfo, form: Literal[0, 1, 2] = tarfile.GNU_FORMAT) -> bytes:
    return info.tobuf(form, "utf-8", "surrogateescape")


def member(info: tarfile.TarInfo, content: IO[bytes], advance: Advance = unseen) -> Iterator[bytes]:
    """Header, content and padding of a file.

    Raises:
        ValueError: the content is shorter than ``info`` says.
    """
    yield header(info)
    yield from content_of(info, content, info.size, advance)


def content_of(
    info: tarfile.TarInfo, content: IO[bytes], left: int, advance: Advance = unseen
) -> Iterator[bytes]:
    """The last ``left`` bytes of a file's content, and the padding behind them.

    Raises:
        ValueError: they are not there.
    """
    while left and (chunk := content.read(min(CHUNK, left))):
        yield chunk
        advance(len(chunk))
        left -= len(chunk)
    if left:
        raise ValueError(f"{info.name} is shorter than its header says")
    yield bytes(-info.size % BLOCK)


def small_file(path: str, body: bytes, mode: int, epoch: int) -> bytes:
    """The member of a file that is in memory; ``path`` is relative to the root."""
    info = tarfile.TarInfo(f"./{path}")
    info.mode, info.size, info.mtime = mode, len(body), epoch
    return b"".join(member(info, io.BytesIO(body)))
