"""What ``site export`` writes, taken by the tools that it is written for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system import hosts
from tests.system.podman import podman

from fairlead.base.paths import locked
from fairlead.elf.patchelf import find_patchelf
from fairlead.engines.apptainer import find_apptainer
from fairlead.export import audience
from fairlead_build.cache.store import scratch_parent

LMOD = Path("/usr/share/lmod/lmod/init/bash")
BIN = Path(sys.executable).parent
# MPICH's own Hydra starts as root; Apptainer as root wants one capability less here.
ROOT = ("--drop-caps", "CAP_SYS_RESOURCE") if os.geteuid() == 0 else ()


@pytest.fixture(scope="module")
def image() -> Path:
    return hosts.image_with_programs()


def export(target: str, folder: Path, *more: str | Path) -> Path:
    """The folder with the export of this machine."""
    out = folder / target
    done = hosts.fairlead(
        "site", "export", "--for", target, "--mpi", hosts.mpich(), "--stage", folder / "stage",
        "-o", out, "--private", *more,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def run(*words: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=300, check=False, cwd=cwd,
        env={**os.environ, "PATCHELF": find_patchelf(), **(env or {})}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_staging_script_makes_the_folder_that_a_launch_makes(tmp_path: Path, image: Path) -> None:
    out = export("apptainer", tmp_path, "--image", image)
    folder = Path(run(out / "stage.sh").strip())
    words = ("--mpi", hosts.mpich(), image, "--", "true")
    assert hosts.fairlead("run", *words).returncode == 0
    launch = re.search(
        r"([^\s:=']+/stage/[^\s:/]+):", hosts.fairlead("run", "--dry-run", *words).stdout
    )
    assert launch

    def contents(folder: Path) -> dict[str, str]:
        """Each file's place; where a link leads. A launch's copies have a DT_RPATH as well."""
        kept = (p for p in folder.rglob("*") if p.name not in (".state", "copies.json"))
        return {
            str(p.relative_to(folder)): str(p.readlink()) if p.is_symlink() else "" for p in kept
        }

    assert contents(folder) == contents(Path(launch[1]))


def test_staging_script_leaves_what_is_whole_and_fixes_what_is_not(tmp_path: Path) -> None:
    script = export("apptainer", tmp_path) / "stage.sh"
    folder = Path(run(script).strip())
    library = folder / "lib/libmpi.so.12"
    inode = library.stat().st_ino
    assert run(script).strip() == str(folder)
    assert library.stat().st_ino == inode
    (folder / "lib/libmpi.so").unlink()
    library.write_bytes(b"cut")
    run(script)
    assert library.stat().st_size > 1_000_000 and (folder / "lib/libmpi.so").readlink()
    old = list(folder.parent.glob(f".{folder.name}.*.old"))
    assert len(old) == 1, "jobs may have it mounted"
    assert sorted(p.name for p in folder.parent.iterdir() if ".old" not in p.name) == [folder.name]


def test_staging_script_stops_at_a_library_that_is_gone_and_leaves_nothing(tmp_path: Path) -> None:
    script = export("apptainer", tmp_path) / "stage.sh"
    text = script.read_text().replace("libucp.so.0 ", "libucp.so.9 ", 1)
    script.write_text(text)
    done = subprocess.run([script], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "libucp.so.9 is not there" in done.stderr
    assert "fairlead site export" in done.stderr
    assert not [p for p in (tmp_path / "stage").iterdir() if p.is_dir()]


def test_apptainer_exec_with_the_exported_variables_runs_on_the_hosts_mpi(
    tmp_path: Path, image: Path
) -> None:
    out = export("apptainer", tmp_path, "--image", image)
    run(out / "stage.sh")
    line = (
        f". {out}/environment.sh; {hosts.mpich()}/bin/mpiexec -n 2 {find_apptainer()} --quiet exec "
        f"{image} python3 -m fairlead.prove"
    )
    output = run("/bin/sh", "-euc", line)
    assert (
        "proved on 2 ranks" in output and "5.0.2 from /opt/fairlead/mpi/lib/libmpi.so.12" in output
    )
    # And the proof knows what must be there: without the bind it stops.
    gone = line.replace("; ", "; unset APPTAINER_BINDPATH; ", 1)
    done = subprocess.run(["/bin/sh", "-c", gone], capture_output=True, text=True, check=False)
    assert done.returncode == 122 and "must be mapped" in done.stdout, done.stdout + done.stderr


def _lmod(modules: Path, commands: str) -> str:
    script = f". {LMOD}\nmodule use {modules}\n{commands}"
    return run("bash", "--noprofile", "--norc", "-c", script, env={"MODULEPATH": str(modules)})


needs_lmod = pytest.mark.skipif(not LMOD.exists(), reason="no Lmod; Debian's package is lmod")


@needs_lmod
def test_lmod_loads_the_module_and_its_commands_run_in_the_image(
    tmp_path: Path, image: Path
) -> None:
    out = export(
        "lmod", tmp_path, "--image", image, "--name", "my-image/1.0", "--program", "python3",
        "--program", "/opt/app/allreduce", "--program", "printf",
    )  # fmt: skip
    output = _lmod(
        out,
        "module load my-image/1.0; module -t list 2>&1; printf '%s|' 'two words' '$HOME'; echo; "
        "FAIRLEAD_RANKS=2 python3 -m mpi4py.bench helloworld; echo $FAIRLEAD_IMAGE; "
        "module unload my-image; type python3; echo [$FAIRLEAD_IMAGE]",
    )
    assert "my-image/1.0" in output
    assert "two words|$HOME|" in output
    assert "Hello, World! I am process 1 of 2" in output
    assert f"{image}\n" in output and output.endswith("[]\n")
    assert not re.search(r"python3 is a function", output)


@needs_lmod
def test_lmod_loads_the_module_of_apptainers_variables(tmp_path: Path) -> None:
    out = export("apptainer", tmp_path)
    output = _lmod(
        out,
        "export APPTAINER_BINDPATH=/data; module load fairlead-mpi; echo $APPTAINER_BINDPATH; "
        "echo $APPTAINERENV_LD_LIBRARY_PATH; module unload fairlead-mpi; echo $APPTAINER_BINDPATH",
    )
    binds, path, after = output.splitlines()[-3:]
    assert binds.startswith("/data,") and binds.endswith(":/opt/fairlead/mpi:ro")
    assert path.startswith("/opt/fairlead/mpi/lib") and after == "/data"


def test_reframe_test_fails_where_the_image_runs_on_its_own_mpi(
    tmp_path: Path, image: Path
) -> None:
    out = export("reframe", tmp_path, "--image", image)
    test = out / "swap_test.py"
    test.write_text(test.read_text().replace(f"'{hosts.mpich()}'", "'container'"))
    done = subprocess.run(
        [BIN / "reframe", "-C", "config.py", "-c", "swap_test.py", "-r", "--prefix", tmp_path / "rfm"],
        cwd=out, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1 and "FAILED" in done.stdout, done.stdout
    assert "pattern 'MPICH" in done.stdout and "of the host' not found" in done.stdout, done.stdout


needs_podman = pytest.mark.skipif(
    not shutil.which("podman") or os.geteuid() != 0, reason="needs root and podman"
)


def podman_hpc_programs() -> Path:
    """podman-hpc from PyPI, apart: on PATH for good it would be an engine of this machine.

    A virtual environment holds its own path, so one in a cache that was moved or copied is made anew.
    """
    made = hosts.KEPT / "podman-hpc-1.2.2"
    whole = made / "whole"
    with locked(hosts.KEPT / ".lock"):
        if not whole.exists() or whole.read_text() != str(made):
            run(sys.executable, "-m", "venv", "--clear", "--without-pip", made)
            pip = (sys.executable, "-m", "pip", "--python", made / "bin/python", "install", "-q")
            run(*pip, "podman-hpc==1.2.2")
            whole.write_text(str(made))
    return made / "bin"


@pytest.fixture(scope="module")
def podman_hpc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Variables by which a real podman-hpc works as root, with folders of its own."""
    folder = tmp_path_factory.mktemp("podman-hpc")
    (folder / "podman_hpc.yaml").write_text("use_default_args: false\n")
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/root"\nrunroot = "{folder}/run"\n'
    )
    programs = podman_hpc_programs()
    with podman() as store:
        yield {
            **store.environ,
            "PATH": f"{programs}:{store.environ['PATH']}",
            "USER": "root",
            "PODMANHPC_CONFIG_FILE": str(folder / "podman_hpc.yaml"),
            "PODMANHPC_MODULES_DIR": str(folder / "modules.d"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        }
    subprocess.run(["umount", "-l", folder / "root/overlay"], capture_output=True, check=False)


@pytest.fixture(scope="module")
def unpacked() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=scratch_parent(400 << 20)) as work:
        yield hosts.unpacked(Path(work, "image"), {})


