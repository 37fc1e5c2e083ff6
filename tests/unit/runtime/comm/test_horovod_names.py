"""Horovod's elastic states, and helpers of ``horovod.common.util``, on ranks that are threads or without any."""

from __future__ import annotations

import os
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version
from tests.support import thread_ranks

from fairlead.base.errors import FairleadError
from fairlead.comm.dropin import hvd_elastic, hvd_util, requests
from fairlead.comm.dropin.failures import HorovodInternalError, HostsUpdatedInterrupt
from fairlead.comm.dropin.hvd_elastic import ObjectState


class Kept(ObjectState):
    """A state of this process alone."""

    epoch: int
    batch: int

    def __init__(self, **objects: Any):
        super().__init__(bcast_object=lambda value: value, get_rank=lambda: 0, **objects)
        self.resets = 0

    def reset(self) -> None:
        self.resets += 1


def test_restore_goes_back_to_the_last_commit() -> None:
    state = Kept(epoch=1, batch=2)
    state.epoch = 5
    state.restore()
    assert (state.epoch, state.batch) == (1, 2)
    state.epoch, state.batch = 7, 8
    state.commit()
    state.epoch = 9
    state.restore()
    assert (state.epoch, state.batch) == (7, 8)


def test_sync_gives_what_rank_0_has_now(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_rank_0(value: Any) -> Any:
        data = np.frombuffer(pickle.dumps(value), np.uint8)
        rows = thread_ranks.here().run(requests.ALLGATHER, [data[None]]).arrays[0]
        return pickle.loads(rows[0].tobytes())

    def each(rank: int) -> tuple[int, int]:
        state: Any = ObjectState(bcast_object=from_rank_0, epoch=10 + rank)
        state.epoch += 1
        state.sync()
        after = state.epoch
        state.epoch = 0
        state.restore()
        return after, state.epoch

    assert thread_ranks.on_each(2, each, monkeypatch) == [(11, 11), (11, 11)]


def test_training_begins_again_after_the_scripts_own_interrupt() -> None:
    state, seen = Kept(epoch=0), []
    state.register_reset_callbacks([lambda: seen.append("reset")])

    @hvd_elastic.run
    def train(state: Kept, rate: float) -> float:
        seen.append(state.epoch)
        if len(seen) == 1:
            state.epoch = 3
            raise HostsUpdatedInterrupt(skip_sync=False)
        return rate

    assert train(state, 0.5) == 0.5
    assert seen == [0, "reset", 3] and state.resets == 1


def test_failed_collective_ends_an_elastic_training() -> None:
    @hvd_elastic.run
    def train(state: Kept) -> None:
        raise HorovodInternalError("rank 1 (n2) has ended")

    with pytest.raises(FairleadError) as caught:
        train(Kept(epoch=0))
    (finding,) = caught.value.findings
    assert finding.check == "comm-dropin-elastic"
    assert finding.what == "the elastic training ends: rank 1 (n2) has ended"
    assert isinstance(caught.value.__cause__, HorovodInternalError)


VERSIONS = st.builds(
    lambda numbers, more: ".".join(map(str, numbers)) + more,
    st.lists(st.integers(0, 30), min_size=3, max_size=3),
    st.sampled_from(["", "rc1", "+cpu", ".post1", "a2", ".dev3"]),
)


@given(version=VERSIONS, numbers=st.lists(st.integers(0, 30), min_size=3, max_size=3))
def test_versions_are_compared_as_packaging_does(version: str, numbers: list[int]) -> None:
    target = ".".join(map(str, numbers))
    expected = Version(version) >= Version(target)
    assert hvd_util.is_version_greater_equal_than(version, target) == expected


@pytest.mark.parametrize("given", [("2.1", "2.1"), (2, "2.1.0")])
def test_version_of_another_form_is_refused(given: Any) -> None:
    with pytest.raises(ValueError):
        hvd_util.is_version_greater_equal_than(*given)


def test_variables_are_those_of_before_after_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELD", "1")
    monkeypatch.delenv("NEW", raising=False)
    with hvd_util.env(HELD=None, NEW="2"):
        assert "HELD" not in os.environ and os.environ["NEW"] == "2"
    assert os.environ["HELD"] == "1" and "NEW" not in os.environ


def test_extension_of_an_unknown_framework_is_absent() -> None:
    assert not hvd_util.extension_available("mxnet")
    with pytest.raises(ImportError):
        hvd_util.check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", "", "mxnet")
