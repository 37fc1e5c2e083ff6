"""Small libraries and programs that gcc compiles for a test, and a tree of them: an image without its system."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from fairlead.base.paths import atomic_write, cache_dir

# Many tests need the same small libraries. Found before a test can change XDG_CACHE_HOME.
KEPT = cache_dir() / "tests" / "compiled"

# What a real MPI's library has and fairlead goes by: functions, the text of MPI_Init's failure, the version's texts.
MPICH = """
#include <stdio.h>
const char *banner[] = {"MPICH Version", "4.0.9"};
int MPI_Init(int *c, char ***v) { if (c == (int *)8) printf("MPI_Init(argc=%p, argv=%p) failed\\n", c, v); return 0; }
int PMPI_Init(int *c, char ***v) { return MPI_Init(c, v); }
int MPI_Comm_rank(int c, int *r) { return *r = 0; }
"""
OPENMPI = """
#include <stdio.h>
int ompi_mpi_comm_world;
int ompi_internal(void) { return 1; }
int MPI_Init(int *c, char ***v) { if (c == (int *)8) puts("ompi_mpi_init: orte_init failed"); return 0; }
int MPI_Comm_rank(int c, int *r) { return *r = 0; }
"""
# As many functions as a whole MPI has: what has them is one under any name.
WHOLE = "".join(f"void MPI_F{number}(void) {{}}\n" for number in range(300))
CALLS = """
int MPI_Init(int *, char ***);
int MPI_Comm_rank(int, int *);
int call(void) { int r; MPI_Init(0, 0); return MPI_Comm_rank(0, &r); }
"""
MAIN = "int call(void); int main(void) { return call(); }"
PLAIN = "int main(void) { return 0; }"
OPENS = "#include <dlfcn.h>\nint main(int c, char **v) { return !dlopen(v[1], 2); }"
STARTS = "#include <unistd.h>\nint main(int c, char **v) { return execv(v[1], v); }"


def compiled(path: Path, code: str, *words: str) -> Path:
    """What gcc makes of ``code``; a library, if its name has ``.so``, with that name as SONAME. Compiled once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    shared = [] if ".so" not in path.name else ["-shared", "-fPIC", f"-Wl,-soname,{path.name}"]
    # As in an image, what a library needs need not be where this linker looks.
    lax = "-Wl,--allow-shlib-undefined"
    options = [*shared, lax, "-xc", "-", "-xnone"]
    key = _key([code, *options], words)
    if key and (KEPT / key).is_file():
        shutil.copyfile(KEPT / key, path)
        path.chmod(0o755)
        return path
    subprocess.run(["gcc", "-O1", "-o", path, *options, *words], input=code, text=True, check=True)
    if key:
        with atomic_write(KEPT / key) as stream:
            stream.write(path.read_bytes())
    return path


def _key(parts: Sequence[str], words: Sequence[str]) -> str:
    """Of all that the output depends on; empty where a word names a folder or a file that gcc reads in ways of its own."""
    digest = hashlib.sha256(_compiler().encode())
    for part in parts:
        digest.update(b"\0" + part.encode())
    for word in words:
        option, _, value = word.rpartition("--version-script=")
        given = Path(value)
        if os.sep in word and given.is_file():
            content = given.read_bytes()
            # The output names a shared library by its path if that has no SONAME.
            named = option or given.suffix in (".a", ".o") or given.name.encode() in content
            name = option or given.name if named else word
            digest.update(b"\0" + name.encode() + hashlib.sha256(content).digest())
        elif os.sep in word and not _is_text(word):
            return ""
        else:
            digest.update(b"\0" + word.encode())
    return digest.hexdigest()


def _is_text(word: str) -> bool:
    """Whether the linker copies it into the output. Paths of this run's own folders are not worth keeping."""
    copied = "-rpath," in word or "--dynamic-linker=" in word
    return copied and tempfile.gettempdir() not in word


@cache
def _compiler() -> str:
    words = ["gcc", "--version"], ["ld", "--version"]
    return "".join(
        subprocess.run(w, capture_output=True, text=True, check=True).stdout for w in words
    )


