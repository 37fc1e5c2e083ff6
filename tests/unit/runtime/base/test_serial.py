"""JSON and back: the same value, or an error that names the field."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.recorded import HOSTS, IMAGES, host, image, planned, proved

from fairlead.base.serde import from_json, to_json
from fairlead.elf.facts import AbiFamily, Elf, ImageFacts
from fairlead.launch.run_folder import RankExit
from fairlead.launchers.model import Launcher
from fairlead.mpi.host import HostMpi
from fairlead.proof.verdict import Proof
from fairlead.swap.model import Bind, Request

ELFS = st.builds(
    Elf,
    path=st.text(),
    machine=st.text(),
    needed=st.lists(st.text()).map(tuple),
    needs=st.dictionaries(st.text(), st.text()),
    soname=st.text(),
)


@given(value=ELFS)
def test_elf_any_comes_back_the_same(value: Elf) -> None:
    assert from_json(Elf, json.loads(json.dumps(to_json(value)))) == value


@given(
    value=st.builds(
        Request,
        ranks=st.integers(),
        command=st.lists(st.text()).map(tuple),
        binds=st.lists(st.builds(Bind, st.text(), st.text(), st.booleans())).map(tuple),
    )
)
def test_request_any_comes_back_the_same(value: Request) -> None:
    assert from_json(Request, json.loads(json.dumps(to_json(value)))) == value


@pytest.mark.parametrize("name", HOSTS)
def test_host_recorded_comes_back_the_same(name: str) -> None:
    assert from_json(HostMpi, to_json(host(name))) == host(name)


@pytest.mark.parametrize("name", IMAGES)
def test_image_recorded_comes_back_the_same(name: str) -> None:
    assert from_json(ImageFacts, to_json(image(name))) == image(name)


def test_none_enum_and_nested_values_come_back() -> None:
    mute = replace(host(), launcher=None)
    assert from_json(HostMpi, to_json(mute)).launcher is None
    proof = proved(planned(), size=1)
    assert from_json(Proof, json.loads(json.dumps(to_json(proof)))) == proof
    launcher = from_json(Launcher, {"path": "/x", "family": "mpich", "title": "t"})
    assert launcher.family is AbiFamily.MPICH


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"rank": "0", "code": 1, "order": 2, "more": 3}, "more"),
        ({"rank": "0", "code": "1", "order": 2}, "int"),
        ({"rank": "0", "code": 1}, "order"),
        ([], "object"),
        (None, "object"),
    ],
)
def test_wrong_shape_is_refused_by_name(data: object, named: str) -> None:
    with pytest.raises(ValueError, match=rf"not a RankExit: .*{named}"):
        from_json(RankExit, data)


@given(
    data=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_any_json_is_a_value_or_a_value_error(data: object) -> None:
    for cls in (HostMpi, ImageFacts, Proof):
        with pytest.raises(ValueError):
            from_json(cls, data)


def test_paths_and_sets_are_written_as_json_has_them() -> None:
    assert to_json({"a": Path("/x"), "b": (1, 2), "c": {3}}) == {"a": "/x", "b": [1, 2], "c": [3]}
