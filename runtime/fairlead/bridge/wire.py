"""How the sides of the bridge talk: opening, authentication, frames.

This module and :mod:`fairlead.bridge.arrow` travel to Spark's executors and Dask's workers by value, where fairlead may not
be installed: they import the standard library, NumPy and pyarrow only.

A connection opens with a mutual proof that both know the session's token, which itself is never sent::

    client  magic, version u16, nonce[16]
    server  magic, version u16, nonce[16], HMAC-SHA256(token, "server" + both nonces)
    client  HMAC-SHA256(token, "client" + both nonces)

After that both send frames: a header of 16 bytes, big-endian, and a body::

    kind u8, check u8, 0 u16, checksum u32, length of the body u64

============ ========================================================================
kind         body
============ ========================================================================
JSON         an object; the first one from a client has ``role``
BATCH        one encapsulated Arrow IPC message: a schema or a record batch
CREDIT       u64, that many more bytes of BATCH may be sent
END          an object: ``rows`` and ``bytes`` of the stream
ERROR        an object: ``check``, ``what``, ``where``, ``why``, ``remedy``
PLACED       u64, that many more bytes are in the ring that the receiver shares
============ ========================================================================

A sender on the receiver's node may ask in its first object (``shares``) for a ring of memory to pass dense rows through. The
answer is an object with ``ring``, its bytes; unless they are 0, one byte follows with the descriptor of a memfd
(:mod:`fairlead.bridge.region`). CREDIT is then room in the ring: it begins with all of it.

The checksum is CRC-32C where both sides have the package ``crc32c`` and CRC-32 otherwise (``check`` 2 and 1); within a
node and under TLS there is none (0): the kernel copies memory there, and TLS has its own.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import mmap
import os
import socket
import ssl
import struct
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

VERSION = 3
JSON, BATCH, CREDIT, END, ERROR, PLACED = 1, 2, 3, 4, 5, 6

_MAGIC = b"fairlead"
# Formats, not struct.Struct: that cannot travel.
_OPENING = "!8sH16s"
_HEADER = "!BBHIQ"
_NUMBER = "!Q"
_MOST_JSON = 16 << 20
_MOST_BATCH = 4 << 30
_SOCKET_BYTES = 4 << 20
_PLACED_BYTES = 1 << 20  # that are announced at once; less than any ring
_MAPPED_BYTES, _MAPPING_BYTES = 1 << 20, 32 << 20  # frames that are mapped, and a mapping
OPENING_S = 10.0  # an opening is two short messages; a port scan holds a thread no longer
_LAST_WORD_S = 5.0
SILENT_S = 60.0  # the other side says at least every few seconds that it is there

Address = tuple[str, int] | str  # host and port, or the name of an abstract Unix socket


class WireError(Exception):
    """Something went wrong between two sides.

    Attributes:
        check: a message's id; the values of its fields are in ``fields``.
    """

    def __init__(self, check: str, /, **fields: Any):
        super().__init__(check, fields)
        self.check, self.fields = check, fields

    def __reduce__(self) -> Any:  # executors send it to their driver
        return _again, (self.check, self.fields)

    def __str__(self) -> str:
        what = self.fields.get("what") or self.check
        return ": ".join(filter(None, (str(what), str(self.fields.get("why", "")))))


def _again(check: str, fields: dict[str, Any]) -> WireError:
    return WireError(check, **fields)


# What functools.cache wraps does not travel by value.
_CHECKS: dict[int, Callable[[Any, int], int]] = {}


def checks() -> Mapping[int, Callable[[Any, int], int]]:
    """The checksums that this side can make, the best first."""
    if not _CHECKS:
        with suppress(ImportError):
            from crc32c import crc32c

            _CHECKS[2] = crc32c
        _CHECKS[1] = zlib.crc32
    return _CHECKS


def _checksum(check: int, parts: tuple[Any, ...]) -> int:
    value = 0
    for part in parts if check else ():
        value = checks()[check](part, value)
    return value & 0xFFFFFFFF


@dataclass(frozen=True)
class Endpoint:
    """Where a rank listens.

    Attributes:
        rank: its number.
        host: the name of its node.
        address: numeric address and port.
        local: name of the abstract Unix socket on its node; empty for none.
        boot: identifies the running kernel and network namespace in which ``local`` exists.
    """

    rank: int
    host: str
    address: tuple[str, int]
    local: str = ""
    boot: str = ""

    @property
    def who(self) -> str:
        return f"rank {self.rank} on {self.host}"


@dataclass(frozen=True)
class Secret:
    """What both sides of a session know.

    Attributes:
        token: 32 random bytes in hexadecimal digits.
        certificate: of the ranks, PEM; empty without TLS.
    """

    token: str = field(repr=False)
    certificate: str = field(default="", repr=False)

    def proof(self, role: bytes, nonces: bytes) -> bytes:
        return hmac.new(bytes.fromhex(self.token), role + nonces, hashlib.sha256).digest()


def here() -> str:
    """Identifies this kernel and this network namespace: abstract Unix sockets reach just as far."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as stream:
        return f"{stream.read().strip()}/{Path('/proc/self/ns/net').readlink()}"
    return ""


