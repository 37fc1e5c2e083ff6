"""What `python3 -m fairlead.prove` says when all is well, with and without an expectation, and when not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead import prove

MPI = r"""
#include <string.h>
int MPI_Init(int *c, char ***v) { return 0; }
int MPI_Finalize(void) { return 0; }
int MPI_Barrier(int c) { return 0; }
int MPI_Comm_rank(int c, int *r) { *r = 0; return 0; }
int MPI_Comm_size(int c, int *s) { *s = 1; return 0; }
int MPI_Get_library_version(char *t, int *n) { strcpy(t, "MPICH Version: 0.0"); *n = 18; return 0; }
int MPI_Bcast(void *b, int n, int t, int r, int c) { return 0; }
int MPI_Gather(const void *a, int n, int t, void *b, int m, int u, int r, int c) { memcpy(b, a, n); return 0; }
int MPI_Sendrecv(const void *a, int n, int t, int d, int g, void *b, int m, int u, int s, int h, int c, void *x)
{ memcpy(b, a, n); return 0; }
"""


@pytest.fixture(scope="module")
def mpi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MPI of one rank."""
    folder = tmp_path_factory.mktemp("mpi")
    (folder / "mpi.c").write_text(MPI)
    library = folder / "libmpi.so.12"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wl,-soname,libmpi.so.12", "-o", library, folder / "mpi.c"],
        check=True,
    )
    return library


def said(
    mpi: Path, *words: str, before: str = "pass", **env: str
) -> subprocess.CompletedProcess[str]:
    """`python3 -m fairlead.prove`, as a file of its own, on that MPI."""
    code = f"import sys, runpy; {before}; sys.argv[1:] = {list(words)!r}; runpy.run_path({prove.__file__!r}, run_name='__main__')"
    return subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False,
                          env={"LD_LIBRARY_PATH": str(mpi.parent), **env})  # fmt: skip


def test_prove_without_an_expectation_observes_and_says_so(mpi: Path) -> None:
    done = said(mpi, "--alone")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("fairlead: observed on 1 rank, 1 node: MPICH Version: 0.0 from ")
    assert "nothing was expected: --expects FILE" in done.stdout and "proved" not in done.stdout
    answer = json.loads(said(mpi, "--alone", "--json").stdout)
    assert answer["holds"] is None and answer["wrong"] == []


@pytest.mark.parametrize("how", ["option", "variable", "plan", "link", "mounted twice"])
def test_prove_with_the_expected_file_proves(how: str, mpi: Path, tmp_path: Path) -> None:
    words, env = ["--alone"], {}
    (tmp_path / "link").symlink_to(mpi)
    (tmp_path / "hard").hardlink_to(mpi)
    if how == "variable":
        env["FAIRLEAD_EXPECTS"] = str(mpi)
    elif how == "plan":
        env["FAIRLEAD_PROOF"] = f"1|0||{mpi}"
    else:
        place = {"option": mpi, "link": tmp_path / "link", "mounted twice": tmp_path / "hard"}[how]
        words += ["--expects", str(place)]
    done = said(mpi, *words, **env)
    assert done.returncode == 0 and done.stdout.startswith("fairlead: proved on 1 rank"), done
    assert json.loads(said(mpi, *words, "--json", **env).stdout)["holds"] is True


def test_prove_of_another_file_fails_and_names_both(mpi: Path, tmp_path: Path) -> None:
    other = shutil.copy(mpi, tmp_path / "libmpi.so.12")
    done = said(mpi, "--alone", "--expects", str(other))
    assert done.returncode == 122
    assert f"{other} must be mapped, {mpi} is mapped" in done.stdout
    gone = said(mpi, "--alone", "--json", "--expects", "/nowhere/libmpi.so.12")
    answer = json.loads(gone.stdout)
    assert gone.returncode == 122 and answer["holds"] is False
    assert "that file is not there" in answer["wrong"][0]


def test_prove_with_two_libraries_of_one_mpi_fails(mpi: Path, tmp_path: Path) -> None:
    for name in ("libopen-pal.so.40", "libopen-pal-0a1b2c3d.so.80"):
        subprocess.run(["cc", "-shared", "-x", "c", "/dev/null", "-o", tmp_path / name], check=True)
    both = [str(path) for path in sorted(tmp_path.glob("lib*"))]
    load = f"import ctypes; [ctypes.CDLL(p) for p in {both!r}]"
    done = said(mpi, "--alone", before=load)
    assert done.returncode == 122 and "rank 0 maps two libopen-pal" in done.stdout, done
    one = said(mpi, "--alone", before=f"import ctypes; ctypes.CDLL({both[0]!r})")
    assert one.returncode == 0, one


def test_prove_without_any_launcher_fails_whatever_is_expected(mpi: Path) -> None:
    done: Any = said(mpi, "--expects", str(mpi))
    assert done.returncode == 122 and "no variable of a launcher" in done.stdout
