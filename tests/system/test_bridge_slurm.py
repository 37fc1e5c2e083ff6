"""examples/bridge_slurm.sh on a real Slurm whose two nodes are on two simulated hosts: Spark on one, the ranks on the other."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tests.system import hosts, netns, slurm
from tests.system.netns import two_hosts

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces"),
]
_NAMED = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'


def test_spark_and_ranks_share_an_allocation_and_rows_cross_the_cable(tmp_path: Path) -> None:
    hosts.image("analytics")  # the example names it
    known = tmp_path / "hosts"
    places = dict(zip(("n1", "n2"), netns.ADDRESSES.values(), strict=True))
    known.write_text("127.0.0.1 localhost\n" + "".join(f"{a} {n}\n" for n, a in places.items()))
    with two_hosts() as pair:
        where = {}
        for (node, address), host in zip(places.items(), pair, strict=True):
            inside = ("nsenter", "--target", str(host.init), "--net", "--")
            words = (*inside, "unshare", "--mount", "sh", "-c", _NAMED, "sh", str(known))
            where[node] = (address, words)
        with slurm.slurm(
            where["n1"][1], places["n1"], where, names=("n1", "n2"), cpus=4
        ) as cluster:
            cluster.environ.update(INTERFACE=netns.CABLE, XDG_STATE_HOME=str(tmp_path / "state"))
            before = pair[0].sent(), pair[1].sent()
            out = tmp_path / "out"
            words = ("sbatch", "--wait", f"--output={out}", f"--chdir={hosts.ROOT}")
            done = cluster.run(*words, hosts.ROOT / "examples/bridge_slurm.sh", limit_s=500)
            text = out.read_text() if out.exists() else ""
            assert done.returncode == 0, done.stdout + done.stderr + text[-6000:]
            sent = [host.sent() - b for host, b in zip(pair, before, strict=True)]
            slurm.waited(lambda: not cluster.processes(), 30, "a process is left on a node")
    values = re.search(r"singular values: ([\d. ]+)", text)
    # Columns of 20,000 normal numbers times 0.9^n: nearly orthogonal.
    assert values, text
    for number, value in enumerate(map(float, values[1].split())):
        assert value == pytest.approx(20_000**0.5 * 0.9**number, rel=0.05)
    assert "rows of u in Spark: 20000" in text
    matrix, u = 20_000 * 50 * 8, 20_000 * 5 * 8
    assert sent[0] > matrix and u < sent[1] < matrix
    assert re.search(r"send Spark, 20,000 × 50, [89]\.\d MB", text), text
    assert "session job-" in text
