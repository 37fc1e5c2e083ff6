"""Small libraries and programs that gcc compiles for a test, and a tree of them: an image without its system."""

from __future__ import annotations

import subprocess
from pathlib import Path

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
    """What gcc makes of ``code``; a library, if its name has ``.so``, with that name as SONAME."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shared = [] if ".so" not in path.name else ["-shared", "-fPIC", f"-Wl,-soname,{path.name}"]
    # As in an image, what a library needs need not be where this linker looks.
    lax = "-Wl,--allow-shlib-undefined"
    command = ["gcc", "-O1", "-o", path, *shared, lax, "-xc", "-", "-xnone", *words]
    subprocess.run(command, input=code, text=True, check=True)
    return path


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
        ("opt/app/held.sh", "#!/bin/sh\n# not /opt/app/c\ncd /opt/app && exec /opt/app/holds $*\n"),
        ("opt/app/either.sh", "#!/bin/sh\n/opt/app/c || exec /opt/app/holds\n"),
        ("opt/app/tool", "#!/usr/bin/env -S python3 -u\n"),
        ("opt/app/lost", "#!/opt/gone/bin/perl\n"),
    ):
        (root / name).write_text(text)
        (root / name).chmod(0o755)
    return root
