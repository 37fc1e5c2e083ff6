"""Ranks under a real Slurm: srun, salloc, sbatch, arrays, a node that fails, and what goes wrong."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.shared import own
from tests.system import hosts, slurm
from tests.system.hosts import answer
from tests.system.slurm import NODES, Cluster, waited
from tests.system.test_user import User, user  # noqa: F401 (a fixture)

from fairlead.launchers.srun import pmi_listed
from fairlead.schedulers.slurm import expand

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="slurmd runs jobs of others: only root can start it"
)

SAY = "from mpi4py import MPI; w = MPI.COMM_WORLD; print(f'{w.rank} of {w.size} on {MPI.Get_processor_name()}\\n', end='')"
LOOP = "from mpi4py import MPI; w = MPI.COMM_WORLD; w.Barrier(); print('up', flush=True)\nwhile True: w.Barrier()"


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with slurm.slurm() as made:
        yield made


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    """All nodes idle; afterwards no job and no process is left on any."""
    running.idle()
    yield running
    waited(running.empty, 30, "a job is left")
    waited(lambda: not running.processes(), 30, "a process is left on a node")


def proved(done: subprocess.CompletedProcess[str], ranks: int, nodes: int) -> dict[str, object]:
    assert done.returncode == 0, done.stdout + done.stderr
    said = answer(done)
    proof = said["proof"]
    assert proof["holds"], proof["findings"]
    assert [(r["rank"], r["size"]) for r in proof["ranks"]] == [(i, ranks) for i in range(ranks)]
    assert len({r["host"] for r in proof["ranks"]}) == nodes
    assert sorted(int(r["rank"]) for r in said["ranks"]) == list(range(ranks))
    return said


@pytest.mark.parametrize("shape", [("-N", "2", "-n", "2"), ("-n", "4")])
@pytest.mark.parametrize("setting", ["HYDRA_BOOTSTRAP=fork", "HYDRA_RMK=user"])
def test_launcher_that_does_not_know_the_jobs_nodes_is_found(
    setting: str, shape: tuple[str, ...], cluster: Cluster
) -> None:
    """All ranks find each other, on one node; the others of the job idle."""
    done = cluster.run(
        "env", setting, "salloc", "--quiet", "-N2", "-n4", sys.executable, "-m", "fairlead", "run", *shape,
        "--mpi", hosts.mpich(), "--launcher", hosts.mpich() / "bin/mpiexec", hosts.image(), "--",
        "python3", "-c", SAY,
    )  # fmt: skip
    asked = "-N" in shape
    assert done.returncode == (122 if asked else 0), done.stdout + done.stderr
    words = (
        "on 1 of the 2 nodes requested" if asked else "4 ranks share one node, which has 2 slots"
    )
    assert f"{'error' if asked else 'warning'}[placement]: " in done.stderr and words in done.stderr


def slurm_offers(cluster: Cluster) -> set[str]:
    done = cluster.run("srun", "--mpi=list")
    return set(pmi_listed(done.stdout + done.stderr))


@pytest.mark.parametrize(
    ("mpi", "nodes", "pmi", "title"),
    # Nodes of this cluster share /dev/shm, where Open MPI calls its files by host name and local rank:
    # those of two nodes would be the same. Its two nodes are in test_two_hosts.py.
    [
        ("mpich", 2, "pmi2", "MPICH Version: 5.0.2"),
        ("intel", 2, "pmi2", "Intel(R) MPI Library 2021.18.1"),
        ("openmpi", 1, "pmix", "Open MPI v5.0.11"),
    ],
)
def test_ranks_of_every_mpi_are_proved(
    mpi: str, nodes: int, pmi: str, title: str, cluster: Cluster
) -> None:
    prefix = {"mpich": hosts.mpich, "intel": hosts.intel, "openmpi": hosts.openmpi}[mpi]()
    done = cluster.fairlead(
        "run", "-N", nodes, "-n", 2 * nodes, "--json", "--mpi", prefix, hosts.image(), "--", "python3",
        "-c", SAY,
    )  # fmt: skip
    said = proved(done, 2 * nodes, nodes)
    assert said["launcher"]["kind"] == "srun" and said["launcher"]["pmi"] == pmi  # type: ignore[index]
    assert all(r["version"].startswith(title) for r in said["proof"]["ranks"])  # type: ignore[index]
    lines = sorted(line for line in done.stderr.splitlines() if f" of {2 * nodes} on n" in line)
    assert [line.split()[0] for line in lines] == [str(rank) for rank in range(2 * nodes)]


@pytest.mark.parametrize("engine", ["podman", "charliecloud"])
@pytest.mark.parametrize(
    ("mpi", "nodes", "title"),
    [("mpich", 2, "MPICH Version: 5.0.2"), ("openmpi", 1, "Open MPI v5.0.11")],
)
def test_ranks_of_other_engines_are_proved_and_leave_nothing(
    engine: str, mpi: str, nodes: int, title: str, cluster: Cluster
) -> None:
    """PMI-2 goes by a descriptor, PMIx by files of slurmd's: both have to reach into the container."""
    stores = own("/tmp", "fairlead-podman.*")
    prefix = {"mpich": hosts.mpich, "openmpi": hosts.openmpi}[mpi]()
    done = cluster.fairlead(
        "run", "-N", nodes, "-n", "2", "--json", "--engine", engine, "--mpi", prefix, hosts.image(),
        "--", "python3", "-c", SAY,
    )  # fmt: skip
    said = proved(done, 2, nodes)
    assert all(r["version"].startswith(title) for r in said["proof"]["ranks"])  # type: ignore[index]
    lines = sorted(line for line in done.stderr.splitlines() if " of 2 on n" in line)
    assert [line.split()[0] for line in lines] == ["0", "1"]
    new = own("/tmp", "fairlead-podman.*") - stores  # other tests' among them, which go
    waited(lambda: not new & own("/tmp", "fairlead-podman.*"), 60, "a store is left")