class Connection:
    """An authenticated connection.

    Args:
        who: the other side, as an error names it.
        check: the checksum of the frames that are sent.
    """

    def __init__(self, sock: socket.socket, who: str, check: int = 0):
        self._sock, self.who, self.check = sock, who, check
        self._sending = threading.Lock()
        self.credit = 0
        self.sent = 0
        self._free = memoryview(b"")  # what is left of the last mapping

    def send(self, kind: int, *parts: Any, limit_s: float = SILENT_S) -> None:
        """Sends a frame.

        Args:
            parts: the body, as buffers.
        Raises:
            WireError: the other side is gone, or takes nothing for ``limit_s``.
        """
        length = sum(memoryview(part).nbytes for part in parts)
        check = self.check if kind == BATCH else 0
        header = struct.pack(_HEADER, kind, check, 0, _checksum(check, parts), length)
        try:
            with self._sending:
                self._sock.settimeout(limit_s)
                self._send_all([header, *parts])
        except TimeoutError:
            raise WireError(
                "bridge-silent", who=self.who, seconds=limit_s, doing="to take data"
            ) from None
        except OSError as exc:
            # What it said before it hung up explains more than the broken pipe does.
            self._raise_last_words()
            raise WireError("bridge-lost", who=self.who, reason=exc) from None
        if kind == BATCH:
            self.sent += length

    def _send_all(self, parts: list[Any]) -> None:
        views = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
        if isinstance(self._sock, ssl.SSLSocket):
            for view in views:
                self._sock.sendall(view)
            return
        while views:
            done = self._sock.sendmsg(views)
            while views and done >= views[0].nbytes:
                done -= views.pop(0).nbytes
            if done:
                views[0] = views[0][done:]

    def _raise_last_words(self) -> None:
        """Raises what the other side reported before it closed, if it did."""
        self._sock.settimeout(1.0)
        with suppress(OSError, ValueError, _Closed):
            for _ in range(1000):
                kind, body = self._frame()
                if kind == ERROR:
                    raise WireError("bridge-reported", **json.loads(bytes(body)))

    def say(self, kind: int = JSON, **values: Any) -> None:
        """Sends an object."""
        self.send(kind, json.dumps(values).encode())

    def receive(self, limit_s: float | None = SILENT_S) -> tuple[int, Any]:
        """The next frame: its kind, and an object, a number (CREDIT, PLACED) or a buffer (BATCH).

        Raises:
            WireError: it reports an error, is gone, silent for ``limit_s``, or breaks the protocol.
        """
        self._sock.settimeout(limit_s)
        try:
            kind, body = self._frame()
        except TimeoutError:
            raise WireError(
                "bridge-silent", who=self.who, seconds=limit_s, doing="to answer"
            ) from None
        except _Closed:
            raise WireError(
                "bridge-lost", who=self.who, reason="it closed the connection"
            ) from None
        except OSError as exc:
            raise WireError("bridge-lost", who=self.who, reason=exc) from None
        if kind == BATCH:
            return kind, body
        if kind in (CREDIT, PLACED):
            return kind, struct.unpack(_NUMBER, body)[0]
        try:
            value = json.loads(bytes(body))
        except ValueError as exc:
            raise WireError("bridge-garbled", who=self.who, reason=exc) from None
        if not isinstance(value, dict):
            raise WireError("bridge-garbled", who=self.who, reason="it sent no object")
        if kind == ERROR:
            raise WireError("bridge-reported", **value)
        return kind, value

    def _frame(self) -> tuple[int, Any]:
        kind, check, _, checksum, length = struct.unpack(_HEADER, self._exactly(16))
        most = {BATCH: _MOST_BATCH, CREDIT: 8, PLACED: 8}.get(kind, _MOST_JSON)
        if not JSON <= kind <= PLACED or check not in (0, *checks()):
            raise WireError(
                "bridge-garbled", who=self.who, reason=f"a frame of kind {kind} and check {check}"
            )
        if length > most:
            raise WireError("bridge-garbled", who=self.who, reason=f"a frame of {length} bytes")
        body = self._exactly(length)
        if _checksum(check, (body,)) != checksum:
            raise WireError("bridge-checksum", who=self.who, length=length)
        return kind, body

    def _exactly(self, length: int) -> Any:
        view, done = self._room(length), 0
        while done < length:
            number = self._sock.recv_into(view[done:], length - done)
            if not number:
                raise _Closed
            done += number
        return view

    def _room(self, length: int) -> memoryview:
        """Memory for a frame.

        What is mapped returns to the system as soon as it is released, which that of malloc may not. Many frames share
        a mapping, so that it has huge pages: to fault small ones in takes as long as to fill them.
        """
        if length < _MAPPED_BYTES:
            return memoryview(bytearray(length))
        if self._free.nbytes < length:
            mapping = mmap.mmap(-1, max(length, _MAPPING_BYTES))
            with suppress(OSError, AttributeError):
                mapping.madvise(mmap.MADV_HUGEPAGE)
            self._free = memoryview(mapping)
        room, self._free = self._free[:length], self._free[-(-length // 64) * 64 :]
        return room

    @property
    def is_local(self) -> bool:
        """Whether the other side is on this node, and can be given a descriptor."""
        return self._sock.family == socket.AF_UNIX

    def share(self, fd: int | None, size: int) -> None:
        """Answers a sender that asks for a ring: a memfd of ``size`` bytes, or None for none."""
        self.say(ring=0 if fd is None else size)
        if fd is not None:
            socket.send_fds(self._sock, [b"\0"], [fd])

    def shared(self, limit_s: float = SILENT_S) -> np.ndarray | None:
        """The ring that the receiver shares, as bytes; None where it shares none.

        Raises:
            WireError: it cannot be mapped; as :meth:`receive`.
        """
        size = int(self.receive(limit_s)[1].get("ring") or 0)
        if not size:
            return None
        try:
            _, fds, _, _ = socket.recv_fds(self._sock, 1, 1)
        except OSError as exc:
            raise WireError("bridge-lost", who=self.who, reason=exc) from None
        if not fds:
            raise WireError("bridge-garbled", who=self.who, reason="it sent no descriptor")
        try:
            return np.frombuffer(mmap.mmap(fds[0], size), np.uint8)
        except (OSError, ValueError) as exc:
            raise WireError("bridge-shared", who=self.who, reason=exc) from None
        finally:
            os.close(fds[0])

    def place(self, ring: np.ndarray, rows: np.ndarray) -> None:
        """Passes rows through the ring that the receiver shares, as it takes them out.

        Args:
            rows: C-contiguous.
        Raises:
            WireError: as :meth:`send` and :meth:`receive`.
        """
        rest = rows.reshape(-1).view(np.uint8)
        while rest.size:
            at, part = self.sent % ring.size, rest[:_PLACED_BYTES]
            self.await_credit(part.size)
            first = min(part.size, ring.size - at)
            ring[at : at + first], ring[: part.size - first] = part[:first], part[first:]
            self.send(PLACED, struct.pack(_NUMBER, part.size))
            self.sent, self.credit = self.sent + part.size, self.credit - part.size
            rest = rest[part.size :]

    def grant(self, number: int) -> None:
        """Lets the other side send that many more bytes."""
        self.send(CREDIT, struct.pack(_NUMBER, number))

    def await_credit(self, least: int = 1, limit_s: float = SILENT_S) -> None:
        """Waits until the other side takes ``least`` more bytes.

        Raises:
            WireError: as :meth:`receive`.
        """
        while self.credit < least:
            kind, value = self.receive(limit_s)
            if kind == CREDIT:
                self.credit += value

    def last_word(self, **error: Any) -> None:
        """Reports an error, and lets the other side read it: to close with its data unread would take it back."""
        with suppress(WireError, OSError):
            self.say(ERROR, **error)
            self._sock.shutdown(socket.SHUT_WR)
            self._sock.settimeout(1.0)
            deadline, scrap = time.monotonic() + _LAST_WORD_S, bytearray(1 << 20)
            while time.monotonic() < deadline and self._sock.recv_into(scrap):
                pass

    def close(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


class _Closed(Exception):
    """The other side has hung up."""


def dial(endpoint: Endpoint, secret: Secret, limit_s: float = OPENING_S, **role: Any) -> Connection:
    """Connects to a rank; by the Unix socket where it is on this node.

    Args:
        role: the first object that is sent, with ``role``.
    Raises:
        WireError: it cannot be reached, is another, or speaks another version.
    """
    sock, check = None, 1
    if endpoint.local and endpoint.boot == here():
        with suppress(OSError):
            sock, check = _dialed(socket.AF_UNIX, "\0" + endpoint.local, limit_s), 0
    if sock is None:
        sock = _dialed_out(endpoint, limit_s)
        if secret.certificate:
            sock, check = _client_tls(sock, secret, endpoint), 0
    try:
        _prove_as_client(sock, secret, endpoint, time.monotonic() + limit_s)
        connection = Connection(sock, endpoint.who, check)
        connection.say(checks=[*checks()], **role)
        if check:
            connection.check = connection.receive(limit_s)[1]["check"]
        return connection
    except TimeoutError:
        sock.close()
        raise WireError(
            "bridge-silent", who=endpoint.who, seconds=limit_s, doing="to open a connection"
        ) from None
    except (OSError, _Closed) as exc:
        sock.close()
        raise WireError(
            "bridge-refused",
            who=endpoint.who,
            address=_text(endpoint.address),
            reason=exc or "it hung up",
        ) from None
    except WireError:
        sock.close()
        raise


def _dialed(family: int, address: Any, limit_s: float) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(limit_s)
        _tuned(sock)
        sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock


def _dialed_out(endpoint: Endpoint, limit_s: float) -> socket.socket:
    family = socket.AF_INET6 if ":" in endpoint.address[0] else socket.AF_INET
    try:
        return _dialed(family, tuple(endpoint.address), limit_s)
    except OSError as exc:
        raise WireError(
            "bridge-unreachable", who=endpoint.who, address=_text(endpoint.address), reason=exc
        ) from None


def _tuned(sock: socket.socket) -> None:
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)


def _text(address: tuple[str, int]) -> str:
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"{host}:{address[1]}"


def _client_tls(sock: socket.socket, secret: Secret, endpoint: Endpoint) -> socket.socket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate is this session's own, and trusted alone
    context.load_verify_locations(cadata=secret.certificate)
    try:
        return context.wrap_socket(sock)
    except (OSError, ssl.SSLError) as exc:
        sock.close()
        raise WireError(
            "bridge-refused", who=endpoint.who, address=_text(endpoint.address), reason=exc
        ) from None


def _prove_as_client(
    sock: socket.socket, secret: Secret, endpoint: Endpoint, deadline: float
) -> None:
    nonce = os.urandom(16)
    sock.sendall(struct.pack(_OPENING, _MAGIC, VERSION, nonce))
    magic, version, other = struct.unpack(_OPENING, _in_time(sock, 26, deadline))
    if magic != _MAGIC:
        raise WireError("bridge-stranger", who=endpoint.who, address=_text(endpoint.address))
    if version != VERSION:
        raise WireError("bridge-version", who=endpoint.who, theirs=version, ours=VERSION)
    proof = _in_time(sock, 32, deadline)
    if not hmac.compare_digest(proof, secret.proof(b"server", nonce + other)):
        raise WireError("bridge-token", who=endpoint.who)
    sock.sendall(secret.proof(b"client", nonce + other))


class Listener:
    """The endpoint of a rank.

    Args:
        host: numeric address to listen on.
        local: name of the abstract Unix socket.
        key_files: certificate and key, for TLS.
    """

    def __init__(
        self, host: str, secret: Secret, local: str = "", key_files: tuple[str, str] | None = None
    ):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._tcp = socket.socket(family, socket.SOCK_STREAM)
        self._tcp.bind((host, 0))
        self._unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._unix.bind("\0" + local)
        for sock in (self._tcp, self._unix):
            sock.listen(128)
        self._secret, self._context = secret, None
        if key_files:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.minimum_version = ssl.TLSVersion.TLSv1_3
            self._context.load_cert_chain(*key_files)
        self.address: tuple[str, int] = self._tcp.getsockname()[:2]
        self.local = local

    def sockets(self) -> tuple[socket.socket, socket.socket]:
        """Those to accept from, each in a thread of its own."""
        return self._tcp, self._unix

    def opened(self, sock: socket.socket) -> tuple[Connection, dict[str, Any]]:
        """Authenticates who has connected.

        Returns:
            The connection, and the first object sent.
        Raises:
            WireError, OSError: it does not prove that it knows the token.
        """
        deadline = time.monotonic() + OPENING_S
        sock.settimeout(OPENING_S)
        is_local = sock.family == socket.AF_UNIX
        who = "a client on this node" if is_local else _text(sock.getpeername()[:2])
        _tuned(sock)
        if self._context and not is_local:
            sock = self._context.wrap_socket(sock, server_side=True)
        try:
            self._prove(sock, who, deadline)
        except _Closed:
            raise WireError("bridge-lost", who=who, reason="it hung up") from None
        connection = Connection(sock, who)
        _, first = connection.receive(OPENING_S)
        if not (is_local or self._context):
            connection.check = next((c for c in checks() if c in first.get("checks", ())), 1)
            connection.say(check=connection.check)
        return connection, first

    def _prove(self, sock: socket.socket, who: str, deadline: float) -> None:
        magic, version, other = struct.unpack(_OPENING, _in_time(sock, 26, deadline))
        if magic != _MAGIC:
            raise WireError("bridge-stranger", who=who, address=who)
        nonce = os.urandom(16)
        proof = self._secret.proof(b"server", other + nonce)
        sock.sendall(
            struct.pack(_OPENING, _MAGIC, VERSION, nonce) + (proof if version == VERSION else b"")
        )
        if version != VERSION:
            raise WireError("bridge-version", who=who, theirs=version, ours=VERSION)
        if not hmac.compare_digest(
            _in_time(sock, 32, deadline), self._secret.proof(b"client", other + nonce)
        ):
            raise WireError("bridge-token", who=who)

    def close(self) -> None:
        for sock in self.sockets():
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


def _in_time(sock: socket.socket, length: int, deadline: float) -> bytes:
    """So many bytes, by a deadline also from who sends one now and then."""
    parts = b""
    while len(parts) < length:
        sock.settimeout(max(deadline - time.monotonic(), 0.01))
        part = sock.recv(length - len(parts))
        if not part:
            raise _Closed
        parts += part
    return parts
