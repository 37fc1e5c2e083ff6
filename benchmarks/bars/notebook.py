"""Round trips of notebook cells on ranks, against plain ipyparallel; the first cell; and what disturbances cost.

Plain ipyparallel is a cluster of as many engines, without MPI, that the same kernel asks; both take turns. More ranks than
cores share them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from tests.support.object_stores import installed
from tests.support.tunnel import Tunnel
from tests.system.browser import Page, page

from benchmarks.result import FAIRLEAD, Benchmark, Compared, Result, absolute, compare
from fairlead.notebook.journal import cells
from fairlead.notebook.settings import KERNEL, LAB, STATE, read_json

NAME = "notebook"
BAR_S, BAR_99_S, BAR_FIRST_S, BAR_DOWN = 0.2, 1.0, 15.0, 0.01
_LIMIT_S = 300.0
_CELL = "%%ranks\n1"
_DASK = ("dask-jobqueue==0.9.0", "distributed==2026.8.0", "ipykernel==7.1.0")
_DASK_CELL = "dask.run(int);"
_DASK_START = """
from dask.distributed import Client
from dask_jobqueue.local import LocalCluster
cluster = LocalCluster(cores=1, processes=1, memory="1GiB")
cluster.scale(jobs={workers})
dask = Client(cluster)
dask.wait_for_workers({workers}, timeout={limit})
"""
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


def measure_dask(ranks: int = 2, rounds: int = 100) -> Result:
    """Seconds of a trivial cell on ranks, and of the same on as many workers of dask-jobqueue, by a kernel next to them."""
    with _session(ranks) as folder, _dask(ranks, folder) as connection:
        client, theirs = Client(folder / KERNEL), Client(connection)
        for _ in range(3):
            client.run(_CELL)
            theirs.run(_DASK_CELL)
        pairs = [(client.run(_CELL), theirs.run(_DASK_CELL)) for _ in range(rounds)]
        client.close()
        theirs.close()
    ours, dask = ([pair[side] for pair in pairs] for side in (0, 1))
    name = f"round trip of a cell, {ranks} ranks, of dask-jobqueue's"
    against = "`Client.run` on dask-jobqueue's workers, from a kernel"
    return Result(f"{NAME}-dask", _WHAT, against, (compare(name, ours, dask, None),))


class Client:
    """A client of a kernel, as a browser is one."""

    def __init__(self, connection: Path):
        from jupyter_client import BlockingKernelClient

        self._client = BlockingKernelClient()
        self._client.load_connection_file(str(connection))
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
            "--watchdog", "300", "-q", *(["--hosts", "localhost"] if ranks > 64 else []), "mpi-base",
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


@contextmanager
def _dask(workers: int, folder: Path) -> Iterator[Path]:
    """A kernel whose ``dask`` is a client of as many workers, jobs of this machine; its connection file."""
    place = installed("dask", *_DASK)
    connection = folder / "dask-kernel.json"
    words = [str(place / "bin/python"), "-m", "ipykernel_launcher", "-f", str(connection)]
    with (folder / "dask.log").open("wb") as log:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder
        )
    try:
        until = time.monotonic() + _LIMIT_S
        while not read_json(connection):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError((folder / "dask.log").read_text())
            time.sleep(0.05)
        client = Client(connection)
        try:
            client.run(_DASK_START.format(workers=workers, limit=_LIMIT_S))
            yield connection
            client.run("dask.close(); cluster.close()")
        finally:
            client.close()
    finally:
        process.terminate()
        process.wait(60)


def _round_trips(ranks: int, rounds: int) -> list[Compared]:
    with _session(ranks) as folder, _plain(ranks, folder) as connection:
        client = Client(folder / KERNEL)
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
            client = Client(folder / KERNEL)
            client.run(_CELL)
            took.append(time.perf_counter() - begun)
            client.close()
    return took


def _disturbed(disconnects: int, servers: int, ranks: int) -> list[Compared]:
    """Browsers that go in the middle of a cell, servers and ranks that are killed.

    While ranks are replaced, which the user asks for, nothing is asked of the kernel.
    """
    with _session(2, lab="own") as folder:
        first = Client(folder / KERNEL)
        first.run(_CELL)
        first.close()
        while not read_json(folder / LAB):
            time.sleep(0.05)
        begun, down, wanted = time.perf_counter(), 0.0, []
        replaced: list[float] = []
        every = disconnects // max(servers, 1), disconnects // max(ranks, 1)
        for number in range(disconnects):
            leaving = Client(folder / KERNEL)
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
    client = Client(folder / KERNEL)
    took = client.run("1")
    client.close()
    return max(took - _ANSWER_S, 0.0)


def _killed_rank(folder: Path) -> float:
    """Seconds that ranks are of no use after one was killed and is replaced."""
    client = Client(folder / KERNEL)
    client.run("%%ranks --capture where\nimport os; os.getpid()")
    client.run("import os, signal; os.kill(int(where[1].result['text/plain']), signal.SIGKILL)")
    took = client.run("%ranks restart 1") + client.run(_CELL)
    client.close()
    return took


# In the page: when the key was pressed, and when another number than before was shown.
_WATCH = r"""
window.bench = {at: 0, took: 0};
bench.shown = () => [...document.querySelectorAll('.jp-OutputArea-output')].map(o => o.innerText).join()
  .match(/cell: (\d+)\./)?.[1];