def test_explain_shows_which_way_ranks_find_each_other(cluster: Cluster) -> None:
    said = cluster.said(sys.executable, "-m", "fairlead", "explain", "-n", "2", hosts.image())
    assert "--mpi=pmi2" in said and "they find each other by pmi2" in said
    offered = slurm_offers(cluster)
    assert {"pmi2", "pmix", "none"} <= offered


def test_printed_line_works_when_it_is_pasted(cluster: Cluster) -> None:
    line = cluster.said(
        sys.executable, "-m", "fairlead", "run", "-N", "2", "-n", "2", "--time", "5m", "--dry-run",
        hosts.image(), "--", "python3", "-c", SAY,
    )  # fmt: skip
    assert "srun" in line and "--time=0:05:00" in line
    done = cluster.run("bash", "-c", line)
    assert done.returncode == 0, done.stderr
    assert sorted(x.split()[0] for x in done.stdout.splitlines() if " of 2 on " in x) == ["0", "1"]


def test_wrong_pmi_is_refused_before_and_stopped_by_the_proof(cluster: Cluster) -> None:
    words = (
        "run", "-N", "2", "-n", "2", "--json", "--launcher-arg=--mpi=none", hosts.image(),
        "--", "python3", "-c", SAY,
    )  # fmt: skip
    done = cluster.fairlead(*words)
    assert done.returncode == 121, done.stdout + done.stderr
    (finding,) = answer(done)["findings"]
    assert finding["check"] == "pmi" and "--mpi=none" in finding["what"]
    done = cluster.fairlead(*words[:5], "--force", *words[5:])
    assert done.returncode == 122, done.stdout + done.stderr
    (finding,) = answer(done)["findings"]
    assert finding["check"] == "world-size" and "every rank is alone" in finding["what"]


