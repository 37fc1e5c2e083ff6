"""A host tree shaped as Cray's: a real MPICH in its place, and stubs of the libraries behind it.

Search, closure, staging, aliases and the GPU transport library are exercised; no fabric is.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.system import hosts
from tests.system.hosts import answer, fairlead

from fairlead.base.paths import cache_dir
from fairlead.elf.patchelf import find_patchelf

MAPPED = """
from mpi4py import MPI
paths = {line.split()[-1] for line in open("/proc/self/maps") if "/opt/fairlead/mpi" in line}
world = MPI.COMM_WORLD
print(" ".join(["rank", str(world.rank), str(world.size), *sorted(paths)]) + "\\n", end="", flush=True)
"""


@dataclass(frozen=True)
class Cray:
    """``prefix`` is what a user would name; ``modules`` what a loaded module environment sets."""

    prefix: Path
    modules: dict[str, str]
    stubs: Path

    def run(
        self, *words: str | Path, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = ("run", "-n", "2", "--json", "--mpi", self.prefix, "--launcher",
                   hosts.mpich() / "bin/mpiexec", hosts.image(), *words)  # fmt: skip
        return fairlead(*command, env={**self.modules, **(env or {})})


@pytest.fixture(scope="module")
def cray(tmp_path_factory: pytest.TempPathFactory) -> Cray:
    root = tmp_path_factory.mktemp("cray")
    prefix = root / "opt/cray/pe/mpich/8.1.30/ofi/gnu/12.3"
    library = prefix / "lib-abi-mpich"
    shutil.copytree(hosts.mpich() / "lib/mpich", library / "mpich")
    shutil.copy(hosts.mpich() / "lib/libmpi.so.12", library / "libmpi.so.12.0.8")
    (library / "libmpi.so.12").symlink_to("libmpi.so.12.0.8")
    stubs = root / "opt/cray/libfabric/1.15/lib64"
    stubs.mkdir(parents=True)
    for name in ("libcxi.so.1", "libxpmem.so.0"):
        _stub(stubs / name, name)
    gtl = root / "opt/cray/pe/mpich/8.1.30/gtl/lib"
    gtl.mkdir(parents=True)
    _stub(gtl / "libmpi_gtl_cuda.so.0.0.0", "libmpi_gtl_cuda.so.0")
    (gtl / "libmpi_gtl_cuda.so.0").symlink_to("libmpi_gtl_cuda.so.0.0.0")
    patchelf = find_patchelf()
    assert patchelf
    needs = [word for name in ("libcxi.so.1", "libxpmem.so.0") for word in ("--add-needed", name)]
    subprocess.run([patchelf, *needs, library / "libmpi.so.12.0.8"], check=True)
    return Cray(prefix, {"LD_LIBRARY_PATH": str(stubs)}, stubs)


def _stub(path: Path, soname: str) -> None:
    argv = [
        "cc",
        "-shared",
        "-nostdlib",
        "-x",
        "c",
        "/dev/null",
        f"-Wl,-soname,{soname}",
        "-o",
        path,
    ]
    subprocess.run(argv, check=True)


def test_library_of_the_abi_folder_runs_with_what_stands_behind_it(cray: Cray) -> None:
    done = cray.run("--", "python3", "-c", MAPPED)
    assert done.returncode == 0, done.stdout + done.stderr
    proof = answer(done)["proof"]
    assert proof["holds"]
    lines = [line.split() for line in done.stderr.splitlines() if line.startswith("rank ")]
    assert sorted(line[1:3] for line in lines) == [["0", "2"], ["1", "2"]]
    for line in lines:
        # Found by the staged library's own DT_RPATH: no search path names the folder.
        assert "/opt/fairlead/mpi/dep/libcxi.so.1" in line
        assert "/opt/fairlead/mpi/dep/libxpmem.so.0" in line
        assert sum("libmpi.so.12" in path for path in line) == 1


def test_missing_module_environment_is_reported_before_the_launch(cray: Cray) -> None:
    done = cray.run("--", "python3", "-c", MAPPED, env={"LD_LIBRARY_PATH": ""})
    assert done.returncode == 121
    found = [f for f in answer(done)["findings"] if f["check"] == "closure"]
    assert {word for f in found for word in f["what"].split() if ".so" in word} == {
        "libcxi.so.1,", "libxpmem.so.0,",
    }  # fmt: skip
    assert all("LD_LIBRARY_PATH" in f["remedy"] for f in found)


def test_gpu_transport_library_is_preloaded_when_gpu_support_is_asked_for(cray: Cray) -> None:
    wanted = "/opt/fairlead/mpi/lib/libmpi_gtl_cuda.so.0.0.0"
    done = cray.run("--", "python3", "-c", MAPPED)
    assert wanted not in done.stderr
    done = cray.run("--", "python3", "-c", MAPPED, env={"MPICH_GPU_SUPPORT_ENABLED": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("rank ")]
    assert len(lines) == 2 and all(wanted in line for line in lines), done.stderr


@pytest.mark.full
def test_program_built_on_a_cray_asks_by_the_compilers_name_and_gets_the_hosts(
    tmp_path: Path,
) -> None:
    """`libmpi_gnu_123.so.12` is not a name of any other MPI, and the same interface."""
    program = tmp_path / "allreduce"
    shutil.copy(hosts.compiled("allreduce"), program)
    patchelf = find_patchelf()
    assert patchelf
    names = ("libmpi.so.12", "libmpi_gnu_123.so.12")
    subprocess.run([patchelf, "--replace-needed", *names, program], check=True)
    image = hosts.squashfs_with("cray-program", {"/opt/app/allreduce": program})
    done = fairlead("run", "-n", "2", "--json", image, "--", "/opt/app/allreduce")
    assert done.returncode == 0, done.stdout + done.stderr
    said = answer(done)
    assert said["proof"]["holds"]
    assert ["lib/libmpi_gnu_123.so.12", "libmpi.so.12"] in said["staging"]["aliases"]
    assert {v for v, _ in hosts.ranks_of(done.stderr).values()} == {"MPICH Version: 5.0.2"}


def test_changed_library_is_staged_again(cray: Cray) -> None:
    def staged() -> str:
        done = cray.run("--", "python3", "-c", MAPPED)
        assert done.returncode == 0, done.stdout + done.stderr
        key: str = answer(done)["staging"]["key"]
        return key

    before = staged()
    assert staged() == before
    _stub(cray.stubs / "libcxi.so.1.5", "libcxi.so.1")
    (cray.stubs / "libcxi.so.1").unlink()
    (cray.stubs / "libcxi.so.1").symlink_to("libcxi.so.1.5")
    after = staged()
    assert after != before
    assert (cache_dir() / "stage" / after / "dep/libcxi.so.1").is_file()


def test_profile_says_where_all_of_it_is(cray: Cray, tmp_path: Path) -> None:
    """No --mpi, no module environment: patterns of a profile are enough."""
    root = cray.stubs.parents[3]
    (tmp_path / "exlike.toml").write_text(
        f"""
