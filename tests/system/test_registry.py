"""The client against real registries on loopback: credentials, TLS, cuts, and what is wrong."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
from requests.adapters import HTTPAdapter
from tests.system.registries import (
    PASSWORD,
    USER,
    LoopbackRegistry,
    certificate,
    login,
    proxy,
    registry,
    small_layout,
    token_server,
)

from fairlead.base.errors import FairleadError
from fairlead.base.progress import Silent
from fairlead_build.cache.store import Cache
from fairlead_build.registry.client import Client
from fairlead_build.registry.download import download, partial_of
from fairlead_build.registry.manifest import Descriptor, Manifest
from fairlead_build.registry.reference import parse_reference

NOWHERE = {"HOME": "/nonexistent", "XDG_RUNTIME_DIR": "/nonexistent", "PATH": os.environ["PATH"]}
QUICK = (0.01, 0.02, 0.03)


@pytest.fixture(scope="module")
def open_registry() -> Iterator[LoopbackRegistry]:
    with registry() as running:
        yield running


def client(host: str, name: str = "ml/base:1", env: dict[str, str] | None = None) -> Client:
    environ = {**NOWHERE, **(env or {})}
    return Client(parse_reference(f"docker://{host}/{name}"), environ=environ, pauses_s=QUICK)


def random_file(folder: Path, size: int = 3_000_000, seed: int = 1) -> tuple[Path, Descriptor]:
    data = random.Random(seed).randbytes(size)
    path = folder / f"blob-{seed}"
    path.write_bytes(data)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return path, Descriptor("application/octet-stream", digest, size)


def fetched(of: Client, item: Descriptor, cache: Cache) -> bytes:
    target = cache.root / "images" / item.hex
    seen = []
    download(of, item, target, cache, seen.append, Silent())
    assert sum(seen) == item.size
    return target.read_bytes()


def problem(of: Client, wanted: str = "") -> dict[str, str]:
    with pytest.raises(FairleadError) as caught:
        of.manifest(wanted)
    return caught.value.findings[0].to_json()


# --- blobs and manifests -----------------------------------------------------------------------


def test_blob_goes_there_once_and_comes_back(
    open_registry: LoopbackRegistry, tmp_path: Path
) -> None:
    path, item = random_file(tmp_path)
    to = client(open_registry.host, "once/a:1")
    output: list[float] = []
    assert to.push_blob(path, item.digest, output.append) == "sent"
    assert to.push_blob(path, item.digest, output.append) == "there"
    assert sum(output) == 2 * item.size
    assert to.blob_size(item.digest) == item.size
    assert fetched(to, item, Cache(tmp_path / "cache")) == path.read_bytes()
    assert not partial_of(Cache(tmp_path / "cache"), item).exists()


def test_blob_of_another_repository_is_mounted(
    open_registry: LoopbackRegistry, tmp_path: Path
) -> None:
    path, item = random_file(tmp_path, seed=2)
    assert client(open_registry.host, "mount/a:1").push_blob(path, item.digest) == "sent"
    other = client(open_registry.host, "mount/b:1")
    assert other.push_blob(path, item.digest, mount_from="mount/none") == "sent"
    third = client(open_registry.host, "mount/c:1")
    assert third.push_blob(path, item.digest, mount_from="mount/a") == "mounted"
    assert third.blob_size(item.digest) == item.size


def test_manifest_of_skopeo_is_read_by_tag_and_by_digest(
    open_registry: LoopbackRegistry, tmp_path: Path
) -> None:
    small_layout(tmp_path / "layout")
    skopeo_push(tmp_path / "layout", f"{open_registry.host}/by/skopeo:1")
    of = client(open_registry.host, "by/skopeo:1")
    found = of.manifest()
    assert isinstance(found, Manifest) and found == of.manifest(found.digest)
    assert of.has_manifest("1") == found.digest and of.has_manifest("2") == ""
    assert b'"architecture": "amd64"' in of.small_blob(found.config)


def skopeo_push(folder: Path, target: str, *words: str) -> None:
    argv = [
        "skopeo",
        "copy",
        "--dest-tls-verify=false",
        *words,
        f"oci:{folder}",
        f"docker://{target}",
    ]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- who one is --------------------------------------------------------------------------------


def test_password_of_an_auth_file_opens_a_registry(tmp_path: Path) -> None:
    path, item = random_file(tmp_path, 1000)
    with registry(password=True) as running:
        known = client(running.host, env=login(tmp_path, running.host))
        assert known.push_blob(path, item.digest) == "sent"
        assert fetched(known, item, Cache(tmp_path / "cache")) == path.read_bytes()

        nobody = problem(client(running.host))
        assert nobody["check"] == "registry-login" and "requires a login" in nobody["what"]
        assert f"podman login {running.host}" in nobody["remedy"]
        wrong = problem(client(running.host, env=login(tmp_path, running.host, password="stolen7")))
        assert wrong["check"] == "registry-login" and USER in wrong["what"]
        assert "stolen7" not in str(wrong)


def test_tokens_are_asked_for_once_a_scope_and_again_when_they_end(tmp_path: Path) -> None:
    path, item = random_file(tmp_path, 1000)
    with token_server(tmp_path / "tokens") as tokens, registry(tokens=tokens) as running:
        env = login(tmp_path, running.host)
        known = client(running.host, "ml/base:1", env)
        assert known.push_blob(path, item.digest) == "sent"
        assert known.blob_size(item.digest, pushing=True) == 1000
        asked = [query["scope"] for query, right in tokens.asked if right]
        assert asked == [["repository:ml/base:pull,push"]]

        other = client(running.host, "ml/other:1", env)
        assert other.push_blob(path, item.digest, mount_from="ml/base") == "mounted"
        assert ["repository:ml/other:pull,push", "repository:ml/base:pull"] in [
            query["scope"] for query, _ in tokens.asked
        ]
        assert problem(client(running.host))["check"] == "registry-login"
    with token_server(tmp_path / "tokens", lifetime_s=11) as tokens, registry(tokens=tokens) as two:
        known = client(two.host, "ml/base:1", login(tmp_path, two.host))
        assert known.blob_size(item.digest) is None
        first = len(tokens.asked)
        known.transport._tokens.clear()
        assert known.blob_size(item.digest) is None and len(tokens.asked) == first + 1


def test_password_does_not_go_where_the_registry_redirects(tmp_path: Path) -> None:
    """The registry sends its blobs by way of another host, as those in clouds do."""
    path, item = random_file(tmp_path, 1000)
    seen: list[dict[str, str]] = []
    with storage_host(path.read_bytes(), seen) as other:
        middleware = (
            f"middleware: {{storage: [{{name: redirect, options: {{baseurl: 'http://{other}'}}}}]}}"
        )
        with registry(password=True, settings=[middleware]) as running:
            known = client(running.host, env=login(tmp_path, running.host))
            known.push_blob(path, item.digest)
            assert fetched(known, item, Cache(tmp_path / "cache")) == path.read_bytes()
    assert seen and not any("Authorization" in headers for headers in seen)
    assert not any("Cookie" in headers for headers in seen)


@contextmanager
def storage_host(content: bytes, seen: list[dict[str, str]]) -> Iterator[str]:
    """A web server that has ``content`` under every path, and notes what headers it is sent."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(dict(self.headers.items()))
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


