"""Compiles Python sources to .pyc files that are never checked against their source.

An image is read-only, so a missing or stale .pyc would be recompiled at every start; and the
usual .pyc holds a time stamp, which differs between builds.

As a script it compiles the folders it is given, in place, in ``SHARDS`` processes. With no
arguments it reads a zip archive from stdin and writes a zip of the compiled files to stdout.
"""

import importlib.util
import io
import os
import subprocess
import sys
import zipfile

# How marshal writes an object depends on what else the process has alive. A fixed number of
# processes, each with a fixed list in a fixed order, gives the same bytes on any number of cores.
SHARDS = 4


def compiled(source: bytes, path: str) -> bytes:
    """The bytes of an unchecked hash-based .pyc (PEP 552).

    Raises:
        SyntaxError, ValueError: it is not for this Python.
    """
    from importlib._bootstrap_external import _code_to_hash_pyc  # type: ignore[import-not-found]

    code = compile(source, path, "exec", dont_inherit=True, optimize=0)
    data: bytes = _code_to_hash_pyc(code, importlib.util.source_hash(source), False)
    return data


def sources(folders: list[str]) -> list[str]:
    found = []
    for folder in folders:
        for base, inner, names in os.walk(folder):
            inner.sort()
            found += [os.path.join(base, name) for name in sorted(names) if name.endswith(".py")]
    return found


def compile_shard(number: int, folders: list[str]) -> None:
    for path in sources(folders)[number::SHARDS]:
        if os.path.islink(path):
            continue
        with open(path, "rb") as stream:
            source = stream.read()
        target = importlib.util.cache_from_source(path)
        try:
            data = compiled(source, path)
        except (SyntaxError, ValueError):
            # Templates and files for other Pythons: an interpreter that met them would fail too.
            continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as out:
            out.write(data)


def compile_folders(folders: list[str]) -> None:
    children = [
        subprocess.Popen([sys.executable, "-I", __file__, "--shard", str(n), *folders]) for n in range(SHARDS)
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
