"""Openings and frames over real sockets: who is let in, what arrives, and what is said when it does not."""

from __future__ import annotations

import os
import pickle
import secrets
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from fairlead.bridge import wire
from fairlead.bridge.endpoint import Door
from fairlead.bridge.serve import certified
from fairlead.bridge.wire import (
    BATCH,
    CREDIT,
    JSON,
    Connection,
    Endpoint,
    Listener,
    Secret,
    WireError,
    dial,
)


class Ranks:
    """A rank that answers what it gets, as many bytes, and notes who was turned away."""

    def __init__(self, secret: Secret, key_files: tuple[str, str] | None = None):
        local = f"fairlead-test-{secrets.token_hex(4)}"
        self.listener = Listener("127.0.0.1", secret, local, key_files)
        self.refused: list[str] = []
        self.endpoint = Endpoint(0, "here", self.listener.address, local, wire.here())
        Door(self.listener, {"echo": self._echo, "fail": self._fail}, self.refused.append).start()

    def _echo(self, connection: Connection, first: dict[str, object]) -> None:
        connection.grant(1 << 30)
        while True:
            kind, value = connection.receive(5)
            if kind == BATCH:
                connection.send(BATCH, value)
            else:
                connection.say(**value)

    def _fail(self, connection: Connection, first: dict[str, object]) -> None:
        connection.receive(5)
        raise WireError("bridge-nan", row=7, column="x")

    @property
    def far(self) -> Endpoint:
        """As another node sees it."""
        return replace(self.endpoint, boot="elsewhere")


SECRET = Secret(secrets.token_hex(32))


@pytest.fixture
def rank() -> Iterator[Ranks]:
    made = Ranks(SECRET)
    yield made
    made.listener.close()


@pytest.fixture(params=["near", "far", "tls"])
def endpoint(request, tmp_path) -> Iterator[tuple[Endpoint, Secret]]:
    secret, files = SECRET, None
    if request.param == "tls":
        certificate, key = certified()
        (tmp_path / "c").write_text(certificate)
        (tmp_path / "k").write_text(key)
        secret, files = (
            Secret(SECRET.token, certificate),
            (str(tmp_path / "c"), str(tmp_path / "k")),
        )
    made = Ranks(secret, files)
    yield (made.endpoint if request.param == "near" else made.far), secret
    made.listener.close()


