"""Finding host MPIs, what is behind them, and what their launchers are."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead import site as sites
from fairlead.base.errors import ExitCode, FairleadError
from fairlead.elf.facts import AbiFamily, Elf
from fairlead.elf.mpi_symbols import GLIBC_PIECES
from fairlead.launchers.identify import identify
from fairlead.mpi.host import discover, from_prefix, in_prefix, needs

MPI = """
const char *banner[] = {"MPICH Version", "5.6.7"};
int MPI_Init(int *c, char ***v) { return 0; }
int MPI_Comm_rank(int c, int *r) { return 0; }
int MPI_Aint_add(void) { return 0; }
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": f"{tmp_path}/cache", "XDG_DATA_HOME": f"{tmp_path}/data", "PATH": ""}


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A small library with the signs of an MPICH, and one that it needs, found by RUNPATH."""
    lib = tmp_path / "mpi/lib"
    (lib / "deep").mkdir(parents=True)
    build(lib / "deep/libdeep.so.1", "int deep(void) { return 1; }", "-Wl,-soname,libdeep.so.1")
    build(
        lib / "libmpi.so.12",
        MPI + "int deep(void); int use(void) { return deep(); }",
        "-Wl,-soname,libmpi.so.12",
        str(lib / "deep/libdeep.so.1"),
        "-Wl,-rpath,$ORIGIN/deep",
        "-Wl,--enable-new-dtags",
    )
    (lib / "libmpi.so").write_text("INPUT(libmpi.so.12)")
    launcher(tmp_path / "mpi/bin/mpiexec", "HYDRA build details:\n    Version:   5.6.7")
    return tmp_path / "mpi"


def build(target: Path, text: str, *flags: str) -> None:
    words = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-o", str(target), *flags]
    subprocess.run(words, input=text, text=True, check=True)


def launcher(path: Path, says: str, code: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'EOF'\n{says}\nEOF\nexit {code}\n")
    path.chmod(0o755)
    return path


def test_in_prefix_library_closure_and_launcher_are_found(prefix: Path, environ) -> None:
    [found] = in_prefix(prefix, "test", environ)
    assert found.library.title == "MPICH 5.6.7" and found.library.family is AbiFamily.MPICH
    assert [Path(e.path).name for e in found.closure] == ["libdeep.so.1"]
    assert found.missing == ()
    assert found.launcher and found.launcher.title == "MPICH Hydra 5.6.7"


@pytest.mark.parametrize("target", ["/no/such/mpiexec", "mpiexec"])
def test_in_prefix_launcher_that_leads_nowhere_is_none(prefix: Path, environ, target: str) -> None:
    (prefix / "bin/mpiexec").rename(prefix / "bin/real")
    (prefix / "bin/mpiexec").symlink_to(target)
    [found] = in_prefix(prefix, "test", environ)
    assert found.launcher is None
    (prefix / "bin/mpiexec").unlink()
    (prefix / "bin/mpiexec").symlink_to("real")
    [found] = in_prefix(prefix, "test", environ)
    assert found.launcher and found.launcher.title == "MPICH Hydra 5.6.7"


def test_in_prefix_dependency_gone_is_missing_and_seen_despite_the_cache(
    prefix: Path, environ
) -> None:
    in_prefix(prefix, "test", environ)
    (prefix / "lib/deep/libdeep.so.1").unlink()
    [found] = in_prefix(prefix, "test", environ)
    assert found.closure == ()
    assert found.missing == (("libdeep.so.1", str(prefix / "lib/libmpi.so.12")),)
    build(prefix / "lib/deep/libdeep.so.1", "int deep(void) { return 1; }")
    [found] = in_prefix(prefix, "test", environ)
    assert found.missing == ()


def test_in_prefix_answer_is_kept_until_the_library_changes(prefix: Path, environ) -> None:
    in_prefix(prefix, "one", environ)
    [kept] = in_prefix(prefix, "two", environ)
    assert kept.found_by == "two"
    build(prefix / "lib/libmpi.so.12", MPI.replace("5.6.7", "5.9.9"), "-Wl,-soname,libmpi.so.12")
    [fresh] = in_prefix(prefix, "three", environ)
    assert fresh.library.version == "5.9.9"


def test_in_prefix_unwritable_cache_costs_no_answer(prefix: Path, environ, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert in_prefix(prefix, "test", environ)


def test_from_prefix_without_an_mpi_is_bad_usage(tmp_path: Path, environ) -> None:
    with pytest.raises(FairleadError) as caught:
        from_prefix(tmp_path, environ)
    assert caught.value.code is ExitCode.USAGE
    assert str(tmp_path) in caught.value.findings[0].what


def test_discover_order_is_variable_installed_path_system(
    prefix: Path, environ, tmp_path: Path
) -> None:
    import shutil

    for place in ("named", "data/fairlead/mpi/one", "onpath"):
        shutil.copytree(prefix, tmp_path / place)
    environ["FAIRLEAD_MPI"] = str(tmp_path / "named")
    environ["PATH"] = f"/nowhere:{tmp_path / 'onpath/bin'}"
    found = discover(environ, tmp_path / "root")
    assert [h.prefix for h in found] == [
        str(tmp_path / place) for place in ("named", "data/fairlead/mpi/one", "onpath")
    ]
    assert "FAIRLEAD_MPI" in found[0].found_by and "doctor" in found[1].found_by
    assert "PATH" in found[2].found_by


def test_discover_variable_that_names_no_mpi_is_an_error(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    with pytest.raises(FairleadError) as caught:
        discover({**environ, "FAIRLEAD_MPI": str(tmp_path / "nowhere")}, tmp_path)
    assert caught.value.code is ExitCode.USAGE
    assert caught.value.findings[0].remedy.startswith("unset FAIRLEAD_MPI")


def test_discover_one_library_is_listed_once(prefix: Path, environ) -> None:
    environ.update(FAIRLEAD_MPI=str(prefix), PATH=str(prefix / "bin"))
    assert len(discover(environ, prefix / "root")) == 1


# The first lines of what each printed.
SAYS = [
    (
        "HYDRA build details:\n    Version:                                 5.0.2",
        "mpich",
        "Hydra 5.0.2",
    ),
    ("Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 2026", "mpich", "2021.18.1"),
    ("mpiexec (Open MPI) 5.0.11\n", "openmpi", "Open MPI 5.0.11"),
    ("mpirun (Open MPI) 4.1.8", "openmpi", "Open MPI 4.1.8"),
    ("prterun (PRTE) 3.0.14", "openmpi", "Open MPI 3.0.14"),
    ("mpirun (IBM Spectrum MPI) 10.4.0.03rtm4", "openmpi", "Spectrum MPI 10.4"),
    ("slurm 22.05.8", "unknown", "mpiexec"),
]


@pytest.mark.parametrize(("says", "family", "title"), SAYS)
def test_identify_launcher_by_its_own_words(says, family, title, tmp_path: Path) -> None:
    found = identify(launcher(tmp_path / "mpiexec", says))
    assert found.family == family and title in found.title


def test_identify_launcher_that_does_not_run_here_by_its_content(tmp_path: Path) -> None:
    """As hydra of a newer distribution: the loader refuses it, on stderr."""
    path = tmp_path / "mpiexec.hydra"
    path.write_text(
        '#!/bin/sh\necho "version \\`GLIBC_2.38\' not found" >&2; exit 1\n# HYDRA build details\n'
    )
    path.chmod(0o755)
    assert identify(path).family is AbiFamily.MPICH


@pytest.mark.parametrize(
    ("content", "family"),
    [("HYDRA build details", "mpich"), ("Intel(R) MPI Library", "mpich"), ("(Open MPI)", "openmpi"),
     ("prterun", "openmpi"), ("nothing of it", "unknown")],
)  # fmt: skip
def test_identify_launcher_that_must_not_be_started_by_its_content(
    content: str, family: str, tmp_path: Path
) -> None:
    path = tmp_path / "mpiexec"
    path.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n# {content}\n")
    path.chmod(0o755)
    assert identify(path, 0.0).family == family
    assert not (tmp_path / "started").exists()


def test_discover_starts_no_program_of_another_user_that_a_strange_profile_names(
    prefix: Path, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = next((prefix / "bin").glob("mpiexec*"))
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n# HYDRA build details\n")
    search = sites.load_site("laptop", environ).mpi
    site = replace(
        sites.load_site("laptop", environ), mpi=replace(search, search=("/mpi",)), strange=True
    )
    monkeypatch.setattr("fairlead.mpi.host.open_to_others", lambda path: "it belongs to user 7")
    [mpi] = discover(environ, tmp_path, site)
    assert mpi.launcher and mpi.launcher.family is AbiFamily.MPICH
    assert not (tmp_path / "started").exists()
    monkeypatch.setattr("fairlead.mpi.host.open_to_others", lambda path: "")
    discover(environ, tmp_path, site)
    assert (tmp_path / "started").exists(), "one's own is asked"


def test_identify_launcher_silent_or_no_program_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "mpiexec"
    path.write_text("data")
    path.chmod(0o755)
    assert identify(path).family is AbiFamily.UNKNOWN


@pytest.mark.parametrize(
    ("name", "is_piece"),
    [
        ("libc.so.6", True),
        ("ld-linux-x86-64.so.2", True),
        ("libm.so.6", True),
        ("libpthread.so.0", True),
        ("libnss_files.so.2", True),
        ("librt.so.1", True),
        ("libmvec.so.1", True),
        ("libresolv.so.2", True),
        ("libdl.so.2", True),
        ("libcap.so.2", False),
        ("libmpi.so.12", False),
        ("librtm.so.1", False),
        ("libstdc++.so.6", False),
        ("libcrypt.so.1", False),
    ],
)
def test_glibc_pieces(name: str, is_piece: bool) -> None:
    assert bool(GLIBC_PIECES.match(name)) is is_piece


def test_needs_names_the_highest_and_who() -> None:
    parts = (
        Elf("/a", "x64", needs={"GLIBC": "2.9"}),
        Elf("/b", "x64", needs={"GLIBC": "2.34"}),
        Elf("/c", "x64", needs={"GLIBCXX": "3.4.30"}),
    )
    assert needs(parts) == ("2.34", "/b")
    assert needs(parts, "GLIBCXX") == ("3.4.30", "/c")
    assert needs((), "GLIBC") == ("", "")
