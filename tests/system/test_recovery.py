"""Jobs that outlive their nodes and their time: restarts, spare nodes, requeue from within an image, warnings.

Slurm and the ranks are real; a node that fails is its slurmd and all that runs below it, killed at once.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from tests.system import hosts, netns, slurm
from tests.system.kills import run as kills
from tests.system.slurm import Cluster, waited

from fairlead.schedulers.slurm import expand

TRAINERS = Path(__file__).parents[2] / "examples/trainers"
slurm_only = pytest.mark.skipif(
    os.geteuid() != 0, reason="slurmd runs jobs of others: only root can start it"
)
# What the ranks do until they are on their last launch: say where they are, and wait for ever.
WAIT = """
import os, time
from mpi4py import MPI
world, count = MPI.COMM_WORLD, os.environ.get("FAIRLEAD_RESTART", "") + "." + os.environ.get("SLURM_RESTART_COUNT", "0")
world.Barrier()
open(f"{world.rank}.{count}", "w").write(MPI.Get_processor_name())
world.Barrier()
if count != LAST:
    time.sleep(600)
"""
DIES = """
import os, signal, time
rank, count = int(os.environ["RANK"]), int(os.environ["FAIRLEAD_RESTART"])
print(f"rank {rank}, restart {count}\\n", end="", flush=True)
time.sleep(0.3)
if rank == 1 and count < 2:
    HOW
"""
# A script that saves on SIGTERM, as many do, and one process below it that would end it by dying.
SAVES = """
import os, signal, subprocess, sys, time
def save(number, frame):
    time.sleep(2)
    print("saved" if child.poll() is None else "its child was ended", flush=True)
    child.kill()
    sys.exit(CODE)
signal.signal(signal.SIGTERM, save)
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, print); print('ready', flush=True); time.sleep(60)"])
child.wait()
"""


def run(*words: str | Path, limit_s: float = 120) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "fairlead", "run", *map(str, words)]
    return subprocess.run(
        line, capture_output=True, text=True, timeout=limit_s, check=False, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 137),
        pytest.param("raise SystemExit(3)", 3, marks=pytest.mark.full),
    ],
)
def test_launch_begins_again_until_it_ends_well(how: str, code: int) -> None:
    program = DIES.replace("HOW", how)
    done = run("-n", "2", "--restarts", "2", hosts.image(), "--", "python3", "-c", program)
    assert done.returncode == 0, done.stderr
    for count in range(3):
        assert f"rank 0, restart {count}" in done.stdout
    assert "restart 2 of 2 on the same nodes" in done.stderr, done.stderr
    done = run("-n", "2", "--restarts", "1", hosts.image(), "--", "python3", "-c", program)
    assert done.returncode == code and "restart 1 of 1" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("sh", "-c", "no-such-program"), 127),
        (("python3", "-c", "raise SystemExit(2)"), 2),
    ],
)
def test_what_would_fail_again_is_not_tried_again(words: tuple[str, ...], code: int) -> None:
    done = run("-n", "2", "--restarts", "5", hosts.image(), "--", *words)
    assert done.returncode == code and "restart" not in done.stderr, done.stderr


def test_options_that_contradict_are_refused() -> None:
    spare = run("-n", "2", "--spares", "1", hosts.image(), "--", "true")
    assert spare.returncode == 2 and "--restarts" in spare.stderr
    requeue = run("-n", "2", "--requeue", "60", hosts.image(), "--", "true")
    assert requeue.returncode == 2 and "no job to requeue" in requeue.stderr


@pytest.mark.parametrize("code", [0, 7])
def test_ranks_save_when_fairlead_is_terminated(code: int, tmp_path: Path) -> None:
    log = tmp_path / "log"
    line = ["run", "-n", "2", "--restarts", "3", str(hosts.image()), "--", "python3", "-c"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "fairlead", *line, SAVES.replace("CODE", str(code))],
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        waited(lambda: log.read_text().count("ready") == 2, 60, log.read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == code, log.read_text()
    finally:
        process.kill()
        process.wait()
    text = log.read_text()
    assert text.splitlines().count("saved") == 2 and "restart" not in text, text
    assert "SIGTERM: handed to 2 processes" in text, text


def test_ranks_that_handle_no_sigterm_end_at_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "print('ready', flush=True); import time; time.sleep(60)"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "fairlead", "run", "-n", "2", str(hosts.image()), "--", "python3", "-c", code],
            stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        waited(lambda: log.read_text().count("ready") == 2, 60, log.read_text())
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 130, log.read_text()
        assert time.monotonic() - begun < 10
    finally:
        process.kill()
        process.wait()


STANDS = """
import os, signal
from mpi4py import MPI
world = MPI.COMM_WORLD
world.Barrier()
if world.rank == 1 and os.environ.get("FAIRLEAD_RESTART") == "0":
    os.kill(os.getpid(), signal.SIGSTOP)
