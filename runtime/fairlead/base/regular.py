"""Opens files of others only if they are regular: a pipe would block, a device may do anything."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def open_regular(path: Path | str, *, follow: bool = False) -> IO[bytes]:
    """The regular file at ``path``. Its kind is that of what was opened, not of what was there before.

    Args:
        follow: also through a symlink.
    Raises:
        OSError: it cannot be opened, or is of another kind.
    """
    # Opening a device has effects of its own; what comes to its place after this look is only opened.
    if not stat.S_ISREG(Path(path).stat(follow_symlinks=follow).st_mode):
        raise _other(path)
    fd = os.open(path, _FLAGS | (0 if follow else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _other(path)
    return open(fd, "rb")


def _other(path: Path | str) -> OSError:
    return OSError(errno.EINVAL, "not a regular file", os.fspath(path))
