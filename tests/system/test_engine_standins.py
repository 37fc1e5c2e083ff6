"""``fairlead run`` with engines that cannot be had here: what their documents say is said to a stand-in,
which takes nothing else and starts Apptainer. The launch behind it is real, and so is the proof.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.system import hosts, slurm

from fairlead.engines.apptainer import find_apptainer

STANDIN = Path(__file__).with_name("standin.py")


@pytest.fixture(scope="module")
def image() -> Path:
    return hosts.image_with_programs()


def prepared(kind: str, image: Path, folder: Path) -> tuple[Path, dict[str, str]]:
    """IMAGE as this engine keeps it, and the variables that put a stand-in on PATH."""
    program = folder / "bin" / kind
    program.parent.mkdir()
    shutil.copy(STANDIN, program)
    program.write_text(f"#!{sys.executable} -I\n" + STANDIN.read_text())
    program.chmod(0o755)
    user = pwd.getpwuid(os.geteuid()).pw_name
    kept = {
        "shifter": folder / "store/train.squashfs",
        "sarus": folder / user / ".sarus/images/reg.example.org/ml/train/1.squashfs",
        "enroot": folder / "train.squashfs",
        "srun": folder / "train.squashfs",
    }[kind]
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.symlink_to(image)
    (folder / "etc").mkdir()
    (folder / "etc/sarus.json").write_text(json.dumps({"localRepositoryBaseDir": str(folder)}))
    (folder / "etc/udiRoot.conf").write_text(f"imagePath={folder}/store\n")
    if kind == "shifter":
        kept.with_suffix(".meta").write_text("FORMAT: squashfs\n")
    root = "--drop-caps CAP_SYS_RESOURCE" if os.geteuid() == 0 else ""
    return kept, {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "STANDIN_APPTAINER": str(find_apptainer()),
        "STANDIN_OPTIONS": root,
        "FAIRLEAD_MPI": str(hosts.mpich()),
    }


@pytest.mark.parametrize("kind", ["shifter", "sarus", "enroot"])
def test_run_says_it_in_the_engines_words_and_proves_the_launch(
    kind: str, image: Path, tmp_path: Path
) -> None:
    kept, environ = prepared(kind, image, tmp_path)
    done = hosts.fairlead(
        "run", "--engine", kind, "-n", "2", "--env", "GREETING=good, $morning = 'you'", kept, "--",
        "/bin/sh", "-c", 'echo "$GREETING"; exec /opt/app/allreduce',
        env=environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "proved on 2 ranks" in done.stderr and "5.0.2" in done.stderr, done.stderr
    assert done.stdout.count("good, $morning = 'you'\n") == 2
    assert set(hosts.ranks_of(done.stdout)) == {0, 1}


@pytest.mark.parametrize("kind", ["shifter", "sarus", "enroot"])
def test_frameworks_variables_reach_the_ranks(kind: str, image: Path, tmp_path: Path) -> None:
    """The shell around each rank sets them, when the engine's line is long written."""
    kept, environ = prepared(kind, image, tmp_path)
    done = hosts.fairlead(
        "run", "--engine", kind, "-n", "2", "--rendezvous", "torch", kept, "--",
        "/bin/sh", "-c", 'echo "$RANK of $WORLD_SIZE, $FAIRLEAD_RANK"; exec /opt/app/allreduce', env=environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"0 of 2, 0", "1 of 2, 1"} <= set(done.stdout.splitlines()), done.stdout