world.Barrier()
print("through", flush=True)
"""


@pytest.mark.full
def test_rank_that_stands_still_is_named_and_the_launch_begins_again() -> None:
    begun = time.monotonic()
    done = run("-n", "2", "--restarts", "1", hosts.image(), "--", "python3", "-c", STANDS)
    assert done.returncode == 0 and done.stdout.count("through") == 2, done.stderr
    assert "after: rank 1 stands still" in done.stderr and time.monotonic() - begun < 45


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with slurm.slurm() as made:
        yield made


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    with running.in_use():
        yield running


def submitted(cluster: Cluster, folder: Path, *words: str, code: str) -> tuple[str, Path]:
    """The number of a job of ranks that run ``code`` in ``folder``, and its log."""
    file, log = folder / "job.sh", folder / "log"
    cluster.said(
        sys.executable, "-m", "fairlead", "script", *words, "-o", file, "--log", log, "--workdir", folder,
        "--bind", folder, "--directive=--open-mode=append", hosts.image(), "--", "python3", "-c", code,
    )  # fmt: skip
    return cluster.said("sbatch", "--parsable", file).strip(), log


def at_work(folder: Path, *names: str, limit_s: float = 60) -> None:
    """Waits until ranks have written files."""
    try:
        waited(lambda: {*names} <= {path.name for path in folder.iterdir()}, limit_s, "")
    except AssertionError:
        there, log = sorted(path.name for path in folder.iterdir()), folder / "log"
        said = log.read_text() if log.exists() else ""
        raise AssertionError(f"{names} are not in {there}: {said}\n{processes()}") from None


def processes() -> str:
    """State, where it waits in the kernel, and command line of each process."""
    lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            lines.append(f"{folder.name} {state} {(folder / 'wchan').read_text()} {words[:160]}")
    return "\n".join(line for line in lines if not line.endswith(" "))


@slurm_only
def test_job_goes_on_without_the_node_that_fails(cluster: Cluster, tmp_path: Path) -> None:
    number, log = submitted(
        cluster, tmp_path, "-N", "2", "-n", "2", "--restarts", "2", "--spares", "1",
        code=WAIT.replace("LAST", "'1.0'"),
    )  # fmt: skip
    at_work(tmp_path, "0.0.0", "1.0.0")
    nodes = expand(cluster.job(number)["NodeList"])
    assert len(nodes) == 3
    lost = (tmp_path / "1.0.0").read_text()
    begun = time.monotonic()
    cluster.fail(lost)
    at_work(tmp_path, "0.1.0", "1.1.0")
    assert time.monotonic() - begun < 45
    job, text = cluster.ended(number), log.read_text()
    assert job["JobState"] == "COMPLETED" and job.get("Restarts") == "0", text
    where = {(tmp_path / f"{rank}.1.0").read_text() for rank in range(2)}
    assert where == {*nodes} - {lost}, text
    assert f"without {lost}" in text and f"{lost} is lost" in text, text
    listed = cluster.fairlead("doctor", "node-history", "--json").stdout
    assert f"{lost}: " in listed and "the node lost in" in listed, listed


@slurm_only
@pytest.mark.full
def test_launch_of_one_rank_whose_node_dies_has_failed(cluster: Cluster, tmp_path: Path) -> None:
    """srun may say that all ended well."""
    code = (
        f"import os, time; open('{tmp_path}/node', 'w').write(os.uname().nodename); time.sleep(600)"
    )
    words = (
        "run",
        "-n",
        "1",
        "-N",
        "1",
        "--bind",
        tmp_path,
        hosts.image(),
        "--",
        "python3",
        "-c",
        code,
    )
    salloc = ("salloc", "-N", "2", "-n", "2", "--no-kill")
    with ThreadPoolExecutor() as pool:
        running = pool.submit(
            cluster.run, *salloc, sys.executable, "-m", "fairlead", *words, limit_s=150
        )
        waited(lambda: (tmp_path / "node").exists(), 60, "the rank does not begin")
        node = (tmp_path / "node").read_text()
        cluster.fail(node)
        done = running.result()
    assert done.returncode != 0 and f"{node} is lost" in done.stderr, done.stdout + done.stderr


@slurm_only
@pytest.mark.full
def test_node_of_a_rank_that_fails_is_left_out_where_that_is_asked_for(
    cluster: Cluster, tmp_path: Path
) -> None:
    code = WAIT.replace("LAST", "'1.0'") + "\n"
    code = code.replace(
        "time.sleep(600)", "os.kill(os.getpid(), 9) if world.rank else time.sleep(600)"
    )
    number, log = submitted(
        cluster, tmp_path, "-N", "2", "-n", "2", "--restarts", "1", "--spares", "1", "--exclude-failed",
        code=code,
    )  # fmt: skip
    assert cluster.ended(number, 90)["JobState"] == "COMPLETED", log.read_text()
    assert (tmp_path / "1.0.0").read_text() not in {
        (tmp_path / f"{rank}.1.0").read_text() for rank in range(2)
    }


@pytest.mark.full
@slurm_only
def test_no_node_left_is_said(cluster: Cluster, tmp_path: Path) -> None:
    number, log = submitted(
        cluster, tmp_path, "-N", "2", "-n", "2", "--restarts", "2", code=WAIT.replace("LAST", "''")
    )
    at_work(tmp_path, "0.0.0", "1.0.0")
    cluster.fail((tmp_path / "1.0.0").read_text())
    job = cluster.ended(number, 90)
    assert job["JobState"] in ("FAILED", "NODE_FAIL"), job
    assert "no restart: 1 nodes are left, and the ranks need 2" in log.read_text(), log.read_text()


@slurm_only
@pytest.mark.full
@pytest.mark.parametrize("requeue", [True, False])
def test_job_whose_first_node_dies_is_requeued_or_ended(
    requeue: bool, cluster: Cluster, tmp_path: Path
) -> None:
    words = ("--requeue",) if requeue else ()
    number, log = submitted(
        cluster, tmp_path, "-N", "2", "-n", "2", "--restarts", "1", "--spares", "1", *words,
        code=WAIT.replace("LAST", "'0.1'"),
    )  # fmt: skip
    at_work(tmp_path, "0.0.0", "1.0.0")
    cluster.fail(cluster.job(number)["BatchHost"])
    job = cluster.ended(number, 150)
    if requeue:
        assert job["JobState"] == "COMPLETED" and job["Restarts"] == "1", log.read_text()
    else:
        assert job["JobState"] == "CANCELLED", job


ASKS = """
import os, subprocess, sys, time
listed = subprocess.run(["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]], capture_output=True, text=True, check=True)
assert len(listed.stdout.split()) == 2, listed
if os.environ["RANK"] == "0":
    print("restarts:", os.environ.get("SLURM_RESTART_COUNT", "0"), flush=True)
    if "SLURM_RESTART_COUNT" not in os.environ:
        other = subprocess.run(["scontrol", "requeue", "1"], capture_output=True, text=True)
        assert other.returncode and "can requeue no other" in other.stderr, other
        update = subprocess.run(["scontrol", "update", "job=1"], capture_output=True, text=True)
        assert update.returncode == 127 and "not in this image" in update.stderr, update
        subprocess.check_call(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]])
