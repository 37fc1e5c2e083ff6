"""Registries that answer what no registry should: too much, too little, wrong, or for ever."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.system.registries import PASSWORD, login

from fairlead.base.errors import FairleadError
from fairlead_build.base import pace
from fairlead_build.cache.store import Cache
from fairlead_build.distribution.pull import pull
from fairlead_build.registry.client import Client
from fairlead_build.registry.manifest import SIF_LAYER
from fairlead_build.registry.reference import parse_reference
from fairlead_build.resolve import sources

Answer = Callable[["Request"], None]
KIND = "application/vnd.oci.image.manifest.v1+json"
BLOB = b"not a SIF" * 1000


class Request(BaseHTTPRequestHandler):
    """One request; ``answers`` maps the beginning of a path to what is done with it."""

    answers: dict[str, Answer]
    seen: list[tuple[str, str, str]]

    def do_GET(self) -> None:
        self.seen.append((self.command, self.path, self.headers.get("Authorization", "")))
        for path, answer in self.answers.items():
            if self.path.startswith(path):
                answer(self)
                return
        self.reply(200, b"{}")

    do_HEAD = do_POST = do_PUT = do_GET

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        headers.setdefault("Content_Length", str(len(body)))
        for name, value in headers.items():
            for one in value.split("; "):  # a header may come twice
                self.send_header(name.replace("_", "-"), one)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@contextmanager
def hostile(**answers: Answer) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """A registry whose repository is ``a``; keyword ``manifests`` answers /v2/a/manifests/."""
    seen: list[tuple[str, str, str]] = []
    paths = {("/token" if k == "token" else f"/v2/a/{k}/"): v for k, v in answers.items()}
    handler = type("Handler", (Request,), {"answers": paths, "seen": seen})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{server.server_port}", seen
        server.shutdown()


def answer(status: int = 200, body: bytes = b"", **headers: str) -> Answer:
    return lambda request: request.reply(status, body, **headers)


def manifest(**changes: Any) -> bytes:
    digest = f"sha256:{hashlib.sha256(BLOB).hexdigest()}"
    layer = {"mediaType": SIF_LAYER, "digest": digest, "size": len(BLOB), **changes}
    config = {"mediaType": "application/json", "digest": digest, "size": 2}
    return json.dumps(
        {"schemaVersion": 2, "mediaType": KIND, "config": config, "layers": [layer]}
    ).encode()


def finding(host: str, tmp_path: Path, env: dict[str, str] | None = None) -> dict[str, str]:
    """What ``pull`` says, as it must within seconds, and without leaving an image."""
    reference = f"docker://{host}/a:1"
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), **(env or {})}
    client = Client(parse_reference(reference), environ=environ, pauses_s=(0.01, 0.01))
    begun = time.monotonic()
    with pytest.raises(FairleadError) as caught:
        pull(reference, cache=Cache(tmp_path / "cache"), client=client)
    assert time.monotonic() - begun < 20
    assert not list(tmp_path.rglob("*.sif"))
    (found,) = caught.value.findings
    assert all(word.isprintable() for word in (found.what, found.where, found.why)), found
    assert found.remedy
    return found.to_json()


def endless(piece: bytes) -> Answer:
    def send(request: Request) -> None:
        request.send_response(200)
        request.send_header("Content-Type", KIND)
        request.end_headers()
        try:
            while True:
                request.wfile.write(piece)
        except OSError:
            pass

    return send


@pytest.mark.parametrize(
    ("manifests", "check", "word"),
    [
        (endless(b" " * 65536), "registry-answer", "larger than"),
        (endless(b"[" * 65536), "registry-answer", "larger than"),
        (answer(200, b"<html>log in</html>", Content_Type="text/html"), "manifest", "not JSON"),
        (answer(200, b"[" * 3_000_000), "manifest", "not JSON"),
        (answer(200, manifest(size=-5)), "manifest", "no sensible size"),
        (answer(200, manifest(digest="sha256:../../../etc/passwd")), "manifest", "no sha256"),
        (answer(200, manifest(), Docker_Content_Digest="sha256:" + "0" * 64), "registry-digest", "expected"),
        (answer(200, manifest(), Content_Length="-1"), "sif-magic", "SIF"),
        (answer(200, manifest(), Content_Length="5; 6"), "registry-answer", "cannot be read"),
        (answer(200, manifest(), Content_Length="99999999"), "registry-answer", "cut off"),
        (answer(404, b'{"errors": [{"code": "\x1b[2J", "message": "\x07x"}]}'), "registry-missing", "404"),
        (answer(404, b'{"errors": ' + b"[" * 60000), "registry-missing", "404"),
        (answer(418, b"{}"), "registry-answer", "418"),
        (answer(429, b"", Retry_After="86400"), "registry-busy", "429"),
        (answer(429, b"", Retry_After="x"), "registry-busy", "429"),
        (answer(500, b"x" * 1_000_000), "registry-failing", "500"),
        (answer(503), "registry-failing", "503"),
        (answer(403, b'{"errors": [{"code": "DENIED", "message": "not yours"}]}'), "registry-denied", "not yours"),
        (answer(401), "registry-login", "401"),
        (answer(401, WWW_Authenticate="Negotiate"), "registry-login", "401"),
        (answer(401, WWW_Authenticate='Bearer realm="ftp://x/"'), "registry-answer", "token server"),
        (answer(401, WWW_Authenticate='Bearer realm=""'), "registry-answer", "token server"),
        (answer(302, Location="file:///etc/passwd"), "registry-answer", "other than a web address"),
        (answer(302, Location="http://[::1"), "registry-answer", ""),
        (answer(302, Location="/v2/a/manifests/1"), "registry-redirect", "redirects"),
    ],
)  # fmt: skip
def test_manifest_of_a_hostile_registry_gives_a_clear_error(
    manifests: Answer, check: str, word: str, tmp_path: Path
) -> None:
    with hostile(manifests=manifests, blobs=answer(200, BLOB)) as (host, _):
        found = finding(host, tmp_path)
    assert found["check"] == check and word in found["why"], found


def endless_blob(request: Request) -> None:
    request.send_response(200)
    request.end_headers()
    try:
        while True:
            request.wfile.write(bytes(65536))
    except OSError:
        pass


def trickle(request: Request) -> None:
    """One byte at a time, never silent and never done; a tenth of a second apart, as the test's limits are shorter."""
    request.send_response(200)
    request.send_header("Content-Length", str(len(BLOB)))
    request.end_headers()
    _slowly(request, BLOB)


