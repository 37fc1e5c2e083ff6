"""Frameworks that never call MPI: one world of the right size under every launcher, or an error that says why not."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.system import hosts, netns, slurm
from tests.system.hosts import answer
from tests.system.netns import Host, launcher, two_hosts

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")

TORCH = hosts.PROGRAMS / "world_torch.py"
JAX = """
import os, jax
jax.distributed.initialize()
import jax.numpy as jnp
from jax.experimental.multihost_utils import process_allgather
every = process_allgather(jnp.array([jax.process_index()])).ravel().tolist()
os.write(1, f"{jax.process_index()} of {jax.process_count()}: {every}\\n".encode())
"""
MULTI_WORKER = """
import os, tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
total = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0)))
total = float(strategy.experimental_local_results(total)[0])
os.write(1, f"{strategy.cluster_resolver.task_id} of {strategy.num_replicas_in_sync}: {total}\\n".encode())
"""


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Host, Host]]:
    with two_hosts() as made:
        yield made


def members(done: subprocess.CompletedProcess[str], size: int) -> list[str]:
    """What the ranks of one world printed, which is the same on all."""
    assert done.returncode == 0, done.stdout + done.stderr
    found = dict(re.findall(rf"^(\d+) of {size}: (.+)$", done.stderr, re.MULTILINE))
    assert sorted(found, key=int) == [str(rank) for rank in range(size)], done.stderr
    assert len(set(found.values())) == 1, found
    return list(found.values())


def world(done: subprocess.CompletedProcess[str], framework: str, size: int, nodes: int) -> None:
    members(done, size)
    said: list[dict[str, Any]] = answer(done)["worlds"]
    assert [(w["framework"], w["size"], len(w["hosts"])) for w in said] == [
        (framework, size, nodes)
    ]


def finding(done: subprocess.CompletedProcess[str], code: int = 122) -> dict[str, str]:
    assert done.returncode == code, done.stdout + done.stderr
    (found,) = answer(done)["findings"]
    return dict(found)


def run(*words: str | Path, ranks: int = 2, image: str = "pytorch", **env: str) -> subprocess.CompletedProcess[str]:  # fmt: skip
    environ = {**os.environ, **env}
    return hosts.fairlead(
        "run", "-n", str(ranks), "--json", "-B", hosts.PROGRAMS, hosts.image(image), "--", *words, env=environ,
    )  # fmt: skip


def test_ddp_under_the_hosts_launcher_is_one_world() -> None:
    world(run("python3", TORCH), "torch", 2, 1)


@pytest.mark.full
def test_jax_needs_no_argument() -> None:
    world(run("python3", "-c", JAX, image="jax"), "jax", 2, 1)


@pytest.mark.full
def test_multi_worker_strategy_of_tensorflow_is_one_world() -> None:
    world(run("python3", "-c", MULTI_WORKER, image="tensorflow"), "tf", 2, 1)


def test_world_on_fewer_nodes_than_requested_is_refused() -> None:
    """Two names of one host are one node."""
    done = hosts.fairlead(
        "run", "-n", "2", "--hosts", "localhost,127.0.0.1", "--json", hosts.image("tensorflow"), "--",
        "python3", "-c", MULTI_WORKER,
    )  # fmt: skip
    found = finding(done)
    assert found["check"] == "placement" and "on 1 of the 2 nodes" in found["what"], found


def test_torchrun_starts_the_processes_of_its_node() -> None:
    world(run("torchrun", "--nproc-per-node", "2", TORCH, ranks=1), "torch", 2, 1)


@pytest.mark.full
def test_ddp_under_open_mpis_launcher_is_one_world() -> None:
    done = hosts.fairlead(
        "run", "-n", "2", "--json", "-B", hosts.PROGRAMS, "--mpi", "container", "--launcher",
        hosts.openmpi() / "bin/mpiexec", "--force", hosts.image("pytorch"), "--", "python3", TORCH, env=hosts.AS_ROOT,
    )  # fmt: skip
    world(done, "torch", 2, 1)


@pytest.mark.parametrize("words", [("python3", TORCH), pytest.param(("torchrun", "--nproc-per-node", "2", TORCH), marks=pytest.mark.full)], ids=["ddp", "torchrun"])  # fmt: skip
def test_ranks_on_two_hosts_are_one_world(
    words: tuple[str | Path, ...], pair: tuple[Host, Host]
) -> None:
    one, _ = pair
    remote = launcher(one, hosts.mpich() / "bin/mpiexec.hydra").with_name("rsh")
    done = one.fairlead(
        "run", "-N", "2", "-n", "2", "--hosts", "node1,node2", "--json", "-B", hosts.PROGRAMS,
        *(f"--launcher-arg={word}" for word in (*netns.MPICH_RSH, remote)),
        hosts.image("pytorch"), "--", *words,
    )  # fmt: skip
    world(done, "torch", 4 if words[0] == "torchrun" else 2, 2)


@pytest.mark.parametrize(
    ("words", "env", "what", "why"),
    [
        pytest.param(("one",), {}, "has formed a world of one, on each of 2 ranks", "given as 0 and 1", marks=pytest.mark.full),
        pytest.param(("apart",), {}, "has two rendezvous", "do not find each other", marks=pytest.mark.full),
        pytest.param(("sizes",), {}, "has two sizes", "wait for each other forever", marks=pytest.mark.full),
        ((), {"RANK": "0"}, "two processes with the number 0", "is the same in both"),
        pytest.param((), {"WORLD_SIZE": "1"}, "has formed a world of one", "given as 0 and 1", marks=pytest.mark.full),
        ((), {"MASTER_ADDR": "no.such.host"}, "cannot meet at no.such.host", "does not resolve in the container"),
        pytest.param((), {"MASTER_ADDR": "192.0.2.77"}, "cannot meet at 192.0.2.77", "is not an address of", marks=pytest.mark.full),
    ],
    ids=["of-one", "apart", "sizes", "one-rank", "one-size", "unresolved", "of-nobody"],
)  # fmt: skip
def test_ranks_that_are_no_world_end_and_say_why(
    words: tuple[str, ...], env: dict[str, str], what: str, why: str
) -> None:
    found = finding(run("python3", TORCH, *words, **env))
    assert found["check"] == "world" and what in found["what"] and why in found["why"], found


@pytest.mark.full  # builds the image `jax`
@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("no.such.host:29500", "does not resolve in the container"),
        ("192.0.2.77:29500", "is not an address of"),
    ],
    ids=["unresolved", "of-nobody"],
)
def test_coordinator_that_ranks_of_jax_cannot_reach_is_named(place: str, why: str) -> None:
    found = finding(run("python3", "-c", JAX, image="jax", JAX_COORDINATOR_ADDRESS=place))
    assert place in found["what"] and why in found["why"], found


@pytest.mark.full
def test_endpoint_of_torchrun_that_does_not_resolve_is_named() -> None:
    words = ("torchrun", "--rdzv-endpoint", "no.such.host:29500", "--nproc-per-node", "2", TORCH)
    found = finding(run(*words, ranks=1))
    assert "torchrun: the ranks cannot meet at no.such.host:29500" in found["what"], found


@pytest.mark.full
def test_cluster_of_ray_on_every_rank_is_named_with_the_line_that_works() -> None:
    # A short path: Ray makes sockets in it. In /tmp/ray it would find clusters of other launches.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        code = f"import ray, time; ray.init(_temp_dir='{folder}/' + str(time.time_ns())); time.sleep(60)"
        found = finding(run("python3", "-c", code, image=str(hosts.ROOT / "examples/trainers")))
    assert "Ray has started a cluster on each of 2 ranks" in found["what"], found
    assert "ray_cluster.py" in found["remedy"]


def test_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = finding(run("python3", TORCH, MASTER_PORT=str(port)))
    assert f"port {port} is not free there" in found["why"]


@pytest.mark.full
def test_torchrun_in_a_shell_on_every_rank_is_two_worlds_and_fails() -> None:
    found = finding(run("sh", "-c", f"torchrun --nproc-per-node 2 {TORCH}"))
    assert "torchrun was started on each of 2 ranks" in found["what"], found


def test_launcher_of_a_framework_on_every_rank_is_refused_with_the_line_that_works() -> None:
    found = finding(run("torchrun", TORCH), code=121)
    assert "torchrun --nproc-per-node=2" in found["remedy"]
    found = finding(run("accelerate", "launch", TORCH), code=121)
    assert f"-- python3 {TORCH}" in found["remedy"]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_line_of_a_dry_run_says_what_it_lacks_and_works_with_it() -> None:
    words = ("run", "-n", "2", "--dry-run", "-B", hosts.PROGRAMS, hosts.image("pytorch"), "--")
    said = hosts.fairlead(*words, "python3", TORCH).stderr
    command = shlex.split(said.partition("as the command: ")[2].splitlines()[0])
    # Below those that the kernel gives to whatever asks meanwhile.
    port = next(p for p in range(20000 + os.getpid() % 8000, 32000) if _is_free(p))
    values = {"HOST-OF-RANK-0": "127.0.0.1", "MASTER_PORT=PORT": f"MASTER_PORT={port}"}
    for name, value in values.items():
        command = [word.replace(name, value) for word in command]
    line = hosts.fairlead(*words, *command).stdout
    done = subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"^\d of 2: .+$", done.stdout, re.MULTILINE)
    assert len(set(found)) == 2, done.stdout + done.stderr


@pytest.mark.full
def test_ranks_that_are_meant_to_be_apart_may_be() -> None:
    words = ("run", "-n", "2", "-B", hosts.PROGRAMS)
    command = (hosts.image("pytorch"), "--", "python3", TORCH, "alone")
    warned = hosts.fairlead(*words, *command)
    assert (
        warned.returncode == 0
        and "PyTorch works on each of 2 ranks alone: it takes steps" in warned.stderr
    )
    done = hosts.fairlead(*words, "--rendezvous", "none", *command)
    assert done.returncode == 0 and "PyTorch" not in done.stderr


FIT = """
import numpy as np, keras, sys
if sys.argv[1:]:
    import fairlead.comm
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((8, 2)), np.ones((8, 1)), epochs=1, verbose=0)
"""
DEVICES = "import jax, time; print(jax.device_count()); time.sleep(0.5)"


@pytest.mark.full
@pytest.mark.parametrize(
    ("image", "code", "words"),
    [
        ("tensorflow", FIT, "TensorFlow works on each of 2 ranks alone: it fits a model"),
        ("jax", DEVICES, "JAX works on each of 2 ranks alone: it has devices"),
    ],
)
def test_a_framework_that_is_never_asked_to_join_is_warned_of(
    image: str, code: str, words: str
) -> None:
    run_it = ("run", "-n", "2", hosts.image(image), "--", "python3", "-c", code)
    warned = hosts.fairlead(*run_it)
    assert warned.returncode == 0 and words in " ".join(warned.stderr.split()), warned.stderr
    if image == "tensorflow":
        assert "alone" not in hosts.fairlead(*run_it, "with-comm").stderr


def test_under_mpiexec_in_a_job_slurms_variables_of_the_batch_step_mislead_nobody() -> None:
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    done = run("python3", "-c", "import os; print(os.environ['RANK'], 'SLURM_PROCID' in os.environ)", **batch)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {"0 False", "1 False"} <= set(done.stderr.splitlines())


@pytest.mark.full
def test_ranks_of_slurm_on_two_hosts_are_one_world(pair: tuple[Host, Host]) -> None:
    one, two = pair
    where = {
        node: (netns.ADDRESSES[host.name], ("nsenter", "--target", str(host.init), "--net", "--"))
        for node, host in zip(slurm.NODES, (one, one, two, two), strict=True)
    }
    with slurm.slurm(where["n1"][1], netns.ADDRESSES["node1"], where) as cluster:
        done = cluster.fairlead(
            "run", "-N", "2", "-n", "2", "--hosts", "n2,n3", "--json", "-B", hosts.PROGRAMS,
            hosts.image("pytorch"), "--", "python3", TORCH,
        )  # fmt: skip
    world(done, "torch", 2, 2)


@pytest.mark.parametrize("engine", [pytest.param("podman", marks=pytest.mark.full), "charliecloud"])
def test_variables_reach_the_ranks_of_other_engines(engine: str) -> None:
    done = hosts.fairlead(
        "run", "-n", "2", "--json", "--engine", engine, "-B", hosts.PROGRAMS, hosts.image(), "--", "python3", "-c",
        "import os; e = os.environ; os.write(1, f\"{e['RANK']} of {e['WORLD_SIZE']}: {e['MASTER_ADDR']}\\n\".encode())",
    )  # fmt: skip
    members(done, 2)
