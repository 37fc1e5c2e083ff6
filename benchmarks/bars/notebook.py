"""Round trips of notebook cells on ranks, against plain ipyparallel; the first cell; and what disturbances cost.

Plain ipyparallel is a cluster of as many engines, without MPI, that the same kernel asks; both take turns. More ranks than
cores share them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.result import FAIRLEAD, Benchmark, Compared, Result, absolute, compare
from fairlead.notebook.journal import cells
from fairlead.notebook.settings import KERNEL, LAB, STATE, read_json

NAME = "notebook"
BAR_S, BAR_99_S, BAR_FIRST_S, BAR_DOWN = 0.2, 1.0, 15.0, 0.01
_LIMIT_S = 300.0
_CELL = "%%ranks\n1"
_WHAT = "a cell `1` on ranks, sent to the kernel and answered"
_AGAINST = "ipyparallel's engines and view, from the same kernel"
_ANSWER_S = 1.0  # within which a cell has to be answered for the kernel to count as available


def measure(rounds: Mapping[int, int] | None = None, first: int = 3) -> Result:
    """Seconds of a trivial cell by number of ranks, and of the first one.

    Args:
        rounds: cells, by number of ranks.
        first: starts.
    """
    rows: list[Compared] = []
    for ranks, times in (rounds or {2: 100, 16: 60}).items():
        rows += _round_trips(ranks, times)
    if first:
        name = "first cell after `fairlead notebook`, 2 ranks"
        rows.append(absolute(name, _first(first), BAR_FIRST_S))
    return Result(NAME, _WHAT, _AGAINST, tuple(rows))


def measure_many(ranks: int = 64, rounds: int = 40) -> Result:
    """Seconds of a trivial cell on more ranks than cores."""
    rows = _round_trips(ranks, rounds)
    return Result(f"{NAME}-many", _WHAT, _AGAINST, tuple(rows))


def measure_faults(disconnects: int = 200, servers: int = 5, ranks: int = 3) -> Result:
    """The share of time without an answer, and output that is lost, while browsers go and servers and ranks are killed."""
    rows = _disturbed(disconnects, servers, ranks)
    return Result(
        f"{NAME}-faults", "a session of 2 ranks that is disturbed", "nothing", tuple(rows)
    )


class Client:
    """A client of a kernel, as a browser is one."""

    def __init__(self, folder: Path):
        from jupyter_client import BlockingKernelClient

        self._client = BlockingKernelClient()
        self._client.load_connection_file(str(folder / KERNEL))
        self._client.start_channels()

    def send(self, code: str) -> str:
        """Asks for a cell."""
        message: str = self._client.execute(code)
        return message

    def run(self, code: str, limit_s: float = _LIMIT_S) -> float:
        """Seconds of a cell.

        Raises:
            RuntimeError: it failed.
            queue.Empty: no answer came within ``limit_s``.
        """
        begun = time.perf_counter()
        message = self.send(code)
        while True:
            got = self._client.get_iopub_msg(timeout=limit_s)
            if got["parent_header"].get("msg_id") != message:
                continue
            if got["msg_type"] == "error":
                raise RuntimeError(got["content"]["evalue"])
            if got["msg_type"] == "status" and got["content"]["execution_state"] == "idle":
                return time.perf_counter() - begun

    def close(self) -> None:
        self._client.stop_channels()


@contextmanager
def _session(ranks: int, lab: str = "none") -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as name:
        folder = Path(name, "fairlead/notebook/bench")
        words = [
            *FAIRLEAD, "notebook", "-n", str(ranks), "--with-kernel", "--name", "bench", "--lab", lab, "--port", "18900",
            "--watchdog", "300", "-q", "mpi-base",
        ]  # fmt: skip
        env = {**os.environ, "XDG_STATE_HOME": name}
        process = subprocess.Popen(words, env=env, cwd=name, stdin=subprocess.DEVNULL)
        try:
            until = time.monotonic() + _LIMIT_S
            while not read_json(folder / STATE):
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError("the session did not start")
                time.sleep(0.01)
            yield folder
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(120)


@contextmanager
def _plain(ranks: int, folder: Path) -> Iterator[Path]:
    """A cluster of ipyparallel; its connection file."""
    profile = folder / "plain"
    words = [
        sys.executable,
        "-m",
        "ipyparallel.cluster",
        "start",
        f"--n={ranks}",
        f"--profile-dir={profile}",
    ]
    with (folder / "plain.log").open("wb") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until = time.monotonic() + _LIMIT_S
        while not (found := list((profile / "security").glob("*client.json"))):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError((folder / "plain.log").read_text())
            time.sleep(0.05)
        yield found[0]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def _round_trips(ranks: int, rounds: int) -> list[Compared]:
    with _session(ranks) as folder, _plain(ranks, folder) as connection:
        client = Client(folder)
        client.run(_CELL)
        client.run(
            f"import ipyparallel, time\nplain = ipyparallel.Client(connection_info={str(connection)!r})\n"
            f"plain.wait_for_engines({ranks}, timeout={_LIMIT_S}, interactive=False)\nplain = plain[:]"
        )
        theirs = "plain.execute('1', silent=False, block=True);"
        for _ in range(3):
            client.run(_CELL)
            client.run(theirs)
        pairs = [(client.run(_CELL), client.run(theirs)) for _ in range(rounds)]
        client.close()
    ours, plain = ([pair[side] for pair in pairs] for side in (0, 1))
    return [
        absolute(f"round trip of a cell, {ranks} ranks: median", ours, BAR_S),
        absolute(
            f"round trip of a cell, {ranks} ranks: 99th percentile",
            [float(np.percentile(ours, 99))],
            BAR_99_S,
        ),
        compare(f"round trip of a cell, {ranks} ranks, of plain ipyparallel's", ours, plain, None),
    ]


def _first(times: int) -> list[float]:
    took = []
    for _ in range(times):
        begun = time.perf_counter()
        with _session(2) as folder:
            client = Client(folder)
            client.run(_CELL)
            took.append(time.perf_counter() - begun)
            client.close()
    return took


def _disturbed(disconnects: int, servers: int, ranks: int) -> list[Compared]:
    """Browsers that go in the middle of a cell, servers and ranks that are killed.

    While ranks are replaced, which the user asks for, nothing is asked of the kernel.
    """
    with _session(2, lab="own") as folder:
        first = Client(folder)
        first.run(_CELL)
        first.close()
        while not read_json(folder / LAB):
            time.sleep(0.05)
        begun, down, wanted = time.perf_counter(), 0.0, []
        replaced: list[float] = []
        every = disconnects // max(servers, 1), disconnects // max(ranks, 1)
        for number in range(disconnects):
            leaving = Client(folder)
            leaving.run("1")
            leaving.send(
                f"%%ranks\nimport time; time.sleep(0.05); print('token {number} of', rank)"
            )
            leaving.close()
            wanted.append(f"token {number} of")
            if number % every[0] == 0:
                os.kill(read_json(folder / LAB)["pid"], signal.SIGKILL)
            down += _asked(folder)
            if number % every[1] == every[1] - 1:
                replaced.append(_killed_rank(folder))
        total = time.perf_counter() - begun - sum(replaced)
        kept = json.dumps(cells(folder))
    lost = sum(kept.count(f"{token} {rank}") < 1 for token in wanted for rank in (0, 1))
    count = f"{disconnects} disconnects, {servers} killed servers, {ranks} killed ranks"
    return [
        absolute(f"{count}: share of time without an answer", [down / total], BAR_DOWN, unit=""),
        absolute("a killed rank: until all ranks answer again", replaced, None),
        absolute(f"{count}: lines of output lost", [float(lost)], 0.0, unit=""),
    ]


def _asked(folder: Path) -> float:
    """Seconds beyond the limit that a new client waits for its answer, the cell of the one before it included."""
    client = Client(folder)
    took = client.run("1")
    client.close()
    return max(took - _ANSWER_S, 0.0)


def _killed_rank(folder: Path) -> float:
    """Seconds that ranks are of no use after one was killed and is replaced."""
    client = Client(folder)
    client.run("%%ranks --capture where\nimport os; os.getpid()")
    client.run("import os, signal; os.kill(int(where[1].result['text/plain']), signal.SIGKILL)")
    took = client.run("%ranks restart 1") + client.run(_CELL)
    client.close()
    return took


BENCHMARKS = (
    Benchmark(NAME, 155, measure),
    Benchmark(f"{NAME}-many", 156, measure_many),
    Benchmark(f"{NAME}-faults", 157, measure_faults),
)
