"""A session in the image `bridge`: real ranks on a swapped MPI, clients of every kind, and what goes wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import sparse
from tests.support import distribution
from tests.support.json_schema import mistakes
from tests.system import hosts
from tools import answers

from fairlead.bridge import BridgeError, Session, connect
from fairlead.bridge.timings import Operation

LIBRARY = """
import ctypes, os, time
import numpy as np
from fairlead.bridge.library import Block, Library, Rows, Tiles

LIBRARY = Library("mine", "Functions of this test")

@LIBRARY.function
def fails(a: Block, *, rank: int) -> dict:
    "Raises on one rank while the others wait for it."
    if a.comm.rank == rank:
        raise ValueError("no such thing")
    a.comm.barrier()
    return {}

@LIBRARY.function
def threads(a: Block) -> dict:
    "How many threads BLAS takes."
    return {"number": int(os.environ["OMP_NUM_THREADS"])}

@LIBRARY.function
def waits(a: Block, *, seconds: float) -> dict:
    "Takes its time."
    time.sleep(seconds)
    a.comm.barrier()
    return {"rank": a.comm.rank}

@LIBRARY.function
def stuck(a: Block) -> dict:
    "Fails on one rank while the others wait inside MPI."
    if a.comm.rank == 0:
        raise ValueError("gone")
    a.comm.mpi.Barrier()
    return {}

@LIBRARY.function
def squares(a: Tiles) -> dict:
    "The sum of the squares, and of the first column's, of a matrix over a grid of ranks."
    place = a.layout.place(a.comm.rank)
    column = a.local[:, 0] if place and place[1] == 0 else a.local[:0]
    total = a.comm.sum(np.array([(a.local**2).sum(), (column**2).sum()]))
    return {"total": float(total[0]), "first": float(total[1])}

@LIBRARY.function
def dies(a: Block, *, rank: int) -> dict:
    "Kills a rank."
    if a.comm.rank == rank:
        ctypes.string_at(0)
    a.comm.barrier()
    return {}
"""


@pytest.fixture(scope="module", autouse=True)
def state(tmp_path_factory) -> Iterator[Path]:
    """The sessions of this module are none of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("state")
        patch.setenv("XDG_STATE_HOME", str(folder))
        patch.delenv("FAIRLEAD_BRIDGE", raising=False)
        yield folder


