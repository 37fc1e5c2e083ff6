"""`fairlead notebook`: cells on real ranks, what interrupts and kills them, and who may come near."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat
import psutil  # type: ignore[import-untyped]
import pytest
from tests.system import hosts, notebooks
from tests.system.notebooks import Kernel, Notebook, waited

from fairlead.notebook import variables
from fairlead.notebook.settings import LAB, SETTINGS, read_json


@pytest.fixture(scope="module")
def state(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("state")


# A laptop whose owner wants to be paid.
_SITE = """
[site]
name = "mine"
summary = "x"
extends = "laptop"
[sources.us]
text = "us"
status = "run"
[scheduler]
source = "us"
charge_unit = "EUR"
charge = {default = 1.5}
"""


@pytest.fixture(scope="module")
def session(state: Path) -> Iterator[Notebook]:
    (state / "mine.toml").write_text(_SITE)
    words = ("--timeline", "--port", "18888", "--site", state / "mine.toml")
    with notebooks.notebook("main", *words, state=state) as started:
        yield started


@pytest.fixture
def kernel(session: Notebook) -> Iterator[Kernel]:
    client = session.kernel()
    yield client
    client.close()


def later(seconds: float, call) -> None:
    threading.Timer(seconds, call).start()


def pids(kernel: Kernel) -> list[int]:
    ran = kernel.run("%%ranks\nimport os; print('pid', rank, os.getpid())")
    found = dict(re.findall(r"pid (\d+) (\d+)", ran.text))
    return [int(found[str(n)]) for n in range(len(found))]


def test_session_says_where_it_is_and_that_its_ranks_are_proved(session: Notebook) -> None:
    lab = r"http://127\.0\.0\.1:(\d+)/lab\?token=\w+"
    parts = (
        r"proved: 2 ranks: .*MPICH",
        lab,
        r"ssh -N -L \d+:127\.0\.0\.1:\d+ ",
        "it costs 1.5 EUR an hour",
    )
    waited(lambda: all(re.search(part, session.printed()) for part in parts), session.printed())
    printed = session.printed()
    url = re.search(lab, printed)
    assert url and f"ssh -N -L {url[1]}:127.0.0.1:{url[1]} " in printed


def test_cells_run_on_all_ranks_and_on_some(kernel: Kernel) -> None:
    assert kernel.run("%%ranks\nprint('here', rank); size").text.splitlines()[-1] == "Out[0-1]: 2"
    assert kernel.run("%%ranks 1\nrank").text == "Out[1]: 1\n"
    assert kernel.run("%ranks 0-1 comm.allreduce(rank + 1)").text == "Out[0-1]: 3\n"
    average = "import fairlead.comm as fc\nfc.init()\nfc.average(float(rank))"
    assert kernel.run(f"%%ranks\n{average}").text == "Out[0-1]: 0.5\n"
    assert "ranks are 0-1" in kernel.run("%%ranks 2\n1").text
    assert kernel.run("6 * 7").outputs[0]["text/plain"] == "42"


def test_ranks_load_no_debugger_until_a_cell_does(kernel: Kernel) -> None:
    code = "import sys\nbefore = 'debugpy' in sys.modules\nimport debugpy\nbefore, debugpy.__name__"
    assert kernel.run(f"%%ranks\n{code}").text == "Out[0-1]: (False, 'debugpy')\n"


def test_displays_and_bars_of_ranks_are_shown_in_the_cell(kernel: Kernel) -> None:
    ran = kernel.run(
        "%%ranks\nfrom IPython.display import HTML, display\ndisplay(HTML(f'<b>{rank}</b>'))"
    )
    assert {o.get("text/html") for o in ran.outputs} >= {"<b>0</b>", "<b>1</b>"}
    bars = "from tqdm import tqdm\nimport time\nfor i in tqdm(range(9), desc=f'bar{rank}'): time.sleep(0.05)"
    last = kernel.run(f"%%ranks\n{bars}").outputs[-1]["text/plain"].splitlines()
    assert len(last) == 2
    assert all(f"bar{n}: 100%" in line for n, line in enumerate(last)), last


def test_timeline_of_a_cell_is_drawn_in_it_and_names_the_rank_that_was_waited_for(
    kernel: Kernel,
) -> None:
    kernel.run("%ranks restart --fresh")
    assert "before `fairlead.comm.init()`" in kernel.run("%ranks timeline").text
    kernel.run("%%ranks\nimport fairlead.comm as fc, time\nfc.init()")
    steps = "for i in range(20):\n    with fc.span('simulate'): time.sleep(0.01 + 0.02 * rank)\n    fc.average(1.0)"
    kernel.run(f"%%ranks\n{steps}")
    [drawn] = kernel.run("%ranks timeline").outputs
    lines = drawn["text/plain"].splitlines()
    assert [line.partition(":")[0] for line in lines[1:]] == [
        "rank 0",
        "rank 1",
        "waited for longest",
    ]
    waited = [int(re.search(r"(\d+)% waiting", line)[1]) for line in lines[1:3]]
    assert waited[0] > 40 > 20 > waited[1]
    assert re.match(
        r"waited for longest: rank 1 \(\S+\), last in (19|20) of 20 collectives", lines[3]
    )
    assert drawn["image/svg+xml"].startswith("<svg xmlns=")
    [late] = kernel.run("%ranks timeline 0.1").outputs
    assert "2 ranks, 0.1 s" in late["text/plain"]
    assert "a number above 0" in kernel.run("%ranks timeline 0").text


def test_captured_output_is_a_variable(kernel: Kernel) -> None:
    assert kernel.run("%%ranks --capture got\nprint('quiet', rank); rank").text == ""
    ran = kernel.run("got[1].stdout, got[0].result['text/plain']")
    assert ran.outputs[0]["text/plain"] == "('quiet 1\\n', '0')"


def test_error_of_some_ranks_fails_the_cell_and_names_them(kernel: Kernel) -> None:
    ran = kernel.run("%%ranks\n1 / rank")
    assert ran.error == "RanksError: [0] ZeroDivisionError: division by zero"
    assert "Out[1]: 1.0" in ran.text


def test_interrupt_ends_python_code_and_a_collective_of_fairlead_comm(kernel: Kernel) -> None:
    forever = "import time\nwhile True: time.sleep(0.05)"
    ran = kernel.run(f"%%ranks\n{forever}", lambda: later(1, kernel.interrupt))
    assert ran.error == "RanksError: [0-1] KeyboardInterrupt"
    kernel.run("%%ranks\nimport fairlead.comm as fc\nfc.init()")
    ran = kernel.run("%%ranks 0\nfc.average(1.0)", lambda: later(1, kernel.interrupt))
    assert ran.error == "RanksError: [0] KeyboardInterrupt"
    before = pids(kernel)
    assert "new ranks" in kernel.run("%ranks restart").text  # the communicator is of no more use
    assert not set(before) & set(pids(kernel))
    assert kernel.run("%%ranks\nfc.init()\nfc.average(float(rank))").text == "Out[0-1]: 0.5\n"


def test_coroutines_run_in_cells_and_are_interrupted(kernel: Kernel) -> None:
    sleeps = "%%ranks\nimport asyncio\nawait asyncio.sleep({})\nrank"
    assert kernel.run(sleeps.format(0.1)).text.splitlines() == ["Out[0]: 0", "Out[1]: 1"]
    before = pids(kernel)
    ran = kernel.run(sleeps.format(600), lambda: later(1, kernel.interrupt))
    assert ran.error.startswith("RanksError: [0-1] ") and "new ranks" not in ran.text
    assert pids(kernel) == before


def test_rank_that_leaves_without_an_error_is_named(kernel: Kernel) -> None:
    kernel.run(
        "%%ranks\nshared = [rank]; model, optimizer = {'w': shared}, {'of': shared}; rate = 1"
    )
    kernel.run("%%ranks\ndef step(): return rate")
    ran = kernel.run("%%ranks\nimport os\nif rank == 1: os._exit(0)")
    assert "rank 1 ended with exit code 0" in ran.error
    kernel.run("%ranks restart 1")
    ran = kernel.run("%%ranks 0\nrate = 2\nmodel['w'] is optimizer['of'], step()")
    assert ran.text == "Out[0]: (True, 2)\n"
    assert kernel.run("%%ranks\ncomm.allreduce(1)").text == "Out[0-1]: 2\n"


def test_output_is_in_order_also_around_bars_and_figures(kernel: Kernel) -> None:
    code = "from tqdm import tqdm\nfrom IPython.display import HTML, display\nimport sys\n"
    code += "for n in range(2):\n    print('----')\n    for _ in tqdm(range(2), file=sys.stdout): pass\n    print('loss', n)\n"
    code += "handle = display(HTML('first'), display_id=True)\nprint('after')\nhandle.update(HTML('second'))"
    ran = kernel.run(f"%%ranks 0\n{code}")
    lines = [re.sub(r"100%.*", "bar", line) for line in ran.text.splitlines()]
    wanted = ["----", "bar", "loss 0", "----", "bar", "loss 1"]
    assert lines == [*(f"[0] {text}" for text in wanted), "[0]", "[0] after"]
    assert [o["text/html"] for o in ran.outputs if "text/html" in o][-1] == "second"


def test_interrupt_frees_ranks_that_wait_inside_mpi_and_they_keep_their_variables(
    kernel: Kernel,
) -> None:
    kernel.run(
        "%%ranks\nimport numpy as np, threading\nx = rank * 10; a = np.arange(3); lock = threading.Lock()\n"
        "def f(y): return x + y\n"
    )
    ran = kernel.run(
        "%%ranks\ncomm.recv(source=1 - rank, tag=9)", lambda: later(1, kernel.interrupt)
    )
    assert "inside a call that SIGINT does not end" in ran.text and "2 new ranks" in ran.text
    assert "lock is lost" in ran.text
    assert "MPICH" in ran.text  # proved again
    ran = kernel.run("%%ranks\nx, int(a.sum()), f(1), comm.allreduce(1)")
    assert ran.text.splitlines() == ["Out[0]: (0, 3, 1, 2)", "Out[1]: (10, 3, 11, 2)"]


def test_killed_rank_is_named_at_once_and_replaced(kernel: Kernel) -> None:
    kernel.run("%%ranks\nmark = f'of {rank}'")
    victim = pids(kernel)[1]
    waits = "%%ranks\nimport time\nif rank == 0: comm.Barrier()\nelse: time.sleep(60)"
    ran = kernel.run(waits, lambda: later(1, lambda: os.kill(victim, signal.SIGKILL)))
    assert ran.text.startswith("rank 1 killed by SIGKILL\n")
    assert "%ranks restart 1" in ran.error
    assert "rank 1 killed by SIGKILL" in kernel.run("%%ranks\n1").error
    assert re.search(r"1 +\d+ \S+ +killed by SIGKILL", kernel.run("%ranks").text)
    assert "2 new ranks" in kernel.run("%ranks restart 1").text
    ran = kernel.run("%%ranks\nglobals().get('mark', 'nothing'), comm.allreduce(1)")
    assert ran.text.splitlines() == ["Out[0]: ('of 0', 2)", "Out[1]: ('nothing', 2)"]


def test_killed_kernel_comes_back_and_its_ranks_have_lived_on(session: Notebook) -> None:
    first = session.kernel()
    first.run("%%ranks\nlives = rank")
    before, run = pids(first), session.run
    os.kill(int(first.run("import os; print(os.getpid())").text), signal.SIGKILL)
    first.close()
    second = session.kernel(run + 1)
    assert pids(second) == before
    assert second.run("%%ranks\nlives").text.splitlines() == ["Out[0]: 0", "Out[1]: 1"]
    second.close()


def test_output_without_a_client_is_kept(session: Notebook) -> None:
    first = session.kernel()
    first.start("%%ranks\nimport time\nfor i in range(4): time.sleep(0.3); print('step', i)")
    first.close()
    second = session.kernel()
    ran = second.run("%ranks missed")
    assert [n for n in range(4) if f"] step {n}\n" not in ran.text] == [], ran.text
    second.close()
    done = hosts.fairlead(
        "notebook", "--output-of", "main", env={"XDG_STATE_HOME": str(session.log.parent)}
    )
    cells = json.loads(done.stdout)["cells"]
    assert any("step 3" in json.dumps(cell["outputs"]) for cell in cells)


@pytest.mark.full
def test_killed_server_comes_back_with_the_same_kernel(session: Notebook, kernel: Kernel) -> None:
    kernel.run("kept = 'still here'")
    waited(lambda: read_json(session.folder / LAB), "no JupyterLab")
    before = read_json(session.folder / LAB)
    _answered(before["url"], "/api/status")
    os.kill(before["pid"], signal.SIGKILL)
    waited(lambda: read_json(session.folder / LAB)["pid"] != before["pid"], "no new JupyterLab")
    after = read_json(session.folder / LAB)
    assert after["url"] == before["url"]
    made = _answered(after["url"], "/api/kernels", {"name": "fairlead"})
    assert made["name"] == "fairlead"
    run = session.run
    _answered(after["url"], f"/api/kernels/{made['id']}/restart", {})
    fresh = session.kernel(run + 1)
    assert "NameError" in fresh.run("kept").error
    fresh.run("kept = 'again'")
    _answered(after["url"], f"/api/kernels/{made['id']}", method="DELETE")
    assert fresh.run("kept").outputs[0]["text/plain"] == "'again'"
    fresh.close()


def _answered(
    url: str, path: str, data: object = None, method: str | None = None, token: bool = True
):
    base, _, secret = url.partition("/lab?token=")
    headers = {"Authorization": f"token {secret}"} if token else {}
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(base + path, body, headers, method=method)
    answer: list[bytes] = []

    def asked() -> bool:
        try:
            with urllib.request.urlopen(request, timeout=30) as stream:
                answer.append(stream.read())
                return True
        except urllib.error.HTTPError:
            raise
        except OSError:  # it is still starting
            return False

    waited(asked, path)
    return json.loads(answer[0]) if answer[0] else None


def test_no_secret_is_on_a_command_line_or_in_a_file_of_others(
    session: Notebook, kernel: Kernel
) -> None:
    waited(lambda: read_json(session.folder / LAB), "no JupyterLab")
    world = max(session.folder.glob("world-*"), key=lambda w: int(w.name.removeprefix("world-")))
    secrets = {
        read_json(session.folder / LAB)["url"].partition("token=")[2],
        read_json(session.folder / SETTINGS)["key"],
        read_json(session.folder / "kernel.json")["key"],
        read_json(world / "engine.json")["key"],
        read_json(world / "engine.json")["curve_serverkey"],
    }
    assert all(len(secret) > 30 for secret in secrets)
    lines = subprocess.run(
        ["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True
    ).stdout
    assert "fairlead.notebook.rank" in lines
    assert not [secret for secret in secrets if secret in lines]
    assert stat.S_IMODE(session.folder.stat().st_mode) == 0o700
    assert (
        stat.S_IMODE(Path(read_json(session.folder / SETTINGS)["sockets"]).stat().st_mode) == 0o700
    )
    for path in session.folder.rglob("*"):
        text = path.read_bytes() if path.is_file() else b""
        if any(secret.encode() in text for secret in secrets):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_of_this_machine_reaches_nothing(session: Notebook, kernel: Kernel) -> None:
    waited(lambda: "JupyterLab" in session.printed(), "no JupyterLab")
    kernel.run("%%ranks\n1")
    url = read_json(session.folder / LAB)["url"]
    port = int(url.split(":")[2].partition("/")[0])
    listening = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
    # Launcher and ranks have ports of MPI's.
    modules = r"-m fairlead\.notebook\.(kernel|controller|server) .*"
    named = ["pgrep", "-f", "--", modules + str(session.folder)]
    found = subprocess.run(named, capture_output=True, text=True, check=True).stdout
    ours = set(map(int, found.split()))
    addresses = [
        line.split()[3] for line in listening.splitlines()
        if {int(p) for p in re.findall(r"pid=(\d+)", line)} & ours
    ]  # fmt: skip
    assert f"127.0.0.1:{port}" in addresses
    assert all(address.startswith("127.0.0.1:") for address in addresses), addresses
    world = max(session.folder.glob("world-*"), key=lambda w: int(w.name.removeprefix("world-")))
    engines = read_json(world / "engine.json")
    sockets = read_json(session.folder / SETTINGS)["sockets"]
    script = _OTHER.format(
        port=port,
        sockets=sockets,
        registration=engines["registration"],
        iopub=read_json(world / "client.json")["iopub"],
    )
    done = subprocess.run(
        [*hosts.as_user(65534, Path("/"), {"PATH": os.environ["PATH"]}, "python3", "-c", script)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "lab 403", "kernel PermissionError", "keepers PermissionError", "folder PermissionError",
        "registration nothing", "iopub nothing",
    ]  # fmt: skip


# What somebody else can try: without a token, on the sockets, and as a plain peer of ZeroMQ (protocol 3.1, NULL).
_OTHER = """
import os, socket, urllib.error, urllib.request
try:
    print("lab", urllib.request.urlopen("http://127.0.0.1:{port}/api/contents", timeout=10).status)