# --- TLS ---------------------------------------------------------------------------------------


def test_certificate_of_a_private_ca_is_believed_where_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registry(tls=certificate(tmp_path / "tls")) as running:
        assert running.ca is not None
        host = running.host
        unknown = problem(client(host))
        assert unknown["check"] == "registry-certificate" and "certs.d" in unknown["remedy"]

        config = tmp_path / "config"
        folder = config / "containers" / "certs.d" / host
        folder.mkdir(parents=True)
        (folder / "ca.crt").write_text(running.ca.read_text())
        env = {"XDG_CONFIG_HOME": str(config)}
        assert problem(client(host, env=env))["check"] == "registry-missing"
        (folder / "ca.crt").write_text("no certificate")
        with pytest.raises(FairleadError, match="cannot be used"):
            client(host, env=env)
        for variable in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
            with monkeypatch.context() as patch:
                patch.setenv(variable, str(running.ca))
                assert problem(client(host))["check"] == "registry-missing"


def test_certificate_of_another_host_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registry(tls=certificate(tmp_path / "tls")) as running:
        monkeypatch.setenv("SSL_CERT_FILE", str(running.ca))
        port = running.host.rpartition(":")[2]
        assert problem(client(f"localhost:{port}"))["check"] == "registry-missing"
    with registry(tls=certificate(tmp_path / "tls2", names="DNS:elsewhere")) as running:
        monkeypatch.setenv("SSL_CERT_FILE", str(running.ca))
        said = problem(client(running.host))
        assert said["check"] == "registry-certificate" and "127.0.0.1" in said["why"]


def test_plain_http_is_spoken_to_this_machine_or_on_demand_only(
    open_registry: LoopbackRegistry,
) -> None:
    port = open_registry.host.rpartition(":")[2]
    name = f"{os.uname().nodename}.invalid.example:{port}"
    reference = parse_reference(f"docker://{name}/a:1")

    def to(insecure: bool) -> Client:
        made = Client(reference, insecure=insecure, environ=NOWHERE, pauses_s=QUICK)
        # Another name for the same registry, as a site's own DNS would give it.
        made.transport._session.mount("https://", Elsewhere(open_registry.host))
        made.transport._session.mount("http://", Elsewhere(open_registry.host))
        return made

    assert problem(to(insecure=False))["check"] == "registry-plain-http"
    assert problem(to(insecure=True))["check"] == "registry-missing"


class Elsewhere(HTTPAdapter):
    """Connects to ``host``, whatever the URL says."""

    def __init__(self, host: str):
        self.host = host
        super().__init__()

    def send(self, request: Any, *words: Any, **more: Any) -> Any:
        request.url = urlunsplit(urlsplit(request.url)._replace(netloc=self.host))
        return super().send(request, *words, **more)


