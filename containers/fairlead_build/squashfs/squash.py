"""Tar streams to squashfs and back, by the locked tools; the bytes depend on the input alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from fairlead_build.base.proc import (
    NEARLY_FULL,
    child,
    clean_environment,
    complaints,
    enlarge,
    last_of,
    no_space,
    tool_failed,
)
from fairlead_build.cache.store import Cache
from fairlead_build.tools import tool_tree

CHUNK = 1 << 20


@dataclass(frozen=True)
class Compression:
    """How a squashfs is compressed, and the time stamp of what has none."""

    compressor: str
    level: int
    epoch: int


class Sink(Protocol):
    """Takes a tar stream."""

    def write(self, data: bytes, /) -> object: ...


class _WriterEnded(BrokenPipeError):
    """The writer has ended; a pipe that breaks elsewhere in the block is another matter."""


class _Pipe:
    """A pipe to the writer, that remembers how little room there was meanwhile."""

    def __init__(self, pipe: IO[bytes], folder: Path):
        self.pipe, self.folder, self.least = pipe, folder, 1 << 62

    def write(self, data: bytes) -> None:
        self.least = min(self.least, shutil.disk_usage(self.folder).free)
        try:
            self.pipe.write(data)
        except BrokenPipeError:
            raise _WriterEnded from None

    def close(self) -> None:
        try:
            self.pipe.close()
        except BrokenPipeError:
            raise _WriterEnded from None


@contextmanager
def squashing(
    target: Path, how: Compression, remedy: str, cache: Cache | None = None
) -> Iterator[Sink]:
    """A pipe: the tar stream that is written to it becomes the squashfs ``target``.

    Args:
        cache: where the tool tree is; the user's own unless given.

    Raises:
        FairleadError: the writer failed, e.g. on a full disk.
    """
    level = min(how.level, 9) if how.compressor == "gzip" else how.level
    argv: list[str | Path] = [
        *tool_tree.command("tar2sqfs", cache), "--quiet", "--force", "--no-xattr", "--no-skip",
        "--compressor", how.compressor, "--comp-extra", f"level={level}", "--num-jobs",
        str(os.cpu_count() or 1), "--defaults", f"uid=0,gid=0,mode=0755,mtime={how.epoch}",
        target,
    ]  # fmt: skip
    env = clean_environment({"SOURCE_DATE_EPOCH": str(how.epoch)})
    with (
        complaints() as stderr,
        child(
            argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=stderr
        ) as writer,
    ):
        assert writer.stdin is not None
        enlarge(writer.stdin)
        broken = False
        pipe = _Pipe(writer.stdin, target.parent)
        try:
            yield pipe
            pipe.close()
        except _WriterEnded:
            broken = True
        code = writer.wait()
        if code or broken:
            errors = last_of(stderr)
            # The writer says no more than "I/O error" when the disk is full, and then makes room.
            if min(pipe.least, shutil.disk_usage(target.parent).free) < NEARLY_FULL:
                raise no_space("write the squashfs", target.parent)
            raise tool_failed(argv, code, errors, "write the squashfs", remedy)


def unsquash_argv(source: Path, cache: Cache | None = None) -> list[str | Path]:
    """The command that writes ``source`` as a tar stream, its root's own attributes included."""
    program = tool_tree.command("sqfs2tar", cache)
    return [*program, "--no-xattr", "--no-skip", "--root-becomes", ".", source]