@contextmanager
def served(name: str, *words: str | Path, ranks: int = 2, image: str = "bridge") -> Iterator[str]:
    """A session, and what its `serve` has printed when it is over."""
    command = [
        "bridge",
        "serve",
        "-n",
        str(ranks),
        "--background",
        "--name",
        name,
        *words,
        hosts.image(image),
    ]
    done = hosts.fairlead(*command, limit_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    try:
        yield name
    finally:
        hosts.fairlead("bridge", "stop", name, limit_s=60)


@pytest.fixture(scope="module")
def own_library(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    distribution.install(folder, "fairlead.bridge", "mine", "LIBRARY", LIBRARY)
    return folder


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def session(own_library: Path, shared: Path) -> Iterator[str]:
    mine = ("--bind", own_library, "--env", f"PYTHONPATH={own_library}", "--bind", shared)
    with served("main", *mine) as name:
        yield name


@pytest.fixture
def mpi(session: str) -> Iterator[Session]:
    with connect(session) as client:
        yield client


def table(rows: int = 1000, cols: int = 20) -> np.ndarray:
    rng = np.random.default_rng(3)
    return (rng.normal(size=(rows, cols)) * 0.7 ** np.arange(cols)) @ rng.normal(size=(cols, cols))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("rows", [0, 1, 7, 5000])
def test_arrays_come_back_bit_for_bit(mpi: Session, dtype: str, rows: int) -> None:
    array = (table(rows, 9) * 100).astype(dtype)
    for partitions in (None, 1, 5):
        matrix = mpi.send(array, partitions=partitions)
        assert (matrix.shape, matrix.dtype) == (array.shape, array.dtype)
        assert matrix.to_numpy().tobytes() == array.tobytes()
        assert matrix.transfer.rows == rows and sum(matrix.counts) == rows
        matrix.free()


def test_tables_keep_names_and_index(mpi: Session) -> None:
    frame = pd.DataFrame({"id": list("abcdefg"), "x": np.arange(7.0), "y": np.arange(7) * 2})
    for data in (frame, pa.Table.from_pandas(frame), frame.set_index("id").rename_axis("id")):
        back = mpi.send(data, index="id").to_pandas()
        assert back.index.tolist() == list("abcdefg")
        assert back.to_numpy().tolist() == frame[["x", "y"]].to_numpy().tolist()
        assert list(back.columns) == ["x", "y"]
    assert mpi.send(frame, columns=["y"]).shape == (7, 1)


def test_sparse_matrices_stay_sparse(mpi: Session) -> None:
    matrix = sparse.random_array(
        (300, 100_000), density=1e-4, format="csr", rng=np.random.default_rng(1)
    )
    sent = mpi.send(matrix)
    assert sent.sparse and sent.shape == (300, 100_000)
    assert (sent.to_numpy() == matrix.toarray()).all()
    u, s, v = mpi.linalg.svd(sent, k=3, method="lanczos")  # random columns: no decay to speak of
    assert u.shape == (300, 3) and v.shape == (100_000, 3)
    expected = np.sqrt(np.linalg.eigvalsh((matrix @ matrix.T).toarray())[::-1][:3])
    assert np.allclose(s.to_numpy(), expected, rtol=1e-8)


def test_handles_go_from_one_function_to_the_next(mpi: Session) -> None:
    array = table()
    a = mpi.send(array)
    u, s, v = mpi.linalg.svd(a, k=5)
    expected = np.linalg.svd(array, compute_uv=False)[:5]
    assert np.allclose(s.to_numpy(), expected, rtol=1e-8)
    assert np.allclose(
        mpi.linalg.matmul(a, v).product.to_numpy(), u.to_numpy() * s.to_numpy(), atol=1e-8
    )
    made = mpi.linalg.kmeans(a, k=3, seed=1)
    assert sum(made.sizes) == 1000 and made.timing["slowest"] > 0


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize(("rows", "cols"), [(0, 3), (1, 1), (130, 70), (257, 5)])
def test_matrices_move_to_a_grid_of_ranks_and_back_bit_for_bit(
    mpi: Session, dtype: str, rows: int, cols: int
) -> None:
    array = (table(rows, cols) * 100).astype(dtype)
    sent = mpi.send(array, partitions=3)
    for block, grid in ((64, None), (1, (1, 2)), (16, (2, 1)), (7, (1, 1))):
        dealt = mpi.layout(sent, block=block, grid=grid)
        assert (dealt.layout, dealt.shape) == ("block-cyclic", array.shape)
        assert dealt.to_numpy().tobytes() == array.tobytes()
        again = mpi.layout(dealt, block=3)
        back = mpi.layout(again, "rows", name="back")
        assert back.layout == "rows" and sorted(back.counts, reverse=True) == list(back.counts)
        assert back.to_numpy().tobytes() == array.tobytes()
        assert back.free() == (back.counts[0] + back.counts[1]) * cols * array.itemsize
    assert sent.to_numpy().tobytes() == array.tobytes()


def test_functions_are_given_the_layout_that_they_take(mpi: Session) -> None:
    array = table(130, 70)
    rows = mpi.send(array)
    dealt = mpi.layout(rows, block=16)
    made = mpi.mine.squares(dealt)
    assert np.allclose([made.total, made.first], [(array**2).sum(), (array[:, 0] ** 2).sum()])
    for call, words in (
        (lambda: mpi.mine.squares(rows), "mine.squares does not take a in the layout rows"),
        (lambda: mpi.linalg.svd(dealt, k=2), "does not take a in the layout block-cyclic"),
        (dealt.to_arrow, "to_arrow does not take"),
        (lambda: dealt.to_parquet("/tmp/x"), "to_parquet does not take"),
        (lambda: mpi.layout(rows, "columns"), "there is no layout columns"),
        (lambda: mpi.layout(rows, grid=(2, 2)), "a grid of 2 × 2 ranks is more than the 2"),
        (lambda: mpi.layout(rows, block=0), "layout does not take block=0"),
        (lambda: mpi.layout(mpi.send(sparse.eye_array(5, format="csr"))), "a sparse matrix"),
    ):
        with pytest.raises(BridgeError, match=re.escape(words)):
            call()


@pytest.mark.full
def test_a_session_says_what_was_done_and_whether_sending_paid(tmp_path: Path) -> None:
    array = table(20_000, 30)
    with served("reported", "-o", tmp_path / "out") as name:
        with connect(name) as mpi:
            a = mpi.send(array)
            _, s, v = mpi.linalg.svd(mpi.layout(mpi.layout(a), "rows"), k=3)
            s.to_numpy()
            v.to_arrow()
            with connect(name) as other:
                other.send(array[:10])
            done = mpi.timings({"linalg.svd": 1000.0})
            text = str(done)
        shown = hosts.fairlead("bridge", "status", name).stdout
    kinds = [one.kind for one in done.operations]
    assert kinds == ["send", "layout", "layout", "run", "fetch", "fetch"]
    for one in done.operations:
        assert all(0 <= mean <= slowest <= one.wall_s for mean, slowest in one.phases.values())
    assert set(done.operations[0].phases) == {"serialise", "send", "receive", "seal"}
    assert done.operations[0].bytes >= array.nbytes  # none but these where memory is shared
    assert "against 1e+03 s of MLlib" in text and "the transfer paid" in text
    (paid,) = done.paid
    assert paid.transfer_s == pytest.approx(sum(one.wall_s for one in done.operations[:3]))
    assert "send NumPy, 10 × 30" in shown and "layout block-cyclic, 20,000 × 30" in shown
    assert "MLlib" not in shown  # no estimate for so few numbers
    report = tmp_path / "out/report.json"
    deadline = time.monotonic() + 30
    while not report.exists():  # `serve` writes it when it ends
        assert time.monotonic() < deadline
        time.sleep(0.1)
    document = json.loads(report.read_text())
    assert list(mistakes(answers.schema(), document)) == []
    assert [one["kind"] for one in document["bridge"]["operations"]] == [*kinds, "send"]
    assert document["bridge"]["paid"] == [] and document["run"]["exit_code"] == 0
    page = (tmp_path / "out/report.html").read_text()
    assert "Bridge: what clients had done" in page and "linalg.svd" in page


def test_ranks_share_the_cores(mpi: Session) -> None:
    assert mpi.mine.threads(mpi.send(np.eye(2))).number == max(len(os.sched_getaffinity(0)) // 2, 1)


@pytest.mark.full
def test_dask_arrays_and_frames(mpi: Session) -> None:
    import dask.array as da
    import dask.dataframe as dd
    from dask.distributed import Client, LocalCluster

    array = table(1000, 12)
    frame = pd.DataFrame({"id": np.arange(100), "x": np.arange(100.0)})
    with (
        mock.patch.dict(os.environ),  # in which Dask sets OMP_NUM_THREADS
        LocalCluster(2, processes=True, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        for chunks in ((170, 5), (1000, 12), (1, 12)):
            sent = mpi.send(da.from_array(array[:200], chunks=chunks))
            assert (sent.to_numpy() == array[:200]).all()
        matrix = mpi.send(da.from_array(array, chunks=(300, 12)))
        assert (matrix.to_dask().compute() == array).all()
        deadline = time.monotonic() + 10  # the ranks say it when the last row has gone
        fetched: list[Operation] = []
        while sum(one.bytes for one in fetched) < array.nbytes:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            done = mpi.timings().operations
            fetched = [one for one in done if one.kind == "fetch" and one.what == "Dask"]
        assert {(one.inputs, one.rows, one.cols) for one in fetched} == {((matrix.id,), 1000, 12)}
        assert all(0 < one.phases["fetch"][1] <= one.wall_s for one in fetched)
        assert mpi.linalg.svd(matrix, k=2).s.to_dask().compute().shape == (2,)
        sent = mpi.send(dd.from_pandas(frame, npartitions=3), index="id")
        assert sent.to_pandas().index.tolist() == list(range(100))
        with pytest.raises(BridgeError, match="holds NaN"):
            mpi.send(da.full((10, 2), np.nan))


def test_files_are_read_and_written_by_the_ranks(mpi: Session, shared: Path) -> None:
    import h5py
    import pyarrow.parquet as pq

    array = table(500, 4)
    frame = pa.table({name: array[:, i] for i, name in enumerate("abcd")})
    pq.write_table(frame, shared / "one.parquet", row_group_size=70)
    (shared / "many").mkdir()
    for part in range(3):
        pq.write_table(frame.slice(part * 200, 200), shared / f"many/part-{part}.parquet")
    with h5py.File(shared / "data.h5", "w") as file:
        file["group/matrix"] = array.astype(np.float32)
    for path in (shared / "one.parquet", shared / "many"):
        matrix = mpi.send(path)
        assert (matrix.to_numpy() == array).all() and matrix.counts == (250, 250)
    assert (
        mpi.send(str(shared / "one.parquet"), columns=["d", "a"]).to_numpy() == array[:, [3, 0]]
    ).all()
    assert (mpi.send(f"{shared}/data.h5:group/matrix").to_numpy() == array.astype(np.float32)).all()
    matrix.to_parquet(str(shared / "out"), names=list("abcd"))
    assert pq.read_table(shared / "out").equals(frame)
    for path, words in (
        ("/nowhere/x.parquet", "the ranks see no /nowhere/x.parquet"),
        (f"{shared}/data.h5:matrix", "it has group/matrix"),
        (f"{shared}/one.parquet", "has no column z"),
    ):
        with pytest.raises(BridgeError, match=re.escape(words)):
            mpi.send(path, columns=["z"] if str(path).endswith("one.parquet") else None)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m.send(np.array([[1, np.nan]])), "row 0 holds NaN"),
        (lambda m: m.send(pd.DataFrame({"a": ["x"]})), "column a holds"),
        (lambda m: m.send(np.zeros((2, 2, 2))), "has the shape (2, 2, 2)"),
        (lambda m: m.send(np.zeros((2, 2), complex)), "complex128, which is not numeric"),
        (lambda m: m.linalg.svd(m.send(np.eye(4)), k=9), "give k from 1 to 4"),
        (lambda m: m.linalg.svd(m.send(np.eye(4)), k=1.5), "linalg.svd does not take 1.5"),
        (lambda m: m.linalg.svd(m.send(np.eye(4)), kk=1), "linalg.svd has no parameter kk"),
        (lambda m: m.linalg.svd(k=1), "linalg.svd needs the matrix a"),
        (lambda m: m.linalg.nothing(), "library linalg has no function nothing"),
        (lambda m: m.scalapack.svd(m.send(np.eye(4))), "bridge:scalapack"),
        (lambda m: m.send(np.eye(4)).to_numpy(limit=100), "more than the limit of 100"),
    ],
)
def test_what_cannot_be_done_is_refused_and_the_session_goes_on(
    mpi: Session, call, words: str
) -> None:
    with pytest.raises(BridgeError, match=re.escape(words)):
        call(mpi)
    assert mpi.send(np.eye(3)).to_numpy().sum() == 3


def test_a_rank_that_raises_ends_that_run_only(mpi: Session) -> None:
    a = mpi.send(np.eye(4))
    for rank in (0, 1, 0):
        begun = time.monotonic()
        with pytest.raises(BridgeError) as caught:
            mpi.mine.fails(a, rank=rank)
        assert f"mine.fails raised ValueError on rank {rank}: no such thing" in str(caught.value)
        assert time.monotonic() - begun < 10
        assert mpi.linalg.gramian(a).gramian.to_numpy().tolist() == np.eye(4).tolist()


def test_clients_share_workers_and_free_what_is_theirs(session: str) -> None:
    with connect(session, name="first") as one, connect(session) as two:
        a = one.send(np.eye(3), name="eye")
        assert (two.matrices()["eye"].to_numpy() == np.eye(3)).all()
        other = threading.Thread(target=lambda: one.mine.waits(a, seconds=2.0))
        other.start()
        time.sleep(0.3)
        assert two.mine.waits(two.matrices()["eye"], seconds=0.0).rank == 0  # after the other one's
        other.join()
        assert a.free() > 0
        with pytest.raises(BridgeError, match="first has freed it"):
            two.linalg.gramian(a)
        with pytest.raises(BridgeError, match="a client named first is connected already"):
            connect(session, name="first")


def test_workers_of_its_own_and_no_more_than_there_are(session: str) -> None:
    with connect(session, workers=1) as one, connect(session) as two:
        assert len(one.ranks) == 1 and len(two.ranks) == 1 and one.ranks != two.ranks
        a, b = one.send(np.eye(3)), two.send(np.eye(3))
        assert (
            one.linalg.gramian(a).gramian.to_numpy() == two.linalg.gramian(b).gramian.to_numpy()
        ).all()
        with pytest.raises(BridgeError, match="on different workers"):
            one.linalg.matmul(a, b)
        with pytest.raises(BridgeError, match="has not the workers"):
            connect(session, workers=2)
    with connect(session) as every:
        assert len(every.ranks) == 2


CLIENT = """
import os, signal, sys
import numpy as np
from fairlead.bridge import connect
mpi = connect("main", name="notebook")
mpi.send(np.arange(12.0).reshape(4, 3), name="kept")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_client_that_comes_back_finds_its_matrices(session: str) -> None:
    done = subprocess.run([sys.executable, "-c", CLIENT], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    with connect(session, name="notebook") as again:
        assert (
            again.matrices()["kept"].to_numpy().tolist() == np.arange(12.0).reshape(4, 3).tolist()
        )


def test_a_client_that_dies_while_it_sends_leaves_nothing(session: str) -> None:
    code = """
import os, signal, threading, time
import numpy as np
from fairlead.bridge import connect
mpi = connect("main", name="sender")
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
while True:
    mpi.send(np.ones((20000, 1000)))
"""
    subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    with connect(session, name="sender") as again:
        for matrix in again.matrices().values():
            matrix.free()
    with connect(session) as client:
        _until(lambda: all(rank["used"] < 1 << 20 for rank in client.status()["ranks"]))
        assert client.send(np.eye(3)).to_numpy().sum() == 3


def test_nobody_else_gets_in(session: str, state: Path) -> None:
    folder = state / f"fairlead/bridge/{session}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "token").stat().st_mode) == 0o600
    token = (folder / "token").read_text()
    for entry in Path("/proc").glob("[0-9]*"):
        for part in ("cmdline", "environ"):
            try:
                assert token.encode() not in (entry / part).read_bytes()
            except OSError:
                continue
    if os.geteuid() == 0:
        as_other = f"""
import os
from fairlead.base.messages import find
from fairlead.bridge import connect
find("bridge-session-file"), find("bridge-session-owner")
os.setuid(65534)
connect({str(folder)!r})
"""
        done = subprocess.run(
            [sys.executable, "-c", as_other],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode and re.search("Permission denied|belongs to user 0", done.stderr), (
            done.stderr
        )
    # A port scan, and one who says nothing.
    with connect(session) as client:
        for endpoint in client._endpoints.values():
            assert endpoint.address[0] == "127.0.0.1"
            for data in (b"", b"GET / HTTP/1.0\r\n\r\n", bytes(100)):
                sock = socket.create_connection(endpoint.address)
                sock.sendall(data)
                sock.close()
        assert client.send(np.eye(3)).to_numpy().sum() == 3


def test_an_image_without_what_ranks_need_is_refused_before_they_start(tmp_path: Path) -> None:
    serve = ("bridge", "serve", "-n", "2", hosts.image("mpi-base"))
    done = hosts.fairlead(*serve)
    assert done.returncode == 121 and "mpi-base" in done.stderr and "pyarrow" in done.stderr
    assert "-> MPICH" not in done.stderr and "next:  use `bridge` or `analytics`" in done.stderr
    # Packages from elsewhere: only the ranks know.
    done = hosts.fairlead(*serve[:-1], "--env", f"PYTHONPATH={tmp_path}", serve[-1], limit_s=120)
    assert "-> MPICH" in done.stderr and "the image lacks pyarrow" in done.stderr


def test_status_and_libraries_are_shown(session: str, mpi: Session) -> None:
    mpi.send(np.zeros((100, 7)), name="zeros")
    shown = hosts.answer(hosts.fairlead("bridge", "status", "--json"))["sessions"]
    (one,) = [s for s in shown if s["name"] == session]
    assert one["state"] == "ready" and len(one["workers"]) == 2 and one["image"]
    assert [(m["name"], m["shape"]) for m in one["matrices"]] == [("zeros", [100, 7])]
    text = hosts.fairlead("bridge", "status", session).stdout
    assert "100 x 7" in text and "zeros" in text
    listed = hosts.fairlead("bridge", "libraries", session).stdout
    assert "svd(a, *, k: int" in listed and "fails(a, *, rank: int)" in listed


def test_encrypted_within_a_budget_and_forgotten_soon(tmp_path: Path) -> None:
    words = ("--tls", "--interface", "lo", "--memory", "0.002", "--keep", "1")
    with served("small", *words) as name:
        client = connect(name)
        assert (client.send(np.eye(5)).to_numpy() == np.eye(5)).all()
        with pytest.raises(BridgeError, match="bytes more do not fit on rank"):
            client.send(np.ones((100_000, 1000)))
        client._control.close()  # it vanishes
        with connect(name) as other:
            _until(lambda: all(rank["used"] == 0 for rank in other.status()["ranks"]))
        again = hosts.fairlead("bridge", "serve", "-n", "1", "--name", name, hosts.image("bridge"))
        assert again.returncode == 2 and "is running" in again.stderr


@pytest.mark.parametrize(
    ("function", "words"),
    [("dies", "rank 1"), pytest.param("stuck", "did not leave it within", marks=pytest.mark.full)],
)
def test_a_session_that_loses_a_rank_ends_and_says_which(
    own_library: Path, state: Path, function: str, words: str
) -> None:
    mine = ("--bind", own_library, "--env", f"PYTHONPATH={own_library}")
    with served(function, *mine) as name:
        client = connect(name)
        a = client.send(np.eye(4))
        begun = time.monotonic()
        call = getattr(client.mine, function)
        with pytest.raises(BridgeError) as caught:
            call(a, rank=1) if function == "dies" else call(a)
        assert time.monotonic() - begun < 60
        assert words in str(caught.value), caught.value
        with pytest.raises(BridgeError, match=f"session {name} is over"):
            connect(name)
        over = hosts.fairlead("bridge", "status", "--all").stdout
        assert f"{name}: over" in over and words in over


def test_the_example_computes_its_components(session: str) -> None:
    example = hosts.ROOT / "examples/bridge.py"
    done = hosts.program(sys.executable, example, env={"FAIRLEAD_BRIDGE": session})
    assert done.returncode == 0 and "explained: 0.1" in done.stdout, done.stdout + done.stderr


@pytest.mark.full
def test_the_example_of_an_mpi_code_in_c_gets_its_communicator(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(hosts.ROOT / "examples/own_library", tmp_path / "own"))
    line = re.search(r"\$ (mpicc .+)$", (folder / "norms.py").read_text(), re.MULTILINE)
    path = f"{hosts.mpich() / 'bin'}:{os.environ['PATH']}"
    subprocess.run(["sh", "-c", line[1]], cwd=folder, env={**os.environ, "PATH": path}, check=True)
    words = ("--bind", folder, "--env", f"PYTHONPATH={folder}")
    with served("own", *words) as name, connect(name) as client:
        array = table(101, 5)
        norms = client.norms.columns(client.send(array)).norms.to_numpy()
        assert np.allclose(norms, np.linalg.norm(array, axis=0))


@pytest.mark.full
def test_a_session_that_was_killed_is_over_and_its_name_is_free(state: Path) -> None:
    with served("killed") as name:
        client = connect(name)
        (one,) = hosts.answer(hosts.fairlead("bridge", "status", name, "--json"))["sessions"]
        os.kill(one["pid"], signal.SIGKILL)
        with pytest.raises(BridgeError, match="was killed"):
            while True:
                client.status()
        assert "killed: over" in hosts.fairlead("bridge", "status", "--all").stdout
        with served("killed") as again, connect(again) as new:
            assert new.send(np.eye(2)).shape == (2, 2)


def test_stopping_leaves_no_process(state: Path) -> None:
    with served("ends") as name:
        pid = hosts.answer(hosts.fairlead("bridge", "status", name, "--json"))["sessions"][0]["pid"]
    _until(lambda: not Path(f"/proc/{pid}").exists())
    folder = state / f"fairlead/bridge/{name}"
    assert (
        not (folder / "token").exists() and (folder / "ended.txt").read_text() == "it was stopped"
    )
    marks = str(folder).encode()
    left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists() and marks in _read(p)]
    assert left == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.full
def test_a_matrix_over_a_grid_is_factorised_by_scalapack() -> None:
    rng = np.random.default_rng(3)
    tall, square = rng.standard_normal((300, 70)), rng.standard_normal((120, 120))
    right = rng.standard_normal((120, 9))
    with served("grid", ranks=4, image="bridge:scalapack") as name, connect(name) as mpi:
        tiles = mpi.layout(mpi.send(tall), block=32)
        assert tiles.layout == "block-cyclic"
        for block in (32, 24):  # as it lies there, and dealt anew
            found = mpi.scalapack.svd(tiles, k=10, block=block)
            u, s, v = (one.to_numpy() for one in found)
            assert np.allclose(s, np.linalg.svd(tall, compute_uv=False)[:10], rtol=1e-12)
            assert np.allclose(tall @ v, u * s, atol=1e-10)
        q, r = (one.to_numpy() for one in mpi.scalapack.qr(tiles, block=32))
        assert np.allclose(q @ r, tall, atol=1e-12)
        assert (tiles.to_numpy() == tall).all()  # routines worked on copies
        x = mpi.scalapack.solve(mpi.layout(mpi.send(square)), mpi.layout(mpi.send(right)))
        assert np.allclose(square @ x.x.to_numpy(), right, atol=1e-9)