def test_foreign_pmi_is_refused(cluster: Cluster) -> None:
    done = cluster.fairlead(
        "run", "-n", "2", "--json", "--mpi", hosts.openmpi(), "--launcher-arg=--mpi=pmi2",
        hosts.image(), "--", "python3", "-c", SAY,
    )  # fmt: skip
    assert done.returncode == 121
    assert answer(done)["findings"][0]["check"] == "pmi"


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("raise SystemExit(7)", 7),
        pytest.param("os.kill(os.getpid(), 9)", 137, marks=pytest.mark.full),
    ],
)
def test_code_of_each_rank_is_known(end: str, code: int, cluster: Cluster) -> None:
    script = f"import os\nfrom mpi4py import MPI\nr = MPI.COMM_WORLD.rank\nMPI.COMM_WORLD.Barrier()\nif r == 1: {end}"
    done = cluster.fairlead(
        "run", "-N", "2", "-n", "2", "--json", hosts.image(), "--", "python3", "-c", script
    )
    if code == 137:  # the other waits in MPI_Finalize, and is ended
        assert done.returncode in (124, 137), done.stdout + done.stderr
        return
    said = answer(done)
    assert done.returncode == code == said["exit_code"], done.stdout + done.stderr
    assert {r["rank"]: r["exit_code"] for r in said["ranks"]} == {"0": 0, "1": code}


def test_launch_in_a_step_shares_its_processors(cluster: Cluster) -> None:
    """As of a workflow's rule that its engine starts by srun."""
    step = ("salloc", "-n", "2", "-N", "1", "srun", "-n", "1", "--cpus-per-task=2")
    words = ("run", "-n", "2", "--json", "--mpi", hosts.mpich(), hosts.image())
    inner = (sys.executable, "-m", "fairlead", *words, "--", "python3", "-c", SAY)
    proved(cluster.run(*step, *inner), 2, 1)