# --- nobody there ------------------------------------------------------------------------------


def test_host_without_a_name_and_host_without_a_registry_are_distinguished() -> None:
    assert problem(client("no-such-host.invalid"))["check"] == "registry-name"
    refused = problem(client("127.0.0.1:9"))
    assert refused["check"] == "registry-unreachable" and "refused" in refused["why"]


def test_image_that_is_not_there_is_reported(open_registry: LoopbackRegistry) -> None:
    said = problem(client(open_registry.host, "no/such:1"))
    assert said["check"] == "registry-missing" and said["where"].endswith("/no/such:1")


# --- cuts --------------------------------------------------------------------------------------


def test_download_goes_on_after_each_cut(open_registry: LoopbackRegistry, tmp_path: Path) -> None:
    path, item = random_file(tmp_path, 6_000_000, seed=3)
    client(open_registry.host, "cut/a:1").push_blob(path, item.digest)
    with proxy(open_registry.host, cut_after=[1000, 1_500_000, 1_500_000, 1_500_000]) as between:
        of = client(between.host, "cut/a:1")
        assert fetched(of, item, Cache(tmp_path / "cache")) == path.read_bytes()
        assert between.connections >= 4
        assert between.sent < 1.5 * item.size, "it began anew instead of going on"


def test_download_cut_for_good_goes_on_in_the_next_process(
    open_registry: LoopbackRegistry, tmp_path: Path
) -> None:
    path, item = random_file(tmp_path, 6_000_000, seed=4)
    client(open_registry.host, "cut/b:1").push_blob(path, item.digest)
    cache = Cache(tmp_path / "cache")
    with proxy(open_registry.host, cut_after=[1000, 4_000_000, *[1] * 20]) as between:
        with pytest.raises(FairleadError) as caught:
            fetched(client(between.host, "cut/b:1"), item, cache)
        assert caught.value.findings[0].check in ("registry-cut", "registry-unreachable")
    kept = partial_of(cache, item).stat().st_size
    assert 3_000_000 < kept < item.size
    with proxy(open_registry.host) as between:
        assert fetched(client(between.host, "cut/b:1"), item, cache) == path.read_bytes()
        assert between.sent < item.size - kept + 10_000


def test_partial_that_is_wrong_is_found_and_replaced(
    open_registry: LoopbackRegistry, tmp_path: Path
) -> None:
    path, item = random_file(tmp_path, 2_000_000, seed=5)
    client(open_registry.host, "cut/c:1").push_blob(path, item.digest)
    for number, left in enumerate((bytes(1_000_000), bytes(2_000_000), bytes(3_000_000))):
        cache = Cache(tmp_path / f"cache{number}")
        partial_of(cache, item).parent.mkdir(parents=True)
        partial_of(cache, item).write_bytes(left)
        got = fetched(client(open_registry.host, "cut/c:1"), item, cache)
        assert got == path.read_bytes()


def test_byte_flipped_on_the_way_is_found(open_registry: LoopbackRegistry, tmp_path: Path) -> None:
    path, item = random_file(tmp_path, 2_000_000, seed=6)
    client(open_registry.host, "flip/a:1").push_blob(path, item.digest)
    cache = Cache(tmp_path / "cache")
    with proxy(open_registry.host, flip=1_000_000) as between, pytest.raises(FairleadError) as bad:
        fetched(client(between.host, "flip/a:1"), item, cache)
    assert bad.value.findings[0].check == "registry-digest"
    assert item.digest in bad.value.findings[0].why
    assert not (cache.root / "images" / item.hex).exists()
    assert fetched(client(open_registry.host, "flip/a:1"), item, cache) == path.read_bytes()


def test_blob_rotten_in_the_registry_is_found(
    open_registry: LoopbackRegistry, tmp_path: Path
) -> None:
    path, item = random_file(tmp_path, 500_000, seed=7)
    of = client(open_registry.host, "rot/a:1")
    of.push_blob(path, item.digest)
    (file,) = [p for p in open_registry.blobs() if item.hex in str(p)]
    file.write_bytes(bytes(500_000))
    with pytest.raises(FairleadError) as bad:
        fetched(of, item, Cache(tmp_path / "cache"))
    assert bad.value.findings[0].check == "registry-digest"


def test_upload_cut_is_sent_again(open_registry: LoopbackRegistry, tmp_path: Path) -> None:
    path, item = random_file(tmp_path, 3_000_000, seed=8)
    with proxy(open_registry.host, cut_uploads=[1_000_000]) as between:
        output: list[float] = []
        to = client(between.host, "up/a:1")
        assert to.push_blob(path, item.digest, output.append) == "sent"
        assert sum(output) == item.size
    assert client(open_registry.host, "up/a:1").blob_size(item.digest) == item.size


def test_password_is_in_no_message_and_no_repr(tmp_path: Path) -> None:
    with registry(password=True) as running:
        known = client(running.host, env=login(tmp_path, running.host))
        said = str(problem(known))
        assert PASSWORD not in said + repr(known.transport._credential)
        assert PASSWORD in known.transport.secrets