@pytest.mark.full
@needs_podman
def test_run_starts_podman_hpc_and_proves_its_own_launch(
    unpacked: Path, podman_hpc: dict[str, str]
) -> None:
    done = hosts.fairlead(
        "run", "--engine", "podman-hpc", "-n", "2", "--mpi", hosts.mpich(), unpacked, "--",
        "/opt/python/bin/python3", "-m", "mpi4py.bench", "helloworld",
        env=podman_hpc,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Hello, World! I am process 1 of 2" in done.stdout
    assert "proved on 2 ranks" in done.stderr


@pytest.mark.parametrize(
    ("target", "option"),
    [("lmod", "--image"), ("reframe", "--image"), ("parsl", "--mpi"), ("snakemake", "-o")],
)
def test_export_that_names_what_others_cannot_read_is_refused(
    target: str, option: str, image: Path, tmp_path: Path
) -> None:
    path = tmp_path / "private/it"
    path.parent.mkdir(mode=0o700)
    if option == "--image":
        path = path.with_suffix(".squashfs")
        hosts.same_file(image, path)
    elif option == "--mpi":
        shutil.copytree(hosts.mpich(), path, symlinks=True)
    out = path if option == "-o" else tmp_path / "out"
    words = (
        "site",
        "export",
        "--for",
        target,
        option,
        path,
        *(() if option == "-o" else ("-o", out)),
    )
    done = hosts.fairlead(*words)
    assert done.returncode == 121 and "export-private" in done.stderr, done.stderr
    assert f"where: {path}\n" in done.stderr and "others may not enter" in done.stderr
    assert not out.exists()
    assert hosts.fairlead(*words, "--private").returncode == 0


def test_mpi_that_only_root_can_read_is_staged_for_all(tmp_path: Path) -> None:
    """Only the staging script names it, which root runs. Intel's reads tables in a folder."""
    prefix = tmp_path / "private/mpi"
    prefix.parent.mkdir(mode=0o700)
    shutil.copytree(
        hosts.intel(),
        prefix,
        symlinks=True,
        copy_function=lambda a, b: hosts.same_file(Path(a), Path(b)),
    )
    (prefix / "opt/mpi/etc").chmod(0o700)
    with tempfile.TemporaryDirectory() as shared:
        Path(shared).chmod(0o755)
        words = ("--mpi", prefix, "--stage", f"{shared}/stage", "-o", f"{shared}/out")
        done = hosts.fairlead("site", "export", "--for", "apptainer", *words)
        assert done.returncode == 0, done.stderr
        staged = Path(run(f"{shared}/out/stage.sh").strip())
        assert (staged / "opt/mpi/etc").is_dir()
        assert [f"{path}" for path in staged.rglob("*") if audience.closed(str(path))] == []
        assert str(prefix) not in Path(shared, "out/environment.sh").read_text()