if "SLURM_RESTART_COUNT" not in os.environ:
    time.sleep(600)
"""


@slurm_only
def test_program_in_the_image_requeues_its_job(cluster: Cluster, tmp_path: Path) -> None:
    cluster.said("sbatch", "--wrap", "true", "--output=/dev/null")  # another job
    number, log = submitted(cluster, tmp_path, "-N", "2", "-n", "2", "--requeue", code=ASKS)
    job = cluster.ended(number, 90)
    text = log.read_text()
    assert job["JobState"] == "COMPLETED" and job["Restarts"] == "1", text
    assert "restarts: 0" in text and "restarts: 1" in text and "is requeued" in text, text


LEAVES = """
import os, signal, sys, time
saved = os.environ.get("SLURM_RESTART_COUNT")
def leave(number, frame):
    open(f"saved.{os.environ['RANK']}", "w").close()
    sys.exit(0)
signal.signal(signal.SIGNAL, leave)
open(f"up.{os.environ['RANK']}", "w").close()
time.sleep(0 if saved else 600)
print("through" if saved else "cut", flush=True)
"""


@slurm_only
@pytest.mark.parametrize("name", ["SIGUSR1", pytest.param("SIGTERM", marks=pytest.mark.full)])
def test_warning_before_the_time_limit_requeues_the_job(
    name: str, cluster: Cluster, tmp_path: Path
) -> None:
    # Slurm sends it up to a minute early or late: here its own scancel does.
    number, log = submitted(
        cluster, tmp_path, "-N", "2", "-n", "2", "--requeue", "--warn", "4", "--time", "1h",
        code=LEAVES.replace("SIGNAL", name),
    )  # fmt: skip
    assert "#SBATCH --signal=B:USR1@4" in (tmp_path / "job.sh").read_text()
    at_work(tmp_path, "up.0", "up.1")
    cluster.said("scancel", "--batch", "--signal=USR1", number)
    job = cluster.ended(number, 120)
    assert job["JobState"] == "COMPLETED" and job["Restarts"] == "1", log.read_text()
    assert {"saved.0", "saved.1"} <= {path.name for path in tmp_path.iterdir()}
    assert "through" in log.read_text()


@pytest.mark.full
@slurm_only
def test_nodes_are_compared_before_and_the_slow_one_is_left_out(tmp_path: Path) -> None:
    with netns.switched(3) as nodes:
        names = ",".join(node.name for node in nodes)
        rsh = netns.launcher(nodes[0], hosts.mpich() / "bin/mpiexec.hydra").with_name("rsh")
        words = (
            "run", "--mpi", hosts.mpich(), *(f"--launcher-arg={word}" for word in (*netns.MPICH_RSH, rsh)),
            "--hosts", names, "--spares", "1", "--check-nodes", hosts.image("tensorflow"), "--", "python3", "-c", "import os; print(os.uname().nodename)",
        )  # fmt: skip
        well = nodes[0].fairlead(*words, limit_s=200)
        assert well.returncode == 0 and "3 of 3 as they should be" in well.stderr, well.stderr
        assert set(well.stdout.split()) == {"node1", "node2"}
        netns.slow_link(nodes[1], "50mbit")
        done = nodes[0].fairlead(*words, limit_s=200)
    assert done.returncode == 0 and "node2 is left out" in done.stderr, done.stderr
    assert set(done.stdout.split()) == {"node1", "node3"}


def test_history_of_nodes_is_shown(tmp_path: Path) -> None:
    row = {"time": 1e9, "host": "n7", "check": "node-lost", "what": "n7 is lost", "job": "12"}
    (tmp_path / "fairlead").mkdir()
    (tmp_path / "fairlead/nodes.jsonl").write_text(json.dumps(row) + "\nno record\n")
    done = subprocess.run(
        [sys.executable, "-m", "fairlead", "doctor", "node-history"],
        capture_output=True, text=True, check=False, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert "n7" in done.stdout and "1 failure" in done.stdout, done.stdout + done.stderr


@slurm_only
@pytest.mark.full
def test_training_survives_every_kind_of_failure() -> None:
    found = kills.measure(list(kills.Failures.KINDS), 1, "hepcnn", 4, print)
    assert all(kill["resumed"] is not None for kill in found["kills"]), found
    assert all(found["trainings_equal"]), found
    for kill in found["kills"]:
        assert kill["lost"] <= 2 * kills.EVERY, kill
        assert kill["named_s"] is None or kill["named_s"] <= kills.NAMED_S, kill
        assert kill["named"] or kill["requeued"], kill


# One of torchrun's workers fails once, then the node of another once.
ELASTIC = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
launch, total = os.environ["FAIRLEAD_RESTART"], torch.ones(1)
dist.all_reduce(total)
# Only the agent whose worker has failed counts it.
restart = torch.tensor(int(os.environ["TORCHELASTIC_RESTART_COUNT"]))
dist.all_reduce(restart, dist.ReduceOp.MAX)
restart = str(restart.item())
open(f"{dist.get_rank()}.{launch}.{restart}", "w").write(os.uname().nodename)
dist.barrier()
if launch == restart == "0" and dist.get_rank():
    raise SystemExit(5)
if launch == "0":
    time.sleep(600)
print(f"{total.item():g} workers, launch {launch}", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.full
@slurm_only
def test_torchrun_restarts_its_workers_and_fairlead_its_agents(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "elastic.py").write_text(ELASTIC)
    file, log = tmp_path / "job.sh", tmp_path / "log"
    cluster.said(
        sys.executable, "-m", "fairlead", "script", "-N", "2", "--ranks-per-node", "1", "--restarts", "1", "--spares", "1",
        "-o", file, "--log", log, "--workdir", tmp_path, "--bind", tmp_path, hosts.image("pytorch"),
        "--", "torchrun", "--nproc-per-node", "1", "--max-restarts", "2", "elastic.py",
    )  # fmt: skip
    number = cluster.said("sbatch", "--parsable", file).strip()
    at_work(
        tmp_path, "0.0.1", "1.0.1", limit_s=240
    )  # the workers of both nodes began again, by torchrun
    lost = {(tmp_path / f"{rank}.0.1").read_text() for rank in range(2)}
    lost -= {cluster.job(number)["BatchHost"]}
    cluster.fail(lost.pop())
    job, text = cluster.ended(number, 120), log.read_text()
    assert job["JobState"] == "COMPLETED", text
    assert "restart 1 of 1" in text and text.count("2 workers, launch 1") == 2, text


# What people's own scripts do at a warning: Lightning and submitit save, and call `scontrol requeue` themselves.
LIGHTNING = """
import os, time, torch, lightning as L
from torch.utils.data import DataLoader, TensorDataset
again = "SLURM_RESTART_COUNT" in os.environ
class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        time.sleep(1)
        return self.layer(batch[0]).square().mean()
    def on_train_start(self):
        print(f"rank {self.global_rank} of {self.trainer.world_size} from step {self.global_step}", flush=True)
        open(f"up.{self.global_rank}", "w").close()
    def on_train_batch_end(self, *given):
        self.trainer.should_stop = again
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
data = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4)
options = dict(accelerator="cpu", devices=1, num_nodes=2, strategy="ddp", logger=False, enable_progress_bar=False)
L.Trainer(max_epochs=10000, min_steps=1, default_root_dir=os.getcwd(), **options).fit(Model(), data)
print("through", flush=True)
"""
SUBMITIT = """
import os, time
from pathlib import Path
from submitit.core.utils import DelayedSubmission
class Work:
    def __init__(self, steps=0):
        self.steps = steps
    def __call__(self):
        rank = os.environ["SLURM_PROCID"]
        print(f"rank {rank} from step {self.steps}", flush=True)
        Path(f"up.{rank}").touch()
        while self.steps < 10000 and "SLURM_RESTART_COUNT" not in os.environ:
            time.sleep(0.1)
            self.steps += 1
        print("through", flush=True)
    def checkpoint(self):
        return DelayedSubmission(Work(self.steps))