[site]
name = "exlike"
summary = "a Cray-shaped tree"
extends = "laptop"

[sources.tree]
text = "the tree of this test"
status = "run"

[mpi]
source = "tree"
search = ["{root}/cray/pe/mpich/*/ofi/gnu/*/lib-abi-mpich"]

[dependencies]
source = "tree"
folders = ["{root}/cray/libfabric/*/lib64"]

[gpu]
source = "tree"
transport = "{root}/cray/pe/mpich/*/gtl/lib/libmpi_gtl_cuda.so.0"
set = {{ FI_OF_THE_SITE = "1", FI_OF_THE_USER = "0" }}

[binds]
source = "tree"
paths = ["{root}/cray/libfabric", "{root}/cray/nothing-here"]
"""
    )
    tell = MAPPED.replace(
        "*sorted(paths)",
        'os.environ["FI_OF_THE_SITE"], os.environ["FI_OF_THE_USER"], *sorted(paths)',
    )
    env = {
        "FAIRLEAD_SITES_EXTRA": str(tmp_path),
        "FAIRLEAD_SITE": "exlike",
        "MPICH_GPU_SUPPORT_ENABLED": "1",
        "FI_OF_THE_USER": "mine",
    }
    words = ("--launcher", hosts.mpich() / "bin/mpiexec", hosts.image())
    done = fairlead(
        "run", "-n", "2", "--json", *words, "--", "python3", "-c", f"import os\n{tell}", env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = answer(done)
    assert said["proof"]["holds"]
    lines = [line.split() for line in done.stderr.splitlines() if line.startswith("rank ")]
    assert len(lines) == 2
    for line in lines:
        assert line[3:5] == ["1", "mine"]
        assert any(path.startswith("/opt/fairlead/mpi/dep/libcxi.so.1") for path in line), line
        assert "/opt/fairlead/mpi/lib/libmpi_gtl_cuda.so.0.0.0" in line
    shown = fairlead("explain", *words, "--", "python3", env=env).stdout
    assert "where the profile exlike looks for its MPI" in shown
    assert f"{root}/cray/nothing-here" in shown and "not on this machine" in shown
