"""fairlead.comm.point_to_point of a process to itself; between ranks: tests/system/test_parallel.py."""

from __future__ import annotations

import os
import subprocess

import numpy as np
import pytest

from fairlead.base.errors import FairleadError
from fairlead.base.proc_stat import began
from fairlead.comm.core import BFLOAT16, Comm
from fairlead.comm.mpi import Alone
from fairlead.comm.point_to_point import Place, PointToPoint


@pytest.fixture
def links() -> PointToPoint:
    return Comm(Alone()).point_to_point()


@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (2, 3, 4)])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "c16", "?", "f2", BFLOAT16])
def test_array_arrives_with_its_dtype_shape_and_bits(
    links: PointToPoint, shape: tuple[int, ...], dtype: str
) -> None:
    sent = np.random.default_rng(1).integers(0, 2, shape).astype("u2").astype(dtype)
    links.send(sent, 0, tag=5)
    got = links.recv(0, tag=5)
    assert got.dtype == sent.dtype and got.shape == shape and got.tobytes() == sent.tobytes()


def test_slice_is_sent_as_it_looks_and_received_into_one(links: PointToPoint) -> None:
    whole = np.arange(24.0).reshape(4, 6)
    links.send(whole[:, ::2].T, 0)
    out = np.zeros((6, 4))
    links.recv(0, out=out[::2])
    np.testing.assert_array_equal(out[::2], whole[:, ::2].T)
    assert not out[1::2].any()


def test_messages_of_a_tag_keep_their_order_and_tags_do_not_mix(links: PointToPoint) -> None:
    for number in range(3):
        links.isend(np.array(number), 0, tag=1)
        links.isend(np.array(10 + number), 0, tag=2)
    assert [int(links.recv(0, 2)) for _ in range(3)] == [10, 11, 12]
    assert [int(links.recv(0, 1)) for _ in range(3)] == [0, 1, 2]
    assert not links.arrived(0, 1)


def test_other_shape_than_expected_is_named_and_dropped(links: PointToPoint) -> None:
    links.send(np.zeros((2, 3), "f4"), 0, tag=4)
    links.send(np.ones(2), 0, tag=4)
    with pytest.raises(FairleadError) as caught:
        links.recv(0, 4, out=np.zeros((3, 2), "f4"))
    finding = caught.value.findings[0]
    assert finding.check == "comm-message"
    assert finding.what.endswith(
        "sent float32 (2, 3) with tag 4; rank 0 expected float32 (3, 2)"
    ) and finding.what.startswith("rank 0 (")
    np.testing.assert_array_equal(links.recv(0, 4), np.ones(2))


@pytest.mark.parametrize(
    ("to", "tag", "words"),
    [(1, 0, "rank 1 cannot"), (-1, 0, "rank -1 cannot"), (0, -1, "-1 is not"), (0, 1 << 20, "not a tag")],
)  # fmt: skip
def test_rank_or_tag_that_is_not_there_is_refused(
    links: PointToPoint, to: int, tag: int, words: str
) -> None:
    for call in (lambda: links.send(np.zeros(1), to, tag), lambda: links.recv(to, tag)):
        with pytest.raises(FairleadError, match=words):
            call()


def test_objects_are_refused(links: PointToPoint) -> None:
    with pytest.raises(FairleadError, match="an array of object"):
        links.send(np.array([None]), 0)


def test_message_that_never_comes_ends_the_wait_with_rank_and_limit(links: PointToPoint) -> None:
    with pytest.raises(FairleadError) as caught:
        links.recv(0, tag=9, limit_s=0.1)
    finding = caught.value.findings[0]
    assert finding.check == "comm-message-late"
    assert finding.what.startswith("rank 0 waited 0.1 s for rank 0 to send tag 9")
    assert links.waited_s >= 0.1


def test_limit_is_that_of_the_environment() -> None:
    assert PointToPoint(Alone(), {"FAIRLEAD_COMM_TIMEOUT_S": "7"}).limit_s == 7
    assert PointToPoint(Alone(), {"FAIRLEAD_COMM_TIMEOUT_S": "0"}).limit_s == 300


def test_process_that_has_ended_is_not_taken_for_a_later_one() -> None:
    process = subprocess.Popen(["sleep", "60"])
    place = Place.own()._replace(pid=process.pid, began=began(process.pid))
    assert not place.ended() and not Place.own().ended()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # its parent has not asked yet
    assert place.ended()
    process.wait()
    assert place.ended()
    assert Place.own()._replace(began="1").ended()
