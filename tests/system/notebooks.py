"""A session of `fairlead notebook`, and a client that runs cells in its kernel."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client import BlockingKernelClient
from tests.system import hosts

from fairlead.notebook.settings import ENDED, KERNEL, STATE, read_json

_LIMIT_S = 90


@dataclass
class Ran:
    """What a cell has put out."""

    text: str = ""
    error: str = ""
    traceback: str = ""
    outputs: list[dict[str, Any]] = field(default_factory=list)


class Kernel:
    """A client of a session's kernel, as a browser is one."""

    def __init__(self, folder: Path) -> None:
        self.client = BlockingKernelClient()
        self.client.load_connection_file(str(folder / KERNEL))
        self.client.start_channels()
        self.client.wait_for_ready(timeout=_LIMIT_S)

    def start(self, code: str) -> str:
        """Asks for a cell, and waits for nothing."""
        message: str = self.client.execute(code)
        return message

    def run(self, code: str, meanwhile: Callable[[], None] = lambda: None) -> Ran:
        """Runs a cell to its end.

        Args:
            meanwhile: called when the cell has begun.
        """
        message, ran = self.start(code), Ran()
        begun = False
        while True:
            got = self.client.get_iopub_msg(timeout=_LIMIT_S)
            if got["parent_header"].get("msg_id") != message:
                continue
            kind, content = got["msg_type"], got["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return ran
            if kind == "execute_input" and not begun:
                begun = True
                meanwhile()
            _take(ran, kind, content)

    def interrupt(self) -> None:
        """What the stop button does."""
        self.client.control_channel.send(self.client.session.msg("interrupt_request", {}))

    def close(self) -> None:
        """Goes away, as a browser that is closed does."""
        self.client.stop_channels()


def _take(ran: Ran, kind: str, content: dict[str, Any]) -> None:
    if kind == "stream":
        ran.text += content["text"]
    elif kind == "error":
        ran.error = f"{content['ename']}: {content['evalue']}"
        ran.traceback = "\n".join(content["traceback"])
    elif kind in ("execute_result", "display_data", "update_display_data"):
        ran.outputs.append(content["data"])


@dataclass
class Notebook:
    """A session that runs.

    Attributes:
        process: its `fairlead notebook`.
        log: what that has printed.
    """

    folder: Path
    process: subprocess.Popen[bytes]
    log: Path

    def kernel(self, run: int = 1) -> Kernel:
        """A new client.

        Args:
            run: the least that the kernel's run has to be: it may be about to end.
        """
        waited(lambda: read_json(self.folder / STATE).get("run", 0) >= run, "no new kernel")
        return Kernel(self.folder)

    @property
    def run(self) -> int:
        """The run of the kernel, which counts its processes."""
        number: int = read_json(self.folder / STATE)["run"]
        return number

    def printed(self) -> str:
        """The text of `fairlead notebook` up to now."""
        return self.log.read_text()

    def ended(self) -> str:
        """Why it is over, once it is."""
        self.process.wait(_LIMIT_S)
        return (self.folder / ENDED).read_text()


def waited(ready: Callable[[], object], what: str, limit_s: float = _LIMIT_S) -> None:
    """Waits until something holds."""
    until = time.monotonic() + limit_s
    while not ready():
        assert time.monotonic() < until, what
        time.sleep(0.05)


@contextmanager
def notebook(
    name: str, *words: str | Path, state: Path, ranks: int = 2, environ: Mapping[str, str] = os.environ,
    image: str = "mpi-base", laid_over: bool = True,
) -> Iterator[Notebook]:  # fmt: skip
    """A session in the image of a recipe, which ends with the block.

    Args:
        laid_over: what the image lacks is.
    """
    log, folder = state / f"{name}.log", state / "fairlead" / "notebook" / name
    argv = [
        sys.executable, "-m", "fairlead", "notebook", "-n", str(ranks), "--name", name, *words,
        *(["--with-kernel"] if laid_over else []), hosts.image(image),
    ]  # fmt: skip
    with log.open("xb") as stream:
        process = subprocess.Popen(
            [*map(str, argv)], stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
            env={**environ, "XDG_STATE_HOME": str(state)}, cwd=state,
        )  # fmt: skip
    try:
        waited(lambda: process.poll() is not None or read_json(folder / STATE), "no kernel", 300)
        assert process.poll() is None, log.read_text()
        yield Notebook(folder, process, log)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        finally:
            process.kill()


def over_http(url: str, token: str, kernel: str, code: str) -> str:
    """The text that a cell puts out, asked for as a browser does.

    Args:
        url: of the Jupyter server.
        kernel: its number there.
    """
    import websocket

    where = f"{url.replace('http', 'ws', 1)}/api/kernels/{kernel}/channels"
    channel = websocket.create_connection(
        where, header=[f"Authorization: token {token}"], timeout=_LIMIT_S
    )
    header = {
        "msg_id": "cell",
        "msg_type": "execute_request",
        "session": "s",
        "username": "",
        "version": "5.3",
    }
    content = {
        "code": code,
        "silent": False,
        "store_history": True,
        "user_expressions": {},
        "allow_stdin": False,
    }
    channel.send(
        json.dumps(
            {
                "header": header,
                "parent_header": {},
                "metadata": {},
                "content": content,
                "channel": "shell",
            }
        )
    )
    text = ""
    while True:
        got = json.loads(channel.recv())
        if got["parent_header"].get("msg_id") != "cell":
            continue
        if got["msg_type"] == "stream":
            text += got["content"]["text"]
        elif got["msg_type"] == "status" and got["content"]["execution_state"] == "idle":
            channel.close()
            return text
