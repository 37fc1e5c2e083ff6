"""Tar streams to squashfs and back, by squashfs-tools-ng; the bytes depend on the input alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fairlead_build.proc import child, clean_environment, no_space, tool_failed

CHUNK = 1 << 20


@dataclass(frozen=True)
class Compression:
    """How a squashfs is compressed, and the time stamp of what has none."""

    compressor: str
    level: int
    epoch: int


@contextmanager
def squashing(target: Path, how: Compression, remedy: str) -> Iterator[IO[bytes]]:
    """A pipe: the tar stream that is written to it becomes the squashfs ``target``.

    Raises:
        FairleadError: the writer failed, e.g. for want of space.
    """
    level = min(how.level, 9) if how.compressor == "gzip" else how.level
    argv: list[str | Path] = [
        "tar2sqfs",
        "--quiet",
        "--force",
        "--no-xattr",
        "--no-skip",
        "--compressor",
        how.compressor,
        "--comp-extra",
        f"level={level}",
        "--num-jobs",
        str(os.cpu_count() or 1),
        "--defaults",
        f"uid=0,gid=0,mode=0755,mtime={how.epoch}",
        target,
    ]
    env = clean_environment({"SOURCE_DATE_EPOCH": str(how.epoch)})
    with child(
        argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as writer:
        assert writer.stdin is not None and writer.stderr is not None
        broken = False
        try:
            yield writer.stdin
            writer.stdin.close()
        except BrokenPipeError:
            broken = True
        said = writer.stderr.read().decode("utf-8", "replace")
        code = writer.wait()
        if code or broken:
            # The writer says no more than "I/O error" when the disk is full.
            if shutil.disk_usage(target.parent).free < CHUNK:
                raise no_space("write the squashfs", target.parent)
            raise tool_failed(argv, code, said, "write the squashfs", remedy)


def unsquash_argv(source: Path) -> list[str | Path]:
    """The command that writes ``source`` as a tar stream, its root's own attributes included."""
    return ["sqfs2tar", "--no-xattr", "--no-skip", "--root-becomes", ".", source]
