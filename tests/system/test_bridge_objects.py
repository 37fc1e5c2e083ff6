"""Matrices of a real S3 store that the ranks of a session read and write, and what goes wrong."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.object_stores import GUEST, OWNER, Faults, LoopbackStore, faulty, swift
from tests.system import hosts

from fairlead.base import data_list
from fairlead.bridge import BridgeError, Session, connect
from fairlead.objects.model import MARK

ROWS = np.random.default_rng(7).normal(size=(4000, 30))
TABLE = pa.table({f"c{i}": ROWS[:, i] for i in range(ROWS.shape[1])})


def parquet(table: pa.Table, **how) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, write_page_checksum=True, compression="none", **how)
    return out.getvalue()


@pytest.fixture(scope="module")
def store() -> Iterator[tuple[LoopbackStore, Faults]]:
    """A store behind faults, with a bucket that the session's user may read and write."""
    with swift() as running, faulty(running) as (through, faults):
        running.make_bucket("lab")
        content = parquet(TABLE, row_group_size=500)
        parts = {f"set/part-{n}.parquet": parquet(TABLE.slice(n * 1500, 1500)) for n in range(3)}
        running.put("lab", {"one.parquet": content, "text.parquet": b"no table" * 9, **parts})
        yield through, faults


@pytest.fixture(scope="module")
def session(store: tuple[LoopbackStore, Faults], tmp_path_factory) -> Iterator[str]:
    environ = {**store[0].variables(), "FAIRLEAD_OBJECT_WAIT": "5"}
    state, config = tmp_path_factory.mktemp("state"), tmp_path_factory.mktemp("aws") / "config"
    guest = f"aws_access_key_id = {GUEST[0]}\naws_secret_access_key = {GUEST[1]}"
    config.write_text(f"[profile guest]\nendpoint_url = {store[0].endpoint}\n{guest}\n")
    environ |= {"XDG_STATE_HOME": str(state), "AWS_CONFIG_FILE": str(config)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        words = ("bridge", "serve", "-n", "2", "--background", "--name", "objects")
        done = hosts.fairlead(*words, hosts.image("bridge"), limit_s=300)
        assert done.returncode == 0, done.stdout + done.stderr
        yield "objects"
        hosts.fairlead("bridge", "stop", "objects", limit_s=60)
        for content in [p.read_bytes() for p in state.rglob("*") if p.is_file()]:
            assert OWNER[1].encode() not in content and GUEST[1].encode() not in content


@pytest.fixture
def mpi(session: str, store: tuple[LoopbackStore, Faults]) -> Iterator[Session]:
    store[1].fault = lambda method, path, number: ""
    store[1].requests.clear()
    with connect(session) as client:
        yield client


def refused(words: str, call, *arguments, **options) -> str:
    with pytest.raises(BridgeError, match=re.escape(words)) as caught:
        call(*arguments, **options)
    assert OWNER[1] not in str(caught.value) and "next:  " in str(caught.value)
    return str(caught.value)


def test_ranks_read_row_groups_of_a_bucket_by_ranges(mpi: Session, store) -> None:
    sent = 0

    def count(method: str, path: str, number: int) -> str:
        nonlocal sent
        if found := re.search(r"one\.parquet bytes=(\d+)-(\d+)", path):
            sent += int(found[2]) - int(found[1]) + 1
        return ""

    store[1].fault = count
    matrix = mpi.send("s3://lab/one.parquet")
    assert (matrix.to_numpy() == ROWS).all() and matrix.counts == (2000, 2000)
    assert sent < 1.5 * ROWS.nbytes  # each rank its own groups, and the end of the file
    sent = 0
    few = mpi.send("s3://lab/one.parquet", columns=["c3", "c1"])
    assert (few.to_numpy() == ROWS[:, [3, 1]]).all()
    assert sent < ROWS.nbytes / 2
    assert (mpi.send("s3://lab/set").to_numpy() == ROWS).all()


def test_a_result_is_written_by_all_ranks_and_read_again(mpi: Session, store) -> None:
    matrix = mpi.send(ROWS)
    assert matrix.to_parquet("s3://lab/out/first", names=list(TABLE.column_names)) > ROWS.nbytes / 2
    plain = store[0]
    keys = plain.keys("lab", "out/first/")
    assert [k.rpartition("/")[2] for k in keys] == [
        "data.json", "part-00000.parquet", "part-00001.parquet",
    ]  # fmt: skip
    files = data_list.parsed(plain.get("lab", "out/first/data.json"), "list")
    assert sum(file.rows for file in files.values()) == len(ROWS)
    there = pq.read_table(io.BytesIO(plain.get("lab", "out/first/part-00001.parquet")))
    assert there.equals(TABLE.slice(2000))
    assert (mpi.send("s3://lab/out/first").to_numpy() == ROWS).all()
    lists = mpi.send(np.arange(12.0).reshape(4, 3))
    lists.to_parquet("s3://lab/out/lists")
    assert mpi.send("s3://lab/out/lists").to_numpy().tolist() == lists.to_numpy().tolist()
    refused("objects where results are to go", matrix.to_parquet, "s3://lab/out/first")


def test_hdf5_in_a_bucket(mpi: Session, store, tmp_path) -> None:
    import h5py

    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["group/plain"] = ROWS
        file.create_dataset("chunked", data=ROWS.astype(np.float32), chunks=(100, 30))
    store[0].put("lab", {"x.h5": (tmp_path / "x.h5").read_bytes()})
    assert (mpi.send("s3://lab/x.h5:group/plain").to_numpy() == ROWS).all()
    chunked = mpi.send("s3://lab/x.h5:chunked").to_numpy()
    assert (chunked == ROWS.astype(np.float32)).all()
    refused("it has chunked, group/plain", mpi.send, "s3://lab/x.h5:none")
    refused("one.parquet is not HDF5", mpi.send, "s3://lab/one.parquet:x")


def test_what_is_wrong_is_named_and_the_session_goes_on(mpi: Session, store) -> None:
    matrix = mpi.send(ROWS)
    for url, words in (
        ("s3://nowhere/x.parquet", "the bucket `nowhere` does not exist"),
        ("s3://lab/nothing.parquet", "no such object or prefix"),
        ("s3://lab/text.parquet", "s3://lab/text.parquet is not Parquet"),
        ("s4://lab/x", "no store has URLs like this"),
        ("gs://lab/x", "the image lacks a package for gs://lab/x"),
        ("s3://key:word@lab/x", "the URL has a secret in it"),
    ):
        assert "word@" not in refused(words, mpi.send, url)
    refused("the bucket `nowhere` does not exist", matrix.to_parquet, "s3://nowhere/x")
    refused("has no column z", mpi.send, "s3://lab/one.parquet", columns=["z"])
    refused("no permission", mpi.send, "s3://guest@lab/one.parquet")
    refused("no permission", matrix.to_parquet, "s3://guest@lab/x")
    assert (mpi.send("s3://lab/one.parquet").to_numpy() == ROWS).all()


def test_faults_on_the_way_are_overcome_and_damage_is_found(mpi: Session, store) -> None:
    seen: set[str] = set()

    def first(method: str, path: str, number: int) -> str:
        if "one.parquet bytes=" not in path or path in seen:
            return ""
        seen.add(path)
        return ("503", "cut")[len(seen) % 2]

    store[1].fault = first
    assert (mpi.send("s3://lab/one.parquet").to_numpy() == ROWS).all() and seen
    # A wrong byte of a page, which only the page's own checksum can show.
    content = bytearray(parquet(TABLE, row_group_size=500, use_dictionary=False))
    content[len(content) // 3] ^= 1
    store[0].put("lab", {"damaged.parquet": bytes(content)})
    refused("CRC checksum verification failed", mpi.send, "s3://lab/damaged.parquet")

    changed = threading.Event()

    def change(method: str, path: str, number: int) -> str:
        if method == "GET" and "moving.parquet bytes=" in path and not changed.is_set():
            changed.set()
            store[0].put("lab", {"moving.parquet": parquet(TABLE.slice(1))})
        return ""

    store[0].put("lab", {"moving.parquet": parquet(TABLE)})
    store[1].fault = change
    refused("an object changed while it was read", mpi.send, "s3://lab/moving.parquet")


def test_an_interrupted_result_is_refused_and_goes_on(mpi: Session, store) -> None:
    matrix, url = mpi.send(ROWS), "s3://lab/out/late"
    store[1].fault = lambda method, path, number: (
        "503" if method == "PUT" and "part-00001" in path else ""
    )
    refused("fails again and again", matrix.to_parquet, url)
    assert f"out/late/{MARK}" in store[0].keys("lab", "out/late/")
    refused("the data there are incomplete", mpi.send, url)
    store[0].put("lab", {"out/late/part-00007.parquet": b"of a write by more ranks"})
    store[1].fault = lambda method, path, number: ""
    store[1].requests.clear()
    matrix.to_parquet(url)
    assert not [r for r in store[1].requests if r.startswith("PUT") and "part-00000" in r]
    assert (mpi.send(url).to_numpy() == ROWS).all()
    assert not [k for k in store[0].keys("lab", "out/late/") if MARK in k or "00007" in k]