@pytest.mark.full
def test_rank_that_does_not_arrive_is_named_and_its_node(cluster: Cluster) -> None:
    # On the second node the container never comes up.
    slow = "import os, time\nif os.environ['SLURM_PROCID'] == '1': time.sleep(600)\nfrom mpi4py import MPI"
    done = cluster.fairlead(
        "run", "-N", "2", "-n", "2", "--json", "--watchdog", "1", hosts.image(),
        "--", "python3", "-c", slow,
    )  # fmt: skip
    assert done.returncode == 124, done.stdout + done.stderr
    (finding,) = answer(done)["findings"]
    assert finding["check"] == "watchdog"
    assert "rank 1: runs and has not called MPI_Init (on n2)" in finding["why"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_leaves_no_job(how: signal.Signals, cluster: Cluster) -> None:
    run = subprocess.Popen(
        [sys.executable, "-m", "fairlead", "run", "-N", "2", "-n", "2", "-q", str(hosts.image()),
         "--", "python3", "-c", LOOP],
        env=cluster.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert run.stdout and [run.stdout.readline() for _ in "12"] == ["up\n"] * 2
        assert not cluster.empty() and cluster.processes()
        os.killpg(run.pid, how)  # as a terminal does it
        assert run.wait(30) != 0
    finally:
        with_left = run.poll() is None
        if with_left:
            os.killpg(run.pid, signal.SIGKILL)
        run.communicate()


def test_cancelled_job_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "job.sh"
    cluster.said(
        sys.executable, "-m", "fairlead", "script", "-N", "2", "-n", "2", "-o", file, "--log", tmp_path / "log",
        hosts.image(), "--", "python3", "-c", LOOP,
    )  # fmt: skip
    number = cluster.said("sbatch", "--parsable", file).strip()
    log = tmp_path / "log"
    waited(
        lambda: log.exists() and log.read_text().count("up\n") == 2, 40, "the job does not start"
    )
    cluster.said("scancel", number)
    assert cluster.ended(number)["JobState"] == "CANCELLED"


def test_script_that_was_written_runs_and_its_words_arrive_whole(
    cluster: Cluster, tmp_path: Path
) -> None:
    odd = 'it\'s "$HOME" `id` $(id) \\ ; # é\n-x *'
    show = f"{SAY}\nimport sys\nif w.rank == 0: print(ascii(sys.argv[1]))"
    # One rank a node: with two on each of two, this Slurm now and then cuts the long values that MPICH 5 exchanges.
    for plain in (False, True):
        file, log = tmp_path / f"job{plain}.sh", tmp_path / f"log{plain}"
        cluster.said(
            sys.executable, "-m", "fairlead", "script", "-N", "2", "-n", "2", "--time", "5m",
            "--name", "words", "--log", log, "-o", file, *(["--plain"] if plain else []),
            hosts.image(), "--", "python3", "-c", show, odd,
        )  # fmt: skip
        assert ("fairlead run" in file.read_text().split("set -eu")[1]) is not plain
        assert subprocess.run(["sh", "-n", file], check=False).returncode == 0
        job = cluster.ended(cluster.said("sbatch", "--parsable", file).strip())
        said = log.read_text()
        assert job["JobState"] == "COMPLETED", said
        assert (job["NumNodes"], job["NumTasks"], job["JobName"]) == ("2", "2", "words")
        assert job["TimeLimit"] == "00:05:00"
        assert "proved on 2 ranks" in said and ascii(odd) in said.splitlines()
        assert sum(" of 2 on n" in line for line in said.splitlines()) == 2


def test_array_runs_once_for_each_index(cluster: Cluster, tmp_path: Path) -> None:
    show = f"{SAY}\nimport os\nif w.rank == 0: open(os.environ['FAIRLEAD_ARRAY_INDEX'], 'w').write(str(w.size))"
    file = tmp_path / "job.sh"
    cluster.said(
        sys.executable, "-m", "fairlead", "script", "-n", "2", "--array", "1-5:2%2", "-o", file,
        "--workdir", tmp_path, "--bind", tmp_path, "--log", tmp_path / "log",
        hosts.image(), "--", "python3", "-c", show,
    )  # fmt: skip
    number = cluster.said("sbatch", "--parsable", file).strip()
    waited(cluster.empty, 60, f"job {number} goes on")
    found = {p.name: p.read_text() for p in tmp_path.iterdir() if p.name.isdigit()}
    assert found == {"1": "2", "3": "2", "5": "2"}


@pytest.mark.full
def test_job_on_a_node_that_fails_runs_again_elsewhere(cluster: Cluster, tmp_path: Path) -> None:
    again = (
        f"{SAY}\nimport os, time\nopen(f'{{w.rank}}.' + os.environ.get('SLURM_RESTART_COUNT', '0'), 'w').close()\n"
        "w.Barrier()\nif 'SLURM_RESTART_COUNT' not in os.environ: time.sleep(600)"
    )
    file, log = tmp_path / "job.sh", tmp_path / "log"
    cluster.said(
        sys.executable, "-m", "fairlead", "script", "-N", "2", "-n", "2", "--requeue", "-o", file,
        "--workdir", tmp_path, "--bind", tmp_path, "--log", log, "--directive=--open-mode=append",
        hosts.image(), "--", "python3", "-c", again,
    )  # fmt: skip
    number = cluster.said("sbatch", "--parsable", file).strip()
    waited(lambda: {"0.0", "1.0"} <= {p.name for p in tmp_path.iterdir()}, 40, "it does not start")
    lost = expand(cluster.job(number)["NodeList"])[1]
    cluster.fail(lost)
    try:
        job = cluster.ended(number, 120)
        assert job["JobState"] == "COMPLETED" and job["Restarts"] == "1", log.read_text()
        assert lost not in expand(job["NodeList"])
        assert {"0.1", "1.1"} <= {p.name for p in tmp_path.iterdir()}
    finally:
        cluster.start(lost)
        cluster.idle()


def test_more_ranks_or_nodes_than_the_job_has_are_refused_in_one_message(cluster: Cluster) -> None:
    done = cluster.run(
        "salloc", "--quiet", "-N2", "-n4", sys.executable, "-m", "fairlead", "run", "-N", "3", "-n", "9",
        "--time", "5m", "--json", hosts.image(), "--", "true",
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    findings = answer(done)["findings"]
    assert {f["check"] for f in findings} == {"shape"} and len(findings) == 3
    words = " ".join(" ".join(f.values()) for f in findings)
    for part in ("3 nodes are requested", "need 9 slots", "has 4", "--time inside slurm job"):
        assert part in words, words


@pytest.mark.full
def test_cache_that_nodes_do_not_see_is_reported(cluster: Cluster) -> None:
    # /dev/shm of a node is its own.
    cache = Path(f"/dev/shm/fairlead-cache-test-{os.getpid()}")
    cluster.environ["XDG_CACHE_HOME"] = str(cache)
    try:
        done = cluster.fairlead(
            "run", "-N", "2", "-n", "2", "--json", hosts.image(), "--", "python3", "-c", SAY
        )
    finally:
        cluster.environ.pop("XDG_CACHE_HOME")
        if "XDG_CACHE_HOME" in os.environ:
            cluster.environ["XDG_CACHE_HOME"] = os.environ["XDG_CACHE_HOME"]
        subprocess.run(["rm", "-rf", cache], check=True)
    assert done.returncode == 123, done.stdout + done.stderr
    (finding,) = answer(done)["findings"]
    assert finding["check"] == "shared-cache" and "n1" in finding["where"]


def test_hosts_of_a_job_are_named_as_slurm_names_them(cluster: Cluster) -> None:
    for names in ("n[1-4]", "nid[0008-0011,0100],login1", "a[1,3-4],b", "r[1-2]c[09-11]"):
        output = cluster.said("scontrol", "show", "hostnames", names).split()
        assert list(expand(names)) == output


def test_example_job_script_says_what_it_promises(cluster: Cluster, tmp_path: Path) -> None:
    hosts.image()
    (line,) = re.findall(r"\$ (sbatch .*)", (hosts.ROOT / "examples/slurm.sh").read_text())
    log = tmp_path / "log"
    line = line.replace("sbatch ", f"cd {hosts.ROOT} && sbatch --ntasks=2 --output={log} ").replace(
        "--wait ", ""
    )
    cluster.said("sh", "-c", line)
    waited(cluster.empty, 60, "the job goes on")
    assert "proved on 2 ranks, 2 nodes" in log.read_text()
    assert "allreduce over 2 ranks: 3, as expected" in log.read_text()


@pytest.mark.full
def test_image_in_each_nodes_own_memory_runs_proved_and_another_one_on_a_node_is_named(
    cluster: Cluster, tmp_path: Path
) -> None:
    """As docs/howto/schedulers.md shows it; every node has a /dev/shm of its own."""
    name = f"fairlead-{os.getpid()}.sif"
    place = Path("/dev/shm", name)
    run = [sys.executable, "-m", "fairlead", "run", "-N", "2", "-n", "2", "--json", place]
    line = shlex.join(map(str, [*run, "--", "python3", "-c", SAY]))
    spoil = f"sh -c 'printf x | dd of={place} bs=1 seek=1000000 conv=notrunc status=none'"
    script = tmp_path / "job.sh"
    script.write_text(
        f"#!/bin/sh\nsbcast {hosts.image()} {place}\n{line} >{tmp_path}/whole 2>{tmp_path}/err\n"
        f"srun -N 1 -n 1 -w n2 {spoil}\n{line} >{tmp_path}/spoiled\n"
        f"srun -N 2 -n 2 rm {place}\n"
    )
    cluster.said("sbatch", "-N", "2", "-n", "2", "-w", "n1,n2", f"--output={tmp_path}/log", script)
    waited(cluster.empty, 180, "the job goes on")
    assert not place.exists()
    whole = json.loads((tmp_path / "whole").read_text() or "{}")
    assert [r["host"] for r in whole["proof"]["ranks"]] == ["n1", "n2"], (
        tmp_path / "err"
    ).read_text()
    spoiled = json.loads((tmp_path / "spoiled").read_text())
    text = json.dumps(spoiled)
    assert "proof" not in spoiled and "n2" in text and name in text, text


@pytest.mark.full
def test_ordinary_users_ranks_are_proved(cluster: Cluster, user: User) -> None:  # noqa: F811
    variables = {
        name: cluster.environ[name] for name in ("SLURM_CONF", "FAIRLEAD_SITES", "FAIRLEAD_SITE")
    }
    path = f"{cluster.folder}/slurm/usr/bin:/usr/bin:/bin"
    done = user.run(
        "env", f"PATH={path}", *(f"{n}={v}" for n, v in variables.items()),
        "/usr/bin/python3", "-m", "fairlead", "run", "-N", "2", "-n", "4", "--json", user.image,
        "--", "python3", "-c", SAY,
    )  # fmt: skip
    said = proved(done, 4, 2)
    assert said["engine"]["userns_per_rank"]  # type: ignore[index]


@pytest.mark.full
def test_validation_outside_of_a_job_is_one_job_and_fewer_ranks_take_fewer_nodes(
    cluster: Cluster, tmp_path: Path
) -> None:
    words = ("--quick", "--models", "none", "--ranks", "1,2", "-N", "2", "--ranks-per-node", "1")
    done = cluster.fairlead(
        "validate", *words, "--image", hosts.image(), "-o", tmp_path / "page", "--json", limit_s=300
    )
    assert done.returncode in (0, 125), done.stdout + done.stderr
    assert done.stderr.count("Granted job allocation") == 1
    said = answer(done)
    assert said["machine"]["hosts"] == ["n1", "n2"]
    assert [f["what"] for f in said["faults"] if f["severity"] == "error"] == []
    spread = {(m["ranks"], m["nodes"]) for m in said["measurements"]}
    assert (2, 2) in spread and all(nodes <= ranks for ranks, nodes in spread)
    assert [r["host"] for r in said["proof"]["ranks"]] == ["n1", "n2"]


@pytest.mark.full
def test_bundled_model_is_measured_on_one_rank_and_trained_on_both_nodes(
    cluster: Cluster, tmp_path: Path
) -> None:
    words = ("-N", "2", "--ranks-per-node", "1", "--train-samples", "500", "--max-seconds", "10")
    image = hosts.image("tensorflow")
    done = cluster.fairlead(
        "train", "hepcnn", *words, "--image", image, "-o", tmp_path / "page", "--json", limit_s=400
    )
    assert done.returncode in (0, 1), (
        done.stdout + done.stderr
    )  # ten seconds may be too few to learn
    said = answer(done)
    assert [r["host"] for r in said["proof"]["ranks"]] == ["n1", "n2"]
    assert said["result"]["one"]["ranks"] == 1 and said["result"]["all"]["ranks"] == 2
    assert len({w["final"] for w in said["result"]["all"]["weights"]}) == 1


def test_nothing_is_left_of_the_cluster_itself() -> None:
    with slurm.slurm() as made:
        folder, pids = made.folder, [p.pid for p in made.nodes.values()]
        assert set(made.nodes) == set(NODES)
    assert not folder.exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            assert str(folder) not in (entry / "environ").read_text(errors="replace")
        except OSError:
            continue


def test_record_of_ranks_on_two_nodes_is_repeated_in_a_job_of_its_own(cluster: Cluster) -> None:
    folder = cluster.folder / "recorded"
    folder.mkdir()
    line = (
        "run", "-N", 2, "-n", 4, "--mpi", hosts.mpich(), "--record", folder / "run-1", "--result", folder / "ranks",
        hosts.image(), "--", "sh", "-c", f"touch {folder}/ranks; exec python3 -c \"{SAY}\"",
    )  # fmt: skip
    done = cluster.fairlead(*line)
    assert done.returncode == 0, done.stderr
    run = json.loads((folder / "run-1/run.json").read_bytes())
    assert sorted(run["ranks"]["hosts"].values()) == ["0-1", "2-3"] and run["ranks"]["proved"]
    host = run["before"]["host"]
    assert host["scheduler"] == "slurm" and host["job"].isdecimal()
    # Every rank has noted what it maps, on its own node.
    assert run["ranks"]["others"] == [] and not run["ranks"]["unlisted"]
    paths = [library["path"] for library in run["ranks"]["libraries"]]
    assert run["ranks"]["groups"][0]["mpi"] in paths and any("mpi4py" in path for path in paths)
    done = cluster.fairlead("replay", folder / "run-1", "--json")
    said = answer(done)
    assert done.returncode == 0 and said["same"], done.stdout + done.stderr
    assert not {d["kind"] for d in said["differences"]} & {"MPI", "library", "ranks"}, said