@pytest.mark.parametrize("kind", ["shifter", "sarus", "enroot"])
def test_dry_run_can_be_pasted(kind: str, image: Path, tmp_path: Path) -> None:
    kept, environ = prepared(kind, image, tmp_path)
    output = hosts.fairlead(
        "run", "--engine", kind, "-n", "2", "--workdir", "/usr", "--dry-run", kept, "--",
        "/bin/sh", "-c", "pwd; exec /opt/app/allreduce", env=environ,
    )  # fmt: skip
    assert output.returncode == 0, output.stderr
    pasted = subprocess.run(
        ["sh", "-c", output.stdout], env={**os.environ, **environ}, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert pasted.returncode == 0, pasted.stdout + pasted.stderr
    assert pasted.stdout.count("/usr\n") == 2 and set(hosts.ranks_of(pasted.stdout)) == {0, 1}


@pytest.mark.parametrize("kind", ["shifter", "sarus"])
def test_image_of_that_name_in_the_engines_store_is_another_and_is_refused(
    kind: str, image: Path, tmp_path: Path
) -> None:
    """The engine would start its own, and the proof would hold: of an image that nobody looked into."""
    kept, environ = prepared(kind, image, tmp_path)
    mine = tmp_path / "mine" / kept.relative_to(tmp_path)
    mine.parent.mkdir(parents=True)
    shutil.copy(hosts.image_with_rpath(), mine)
    if kind == "shifter":
        mine.with_suffix(".meta").write_text("FORMAT: squashfs\n")
    command = ("--", "/bin/sh", "-c", "exit 0")
    done = hosts.fairlead("run", "--engine", kind, "-n", "2", mine, *command, env=environ)
    assert done.returncode == 121 and not done.stdout, done.stdout + done.stderr
    assert "error[engine-other-image]" in done.stderr and str(kept) in done.stderr, done.stderr
    looked = hosts.fairlead("preflight", "--engine", kind, mine, env=environ)
    assert looked.returncode == 121 and str(kept) in looked.stdout, looked.stdout
    own = hosts.fairlead("run", "--engine", kind, "-n", "2", kept, *command, env=environ)
    assert own.returncode == 0, own.stderr


def test_stand_in_takes_nothing_else(image: Path, tmp_path: Path) -> None:
    """It would be no check if it took anything."""
    kept, environ = prepared("sarus", image, tmp_path)
    for option in (
        "--volume=/a:/b",
        "--mount=source=/a,destination=/b",
        "--mount=type=bind,source=/a:/b",
    ):
        done = hosts.fairlead(
            "run", "--engine", "sarus", f"--engine-arg={option}", kept, "--", "true", env=environ
        )
        assert done.returncode != 0
        assert (
            "no such option" in done.stderr
            or "must be specified" in done.stderr
            or "Invalid" in done.stderr
        )


def test_image_that_the_engine_does_not_open_is_refused_before_a_launch(
    image: Path, tmp_path: Path
) -> None:
    _, environ = prepared("sarus", image, tmp_path)
    done = hosts.fairlead("preflight", "--engine", "sarus", hosts.image("mpi-base"), env=environ)
    assert done.returncode == 121, done.stdout + done.stderr
    assert "Sarus cannot open this image" in done.stdout and "sarus pull" in done.stdout


def test_squashfs_is_taken_out_of_a_sif_for_an_engine_that_opens_no_sif(tmp_path: Path) -> None:
    sif = hosts.image("mpi-base")
    _, environ = prepared("enroot", sif, tmp_path)
    done = hosts.fairlead(
        "run", "--engine", "enroot", "-n", "2", sif, "--", "/opt/python/bin/python3", "-m",
        "mpi4py.bench", "helloworld", env=environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "proved on 2 ranks" in done.stderr


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start slurmd")
def test_container_engine_is_selected_by_srun_on_two_nodes_of_a_real_slurm(
    image: Path, tmp_path: Path
) -> None:
    with slurm.slurm() as cluster:
        real = shutil.which("srun", path=cluster.environ["PATH"])
        assert real
        kept, environ = prepared("srun", image, cluster.folder)
        environ["PATH"] = f"{cluster.folder}/bin:{cluster.environ['PATH']}"
        cluster.environ |= environ | {"STANDIN_SRUN": real}
        done = cluster.fairlead(
            "run", "--engine", "ce", "-N", "2", "-n", "4", "--json", kept, "--",
            "/bin/sh", "-c", "/opt/app/allreduce && exit $((SLURM_PROCID == 3 ? 7 : 0))",
        )  # fmt: skip
        # Exit codes come by files that are written in the container.
        assert done.returncode == 7, done.stdout + done.stderr
        said = hosts.answer(done)
        assert said["proof"]["holds"] and len(said["proof"]["ranks"]) == 4
        assert sorted((r["rank"], r["exit_code"]) for r in said["ranks"]) == [
            ("0", 0), ("1", 0), ("2", 0), ("3", 7),
        ]  # fmt: skip
        assert len({r["host"] for r in said["proof"]["ranks"]}) == 2
        line = cluster.said(
            sys.executable, "-m", "fairlead", "run", "--engine", "ce", "-n", "2", "--dry-run", kept,
            "--", "/opt/app/allreduce",
        )  # fmt: skip
        pasted = cluster.run("bash", "-c", line)
        assert pasted.returncode == 0, pasted.stderr
        assert set(hosts.ranks_of(pasted.stdout)) == {0, 1}
