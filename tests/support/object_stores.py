"""Real object stores on loopback, and a proxy that damages what passes through it.

OpenStack Swift with its S3 interface comes from PyPI into an environment of its own, made once and kept below the cache
folder; rclone, which serves folders over HTTP, from Debian. Nothing outlives the block.
"""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from fairlead.base.paths import cache_dir, locked

_VERSION = "2.38.3"
_SERVER = Path(__file__).parents[1] / "system" / "programs" / "swift_server.py"
OWNER, GUEST = ("lab:owner", "owner-secret-71c3"), ("lab:guest", "guest-secret-90aa")
_START_S = 60
_BOUND = ("setpriv", "--pdeathsig", "TERM")  # it ends with the tests, also when those are killed


@dataclass(frozen=True)
class LoopbackStore:
    """A running store.

    Attributes:
        endpoint: ``http://127.0.0.1:PORT``.
        key, secret: of a user who may do anything.
        storage: the folder that it keeps everything in.
    """

    endpoint: str
    key: str
    secret: str
    storage: Path

    def environ(self, key: str = "", secret: str = "") -> dict[str, str]:
        """What a user's environment has for it, and nothing of another store."""
        others = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
        return {**others, **self.variables(key, secret)}

    def variables(self, key: str = "", secret: str = "") -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": key or self.key,
            "AWS_SECRET_ACCESS_KEY": secret or self.secret,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }

    def make_bucket(self, name: str) -> None:
        _client(self).create_bucket(Bucket=name)

    def put(self, bucket: str, objects: Mapping[str, bytes]) -> None:
        client = _client(self)
        for key, content in objects.items():
            client.put_object(Bucket=bucket, Key=key, Body=content)

    def get(self, bucket: str, key: str) -> bytes:
        body: bytes = _client(self).get_object(Bucket=bucket, Key=key)["Body"].read()
        return body

    def keys(self, bucket: str, prefix: str = "") -> list[str]:
        pages = (
            _client(self).get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        )
        return [each["Key"] for page in pages for each in page.get("Contents", ())]