except urllib.error.HTTPError as exc:
    print("lab", exc.code)
for name, path in (("kernel", "{sockets}/kernel-1"), ("keepers", "{sockets}/keepers-1")):
    try:
        socket.socket(socket.AF_UNIX).connect(path)
        print(name, "connected")
    except OSError as exc:
        print(name, type(exc).__name__)
try:
    os.listdir("{sockets}")
except OSError as exc:
    print("folder", type(exc).__name__)
greeting = b"\\xff" + bytes(8) + b"\\x7f" + bytes([3, 0]) + b"NULL".ljust(20, b"\\0") + bytes(32)
for name, port in (("registration", {registration}), ("iopub", {iopub})):
    peer = socket.create_connection(("127.0.0.1", port), timeout=5)
    peer.sendall(greeting)
    got = b""
    try:
        while more := peer.recv(4096):
            got += more
    except OSError:
        pass
    # Its greeting, which asks for CURVE, and nothing more.
    print(name, "nothing" if len(got) <= 64 and b"NULL" not in got else got)
"""


def test_image_without_a_kernel_is_refused_with_the_line_to_add() -> None:
    done = hosts.fairlead("notebook", "-n", "2", hosts.image())
    assert done.returncode == 121
    assert 'pip = ["ipykernel", "ipyparallel"]' in done.stderr and "--with-kernel" in done.stderr


@pytest.mark.full
def test_idle_session_saves_what_it_was_told_and_ends(state: Path) -> None:
    with notebooks.notebook("idle", "--idle", "4", "--lab", "none", state=state) as started:
        kernel = started.kernel()
        kernel.run("%%ranks\nw = [rank, 'weights']")
        kernel.run("epoch = 7")
        kernel.run("import threading\nlock = threading.Lock()")
        assert "w" in kernel.run(f"%ranks save w epoch lock absent --to {state}/kept").text
        kernel.close()
        assert "no cell has run for 4 s" in started.ended()
        printed = started.printed()
        assert f"saved to {state}/kept: epoch, w; not saved: lock of kernel: TypeError" in printed
        assert "absent: nobody has it" in printed
    with notebooks.notebook("next", "--lab", "none", state=state) as started:
        kernel = started.kernel()
        kernel.run(f"%ranks load {state}/kept")
        assert kernel.run("%%ranks\nw[0] == rank, w[1]").text == "Out[0-1]: (True, 'weights')\n"
        assert kernel.run("epoch").outputs[0]["text/plain"] == "7"
        kernel.close()
        taken = hosts.fairlead(
            "notebook",
            "--name",
            "next",
            "--with-kernel",
            hosts.image(),
            env={"XDG_STATE_HOME": str(state)},
        )
        assert taken.returncode == 2 and "is running" in taken.stderr
        listed = hosts.fairlead("notebook", "--list", env={"XDG_STATE_HOME": str(state)})
        assert re.search(r"^next: .*2 ranks, on ", listed.stdout, re.M)
        hosts.fairlead("notebook", "--stop", "next", env={"XDG_STATE_HOME": str(state)})
        assert "--stop" in started.ended()
    left = subprocess.run(
        ["pgrep", "-af", str(state / "fairlead/notebook/next")], capture_output=True, text=True
    ).stdout
    assert not left


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_disk_that_is_full_at_the_end_is_an_error_and_holds_no_half_file(state: Path) -> None:
    small = state / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", small], check=True)
    try:
        with notebooks.notebook("full", "--lab", "none", state=state) as started:
            kernel = started.kernel()
            kernel.run(f"%ranks save w --to {small}")
            # Room for what rank 0 has, and for nothing more.
            kernel.run("%%ranks\nimport os\nw = os.urandom((1 << 20) if rank == 0 else (4 << 20))")
            hosts.fairlead("notebook", "--stop", "full", env={"XDG_STATE_HOME": str(state)})
            started.ended()
            assert started.process.wait(60) == 1
            printed = started.printed()
            kernel.close()
        assert (
            "error[notebook]: variables could not be saved" in printed
            and f"where: {small}" in printed
        ), printed
        assert "rank 1: No space left on device" in printed and "rank 0:" not in printed
        assert "df -h" in printed and "%ranks save" in printed
        assert sorted(p.name for p in small.iterdir() if p.suffix != ".json") == [
            "kernel.pickle",
            "rank-0.pickle",
        ]
        kept: dict[str, Any] = {}
        assert not variables.restore(small / "rank-0.pickle", kept) and len(kept["w"]) == 1 << 20
    finally:
        subprocess.run(["umount", small], check=True)


@pytest.mark.full
def test_session_saves_when_its_job_ends_with_a_signal_to_all_processes(state: Path) -> None:
    # In user namespaces, squashfuse mounts the image, and the signal ends it too.
    environ = {**os.environ, "APPTAINER_USERNS": "1"}
    with notebooks.notebook("all", "--lab", "none", state=state, environ=environ) as started:
        kernel = started.kernel()
        kernel.run("%%ranks\nw = [rank, b'weights' * (1 << 20)]")
        kernel.run("epoch = 7")
        kernel.run(f"%ranks save w epoch --to {state}/all-kept")
        kernel.start(
            "%%ranks\nif rank == 0:\n    comm.barrier()\nelse:\n    import time; time.sleep(600)"
        )
        time.sleep(1)  # rank 0 is inside MPI
        whole = psutil.Process(started.process.pid)
        processes = [whole, *whole.children(recursive=True)]
        assert any("squashfuse" in p.name() for p in processes)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        kernel.close()
        started.ended()
        _, left = psutil.wait_procs(processes, timeout=30)
        assert not left
    for who in ("rank-0", "rank-1"):
        kept: dict[str, Any] = {}
        assert not variables.restore(state / f"all-kept/{who}.pickle", kept)
        assert kept["w"] == [int(who[-1]), b"weights" * (1 << 20)]
    assert read_json(state / "all-kept/kernel.json")["kept"] == ["epoch"]


@pytest.mark.full
def test_rank_that_is_ended_saves_and_a_process_of_a_cell_that_is_ended_ends_nothing_else(
    kernel: Kernel, tmp_path: Path
) -> None:
    kernel.run("%%ranks\nv = 10 + rank")
    kernel.run(f"%ranks save v --to {tmp_path}")
    worker = "import multiprocessing as m, time\np = m.get_context('fork').Process(target=time.sleep, args=(600,))"
    ended = "p.start(); time.sleep(0.5); p.terminate(); p.join(20); p.exitcode"
    for prefix, answer in (("%%ranks\n", "Out[0-1]: -15"), ("", "-15")):
        ran = kernel.run(f"{prefix}{worker}\n{ended}")
        assert answer in (ran.text or ran.outputs[0]["text/plain"])
    assert not list(tmp_path.iterdir())
    kernel.run("%%ranks 1\nimport os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    waited(lambda: "killed by SIGTERM" in kernel.run("%ranks").text, "rank 1 lives on")
    assert [p.name for p in tmp_path.glob("*.pickle")] == ["rank-1.pickle"]
    assert kernel.run("%ranks restart 1").error == ""


@pytest.mark.full
def test_unix_socket_takes_the_place_of_a_port(state: Path) -> None:
    with notebooks.notebook("unix", "--port", "0", state=state) as started:
        path = Path(started.folder, "lab.sock")
        waited(lambda: "JupyterLab" in started.printed(), "no JupyterLab")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(path))
            peer.sendall(b"GET /api/contents HTTP/1.0\r\n\r\n")
            assert b" 403 " in peer.recv(100)
        waited(lambda: f"8888:{path}" in started.printed(), "no line for the tunnel")


@pytest.mark.parametrize("case", ["no-page", "ends"])
def test_lab_that_cannot_be_served_is_reported_and_the_kernel_goes_on(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """By a damaged installation, whose page is missing; by a user's configuration, with which it ends at once."""
    line = (
        "raise SystemExit(3)" if case == "ends" else f"c.LabApp.templates_dir = {str(tmp_path)!r}"
    )
    (tmp_path / "jupyter_config.py").write_text(f"{line}\n")
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    with notebooks.notebook(case, state=state) as started:
        waited(lambda: "its connection file" in started.printed(), "nothing is reported")
        printed = started.printed()
        assert "JupyterLab cannot be reached" in printed and "lab?token=" not in printed, printed
        reason = "with code 3" if case == "ends" else "HTTP 500"
        assert reason in printed, printed
        kernel = started.kernel()
        assert kernel.run("%%ranks\nrank").error == ""
        kernel.close()
        assert not read_json(started.folder / LAB)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The notebooks of ipyparallel's documentation, as its source has them."""
    folder = tmp_path_factory.mktemp("ipyparallel")
    pip = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation")
    wanted = ("--no-binary", ":all:", "--dest", folder, "ipyparallel==9.2.0")
    subprocess.run([*pip, *wanted], check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as stream:
        stream.extractall(folder)
    return folder


def _cells(examples: Path, name: str) -> list[str]:
    (path,) = examples.rglob(f"{name}.ipynb")
    return [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


@pytest.mark.full
def test_ipyparallels_own_notebook_of_mpi_runs_unchanged(state: Path, examples: Path) -> None:
    """It asserts in its cells what each rank has received."""
    with notebooks.notebook("others", "--lab", "none", state=state, ranks=3) as started:
        kernel = started.kernel()
        cells, results = _cells(examples, "Using MPI with IPython Parallel"), []
        for cell in cells:
            ran = kernel.run(cell)
            assert not ran.error, f"{cell}\n{ran.error}"
            results += [out["text/plain"] for out in ran.outputs if "text/plain" in out]
        assert len(cells) == 5 and results[:2] == ["[0, 1, 2]", "{0: 0, 1: 1, 2: 2}"]
        assert kernel.run("ranks.client.ids == rc.ids").outputs[0]["text/plain"] == "True"
        assert kernel.run("%%ranks\ncomm.allreduce(1)").text == "Out[0-2]: 3\n"
        kernel.close()


# What cells of a notebook raise, on purpose or for want of matplotlib.
RAISED = {
    "joblib": set(),
    "Monte Carlo Options": {"No module named 'matplotlib'", "name 'plt' is not defined"},
    "Parallel Decorator and map": set(),
    "Parallel Magics": {"3 errors", "1 errors"},
    "progress": set(),
}


@pytest.mark.full
@pytest.mark.parametrize("name", RAISED)
def test_ipyparallels_own_notebooks_get_the_ranks(name: str, state: Path, examples: Path) -> None:
    """Most begin with a cluster of four new engines, each alone; the session has three ranks of one world."""
    more = examples / "packages"
    if not more.is_dir():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", more]
        subprocess.run([*pip, "joblib", "psutil", "ipywidgets"], check=True)
    words = ("--lab", "none", "-B", more)
    with notebooks.notebook(name.split()[-1], *words, state=state, ranks=3) as started:
        kernel = started.kernel()
        for line in ("", "%%ranks\n"):
            assert not kernel.run(f"{line}import sys; sys.path.append({str(more)!r})").error
        runs = [kernel.run(cell) for cell in _cells(examples, name)]
        errors = [ran.error for ran in runs if ran.error]
        unlike = [e for e in errors if not any(words in e for words in RAISED[name])]
        assert not unlike, unlike
        note = "fairlead: the cluster is this session's 3 ranks"
        assert (note in "".join(ran.text for ran in runs)) == (name != "Parallel Decorator and map")
        assert kernel.run("rc.ids, len(ranks)").outputs[0]["text/plain"] == "([0, 1, 2], 3)"
        sizes = "rc[:].apply_sync(lambda: __import__('mpi4py.MPI').MPI.COMM_WORLD.size)"
        assert kernel.run(sizes).outputs[0]["text/plain"] == "[3, 3, 3]"
        kernel.close()


@pytest.mark.full
def test_ipyparallels_clusters_are_the_ranks(state: Path) -> None:
    with notebooks.notebook("cluster", "--lab", "none", state=state) as started:
        kernel = started.kernel()
        begun = kernel.run(
            "import ipyparallel as ipp, signal\ncluster = ipp.Cluster(engines='mpi', n=4)\n"
            "rc = cluster.start_and_connect_sync(activate=True)\nrc.ids"
        )
        note = "2 ranks, not 4 new engines; `fairlead notebook -n 4` starts as many"
        assert note in begun.text and begun.outputs[0]["text/plain"] == "[0, 1]"
        world = "%px from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(1))"
        printed = sorted(out["text/plain"] for out in kernel.run(world).outputs)
        assert printed == ["[stdout:0] 2\n", "[stdout:1] 2\n"]
        waits = kernel.run("ipp.Client(profile='mpi').wait_for_engines(64)")
        assert "64 engines were waited for, and this session has 2" in waits.error
        interrupted = kernel.run(
            "import time\nar = rc[:].apply_async(time.sleep, 60)\ntime.sleep(1)\n"
            "cluster.signal_engines_sync(signal.SIGINT)\nar.get(timeout=20)"
        )
        assert "KeyboardInterrupt" in interrupted.error
        refused = kernel.run("cluster.restart_engines_sync()").traceback
        assert "next:  type `%ranks restart`, or" in refused
        of_rank = "%%ranks\nimport fairlead.comm as c\nc.init().split(-1)"
        assert "next:  " in kernel.run(of_rank).text
        with_block = kernel.run("with ipp.Cluster(n=2) as again: print(again[:].apply_sync(id, 1))")
        assert not with_block.error and "new engines" not in with_block.text
        assert kernel.run("cluster.stop_cluster_sync()").error == ""
        assert kernel.run("%%ranks\ncomm.allreduce(1)").text == "Out[0-1]: 2\n"
        kernel.close()


@pytest.mark.full
def test_torch_trains_data_parallel_from_a_cell(state: Path) -> None:
    train = """%%ranks
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
net = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
source, wanted = torch.Generator().manual_seed(rank), torch.tensor([[1.0], [2.0], [3.0], [4.0]])
for step in range(200):
    x = torch.randn(32, 4, generator=source)  # other samples on each rank
    loss = ((net(x) - x @ wanted) ** 2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
[round(v, 3) for v in net.module.weight[0].tolist()], dist.get_world_size()
"""
    with notebooks.notebook("torch", "--lab", "none", state=state, image="pytorch") as started:
        kernel = started.kernel()
        assert kernel.run(train).text == "Out[0-1]: ([1.0, 2.0, 3.0, 4.0], 2)\n"
        kernel.close()


@pytest.mark.full  # builds the image
def test_images_own_lab_and_packages_serve_the_session(state: Path) -> None:
    """Nothing is laid over `analytics`, and the Jupyter server runs in the container."""
    words = ("--lab", "image")
    with notebooks.notebook(
        "own", *words, state=state, image="analytics", laid_over=False
    ) as started:
        lab = re.compile(r"http://127\.0\.0\.1:\d+/lab\?token=\w+")
        notebooks.waited(lambda: lab.search(started.printed()), "no JupyterLab")
        url = lab.search(started.printed())
        assert url and "proved: 2 ranks" in started.printed()
        kernel = _answered(url[0], "/api/kernels", {"name": "fairlead"})["id"]
        code = "%ranks import mpi4py.MPI as M, pyspark\n%ranks print(M.COMM_WORLD.rank, M.COMM_WORLD.size)"
        base, _, token = url[0].partition("/lab?token=")
        said = notebooks.over_http(base, token, kernel, code)
        assert "0 2" in said and "1 2" in said, said
