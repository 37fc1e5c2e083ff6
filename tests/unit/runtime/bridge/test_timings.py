"""What a session has done, and whether sending paid; that real sessions say so is tests/system/test_bridge.py."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from fairlead.bridge.fetches import Fetched, Fetches
from fairlead.bridge.settings import OPERATIONS, SERVER
from fairlead.bridge.timings import MLLIB, Operation, Timings, done_in

SEND = Operation("send", "Spark", "me", (), ("m1",), 80_000, 1_000, 640_000_000,
                 {"serialise": (0.2, 0.3), "send": (1.0, 1.5), "receive": (1.0, 1.4), "seal": (0.1, 0.2)}, 2.0)  # fmt: skip
RUN = Operation("run", "linalg.svd", "me", ("m1",), ("r1.u", "r1.s"), 80_000, 1_000, 0,
                {"compute": (0.7, 0.8)}, 1.0, 1, {"k": "20"})  # fmt: skip
FETCH = Operation("fetch", "NumPy", "me", ("r1.s",), (), 20, 1, 160, {"fetch": (0.1, 0.1)}, 0.5)
OTHER = Operation("fetch", "NumPy", "me", ("m9",), (), 20, 1, 160, {"fetch": (9.0, 9.0)}, 9.0)
LAYOUT = Operation("layout", "block-cyclic", "me", ("m1",), ("m2",), 80_000, 1_000, 640_000_000,
                   {"redistribute": (0.4, 0.5)}, 0.5)  # fmt: skip


def paid(*operations: Operation, cores: int = 2, mllib_s: dict[str, float] | None = None) -> str:
    (one,) = Timings(operations, cores, mllib_s).paid
    return str(one)


def test_all_that_a_run_needed_counts_and_nothing_else() -> None:
    text = paid(SEND, OTHER, RUN, FETCH)
    assert text.startswith("linalg.svd: 3.50 s (transfer 2.00 + compute 1.00 + fetch 0.50)")
    assert "an estimated 7 s or more of MLlib, 2 times as long: the transfer paid" in text
    # 640 MB in the 7 - 1.5 s that are left.
    assert text.endswith("break-even at 0.12 GB/s, here 0.32 GB/s")
    moved = Operation("run", "linalg.svd", "me", ("m2",), (), 80_000, 1_000, 0, {}, 1.0)
    assert "transfer 2.50 + compute 1.00 + fetch 0.00" in paid(SEND, LAYOUT, moved)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (61.5, "against 61.5 s of MLlib, 18 times as long: the transfer paid"),
        (3.51, "the transfer paid; break-even"),
        (3.49, "the transfer did not pay; break-even at 0.32 GB/s, here 0.32 GB/s"),
        (1.2, "the transfer did not pay; computing alone takes longer than MLlib"),
    ],
)
def test_measured_seconds_come_before_an_estimate(seconds: float, words: str) -> None:
    text = paid(SEND, RUN, FETCH, mllib_s={"linalg.svd": seconds})
    assert words in text and "estimate" not in text


def test_an_estimate_is_for_as_many_cores_and_says_where_it_comes_from() -> None:
    svd = MLLIB["linalg.svd"]
    assert svd.estimate(80_000, 1_000, 2) == svd.seconds
    assert svd.estimate(40_000, 1_000, 4) == pytest.approx(svd.seconds / 4)
    assert svd.estimate(80_000, 2_000, 2) == pytest.approx(2 * svd.seconds)
    assert svd.estimate(1_000, 1_000, 2) is None
    small = Operation("run", "linalg.svd", "me", ("m1",), (), 1_000, 1_000, 0, {}, 1.0)
    assert Timings([SEND, small], 2).paid == []
    assert len(Timings([SEND, small], 2, {"linalg.svd": 3.0}).paid) == 1
    text = str(Timings([SEND, RUN], 2))
    assert (
        "estimate of linalg.svd: 7 s measured for 80,000 × 1,000, k = 20, on 2 cores, scaled by rows × columns and cores"
        in text
    )
    assert "estimate" not in str(Timings([SEND, RUN], 2, {"linalg.svd": 60.0}))


def test_an_estimate_of_k_means_grows_with_k_and_one_of_a_pca_with_the_square_of_its_columns() -> (
    None
):
    def run(what: str, k: int, cols: int = 1_000) -> float:
        done = Operation("run", what, "me", ("m1",), (), 80_000, cols, 0, {}, 1.0, 0, {"k": str(k)})
        (paid,) = Timings([SEND, done], 2).paid
        return paid.mllib_s

    assert run("linalg.kmeans", 40) == 4 * run("linalg.kmeans", 10)
    assert run("linalg.pca", 40, 3_000) == pytest.approx(9 * run("linalg.pca", 10))


def test_streams_of_one_fetch_are_one_operation() -> None:
    clock = [10.0]
    fetches = Fetches(lambda: clock[0])
    assert list(fetches.add(Fetched("m1", "Spark", 1, 80, 2.0), {0, 1})) == []
    clock[0] = 11.0
    (one,) = fetches.add(Fetched("m1", "Spark", 0, 160, 0.5), {0, 1})
    assert (one.what, one.inputs, one.bytes, one.rank) == ("Spark", ("m1",), 240, 1)
    assert (one.phases["fetch"], one.wall_s) == ((1.25, 2.0), 3.0)


def test_a_fetch_of_some_ranks_is_known_when_it_is_asked_for_or_begins_again() -> None:
    fetches = Fetches(lambda: 5.0)
    first = Fetched("m1", "Dask", 1, 80, 2.0)
    assert list(fetches.add(first, {0, 1})) == []
    (one,) = fetches.add(first, {0, 1})
    assert one.bytes == 80
    assert list(fetches.rest({"m2"})) == []
    assert [done.bytes for done in fetches.rest({"m1"})] == [80] and not list(fetches.rest({"m1"}))


def test_what_is_not_known_of_mllib_is_not_compared() -> None:
    wide = Operation("run", "linalg.svd", "me", ("m1",), (), 300, 100_000, 0, {}, 1.0)
    assert Timings([SEND, wide], 2).paid == []
    assert Timings([SEND, wide], 2, {"linalg.svd": 9.0}).paid
    assert Timings([SEND, Operation("run", "mine.norms", "me", ("m1",))], 2).paid == []


def test_each_operation_is_a_line_with_mean_and_slowest_of_its_phases() -> None:
    lines = str(Timings([SEND, RUN], 2)).splitlines()
    assert lines[0] == (
        "send Spark, 80,000 × 1,000, 640.0 MB: 2.00 s; serialise 0.20/0.30, send 1.00/1.50, receive 1.00/1.40, "
        "seal 0.10/0.20 (mean/slowest s)"
    )
    assert lines[1] == (
        "linalg.svd, 80,000 × 1,000: 1.00 s; compute 0.70/0.80 (mean/slowest s, slowest rank 1)"
    )
    assert str(Timings([], 2)) == "nothing was sent or computed"


def test_a_session_over_is_read_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / SERVER).write_text('{"ranks": 2, "cores": 6}')
    assert done_in(tmp_path).operations == () and done_in(tmp_path).cores == 6
    lines = [json.dumps(asdict(one)) for one in (SEND, RUN, LAYOUT)]
    (tmp_path / OPERATIONS).write_text("\n".join(lines) + "\n")
    assert done_in(tmp_path).operations == (SEND, RUN, LAYOUT)
