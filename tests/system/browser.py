"""A headless Chromium on a pipe: pages opened, looked at and asked, by the DevTools protocol.

Source: https://chromedevtools.github.io/devtools-protocol/, messages as with ``--remote-debugging-pipe``: JSON that a
zero byte ends, to file descriptor 3, from file descriptor 4.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def found() -> str | None:
    """The browser's program."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One tab.

    Attributes:
        pid: of the browser.
        requests: URLs that were asked for, the page's own first.
        complaints: what the console and the browser's log said, and exceptions.
        kind: what of it is shown, for tests of several.
    """

    kind = ""

    def __init__(self, pid: int, to: int, back: int) -> None:
        self.pid, self._to, self._back = pid, to, os.fdopen(back, "rb")
        self._number, self._session = 0, ""
        self._buffer = b""
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to one command; events that come before it are noted."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            more = self._back.read1(1 << 20)  # type: ignore[attr-defined]
            assert more, "the browser has ended"
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        event: dict[str, Any] = json.loads(message)
        return event

    def _note(self, event: dict[str, Any]) -> None:
        name, params = event.get("method"), event.get("params", {})
        if name == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif name in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(json.dumps(params))

    def open(self, place: Path | str) -> None:
        """Loads a file or an address, and waits until it is there."""
        self.ask("Page.navigate", url=place if isinstance(place, str) else place.as_uri())
        self.evaluate(
            "new Promise(r => document.readyState == 'complete' ? r() : addEventListener('load', r))"
        )

    def show(
        self, width: int, height: int = 1000, scheme: str = "light", media: str = "screen"
    ) -> None:
        """As wide, in light or dark, on screen or paper."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.ask("Emulation.setEmulatedMedia", media=media, features=features)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise's when it is kept."""
        found = self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self, file: Path) -> None:
        """All of the page as PNG."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.ask(
            "Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip
        )
        file.write_bytes(base64.b64decode(shot["data"]))

    def paper(self, file: Path) -> None:
        """All of the page as PDF, A4."""
        made = self.ask("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69)
        file.write_bytes(base64.b64decode(made["data"]))


@contextlib.contextmanager
def page() -> Iterator[Page]:
    """A tab of a browser of its own, which ends with the block."""
    program = found()
    assert program
    commands, answers = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        argv = [
            program,
            "--headless",
            "--no-sandbox",  # root has none; the page is our own
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        ]
        # The browser reads commands from 3 and answers on 4; first out of the way of those two.
        reads, writes = (
            fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100) for fd in (commands[0], answers[1])
        )
        quiet = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
        dups = [(os.POSIX_SPAWN_DUP2, reads, 3), (os.POSIX_SPAWN_DUP2, writes, 4)]
        pid = os.posix_spawn(program, argv, os.environ, file_actions=[quiet, *dups])
        for fd in (reads, writes, commands[0], answers[1]):
            os.close(fd)
        try:
            yield Page(pid, commands[1], answers[0])
        finally:
            os.close(commands[1])  # at the end of its commands it ends
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
