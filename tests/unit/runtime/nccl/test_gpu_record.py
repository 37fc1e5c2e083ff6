"""What real NCCLs did on a GPU (``tests/recorded/nccl/gpu.json``) next to preflight's word and to what is read of their logs.

Where ``codes_from_another_run`` is set, the exit codes are those of an earlier run of the same plugin and NCCL.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.nccl import library_of, plugin_of

from fairlead.base.nccl_log import Record, parse
from fairlead.base.nccl_verdict import Difference, Expected, differences, ended
from fairlead.nccl.interfaces import common, net_versions, tuner_versions
from fairlead.nccl.selection import names_asked

RECORD = json.loads((Path(__file__).parents[3] / "recorded/nccl/gpu.json").read_text())
RUNS = {(run["nccl"], run["name"]): run for run in RECORD["runs"]}
RELEASES = ("2.28.3", "2.28.9")
# By the fault: the kind of the first cause in the log, whether NCCL_NET requires the plugin or not.
CAUSES = {
    "file missing-library": "missing-library", "file undefined-symbol": "not-loadable", "file architecture": "not-found",
    "file no-interface": "no-interface", "file absent": "not-found", "fault INIT v8": "cuda", "fault INIT v11": "cuda",
    "fault DEVICES v8": "init-failed", "fault DEVICES v11": "init-failed",
    "aws-ofi-nccl 1.18.0, cxi": "no-nic", "aws-ofi-nccl 1.21.1, cxi": "no-nic",
}  # fmt: skip
LIMIT_S = 5.0


def read(run: dict[str, Any]) -> Record:
    (record,) = parse("\n".join(run["log"]))
    return record


def found(run: dict[str, Any]) -> list[Difference]:
    planned = run["planned"]
    expected = Expected(tuple(planned["networks"]), tuple(planned["providers"]))
    record = read(run)
    return [*differences(record, expected), *ended(record, expected)]


def test_record_is_of_two_releases_on_one_gpu() -> None:
    assert "H100" in RECORD["gpu"]
    assert {nccl for nccl, _ in RUNS} == set(RELEASES) and len(RUNS) == len(RECORD["runs"])


@pytest.mark.parametrize("one", RECORD["libraries"], ids=lambda one: one["version"])
def test_table_has_the_interfaces_that_the_libraries_ask_for(one: dict[str, Any]) -> None:
    library = library_of(one["version"], one["runtime"])
    assert list(net_versions(library)) == one["asks"]["net"]
    assert list(tuner_versions(library)) == one["asks"]["tuner"]


def test_nccl_takes_the_interface_that_preflight_says() -> None:
    compared = 0
    for run in RUNS.values():
        word = common(library_of(run["nccl"], "cuda13.0"), plugin_of(run["exports"]))
        assert word == run["word"]
        if run["interface"] and run["exports"]:  # the plugin could be loaded
            compared += 1
            assert run["interface"] == word == read(run).interface, run["name"]
        elif run["name"].startswith("interfaces") and not word:
            compared += 1
            assert run["proof"]["code"] == 122
            assert run["proof"]["found"][0][0] == "Socket is in use, Test was planned"
    assert compared > 80


@pytest.mark.parametrize("nccl", RELEASES)
@pytest.mark.parametrize("name", CAUSES)
def test_cause_of_another_network_is_named(nccl: str, name: str) -> None:
    wanted = "as AWS Libfabric" if name.startswith("aws") else "required"
    for suffix in ("", f" {wanted}"):
        run = RUNS[nccl, name + suffix]
        assert run["proof"]["code"] == 122, run["name"]
        assert (run["proof"]["after_s"] or 0) < LIMIT_S
        if (
            read(run).causes
        ):  # a launch ends at the first rank that differs; the other may not have come so far
            assert read(run).causes[0].kind == CAUSES[name], run["log"]
            assert found(run)[0].cause
    assert any(read(RUNS[nccl, name + end]).causes for end in ("", f" {wanted}"))


@pytest.mark.parametrize("nccl", RELEASES)
def test_plugin_that_works_is_proved_and_carries_right_sums(nccl: str) -> None:
    proved = [run for (of, _), run in RUNS.items() if of == nccl and run["proof"]["proved"]]
    assert len(proved) > 20
    for run in proved:
        assert found(run) == [], run["name"]
        if not run["name"].startswith("fault"):
            assert "0 wrong values" in run["said"][0] and set(run["codes"]) == {0}
    for release in ("1.18.0", "1.21.1"):
        run = RUNS[nccl, f"aws-ofi-nccl {release}, tcp as AWS Libfabric"]
        record = read(run)
        assert (record.network, record.interface, record.release) == ("AWS Libfabric", 11, release)
        assert (record.provider, record.libfabric, record.protocol) == ("tcp", "2.1", "SENDRECV")
        assert record.complete and {edge.network for edge in record.edges} == {"AWS Libfabric"}
        assert "21 all-reduces of 8 KiB to 32 MiB" in run["said"][0]


def test_damaged_message_is_counted_as_a_wrong_value() -> None:
    """A bit in the middle of a message: it need not belong to a value, and in one run of four no value was wrong."""
    runs = [RUNS[nccl, f"fault DAMAGE v{n} required"] for nccl in RELEASES for n in (8, 11)]
    counted = [run for run in runs if 122 in run["codes"]]
    assert len(counted) == 3
    assert all("1 of 6144 values are wrong at 8 KiB" in run["said"][0] for run in counted)


@pytest.mark.parametrize("nccl", RELEASES)
def test_release_crashes_where_a_plugin_before_v11_does_not_begin_and_the_log_still_says_why(
    nccl: str,
) -> None:
    run = RUNS[nccl, "fault INIT v8 required"]
    assert run["codes"] == [-11, -11]
    assert "Failed to initialize NET plugin Test" in run["log"][-1]
    [difference] = found(run)
    assert difference.text == "no network is in use, Test was planned"
    assert difference.cause and "Failed to find CUDA Driver library" in difference.cause.text
    newer = RUNS[nccl, "fault INIT v11 required"]
    assert "any NET plugin" in "".join(newer["log"])


@pytest.mark.parametrize("nccl", RELEASES)
def test_tuner_is_used_if_its_interface_is_known(nccl: str) -> None:
    known = tuner_versions(library_of(nccl))
    for version in range(1, 7):
        run = RUNS[nccl, f"tuner v{version}"]
        assert bool(read(run).tuner) == (version in known)
        assert run["network"] == "Test" and run["codes"] == [0]


@pytest.mark.parametrize("nccl", RELEASES)
@pytest.mark.parametrize(
    ("name", "value", "used"),
    [
        ("none", "none", False), ("NONE", "NONE", False), ("spcx", "spcx", False),
        ("list, first absent", "absent,/plugins/v11/libnccl-net.so", True),
        ("list with none", "none,/plugins/v11/libnccl-net.so", True),
        ("list, first fails", "/plugins/INIT-v11/libnccl-net.so,/plugins/v11/libnccl-net.so", True),
    ],
)  # fmt: skip
def test_selection_is_as_nccl_makes_it(nccl: str, name: str, value: str, used: bool) -> None:
    run = RUNS[nccl, f"selection {name}"]
    assert (run["network"] == "Test") is used
    there = "/plugins/v11/libnccl-net.so"  # and its folder is in LD_LIBRARY_PATH, by libnccl-net.so
    names = names_asked(library_of(nccl), value)
    assert (there in names or "libnccl-net.so" in names) is used


def test_own_networks_of_nccl_that_fail_are_no_cause() -> None:
    record = read(RUNS["2.28.9", "no plugin"])
    assert record.network == "Socket"
    assert [cause.kind for cause in record.causes] == ["not-found", "no-ib"]


def test_interfaces_that_are_not_there_are_the_cause() -> None:
    run = RUNS["2.28.9", "interface that is not there"]
    assert run["proof"]["code"] == 122
    assert [cause.kind for cause in read(run).causes] == ["no-socket"]
    assert found(run)[0].cause == read(run).causes[0]


def test_two_ranks_on_one_gpu_are_reported_in_nccls_words() -> None:
    run = RUNS["2.28.9", "one host"]
    assert "Duplicate GPU detected" in run["said"][0] and set(run["codes"]) == {122}
    assert "Duplicate GPU detected" in read(run).warnings[0]