document.addEventListener('keydown', e => {
  if (e.ctrlKey && e.key == 'Enter') { bench.before = bench.shown() ?? bench.before; bench.took = 0; bench.at = performance.now(); }
}, true);
new MutationObserver(() => {
  const now = bench.shown();
  if (bench.at && !bench.took && now && now != bench.before) bench.took = performance.now() - bench.at;
}).observe(document.body, {subtree: true, childList: true, characterData: true});
"""
_BOOK = "bench.ipynb"
_CELL_IN_PAGE = "document.querySelector('.jp-NotebookPanel .jp-CodeCell .cm-content')"
_COUNTS = "%%ranks\nn = globals().get('n', 0) + 1; print(f'cell: {n}.')"


class _Lab:
    """A page of JupyterLab with one cell, which counts how often it was run."""

    def __init__(self, page: Page, port: int, token: str):
        self._page = page
        page.show(1200)
        page.open(f"http://127.0.0.1:{port}/lab/tree/{_BOOK}?token={token}")
        self._until(f"!!{_CELL_IN_PAGE}")
        # A cell that is run before its kernel is there makes the page ask for one.
        self._until(
            "document.querySelector('#jp-main-statusbar').innerText.includes('ranks | Idle')"
        )
        page.evaluate(_WATCH)

    def _until(self, expression: str, again: Callable[[], None] = lambda: None) -> None:
        until = time.monotonic() + _LIMIT_S
        while not self._page.evaluate(expression):
            if time.monotonic() > until:
                raise RuntimeError(f"the page never came to: {expression}")
            time.sleep(0.05)
            again()

    def _click(self) -> None:
        """Into the cell, which moves while the page is built."""
        x, y = self._page.evaluate(
            f"(() => {{ const r = {_CELL_IN_PAGE}.getBoundingClientRect(); return [r.x + 20, r.y + r.height / 2]; }})()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self._page.ask(
                "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1
            )

    def press(self) -> None:
        """Runs the cell, as the user does by Ctrl-Enter."""
        self._click()
        self._until(f"document.activeElement === {_CELL_IN_PAGE}", self._click)
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "modifiers": 2}
        self._page.ask("Input.dispatchKeyEvent", type="rawKeyDown", **key)
        self._page.ask("Input.dispatchKeyEvent", type="keyUp", **key)

    def seen(self, limit_s: float = _LIMIT_S) -> float:
        """Seconds from the key to the output on the page; 0 if it does not come."""
        until = time.monotonic() + limit_s
        while not (took := float(self._page.evaluate("bench.took"))):
            if time.monotonic() > until:
                return 0.0
            time.sleep(0.02)
        return took / 1e3

    def shown(self) -> int:
        """How often the cell has been run, as far as the page shows."""
        return int(self._page.evaluate("bench.shown()"))


def _listens(port: int) -> None:
    """Waits until something takes connections at a port of this machine."""
    until = time.monotonic() + _LIMIT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError as exc:
            if time.monotonic() > until:
                raise RuntimeError(f"nothing listens at port {port}") from exc
            time.sleep(0.05)


def measure_browser(cells_run: int = 60, cuts: int = 20, kills: int = 10, ranks: int = 2) -> Result:
    """Seconds from a key in a browser to the output on its page; what it costs when the tunnel or the browser is killed.

    Args:
        cuts: how often the tunnel is killed while a cell runs, to be up again after half a second.
        kills: how often the browser is killed while a cell runs, to be started again at once.
    """
    with _session(ranks, lab="own") as folder, page() as tab:
        while not read_json(folder / LAB):
            time.sleep(0.05)
        cell: dict[str, object] = {
            "cell_type": "code",
            "id": "one",
            "metadata": {},
            "source": _COUNTS,
            "outputs": [],
            "execution_count": None,
        }
        spec = {"name": "fairlead", "display_name": "fairlead", "language": "python"}
        book = {
            "cells": [cell],
            "metadata": {"kernelspec": spec},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        Path(folder.parents[2], _BOOK).write_text(json.dumps(book), "utf-8")
        known = read_json(folder / LAB)
        _listens(int(known["port"]))
        with Tunnel(int(known["port"])) as tunnel:
            token = str(known["url"]).partition("token=")[2]
            lab = _Lab(tab, tunnel.port, token)
            took, again = [], []
            for _ in range(cells_run + 3):
                lab.press()
                took.append(lab.seen())
            for _ in range(cuts):
                lab.press()
                tunnel.down()
                time.sleep(0.5)
                tunnel.up()
                begun = time.perf_counter()
                # What is sent into a connection that is gone is lost: the user presses again.
                lab.press()
                while not lab.seen(2.0):
                    lab.press()
                again.append(time.perf_counter() - begun)
            runs = lab.shown()
            lab.press()
            os.kill(tab.pid, signal.SIGKILL)
            opened, later = [], runs
            for _ in range(kills):
                begun = time.perf_counter()
                with page() as new:
                    lab = _Lab(new, tunnel.port, token)
                    lab.press()
                    if not lab.seen():
                        raise RuntimeError("a cell in a new browser is not answered")
                    opened.append(time.perf_counter() - begun)
                    later = lab.shown()
                    lab.press()
                    os.kill(new.pid, signal.SIGKILL)
        kept = json.dumps(cells(folder))
    lost, lost_later = (
        sum(f"cell: {n}." not in kept for n in span)
        for span in (range(1, runs + 1), range(runs + 1, later + 1))
    )
    took = took[3:]  # the first ones wait for ranks
    rows = [
        absolute(f"a cell in JupyterLab, {ranks} ranks, key to output: median", took, BAR_S),
        absolute(
            f"a cell in JupyterLab, {ranks} ranks, key to output: 99th percentile",
            [float(np.percentile(took, 99))],
            BAR_99_S,
        ),
        absolute("a killed tunnel: until a cell is answered on the page again", again, None),
        absolute(f"{cuts} killed tunnels: lines of output lost", [float(lost)], 0.0, unit=""),
        absolute("a killed browser: until a cell is answered in a new one", opened, None),
        absolute(
            f"{kills} killed browsers: lines of output lost", [float(lost_later)], 0.0, unit=""
        ),
    ]
    return Result(
        f"{NAME}-browser", "Chromium in front of a session's JupyterLab", "nothing", tuple(rows)
    )


def measure_most(ranks: int = 256, rounds: int = 20) -> Result:
    """Seconds of a trivial cell on 256 ranks, for which there is no room twice: without a peer."""
    with _session(ranks) as folder:
        client = Client(folder / KERNEL)
        begun = time.perf_counter()
        client.run(_CELL)
        first = time.perf_counter() - begun
        took = [client.run(_CELL) for _ in range(rounds + 2)][2:]
        client.close()
    rows = [
        absolute(f"round trip of a cell, {ranks} ranks: median", took, None),
        absolute(f"round trip of a cell, {ranks} ranks: longest", [max(took)], None),
        absolute(f"{ranks} ranks: kernel to first answer of all", [first], None),
    ]
    return Result(f"{NAME}-most", _WHAT, "nothing", tuple(rows))


BENCHMARKS = (
    Benchmark(NAME, 155, measure),
    Benchmark(f"{NAME}-many", 156, measure_many),
    Benchmark(f"{NAME}-faults", 157, measure_faults),
    Benchmark(f"{NAME}-dask", 160, measure_dask),
    Benchmark(f"{NAME}-browser", 158, measure_browser),
    Benchmark(f"{NAME}-most", 159, measure_most),
)
