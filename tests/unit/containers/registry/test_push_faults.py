"""Faults of a registry during a push that pass, and those that do not."""

from __future__ import annotations

import http.server
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from fairlead.base.errors import FairleadError
from fairlead_build.registry.client import Client
from fairlead_build.registry.manifest import digest_of
from fairlead_build.registry.reference import parse_reference

Fault = Callable[[str, int], int]  # the status for the nth request of a method; 0 for none


@contextmanager
def registry(fault: Fault) -> Iterator[tuple[Client, Counter[str]]]:
    """A registry that has nothing, and takes what it does not refuse."""
    asked: Counter[str] = Counter()

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked[self.command] += 1
            usual = {"HEAD": 404, "POST": 202, "PUT": 201}.get(self.command, 200)
            self.send_response(fault(self.command, asked[self.command]) or usual)
            if self.command == "POST":
                self.send_header("Location", f"/v2/x/blobs/uploads/{asked['POST']}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_HEAD = do_POST = do_PUT = _answer

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        reference = parse_reference(f"docker://127.0.0.1:{server.server_port}/x:1")
        yield Client(reference, pauses_s=(0.0, 0.0)), asked
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("status", [404, 500, 502, 503, 429])
def test_upload_that_the_registry_lost_is_begun_again(status: int) -> None:
    with registry(lambda method, n: status if method == "PUT" and n < 3 else 0) as (client, asked):
        assert client.push_blob(b"text", digest_of(b"text")) == "sent"
    assert asked["POST"] == asked["PUT"] == 3


@pytest.mark.parametrize(
    ("status", "check"), [(404, "registry-cut"), (500, "registry-failing"), (429, "registry-busy")]
)
def test_upload_that_never_ends_well_is_given_up(status: int, check: str) -> None:
    with (
        registry(lambda method, n: status if method == "PUT" else 0) as (client, asked),
        pytest.raises(FairleadError) as caught,
    ):
        client.push_blob(b"text", digest_of(b"text"))
    assert caught.value.findings[0].check == check and asked["PUT"] == 3


def test_registry_that_wants_its_repositories_made_first_is_named_as_such() -> None:
    with (
        registry(lambda method, n: 404 if method == "POST" else 0) as (client, _),
        pytest.raises(FairleadError) as caught,
    ):
        client.check_push()
    (finding,) = caught.value.findings
    assert finding.check == "registry-missing" and "create the repository" in finding.remedy