def _client(store: LoopbackStore):
    import botocore.session
    from botocore.config import Config

    return botocore.session.get_session().create_client(
        "s3",
        endpoint_url=store.endpoint,
        aws_access_key_id=store.key,
        aws_secret_access_key=store.secret,
        region_name="us-east-1",
        config=Config(
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


@contextmanager
def swift(
    storage: Path | None = None, address: str = "127.0.0.1", prefix: Sequence[str] = ()
) -> Iterator[LoopbackStore]:
    """Starts Swift; it answers when the block begins.

    Args:
        storage: kept after the block; a temporary folder otherwise.
        address, prefix: of another host, and the words that run a command there.
    """
    with tempfile.TemporaryDirectory(prefix="fairlead-swift-") as name:
        top = storage or Path(name)
        top.mkdir(parents=True, exist_ok=True)
        lines = [f"user_lab_owner = {OWNER[1]} .admin", f"user_lab_guest = {GUEST[1]}"]
        (top / "users.conf").write_text("\n".join(lines) + "\n")
        port = free_port()
        words = [str(_swift_python()), str(_SERVER), str(top), address, str(port)]
        url = f"http://{address}:{port}"
        with _serving([*prefix, *_BOUND, *words], Path(name) / "log", f"{url}/healthcheck", prefix):
            yield LoopbackStore(url, *OWNER, top / "devices")


@contextmanager
def web(storage: Path) -> Iterator[LoopbackStore]:
    """Starts rclone's HTTP server of a folder: a store that can only be read, and lists nothing for programs."""
    port = free_port()
    words = [
        "rclone",
        "serve",
        "http",
        "--addr",
        f"127.0.0.1:{port}",
        "--dir-cache-time",
        "0s",
        str(storage),
    ]
    url = f"http://127.0.0.1:{port}"
    with (
        tempfile.TemporaryDirectory() as name,
        _serving([*_BOUND, *words], Path(name) / "log", f"{url}/"),
    ):
        yield LoopbackStore(url, "", "", storage)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _swift_python() -> Path:
    """The Python that Swift is installed in."""
    folder = cache_dir() / "tests" / f"swift-{_VERSION}-{sys.version_info[0]}.{sys.version_info[1]}"
    python = folder / "bin" / "python"
    with locked(folder.with_name(f"{folder.name}.lock")):
        if not (folder / "complete").exists():
            # A virtual environment has its path in it: no rename, but a mark.
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=120)
            wanted = [f"swift=={_VERSION}", "pyeclib", "setuptools<81"]
            subprocess.run(
                [python, "-m", "pip", "install", "-q", *wanted],
                check=True, timeout=600, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            (folder / "complete").touch()
    return python


@contextmanager
def _serving(words: list[str], log: Path, url: str, prefix: Sequence[str] = ()) -> Iterator[None]:
    with (
        log.open("wb") as out,
        subprocess.Popen(
            words, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        ) as process,
    ):  # fmt: skip
        try:
            deadline = time.monotonic() + _START_S
            while not _answers(url, prefix):
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            process.wait(20)


def _answers(url: str, prefix: Sequence[str]) -> bool:
    words = [*prefix, "curl", "-sf", "-m", "5", "-o", "/dev/null", url]
    return subprocess.run(words, check=False, timeout=20).returncode == 0


# --- faults --------------------------------------------------------------------------------------


@dataclass
class Faults:
    """What a proxy does to answers of its store.

    Attributes:
        endpoint: of the proxy.
        fault: called with method, path with range, and number of the request; gives ``cut``, ``slow``, ``503``,
            ``wrong``, ``hold`` (no answer until ``released``, after ``held``), an answer as ``STATUS CODE``, or empty.
        requests: ``METHOD PATH`` of those that came.
    """

    endpoint: str
    fault: Callable[[str, str, int], str] = lambda method, path, number: ""
    requests: list[str] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    held: threading.Event = field(default_factory=threading.Event)


_ERROR = (
    '<?xml version="1.0"?><Error><Code>{}</Code><Message>as a fault of the tests</Message></Error>'
)


class _Proxy(BaseHTTPRequestHandler):
    """Hands requests on; ``faults`` and ``target`` are those of a subclass."""

    protocol_version = "HTTP/1.1"
    faults: Faults
    target: tuple[str, int]

    def handle_one(self) -> None:
        faults = self.faults
        number = len(faults.requests)
        faults.requests.append(f"{self.command} {self.path}")
        ranged = f" {self.headers['Range']}" if "Range" in self.headers else ""
        fault = faults.fault(self.command, f"{self.path}{ranged}", number)
        if fault == "hold":
            faults.held.set()
            faults.released.wait(60)
            self.close_connection = True
            return
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if fault == "503" or " " in fault:
            status, _, code = fault.partition(" ")
            self.answer(int(status), {}, _ERROR.format(code or "SlowDown").encode())
            return
        connection = http.client.HTTPConnection(*self.target)
        headers = {k: v for k, v in self.headers.items() if k.lower() != "expect"}
        connection.request(self.command, self.path, content, headers)
        answer = connection.getresponse()
        self.answer(answer.status, dict(answer.getheaders()), answer.read(), fault)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_one

    def answer(self, status: int, headers: Mapping[str, str], body: bytes, fault: str = "") -> None:
        self.send_response(status)
        lower = {key.lower(): value for key, value in headers.items()}
        for key, value in lower.items():
            if key not in ("transfer-encoding", "connection", "date"):
                self.send_header(key, value)
        if "content-length" not in lower:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault == "wrong" and body:
            body = bytes([body[0] ^ 1]) + body[1:]
        with suppress(OSError):
            if fault in ("cut", "slow"):
                self.wfile.write(body[: len(body) // 2])
                self.wfile.flush()
                if fault == "slow":
                    self.faults.released.wait(60)
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
            else:
                self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def faulty(store: LoopbackStore) -> Iterator[tuple[LoopbackStore, Faults]]:
    """A store behind a proxy with faults. Requests are signed for the proxy's address, which it hands on."""
    port, target = free_port(), urlsplit(store.endpoint)
    faults = Faults(f"http://127.0.0.1:{port}")
    settings = {"faults": faults, "target": (target.hostname, target.port)}
    server = ThreadingHTTPServer(("127.0.0.1", port), type("Proxy", (_Proxy,), settings))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        through = LoopbackStore(faults.endpoint, store.key, store.secret, store.storage)
        yield through, faults
    finally:
        faults.released.set()
        server.shutdown()
        server.server_close()