def trickled_head(request: Request) -> None:
    """A header that is never complete."""
    request.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    _slowly(request, b"x" * 5000)


def _slowly(request: Request, body: bytes) -> None:
    with suppress(OSError):
        for byte in body:
            request.wfile.write(bytes([byte]))
            request.wfile.flush()
            time.sleep(0.1)


def unannounced(body: bytes) -> Answer:
    def send(request: Request) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(body)

    return send


def misplaced(request: Request) -> None:
    """Sends some other range than was asked for."""
    if "Range" in request.headers:
        request.reply(206, BLOB[10:], Content_Range=f"bytes 10-{len(BLOB) - 1}/{len(BLOB)}")
    else:
        request.send_response(200)
        request.send_header("Content-Length", str(len(BLOB)))
        request.end_headers()
        request.wfile.write(BLOB[:5000])
        request.connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("blobs", "check", "word"),
    [
        (endless_blob, "registry-answer", "sends more"),
        (unannounced(BLOB[:-1]), "registry-cut", "8999 of 9000"),
        (unannounced(BLOB[:-1] + b"x"), "registry-digest", "expected"),
        (answer(200, BLOB + b"x"), "registry-answer", "announces 9001"),
        (answer(200, b""), "registry-answer", "announces 0"),
        (answer(200, BLOB, Content_Length="-9"), "registry-answer", "announces -9"),
        (answer(206, BLOB, Content_Range="bytes 5-9/9"), "registry-answer", "`bytes 5-9/9`"),
        (answer(416), "registry-cut", "0 of 9000"),
        (misplaced, "registry-answer", "`bytes 10-"),
        (answer(404), "registry-missing", "404"),
        (answer(302, Location="http://127.0.0.1:9/"), "registry-unreachable", "refused"),
        (answer(200, BLOB), "sif-magic", "SIF"),
    ],
)
def test_blob_of_a_hostile_registry_gives_a_clear_error(
    blobs: Answer, check: str, word: str, tmp_path: Path
) -> None:
    with hostile(manifests=answer(200, manifest()), blobs=blobs) as (host, _):
        found = finding(host, tmp_path)
    assert found["check"] == check and word in found["why"], found


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "WINDOW_S", 1.5)
    monkeypatch.setattr(pace, "HEAD_S", 1.5)


@pytest.mark.parametrize("part", ["manifests", "blobs", "token"])
def test_registry_that_sends_a_byte_at_a_time_is_left(
    part: str, impatient: None, tmp_path: Path
) -> None:
    answers: dict[str, Answer] = {"manifests": answer(200, manifest()), part: trickle}
    if part == "token":
        realm = 'Bearer realm="http://{0}/token",service="s"'
        answers["manifests"] = lambda request: request.reply(
            401, WWW_Authenticate=realm.format(request.headers["Host"])
        )
    with hostile(**answers) as (host, _):
        found = finding(host, tmp_path)
    assert found["check"] == "sender-too-slow" and "bytes a second" in found["why"], found


def test_registry_whose_head_never_ends_is_left(impatient: None, tmp_path: Path) -> None:
    with hostile(manifests=trickled_head) as (host, _):
        found = finding(host, tmp_path)
    assert found["check"] == "registry-unreachable", found


