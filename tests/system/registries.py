"""Real registries on loopback: ``docker-registry`` on a free port, with a folder as its storage.

Plain, or with a password, a token server, or TLS by a CA of our own. Nothing outlives the block.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

USER, PASSWORD = "bosun", "correct-horse-17"
# docker-registry takes bcrypt only; made by crypt(3) of PASSWORD.
_HTPASSWD = f"{USER}:$2b$05$fairleadtestsalt00000ugT.6RS1C77Difhjd4mucflq0srB99T.\n"
_ISSUER, _SERVICE = "fairlead-tests", "loopback"


@dataclass(frozen=True)
class LoopbackRegistry:
    """A running registry.

    Attributes:
        host: ``127.0.0.1:PORT``, as in ``docker://HOST/REPO:TAG``.
        storage: the folder that it keeps everything in; it may be looked into and damaged.
        log: what it wrote, a line a request.
        ca: the CA of its certificate; None when it speaks plain HTTP.
    """

    host: str
    storage: Path
    log: Path
    ca: Path | None = None

    def blobs(self) -> list[Path]:
        """The files of all blobs and manifests, largest last."""
        return sorted(self.storage.rglob("blobs/sha256/*/*/data"), key=lambda p: p.stat().st_size)

    def requests(self, method: str, words: str = "") -> list[str]:
        """Lines of the log that tell of finished requests of ``method`` whose line has ``words``."""
        return [
            line
            for line in self.log.read_text("utf-8", "replace").splitlines()
            if f'"{method} ' in line and words in line
        ]


@contextmanager
def registry(
    storage: Path | None = None,
    *,
    password: bool = False,
    tokens: TokenServer | None = None,
    tls: Path | None = None,
    settings: Sequence[str] = (),
) -> Iterator[LoopbackRegistry]:
    """Starts a registry; it is ready when the block begins.

    Args:
        storage: kept after the block; a temporary folder otherwise.
        password: ask for :data:`USER` and :data:`PASSWORD` (HTTP basic).
        tokens: ask for tokens of this server (HTTP bearer).
        tls: a folder in which :func:`certificate` has made one.
        settings: further lines of its configuration.
    """
    with tempfile.TemporaryDirectory(prefix="fairlead-registry-") as name:
        work = Path(name)
        kept = storage or work / "storage"
        kept.mkdir(parents=True, exist_ok=True)
        lines = [
            "version: 0.1",
            f'storage: {{filesystem: {{rootdirectory: "{kept}"}}, delete: {{enabled: true}}}}',
        ]
        if tls:
            pair = f'{{certificate: "{tls}/server.crt", key: "{tls}/server.key"}}'
            lines.append(f"http: {{addr: '127.0.0.1:0', tls: {pair}}}")
        else:
            lines.append("http: {addr: '127.0.0.1:0'}")
        if password:
            (work / "htpasswd").write_text(_HTPASSWD)
            lines.append(f'auth: {{htpasswd: {{realm: fairlead, path: "{work}/htpasswd"}}}}')
        if tokens:
            lines.append(
                f"auth: {{token: {{realm: '{tokens.realm}', service: {_SERVICE}, "
                f'issuer: {_ISSUER}, rootcertbundle: "{tokens.certificate}"}}}}'
            )
        (work / "registry.yml").write_text("\n".join([*lines, *settings]) + "\n")
        log = work / "log"
        with (
            log.open("wb") as out,
            subprocess.Popen(
                # It ends with the tests, also when those are killed.
                [
                    "setpriv",
                    "--pdeathsig",
                    "TERM",
                    "docker-registry",
                    "serve",
                    work / "registry.yml",
                ],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            ) as process,
        ):
            try:
                port = _port(process, log)
                yield LoopbackRegistry(f"127.0.0.1:{port}", kept, log, tls and tls / "ca.crt")
            finally:
                process.terminate()
                process.wait(20)


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text("utf-8", "replace").splitlines():
            if "listening on 127.0.0.1:" in line:
                digits = line.split("listening on 127.0.0.1:")[1]
                return int(digits.split(",")[0].split('"')[0].split()[0])
        time.sleep(0.02)
    raise AssertionError(f"docker-registry does not start: {log.read_text()}")


def certificate(folder: Path, names: str = "IP:127.0.0.1, DNS:localhost") -> Path:
    """A CA and a certificate of it for ``names``: ``ca.crt``, ``server.crt``, ``server.key``."""
    folder.mkdir(parents=True, exist_ok=True)
    _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test CA",
             "-keyout", folder / "ca.key", "-out", folder / "ca.crt")  # fmt: skip
    _openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1",
             "-keyout", folder / "server.key", "-out", folder / "server.csr")  # fmt: skip
    (folder / "names").write_text(f"subjectAltName = {names}\n")
    _openssl("x509", "-req", "-in", folder / "server.csr", "-CA", folder / "ca.crt",
             "-CAkey", folder / "ca.key", "-CAcreateserial", "-days", "2",
             "-extfile", folder / "names", "-out", folder / "server.crt")  # fmt: skip
    return folder


def login(folder: Path, host: str, user: str = USER, password: str = PASSWORD) -> dict[str, str]:
    """Writes an auth file as ``podman login`` does; returns the variable that names it."""
    encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "auth.json"
    file.write_text(json.dumps({"auths": {host: {"auth": encoded}}}))
    file.chmod(0o600)
    return {"REGISTRY_AUTH_FILE": str(file)}


def small_layout(folder: Path) -> None:
    """Makes ``folder`` an OCI layout of an image with one layer, which holds one file."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as out:
        out.addfile(tarfile.TarInfo("hello"))
    layer = put(tar.getvalue(), "application/vnd.oci.image.layer.v1.tar")
    rootfs = {"type": "layers", "diff_ids": [layer["digest"]]}
    config = {"architecture": "amd64", "os": "linux", "rootfs": rootfs, "config": {}}
    made = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": put(json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json"),
        "layers": [layer],
    }
    entry = put(json.dumps(made).encode(), str(made["mediaType"]))
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


