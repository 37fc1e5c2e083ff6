"""Compiles Python sources to .pyc files that are never checked against their source.

An image is read-only, so a missing or stale .pyc would be recompiled at every start; and the
usual .pyc holds a time stamp, which differs between builds.

As a script it compiles the folders it is given, in place, in ``SHARDS`` processes. With no
arguments it reads a zip archive from stdin and writes a zip of the compiled files to stdout.
"""

import importlib.util
import io
import marshal
import os
import subprocess
import sys
import zipfile
from pathlib import Path

# How marshal writes an object depends on what else the process has alive. A fixed number of
# processes, each with a fixed list in a fixed order, gives the same bytes on any number of cores.
SHARDS = 4


def compiled(source: bytes, path: str) -> bytes:
    """The bytes of an unchecked hash-based .pyc (PEP 552).

    Raises:
        SyntaxError, ValueError: it is not for this Python.
    """
    code = compile(source, path, "exec", dont_inherit=True, optimize=0)
    flags = (1).to_bytes(4, "little")  # hash-based, not checked
    return (
        importlib.util.MAGIC_NUMBER
        + flags
        + importlib.util.source_hash(source)
        + marshal.dumps(code)
    )


def sources(folders: list[str]) -> list[Path]:
    paths = {path for folder in folders for path in Path(folder).rglob("*.py")}
    return sorted(path for path in paths if path.is_file() and not path.is_symlink())


def compile_shard(number: int, folders: list[str]) -> None:
    for path in sources(folders)[number::SHARDS]:
        try:
            data = compiled(path.read_bytes(), str(path))
        except (SyntaxError, ValueError):
            # Templates and files for other Pythons: an interpreter that met them would fail too.
            continue
        target = Path(importlib.util.cache_from_source(str(path)))
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(data)


def compile_folders(folders: list[str]) -> None:
    children = [
        subprocess.Popen([sys.executable, "-I", __file__, "--shard", str(n), *folders])
        for n in range(SHARDS)
    ]
    # Every child is waited for, also after one failed.
    codes = [child.wait() for child in children]
    if any(codes):
        sys.exit(f"compiling failed: exit codes {codes}")


def compile_archive() -> None:
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(sys.stdin.buffer.read())) as given,
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as made,
    ):
        prefix = given.comment.decode()
        for name in sorted(given.namelist()):
            if name.endswith(".py"):
                path = f"{prefix}/{name}"
                target = importlib.util.cache_from_source(path)
                made.writestr(os.path.relpath(target, prefix), compiled(given.read(name), path))
    sys.stdout.buffer.write(buffer.getvalue())


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] == "--shard":
        compile_shard(int(sys.argv[2]), sys.argv[3:])
    elif len(sys.argv) > 1:
        compile_folders(sys.argv[1:])
    else:
        compile_archive()