def test_package_that_comes_a_byte_at_a_time_is_left(impatient: None, tmp_path: Path) -> None:
    with hostile(blobs=trickle) as (host, _), pytest.raises(FairleadError) as caught:
        place = sources.Place(f"http://{host}/v2/a/blobs/a-1.whl")
        sources.download(place, tmp_path / "partial", lambda amount: None)
    assert caught.value.findings[0].check == "sender-too-slow"
    assert (tmp_path / "partial").exists()  # and is resumed


def test_slow_reader_is_not_a_slow_sender(impatient: None) -> None:
    size, whole = 0, answer(200, bytes(4 << 20))
    with (
        hostile(blobs=whole) as (host, _),
        requests.get(f"http://{host}/v2/a/blobs/x", stream=True) as got,
    ):
        for piece in pace.pieces(got, "it", 1 << 20):
            size += len(piece)
            time.sleep(0.7)
    assert size == 4 << 20


def test_image_larger_than_the_disk_is_refused_before_it_is_downloaded(tmp_path: Path) -> None:
    huge = manifest(size=1 << 49)
    with hostile(manifests=answer(200, huge), blobs=endless_blob) as (host, seen):
        assert finding(host, tmp_path)["check"] == "no-space"
    assert not any("/blobs/" in path for _, path, _ in seen)


def test_token_server_that_is_hostile_gives_a_clear_error(tmp_path: Path) -> None:
    for body in (
        b"{}",
        b"[]",
        b"null",
        b'{"token": 7}',
        b'{"token": "a\\nb: c"}',
        b"[" * 900_000,
        b'{"token": "x", "expires_in": ' + b"9" * 400 + b"}",
        b'{"token": "x", "expires_in": 1e999}',
    ):
        with hostile(token=answer(200, body), manifests=challenging) as (host, _):
            found = finding(host, tmp_path, login(tmp_path, host))
            assert found["check"] == "registry-answer" and "holds no token" in found["why"]


def challenging(request: Request) -> None:
    host = request.headers["Host"]
    request.reply(401, WWW_Authenticate=f'Bearer realm="http://{host}/token",service="x"')


def test_words_of_a_registry_that_repeats_the_password_are_masked(tmp_path: Path) -> None:
    def echo(request: Request) -> None:
        sent = request.headers.get("Authorization", "")
        if not sent:
            request.reply(401, WWW_Authenticate='Basic realm="x"')
            return
        words = {"errors": [{"code": "DENIED", "message": f"{sent} {PASSWORD}"}]}
        request.reply(403, json.dumps(words).encode())

    with hostile(manifests=echo) as (host, seen):
        found = finding(host, tmp_path, login(tmp_path, host))
    assert found["check"] == "registry-denied" and "***" in found["why"]
    sent = seen[-1][2].split()[1]
    assert sent and sent not in str(found) and PASSWORD not in str(found)


def test_host_that_is_redirected_to_cannot_ask_for_the_password(tmp_path: Path) -> None:
    """It would only have to answer 401 with a token server of its own."""
    with hostile(manifests=challenging, token=answer(200, b'{"token": "x"}')) as (thief, stolen):
        elsewhere = answer(307, Location=f"http://{thief}/v2/a/manifests/1")
        with hostile(manifests=elsewhere) as (host, _):
            env = login(tmp_path, host)
            assert finding(host, tmp_path, env)["check"] == "registry-login"
    assert stolen and not any(sent for _, _, sent in stolen)
    assert not any(path.startswith("/token") for _, path, _ in stolen)


def test_upload_address_on_another_host_is_not_given_the_password(tmp_path: Path) -> None:
    digest = f"sha256:{hashlib.sha256(BLOB).hexdigest()}"
    (tmp_path / "blob").write_bytes(BLOB)

    def asking(status: int, **headers: str) -> Answer:
        def reply(request: Request) -> None:
            known = "Authorization" in request.headers
            if request.command == "HEAD" and known:
                request.reply(404)
            elif known:
                request.reply(status, **headers)
            else:
                request.reply(401, WWW_Authenticate='Basic realm="x"')

        return reply

    with hostile(blobs=answer(201)) as (storage, seen):
        place = f"http://{storage}/v2/a/blobs/uploads/signed?x=1"
        with hostile(blobs=asking(202, Location=place)) as (host, _):
            environ = {"HOME": str(tmp_path), **login(tmp_path, host)}
            client = Client(parse_reference(f"docker://{host}/a:1"), environ=environ)
            assert client.push_blob(tmp_path / "blob", digest) == "sent"
    (put,) = [entry for entry in seen if entry[0] == "PUT"]
    assert put[2] == "" and f"x=1&digest=sha256%3A{digest[7:]}" in put[1]