@dataclass(frozen=True)
class TokenServer:
    """A running token server.

    Attributes:
        asked: the query of each request, and whether it came with the right password.
    """

    realm: str
    certificate: Path
    asked: list[tuple[Mapping[str, list[str]], bool]]


@contextmanager
def token_server(
    folder: Path, lifetime_s: int = 300, rights: Sequence[str] = ("pull", "push")
) -> Iterator[TokenServer]:
    """A server of signed tokens: to :data:`USER` for what is asked, as far as there are ``rights``; else for nothing.

    Source: docs/spec/auth/token.md and jwt.md of the registry's own repository.
    """
    certificate(folder)
    asked: list[tuple[Mapping[str, list[str]], bool]] = []
    right = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            known = self.headers.get("Authorization") == right
            asked.append((query, known))
            if not known:
                self._send(401, {"details": "incorrect username or password"})
                return
            scopes = [s for text in query.get("scope", []) for s in text.split()]
            self._send(
                200, {"token": _jwt(folder, scopes, lifetime_s, rights), "expires_in": lifetime_s}
            )

        def _send(self, status: int, value: object) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            realm = f"http://127.0.0.1:{server.server_port}/token"
            yield TokenServer(realm, folder / "ca.crt", asked)
        finally:
            server.shutdown()
            thread.join()


def _jwt(folder: Path, scopes: Sequence[str], lifetime_s: int, rights: Sequence[str]) -> str:
    der = "".join((folder / "ca.crt").read_text().split("-----")[2].split())
    now = int(time.time())
    access = []
    for scope in scopes:
        kind, _, rest = scope.partition(":")
        name, _, actions = rest.rpartition(":")
        granted = [action for action in actions.split(",") if action in rights]
        access.append({"type": kind, "name": name, "actions": granted})
    claims = {"iss": _ISSUER, "sub": USER, "aud": _SERVICE, "iat": now, "nbf": now - 5,
              "exp": now + lifetime_s, "jti": str(time.monotonic_ns()), "access": access}  # fmt: skip
    parts = ({"typ": "JWT", "alg": "RS256", "x5c": [der]}, claims)
    text = ".".join(_base64url(json.dumps(part).encode()) for part in parts)
    done = subprocess.run(
        ["openssl", "dgst", "-sha256", "-sign", str(folder / "ca.key")],
        input=text.encode(),
        capture_output=True,
        check=True,
    )
    return f"{text}.{_base64url(done.stdout)}"


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _openssl(*words: str | Path) -> None:
    done = subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@dataclass
class Proxy:
    """A TCP proxy before a registry.

    Attributes:
        host: ``127.0.0.1:PORT``.
        cut_after: for each connection in turn, how many bytes of the server it lets through before
            it cuts both ways; connections beyond the list live. A client's first one only asks
            whether the registry speaks TLS.
        flip: in each connection, the byte at this offset of what the server sends is changed.
        sent: bytes of the server that were let through, all connections together.
    """

    host: str
    cut_after: list[int]
    flip: int | None = None
    sent: int = 0
    connections: int = 0


@contextmanager
def proxy(
    host: str,
    *,
    cut_after: Sequence[int] = (),
    cut_uploads: Sequence[int] = (),
    flip: int | None = None,
    slow: bool = False,
) -> Iterator[Proxy]:
    """A proxy before the registry at ``host``.

    Args:
        cut_uploads: for each connection in turn, how many bytes of the client it lets through.
        slow: every 64 kB take 20 ms, so that a test can end a process in the middle.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    name, _, port = host.rpartition(":")
    uploads = list(cut_uploads)
    state = Proxy(f"127.0.0.1:{listener.getsockname()[1]}", list(cut_after), flip)

    def serve(client: socket.socket, limit: int | None, upload: int | None) -> None:
        with client, socket.create_connection((name, int(port))) as server:
            threading.Thread(target=_pump, args=(client, server, upload), daemon=True).start()
            passed = 0
            with suppress(OSError):
                while data := server.recv(65536):
                    if limit is not None:
                        data = data[: limit - passed]
                    if state.flip is not None and passed <= state.flip < passed + len(data):
                        at = state.flip - passed
                        data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
                    if slow:
                        time.sleep(0.02)
                    client.sendall(data)
                    passed += len(data)
                    state.sent += len(data)
                    if passed == limit:
                        break
            for end in (client, server):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                state.connections += 1
                limit = state.cut_after.pop(0) if state.cut_after else None
                upload = uploads.pop(0) if uploads else None
                threading.Thread(target=serve, args=(client, limit, upload), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def _pump(source: socket.socket, target: socket.socket, limit: int | None) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            if limit is not None:
                limit -= len(data)
                if limit <= 0:
                    source.shutdown(socket.SHUT_RDWR)
                    break
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