def test_what_is_sent_arrives(endpoint: tuple[Endpoint, Secret]) -> None:
    connection = dial(*endpoint, role="echo")
    assert connection.receive(5) == (CREDIT, 1 << 30)
    connection.say(hello="you", number=2**60)
    assert connection.receive(5) == (JSON, {"hello": "you", "number": 2**60})
    for size in (0, 1, 1000, 3 << 20):
        data = os.urandom(size)
        connection.send(BATCH, data[: size // 3], data[size // 3 :])
        kind, body = connection.receive(5)
        assert kind == BATCH and bytes(body) == data
    connection.close()


def test_an_error_of_a_role_reaches_who_is_still_sending(rank: Ranks) -> None:
    connection = dial(rank.endpoint, SECRET, role="fail")
    for _ in range(5):
        connection.send(BATCH, bytes(1 << 20))
    with pytest.raises(WireError) as caught:
        connection.await_credit(5)
    assert caught.value.check == "bridge-reported" and "row 7" in caught.value.fields["what"]


def test_nobody_without_the_token_is_let_in(rank: Ranks) -> None:
    with pytest.raises(WireError) as caught:
        dial(rank.far, Secret(secrets.token_hex(32)), role="echo")
    assert caught.value.check == "bridge-token"
    # One that skips the proof of the server, too.
    sock = socket.create_connection(rank.endpoint.address)
    sock.sendall(struct.pack("!8sH16s", b"fairlead", wire.VERSION, bytes(16)) + bytes(32))
    sock.settimeout(5)
    assert len(sock.recv(1000)) in (26, 58)
    while sock.recv(1000):
        pass
    sock.close()
    _until(lambda: any("token" in text for text in rank.refused))


def test_a_server_without_the_token_is_not_trusted() -> None:
    other = Ranks(Secret(secrets.token_hex(32)))
    with pytest.raises(WireError) as caught:
        dial(other.endpoint, SECRET, role="echo")
    assert caught.value.check == "bridge-token"
    other.listener.close()


@pytest.mark.parametrize(
    "bytes_",
    [b"GET / HTTP/1.1\r\n\r\n" + bytes(40), b"", b"\x16\x03\x01" + bytes(60)],
    ids=["http", "nothing", "tls"],
)
def test_strangers_are_turned_away(rank: Ranks, bytes_: bytes) -> None:
    sock = socket.create_connection(rank.endpoint.address)
    sock.sendall(bytes_)
    sock.settimeout(5)
    with suppress(OSError):  # reset, when it has hung up before it has read everything
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1000) == b""
    sock.close()
    _until(lambda: rank.refused)


def test_those_who_say_nothing_are_let_go_and_do_not_keep_others_out(
    rank: Ranks, monkeypatch
) -> None:
    monkeypatch.setattr(wire, "OPENING_S", 0.5)
    idle = [socket.create_connection(rank.endpoint.address) for _ in range(40)]
    connection = dial(rank.far, SECRET, role="echo")
    assert connection.receive(5)[0] == CREDIT
    _until(lambda: len(rank.refused) >= 40)
    for sock in idle:
        sock.close()


def test_another_version_is_named(rank: Ranks, monkeypatch) -> None:
    sock = socket.create_connection(rank.endpoint.address)
    sock.sendall(struct.pack("!8sH16s", b"fairlead", 99, bytes(16)))
    sock.settimeout(5)
    answer = sock.recv(1000)
    assert struct.unpack("!8sH16s", answer)[1] == wire.VERSION
    sock.close()
    monkeypatch.setattr(wire, "VERSION", 98)
    with pytest.raises(WireError) as caught:
        listener = Listener("127.0.0.1", SECRET, f"fairlead-{secrets.token_hex(4)}")
        threading.Thread(target=_answers_version, args=(listener, 97), daemon=True).start()
        dial(Endpoint(0, "here", listener.address), SECRET, role="echo")
    assert caught.value.check == "bridge-version" and caught.value.fields["theirs"] == 97


def _answers_version(listener: Listener, version: int) -> None:
    sock, _ = listener.sockets()[0].accept()
    sock.recv(26)
    sock.sendall(struct.pack("!8sH16s", b"fairlead", version, bytes(16)))


def test_damage_on_the_way_is_noticed() -> None:
    ours, theirs = socket.socketpair()
    connection, body = Connection(ours, "rank 1"), b"x" * 1000
    for check in wire.checks():
        good = wire.checks()[check](body, 0) & 0xFFFFFFFF
        theirs.sendall(struct.pack("!BBHIQ", BATCH, check, 0, good, 1000) + body)
        assert bytes(connection.receive(5)[1]) == body
        theirs.sendall(struct.pack("!BBHIQ", BATCH, check, 0, good ^ 1, 1000) + body)
        with pytest.raises(WireError) as caught:
            connection.receive(5)
        assert caught.value.check == "bridge-checksum"
    assert wire.checks()[1] is zlib.crc32


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack("!BBHIQ", 9, 0, 0, 0, 4) + b"....",
        struct.pack("!BBHIQ", JSON, 0, 0, 0, 1 << 40),
        struct.pack("!BBHIQ", BATCH, 7, 0, 0, 4) + b"....",
        struct.pack("!BBHIQ", JSON, 0, 0, 0, 4) + b"\xff\xfe..",
        struct.pack("!BBHIQ", JSON, 0, 0, 0, 2) + b"[]",
    ],
)
def test_frames_of_no_protocol_are_refused(frame: bytes) -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(frame)
    with pytest.raises(WireError) as caught:
        Connection(ours, "rank 1").receive(5)
    assert caught.value.check == "bridge-garbled"


def test_a_side_that_is_gone_or_silent_is_named() -> None:
    ours, theirs = socket.socketpair()
    connection = Connection(ours, "rank 3 on n7")
    with pytest.raises(WireError) as caught:
        connection.receive(0.2)
    assert caught.value.check == "bridge-silent" and caught.value.fields["who"] == "rank 3 on n7"
    with pytest.raises(WireError) as caught:
        connection.send(BATCH, bytes(64 << 20), limit_s=0.2)
    assert caught.value.check == "bridge-silent"
    theirs.close()
    with pytest.raises(WireError) as caught:
        connection.receive(1)
    assert caught.value.check == "bridge-lost"


def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    with pytest.raises(WireError) as caught:
        dial(Endpoint(2, "n1", address), SECRET, role="echo")
    assert (
        caught.value.check == "bridge-unreachable" and "rank 2 on n1" in caught.value.fields["who"]
    )


def test_errors_travel_to_a_driver() -> None:
    error = pickle.loads(pickle.dumps(WireError("bridge-nan", row=3, column="a")))
    assert (error.check, error.fields) == ("bridge-nan", {"row": 3, "column": "a"})


def _until(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
