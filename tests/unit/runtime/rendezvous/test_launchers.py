"""Launchers that cannot be started here: their ranks' environments, through the shell that is around each rank."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.support import launchers
from tests.support.launchers import Recorded, every

from fairlead import prove
from fairlead.comm import dropin
from fairlead.launch import stopped
from fairlead.launch.launch import _OF_A_STEP, CommandLine
from fairlead.launchers.registry import LAUNCHERS
from fairlead.rendezvous.script import RANK

RECORDS = pytest.mark.parametrize("record", every(), ids=lambda record: record.name)
Ran = tuple[Recorded, list[dict[str, str]], Path]
WITNESS = Path(prove.__file__).parent / "native/witness.c"


@pytest.fixture(scope="module", params=every(), ids=lambda record: record.name)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A record, and what the commands of its ranks have."""
    if not launchers.apart():
        pytest.skip("this machine gives a process no network of its own")
    folder = tmp_path_factory.mktemp(request.param.name) / "run"
    return request.param, launchers.replayed(request.param, folder), folder


def test_ranks_of_a_recorded_launcher_are_one_world(ran: Ran) -> None:
    record, ranks, folder = ran
    size, places = len(record.ranks), [rank.node for rank in record.ranks]
    for number, (rank, node) in enumerate(zip(ranks, places, strict=True)):
        local, each = places[:number].count(node), places.count(node)
        assert rank["RANK"] == rank["JAX_PROCESS_ID"] == rank["FAIRLEAD_RANK"] == str(number)
        assert rank["WORLD_SIZE"] == rank["JAX_NUM_PROCESSES"] == str(size)
        assert (rank["LOCAL_RANK"], rank["LOCAL_WORLD_SIZE"]) == (str(local), str(each))
        assert rank["NODE_RANK"] == rank["GROUP_RANK"] == str(record.nodes.index(node))
        assert rank["MASTER_ADDR"] == "10.78.0.1" and rank["GLOO_SOCKET_IFNAME"] == "hsn0"
        cluster = json.loads(rank["TF_CONFIG"])
        assert cluster["task"]["index"] == number
        hosts = [member.rpartition(":")[0] for member in cluster["cluster"]["worker"]]
        assert hosts == [f"10.78.0.{record.nodes.index(place) + 1}" for place in places]
    assert len({(r["MASTER_PORT"], r["JAX_COORDINATOR_ADDRESS"]) for r in ranks}) == 1
    ended = {path.name: path.read_text().strip() for path in folder.glob("exit.*")}
    assert ended == {f"exit.{number}": "0" for number in range(size)}


def test_nothing_that_a_rank_of_a_recorded_launcher_sees_contradicts_its_number(ran: Ran) -> None:
    record, ranks, _ = ran
    for number, rank in enumerate(ranks):
        seen = {name: rank[name] for name in prove.RANK_VARIABLES if name in rank}
        assert set(seen.values()) == {str(number)}, seen
        sizes = {rank[name] for name in prove._SIZE_VARIABLES if name in rank}
        assert sizes <= {str(len(record.ranks))}, rank
        assert dropin._first(rank) == (number == 0)


def test_rank_of_a_recorded_launcher_that_stands_still_is_known(ran: Ran) -> None:
    for number, rank in enumerate(ran[1]):
        words = ["sh", "-c", "echo; read end"]
        with subprocess.Popen(
            words, env=rank, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout and process.stdout.readline()
            assert stopped._rank(process.pid) == str(number)


@RECORDS
def test_launch_from_within_a_recorded_step_takes_no_rank_from_it(record: Recorded) -> None:
    for rank in record.ranks:
        inherited = CommandLine((), {}).environment(rank.environ)
        assert not set(inherited) & set(prove.RANK_VARIABLES)
        named = [name for name in rank.environ if name in prove.RANK_VARIABLES]
        assert named and all(name.startswith(_OF_A_STEP) for name in named)


@RECORDS
def test_driver_names_the_variables_of_a_recorded_launcher(record: Recorded) -> None:
    if record.kind not in LAUNCHERS:
        return
    rank_in, local_in = LAUNCHERS.get(record.kind).rank_in
    places = [rank.node for rank in record.ranks]
    for number, rank in enumerate(record.ranks):
        assert rank.environ[rank_in] == str(number)
        if local_in in rank.environ:  # PMIx alone has none
            assert rank.environ[local_in] == str(places[:number].count(rank.node))


def test_records_are_of_drivers_and_name_their_sources() -> None:
    for record in every():
        assert record.kind == "mpiexec" or record.kind in LAUNCHERS
        assert record.sources and len(record.nodes) == 2
    assert {record.kind for record in every()} >= {"pals", "flux", "jsrun"}


def test_every_place_knows_the_same_variables() -> None:
    every_one = prove.RANK_VARIABLES
    assert every_one == dropin._RANK_VARIABLES
    names = re.search(r"names\[\] = \{(.+?), 0\}", WITNESS.read_text(), re.DOTALL)
    assert names and tuple(re.findall(r'"(\w+)"', names[1])) == (RANK, *every_one)
    line = " ".join(launchers.recorded((), "", "", "mpiexec"))
    assert re.findall(r"(?<=\{)[A-Z_]+(?=:-)", line)[: len(every_one)] == list(every_one)


def test_environment_here_is_of_no_rank() -> None:
    """Else the records would be mixed with it."""
    assert not [name for name in prove.RANK_VARIABLES if name in os.environ]
