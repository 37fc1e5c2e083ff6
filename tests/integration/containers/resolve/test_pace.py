"""Mirrors that send a byte at a time: apt and pip, whose own time limits are one for each byte, are ended with the reason."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from fairlead.base.errors import FairleadError
from fairlead_build.base import pace
from fairlead_build.base.proc import run, tool
from fairlead_build.recipe.lock import Deb
from fairlead_build.resolve.apt_sources import AptSource
from fairlead_build.resolve.fetch import _download_debs
from fairlead_build.resolve.pip import pip, pip_environment, run_pip, target_of

BODY = bytes(5000)
PAGE = (
    b'<a href="/slow/a-1-py3-none-any.whl#sha256=%s">a</a>'
    % hashlib.sha256(BODY).hexdigest().encode()
)


class Mirror(BaseHTTPRequestHandler):
    """What is below /slow comes a byte at a time; /head never has a whole header."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        with suppress(OSError):
            if self.path.startswith("/head"):
                self.slowly(b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 5000)
                return
            body = BODY if self.path.startswith(("/slow", "/fast")) else PAGE
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.path.startswith("/slow"):
                self.slowly(body)
            else:
                self.wfile.write(body)

    def slowly(self, body: bytes) -> None:
        for byte in body:
            self.wfile.write(bytes([byte]))
            self.wfile.flush()
            time.sleep(0.05)

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def mirror(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(pace, "WINDOW_S", 1.0)
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    return server


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Mirror) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def deb() -> Deb:
    digest = hashlib.sha256(BODY).hexdigest()
    return Deb(
        index="debian bookworm main", sha256=digest, name="ab", version="1", architecture="all",
        path="pool/ab_1_all.deb", size=len(BODY),
    )  # fmt: skip


def source(uri: str) -> AptSource:
    return AptSource(uri=uri, suites=("bookworm",), components=("main",))


@pytest.mark.parametrize("way", ["slow", "head"])
def test_mirror_of_packages_that_sends_a_byte_at_a_time_is_left(
    mirror: str, way: str, tmp_path: Path
) -> None:
    with pytest.raises(FairleadError) as caught:
        _download_debs([deb()], [source(f"{mirror}/{way}")], tmp_path, "relock")
    (finding,) = caught.value.findings
    assert (finding.check, finding.where) == ("sender-too-slow", f"{mirror}/{way}")
    assert "bytes came in" in finding.why


def test_mirror_of_packages_that_keeps_up_is_read(mirror: str, tmp_path: Path) -> None:
    _download_debs([deb()], [source(f"{mirror}/fast")], tmp_path, "relock")
    assert (tmp_path / deb().file).read_bytes() == BODY


@pytest.mark.parametrize("way", ["slow", "head"])
def test_index_of_wheels_that_sends_a_byte_at_a_time_is_left(
    mirror: str, way: str, tmp_path: Path
) -> None:
    target = target_of("3.11", "amd64", "2.36")
    index = f"{mirror}/{'head' if way == 'head' else 'simple'}"
    argv = [*pip(target), "download", "--no-deps", "--index-url", index, *target.options, "--no-cache-dir",
            "--dest", tmp_path, "a==1"]  # fmt: skip
    env = pip_environment({"PIP_CONFIG_FILE": os.devnull})
    with pytest.raises(FairleadError) as caught:
        run_pip(argv, env=env, doing="download", remedy="again", on_line=lambda line: None)
    (finding,) = caught.value.findings
    assert finding.check == "sender-too-slow" and finding.where == mirror.partition("//")[2]


def test_tool_that_works_without_its_sender_is_left_in_peace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that computes, and one that waits for an answer, which has a time limit of its own."""
    monkeypatch.setattr(pace, "WINDOW_S", 0.3)
    watch = partial(pace.kept_up, folder=tmp_path, where="a mirror")
    for line in ("sleep 1.2", "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done"):
        run([tool("sh"), "-c", line], doing="wait", remedy="none", watch=watch)
