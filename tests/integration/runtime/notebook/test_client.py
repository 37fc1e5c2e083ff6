"""The kernel's client, with a real controller and engine of ipyparallel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from tests.support.tunnel import Tunnel

from fairlead.base.process import end_group
from fairlead.notebook.client import Client
from fairlead.notebook.settings import CLIENT, ENGINE, Settings, write_settings

RUNTIME = Path(__file__).parents[4] / "runtime"
ENGINE_PROGRAM = """
import sys
from ipyparallel.engine.app import IPEngine
from traitlets.config import Config
config = Config()
config.IPEngine.url_file = sys.argv.pop()
config.IPEngine.enable_nanny = False
config.HistoryManager.enabled = False
app = IPEngine.instance(config=config)
app.initialize([])
app.start()
"""
# As one of many that share a core: what follows on the controller's answer takes long.
SLOW = """
import time
from ipyparallel.engine.app import IPEngine
complete = IPEngine.complete_registration
async def late(*words):
    time.sleep(40)
    await complete(*words)
IPEngine.complete_registration = late
"""
LIMIT_S = 60
pytestmark = pytest.mark.xdist_group("ipyparallel")  # one world for all


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A world of one engine, which nobody has launched."""
    folder = tmp_path_factory.mktemp("session")
    world = folder / "world-1"
    world.mkdir()
    write_settings(Settings(str(folder), str(folder), 1, "image", "ab" * 16))
    with _started(folder, "-m", "fairlead.notebook.controller", world) as controller:
        for name in (ENGINE, CLIENT):
            waited(lambda name=name: (world / name).exists() or controller.poll() is not None)
        with _started(folder, "-c", ENGINE_PROGRAM, world / ENGINE):
            yield world


@contextmanager
def _started(folder: Path, *words: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """Python with ``words``, ended with all that it has started."""
    process = subprocess.Popen(
        [sys.executable, *map(str, words)], start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(RUNTIME), "IPYTHONDIR": str(folder / "ipython")},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        end_group(process, 1)


def waited(ready) -> None:
    until = time.monotonic() + LIMIT_S
    while not ready():
        assert time.monotonic() < until
        time.sleep(0.02)


def run(client: Client, code: str) -> tuple[list, list[str]]:
    """Asks the engine for a cell; the futures of its reply and output, and the list that its text goes into."""
    futures: list = []
    printed: list[str] = []

    def follow(future) -> None:
        futures.append(future)
        future.iopub_callbacks.append(
            lambda msg: printed.append(msg["content"].get("text", "")) if "text" in msg["content"] else None
        )  # fmt: skip

    [ident], _ = client._build_targets([0])
    client.send_execute_request(
        client._mux_stream, code, silent=False, ident=ident, message_future_hook=follow
    )
    return futures, printed


def test_output_before_its_connection_is_there_is_lost_and_the_client_says_so(world: Path) -> None:
    known = json.loads((world / CLIENT).read_text())
    late = world / "late.json"
    with Tunnel(int(known["iopub"])) as tunnel, ExitStack() as stack:
        late.write_text(json.dumps({**known, "iopub": tunnel.port}))
        tunnel.down()
        client = stack.enter_context(closing(Client(late)))
        waited(lambda: client.ids)
        [lost], _ = run(client, "print('lost')")
        lost.result(LIMIT_S)
        assert client.unheard() == [0]
        tunnel.up()
        waited(lambda: not client.unheard())
        assert not lost.output.done()  # what a cell would wait for without an end
        [future], printed = run(client, "print('here')")
        future.result(LIMIT_S)
        waited(future.output.done)
        assert "".join(printed) == "here\n"


def test_engine_that_runs_a_cell_is_heard(world: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with closing(Client(world / CLIENT)) as first:
        waited(lambda: first.ids and not first.unheard())
        [busy], _ = run(
            first,
            f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)\nos.remove({str(go)!r})",
        )
        with closing(Client(world / CLIENT)) as second:
            waited(lambda: second.ids and not second.unheard())
            assert not busy.done()
            [next_one], printed = run(second, "print('second')")
            go.touch()
            next_one.result(LIMIT_S)
            waited(next_one.output.done)
            assert "".join(printed) == "second\n"


def test_engine_that_came_before_the_connection_was_there_is_known(
    world: Path, tmp_path: Path
) -> None:
    known = json.loads((world / CLIENT).read_text())
    late = world / "deaf.json"
    with Tunnel(int(known["notification"])) as tunnel, ExitStack() as stack:
        late.write_text(json.dumps({**known, "notification": tunnel.port}))
        tunnel.down()
        connected = stack.enter_context(closing(Client(world / CLIENT)))
        waited(lambda: connected.ids)
        deaf = stack.enter_context(closing(Client(late)))
        wanted = len(connected.ids) + 1
        stack.enter_context(_started(tmp_path, "-c", ENGINE_PROGRAM, world / ENGINE))
        waited(lambda: len(connected.ids) == wanted)
        assert len(deaf.ids) < wanted  # what a cell would wait for without an end
        waited(lambda: deaf.registered(wanted) == connected.ids)


@pytest.mark.full
def test_engine_that_takes_longer_than_ipyparallels_default_still_comes(
    world: Path, tmp_path: Path
) -> None:
    begun = time.monotonic()
    with (
        closing(Client(world / CLIENT)) as client,
        _started(tmp_path, "-c", SLOW + ENGINE_PROGRAM, world / ENGINE),
    ):
        waited(lambda: client.ids)  # the world's own engine, which may be on its way
        before = len(client.ids)
        waited(lambda: len(client.ids) == before + 1)
    assert time.monotonic() - begun > 40