if __name__ == "__main__":
    import sys
    from submitit.core import submission
    sys.modules["work"] = sys.modules["__main__"]
    Work.__module__ = "work"
    kept = Path(f"{os.environ['SLURM_JOB_ID']}_submitted.pkl")
    if os.environ["SLURM_PROCID"] == "0" and not kept.exists():
        delayed = DelayedSubmission(Work())
        delayed.set_timeout(60, 3)
        delayed.dump(kept)
    while not kept.exists():
        time.sleep(0.1)
    submission.submitit_main()
"""


@slurm_only
@pytest.mark.full
@pytest.mark.parametrize(("name", "warning"), [("lightning", "USR1"), ("submitit", "USR2")])
def test_scripts_requeue_their_job_by_themselves(
    name: str, warning: str, cluster: Cluster, tmp_path: Path
) -> None:
    code = {"lightning": LIGHTNING, "submitit": SUBMITIT}[name]
    (tmp_path / "work.py").write_text(code)
    if name == "submitit":
        words = ("install", "-q", "--target", tmp_path, "submitit==1.5.4")
        subprocess.run([sys.executable, "-m", "pip", *map(str, words)], check=True)
    file, log = tmp_path / "job.sh", tmp_path / "log"
    cluster.said(
        sys.executable, "-m", "fairlead", "script", "-N", "2", "--ranks-per-node", "1", "--requeue", "-o", file,
        "--log", log, "--workdir", tmp_path, "--bind", tmp_path, "--env", "SUBMITIT_EXECUTOR=slurm",
        "--env", f"PYTHONPATH={tmp_path}", "--directive=--open-mode=append",
        hosts.image(str(TRAINERS)), "--", "python3", "work.py", tmp_path,
    )  # fmt: skip
    number = cluster.said("sbatch", "--parsable", file).strip()
    at_work(tmp_path, "up.0", "up.1", limit_s=120)
    time.sleep(2)
    cluster.said("scancel", "--batch", f"--signal={warning}", number)
    job, text = cluster.ended(number, 180), log.read_text()
    assert job["JobState"] == "COMPLETED" and job["Restarts"] == "1", text
    assert "is requeued" in text and text.count("through") == 2, text
    began = [int(step) for step in re.findall(r"^rank \d.* from step (\d+)$", text, re.MULTILINE)]
    assert sorted(began)[:2] == [0, 0] and all(step > 0 for step in sorted(began)[2:]), text
