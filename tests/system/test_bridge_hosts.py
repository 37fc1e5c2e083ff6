"""A session whose ranks are on two simulated hosts, with clients on both: rows cross the cable."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system import hosts, netns
from tests.system.netns import Host, launcher, two_hosts

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces"),
]
CLIENT = """
import sys
import numpy as np
from fairlead.bridge import connect
with connect(sys.argv[1]) as mpi:
    array = np.random.default_rng(1).random((4000, 500))
    matrix = mpi.send(array)
    assert (matrix.to_numpy() == array).all()
    u, s, v = mpi.linalg.svd(matrix, k=3)
    assert np.allclose(s.to_numpy()[0], np.linalg.norm(array, 2))
    print(sorted(rank["host"] for rank in mpi.status()["ranks"]))
"""


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Host, Host]]:
    with two_hosts() as made:
        yield made


def _serve(one: Host, state: Path, *words: str) -> tuple[int, str]:
    mpiexec = launcher(one, hosts.mpich() / "bin/mpiexec.hydra")
    command = (
        "bridge",
        "serve",
        "-n",
        "2",
        "--background",
        "--mpi",
        hosts.mpich(),
        "--launcher",
        mpiexec,
        *words,
    )
    done = one.fairlead(*command, hosts.image("bridge"), env={"XDG_STATE_HOME": str(state)})
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    "words", [("--interface", netns.CABLE), ("--interface", netns.CABLE, "--tls")]
)
def test_clients_on_either_host_reach_the_ranks_of_both(
    pair: tuple[Host, Host], tmp_path: Path, words
) -> None:
    one, two = pair
    code, text = _serve(one, tmp_path, "--name", "apart", *words)
    assert code == 0, text
    folder = tmp_path / "fairlead/bridge/apart"
    try:
        for host in (one, two):
            before = one.sent(), two.sent()
            done = hosts.program(*host.words(sys.executable, "-c", CLIENT, folder))
            assert done.returncode == 0 and "['node1', 'node2']" in done.stdout, (
                done.stdout + done.stderr
            )
            half = 4000 * 500 * 8 / 2
            other = one if host is two else two
            sent = host.sent() - before[(one, two).index(host)]
            assert sent > half and other.sent() > before[(one, two).index(other)]
    finally:
        one.fairlead("bridge", "stop", "apart", env={"XDG_STATE_HOME": str(tmp_path)})


def test_ranks_on_several_hosts_do_not_listen_where_nobody_named_an_interface(
    pair: tuple[Host, Host], tmp_path: Path
) -> None:
    code, text = _serve(pair[0], tmp_path, "--name", "nowhere")
    assert code != 0 and "the ranks are on 2 nodes" in text, text