def archive(folder: Path, code: str, name: str = "libmpi.a", pic: str = "-fPIE") -> Path:
    """A static library; with ``-fPIC`` also for shared ones."""
    thing = compiled(folder / f"{name}.o", code, "-c", pic)
    subprocess.run(["ar", "rcs", folder / name, thing], check=True)
    return folder / name


def image_tree(root: Path) -> Path:
    """An image: MPICH in /usr/lib, Open MPI in /opt/openmpi, programs and Python modules of both, static ones."""
    lib, app, opened = root / "usr/lib", root / "opt/app", root / "opt/openmpi/lib"
    mpich = compiled(lib / "libmpich.so.12", MPICH)
    openmpi = compiled(opened / "libmpi.so.40", OPENMPI)
    solver = compiled(lib / "libsolver.so.1", CALLS.replace("call(", "solve("), str(mpich))
    compiled(app / "c", MAIN + CALLS, str(mpich))
    deep = "int solve(void); int main(void) { return solve(); }"
    compiled(app / "deep", deep, str(solver))
    linked = ("-Wl,-rpath,/opt/openmpi/lib", "-Wl,--enable-new-dtags")
    compiled(app / "o", MAIN + CALLS, str(openmpi), *linked)
    compiled(app / "plain", PLAIN)
    inside = archive(root.parent / "archives", MPICH)
    compiled(app / "holds", MAIN + CALLS, str(inside))
    compiled(app / "alone", MAIN + CALLS, str(inside), "-static", "-s")
    compiled(app / "lonely", PLAIN, "-static")
    compiled(root / "usr/bin/python3.11", OPENS)
    compiled(root / "usr/bin/dash", STARTS)
    module = root / "usr/lib/python3/dist-packages/mpi4py/MPI.cpython-311.so"
    compiled(module, CALLS, str(openmpi), *linked, "-Wl,-soname,")
    other = root / "venv/lib/python3.11/site-packages/fast.so"
    compiled(other, CALLS, str(mpich), "-Wl,-soname,")
    for link, target in (
        ("bin", "usr/bin"),
        ("usr/bin/sh", "dash"),
        ("usr/bin/python3", "python3.11"),
        ("venv/bin/python3", "/usr/bin/python3"),
    ):
        (root / link).parent.mkdir(parents=True, exist_ok=True)
        (root / link).symlink_to(target)
    for name, text in (
        ("usr/bin/env", "#!/bin/sh\n"),
        ("opt/app/run.sh", "#!/bin/sh\nexec /opt/app/c\n"),
        ("opt/app/any.sh", "#!/bin/sh\n$1 /opt/app/c\n"),
        ("opt/app/held.sh", "#!/bin/sh\n# not /opt/app/c\ncd /opt/app && exec /opt/app/holds $*\n"),
        ("opt/app/either.sh", "#!/bin/sh\n/opt/app/c || exec /opt/app/holds\n"),
        ("opt/app/tool", "#!/usr/bin/env -S python3 -u\nimport fast, mpi4py\n"),
        ("opt/app/lost", "#!/opt/gone/bin/perl\n"),
    ):
        (root / name).write_text(text)
        (root / name).chmod(0o755)
    return root


def packed(program: Path, files: Mapping[str, Path], *, compress: bool = True) -> Path:
    """``program`` with an archive behind it, as PyInstaller's ``--onefile`` makes them."""
    content, table = b"", b""
    for name, file in files.items():
        whole = file.read_bytes()
        data = zlib.compress(whole) if compress else whole
        text = name.encode().ljust(-(-(len(name) + 19) // 16) * 16 - 18, b"\0")
        entry = (18 + len(text), len(content), len(data), len(whole), compress, b"b")
        table += struct.pack("!IIIIBc", *entry) + text
        content += data
    length = len(content) + len(table) + 88
    numbers = (length, len(content), len(table), 311, b"libpython3.11.so.1.0")
    cookie = struct.pack("!8sIIII64s", b"MEI\014\013\012\013\016", *numbers)
    program.write_bytes(program.read_bytes() + content + table + cookie + bytes(300))
    return program
