"""What the shells around the ranks tell each other, run by the shells that nodes have."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from fairlead.rendezvous import script
from fairlead.rendezvous.registry import FRAMEWORKS

SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]
ALL = [f for f in FRAMEWORKS if not f.launchers]
# A node with Ethernet, two ports of a fast network, and a bridge of containers; addresses as the kernel prints them.
ROUTE = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0
docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
hsn0\t0000FA0A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
hsn1\t0001FA0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""
TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 172.17.0.1
        /32 host LOCAL
     |-- 10.0.0.7
        /32 host LOCAL
     |-- 10.250.0.7
        /32 host LOCAL
     |-- 10.250.1.7
        /32 host LOCAL
     |-- 127.0.0.1
        /32 host LOCAL
Local:
     |-- 10.0.0.7
        /32 host LOCAL
"""
SIX = "fe800000000000000000000000000001 02 40 20 80     eth0\n20010db8000000000000000000000007 02 40 00 80     eth0\n"


def met(
    folder: Path,
    ranks: int,
    shell: str = "dash",
    environ: Mapping[str, str] | None = None,
    **options: bool,
) -> list[dict[str, str]]:
    """The variables of each rank."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / script.SCRIPT).write_text(script.text(ALL, ranks, "run-1", **options))
    words = ["busybox", "sh"] if shell == "busybox" else [shell]
    line = f'r=$1 f={folder}/exit.$1; : >"$f"; . {folder}/{script.SCRIPT}; exec env -0'
    clean = {"PATH": os.environ["PATH"], **(environ or {})}
    started = [
        subprocess.Popen([*words, "-c", line, "rank", str(rank)], stdout=subprocess.PIPE, env=clean)
        for rank in reversed(range(ranks))
    ]
    printed = [process.communicate(timeout=30)[0].decode() for process in reversed(started)]
    return [dict(line.split("=", 1) for line in text.split("\0") if line) for text in printed]


@pytest.mark.parametrize("shell", SHELLS)
def test_ranks_of_a_node_have_one_world(shell: str, tmp_path: Path) -> None:
    ranks = met(tmp_path / "run", 3, shell)
    for number, rank in enumerate(ranks):
        assert rank["RANK"] == rank["LOCAL_RANK"] == rank["JAX_PROCESS_ID"] == str(number)
        assert rank["WORLD_SIZE"] == rank["LOCAL_WORLD_SIZE"] == rank["JAX_NUM_PROCESSES"] == "3"
        assert rank["NODE_RANK"] == rank["GROUP_RANK"] == "0"
        assert rank["MASTER_ADDR"] == "127.0.0.1" and rank["GLOO_SOCKET_IFNAME"] == "lo"
        cluster = json.loads(rank["TF_CONFIG"])
        assert cluster["task"] == {"type": "worker", "index": number}
        assert cluster["cluster"] == json.loads(ranks[0]["TF_CONFIG"])["cluster"]
    shared = {(r["MASTER_PORT"], r["JAX_COORDINATOR_ADDRESS"]) for r in ranks}
    assert len(shared) == 1
    workers = json.loads(ranks[0]["TF_CONFIG"])["cluster"]["worker"]
    ports = {*(int(w.rpartition(":")[2]) for w in workers), int(ranks[0]["MASTER_PORT"])}
    assert len(ports) == 4
    for port in ports:
        with socket.socket() as free:
            free.bind(("127.0.0.1", port))


def test_threads_of_ranks_that_are_not_bound_share_the_cores(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    online = os.cpu_count() or 1
    expected = max(cores // 2, 1) if cores == online else cores
    assert {r["OMP_NUM_THREADS"] for r in met(tmp_path, 2)} == {str(expected)}


def test_bound_rank_has_the_threads_of_its_cores(tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("has one core")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert {r["OMP_NUM_THREADS"] for r in met(tmp_path, 2)} == {"1"}
    finally:
        os.sched_setaffinity(0, before)


def test_what_is_set_stays(tmp_path: Path) -> None:
    mine = {"MASTER_ADDR": "10.1.1.1", "OMP_NUM_THREADS": "7", "TF_CONFIG": ""}
    for rank in met(tmp_path, 2, environ=mine):
        assert {name: rank[name] for name in mine} == mine
        assert rank["WORLD_SIZE"] == "2"


@pytest.mark.parametrize("of_slurm", [True, False])
def test_slurms_variables_are_the_ranks_own_or_none(of_slurm: bool, tmp_path: Path) -> None:
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "7"}
    for rank in met(tmp_path, 2, environ=batch, of_slurm=of_slurm):
        assert ("SLURM_PROCID" in rank, "SLURM_NTASKS" in rank) == (of_slurm, of_slurm)
        assert rank["SLURM_JOB_ID"] == "7"


def test_process_without_a_rank_says_so_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / script.SCRIPT).write_text(script.text(ALL, 2, "run-1"))
    line = f"r=4711 f={tmp_path}/exit.4711; . {tmp_path}/{script.SCRIPT}; env"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, env={"PATH": os.environ["PATH"]}, check=True)  # fmt: skip
    assert "no rank below 2" in done.stderr and "WORLD_SIZE" not in done.stdout


def test_run_folder_that_goes_ends_the_wait(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / script.SCRIPT).write_text(script.text(ALL, 2, "run-1"))
    line = f"r=1 f={folder}/exit.1; . {folder}/{script.SCRIPT}"
    waiting = subprocess.Popen(["sh", "-c", line], stderr=subprocess.DEVNULL)
    while not (folder / "here.1").exists():
        assert waiting.poll() is None
    shutil.rmtree(folder)
    assert waiting.wait(30) != 0


def own(folder: Path, interfaces: str = "", **files: str) -> list[str]:
    """Address, interface and ports that a node with these files below /proc/net chooses."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    given = {"interfaces": interfaces, "size": "2", "rank": "1", "low": "32768", "seed": "00c0ffee"}
    words = [word for name, value in given.items() for word in ("-v", f"{name}={value}")]
    done = subprocess.run(
        ["awk", *words, script._OWN, *(str(folder / name) for name in files)], capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()[:5]


@pytest.mark.parametrize(
    ("interfaces", "chosen"),
    [
        ("", ["10.0.0.7", "eth0"]),
        ("hsn*", ["10.250.0.7", "hsn0"]),
        ("ib* hsn1", ["10.250.1.7", "hsn1"]),
        ("ib*", ["10.0.0.7", "eth0"]),
        ("hsn?.100", ["10.0.0.7", "eth0"]),
    ],
)
def test_interface_is_the_profiles_else_that_of_the_way_out(
    interfaces: str, chosen: list[str], tmp_path: Path
) -> None:
    assert own(tmp_path, interfaces, route=ROUTE, fib_trie=TRIE)[:2] == chosen


def test_node_without_ipv4_has_an_address_of_ipv6(tmp_path: Path) -> None:
    header = ROUTE.splitlines(keepends=True)[0]
    found = own(tmp_path, route=header, fib_trie="", if_inet6=SIX)
    assert found[:2] == ["2001:0db8:0000:0000:0000:0000:0000:0007", "eth0"]


def test_node_without_a_network_has_no_address(tmp_path: Path) -> None:
    assert own(tmp_path, route="", fib_trie="")[:2] == ["-", "-"]


def test_ports_in_use_are_passed_over(tmp_path: Path) -> None:
    first = [int(port) for port in own(tmp_path, route=ROUTE, fib_trie=TRIE)[2:]]
    assert len(first) == 3 and all(20000 <= port < 32768 and port % 2 == 1 for port in first)
    taken = "  sl  local_address\n" + "".join(f"   0: 0100007F:{p:04X} 00000000:0000 0A\n" for p in first)  # fmt: skip
    second = {int(port) for port in own(tmp_path, route=ROUTE, fib_trie=TRIE, tcp=taken)[2:]}
    assert len(second) == 3 and second.isdisjoint(first)


def gathered(
    folder: Path, nodes: Mapping[str, list[int]], address: str = "10.0.0.{}"
) -> list[list[str]]:
    """The table of ranks, by node."""
    size = sum(map(len, nodes.values()))
    for number, (name, ranks) in enumerate(nodes.items(), 1):
        for rank in ranks:
            line = (
                f"{rank} {name}.boot {address.format(number)} eth0 {rank}1 {rank}2 {rank}3 8 all\n"
            )
            (folder / f"here.{rank}").write_text(line)
    files = map(str, folder.glob("here.*"))
    words = ["awk", "-v", f"size={size}", "-v", f"members={folder}/members", script._ALL, *files]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [line.split() for line in done.stdout.splitlines()]


def test_ranks_that_go_round_the_nodes_are_counted_on_each(tmp_path: Path) -> None:
    rows = gathered(tmp_path, {"b": [0, 2, 4], "a": [1, 3]})
    assert [row[:4] for row in rows] == [
        ["0", "0", "0", "3"], ["1", "1", "0", "2"], ["2", "0", "1", "3"], ["3", "1", "1", "2"], ["4", "0", "2", "3"],
    ]  # fmt: skip
    assert [row[4] for row in rows] == ["10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.2", "10.0.0.1"]
    assert [row[9] for row in rows] == ["2", "4", "2", "4", "2"]  # cores of each
    members = json.loads(f"[{(tmp_path / 'members').read_text()}]")
    assert members[:2] == ["10.0.0.1:03", "10.0.0.2:13"]


def test_addresses_of_ipv6_stand_in_brackets(tmp_path: Path) -> None:
    gathered(tmp_path, {"a": [0], "b": [1]}, "2001:db8::{}")
    assert '"[2001:db8::2]:13"' in (tmp_path / "members").read_text()


def test_node_without_an_address_is_named(tmp_path: Path) -> None:
    assert gathered(tmp_path, {"a": [0], "b": [1]}, "-") == [["bad", "a"]]


def test_hundred_ranks_on_four_nodes_are_one_table(tmp_path: Path) -> None:
    rows = gathered(tmp_path, {f"n{n}": list(range(n * 25, n * 25 + 25)) for n in range(4)})
    assert [int(row[0]) for row in rows] == list(range(100))
    assert {row[1]: sum(r[1] == row[1] for r in rows) for row in rows} == dict.fromkeys("0123", 25)


def test_more_members_than_a_variable_holds_are_left_out() -> None:
    text = script.text(ALL, script.MOST_MEMBERS + 1, "run-1")
    assert "TF_CONFIG" not in text and "MASTER_ADDR" in text


def test_every_variable_of_a_framework_is_in_the_script() -> None:
    for framework in FRAMEWORKS:
        text = script.text([framework], 2, "run-1")
        assert all(re.search(rf"export {name}=", text) for name in framework.variables)
