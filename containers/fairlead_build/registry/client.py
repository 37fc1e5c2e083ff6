"""What fairlead asks a registry: manifests and blobs, checked by their digests.

Source: OCI distribution specification 1.1. ``transport.py`` speaks HTTP, ``manifest.py`` reads what
comes, ``download.py`` goes on where a transfer was cut. skopeo and oras restart a cut transfer,
report neither bytes nor causes to a program, and oras reads no certs.d; so they are not used.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Literal, cast
from urllib.parse import urlencode, urljoin, urlsplit

import requests

from fairlead.base.errors import FairleadError, fail
from fairlead_build.base.pace import pieces
from fairlead_build.registry.manifest import (
    INDEXES,
    MANIFESTS,
    MOST_BYTES,
    Descriptor,
    Index,
    Manifest,
    digest_of,
    read_document,
)
from fairlead_build.registry.reference import Reference, is_digest
from fairlead_build.registry.transport import PAUSES_S, Request, Transport, read_most

Sent = Literal["there", "mounted", "sent"]
Advance = Callable[[float], None]

_ACCEPT = ", ".join((*MANIFESTS, *INDEXES))
_CHUNK = 256 << 10  # what is lost at most when a connection is cut


class Client:
    """The repository of ``reference`` in its registry."""

    def __init__(
        self,
        reference: Reference,
        *,
        insecure: bool = False,
        environ: Mapping[str, str] = os.environ,
        pauses_s: tuple[float, ...] = PAUSES_S,
    ):
        """
        Args:
            insecure: plain HTTP is good enough where the host speaks no TLS.
        """
        self.reference, self._name = reference, reference.repository
        self.transport = Transport(reference, insecure=insecure, environ=environ, pauses_s=pauses_s)

    def _scope(self, actions: str, other: str = "") -> str:
        scope = f"repository:{self._name}:{actions}"
        return f"{scope} repository:{other}:pull" if other else scope

    def has_manifest(self, wanted: str, *, pushing: bool = True) -> str:
        """The digest of the manifest called ``wanted``; empty when there is none.

        Args:
            pushing: ask for the right to push too, once for all that follows.
        """
        scope, accept = self._scope("pull,push" if pushing else "pull"), {"Accept": _ACCEPT}
        place = f"{self._name}/manifests/{wanted}"
        request = Request("HEAD", place, "look for images", scope, (200, 404), accept)
        with self.transport.request(request) as answer:
            digest = answer.headers.get("Docker-Content-Digest", "")
            return digest if answer.status_code == 200 and is_digest(digest) else ""

    def manifest(self, wanted: str = "") -> Manifest | Index:
        """The manifest or index called ``wanted`` (a tag or digest; the reference's without it).

        Raises:
            FairleadError: there is none, access is denied, or it is not what its digest says.
        """
        wanted = wanted or self.reference.wanted
        pinned = wanted if is_digest(wanted) else ""
        where = str(self.reference.at(wanted) if pinned else self.reference.tagged(wanted))
        place, accept = f"{self._name}/manifests/{wanted}", {"Accept": _ACCEPT}
        body, media_type, announced = self._whole(place, MOST_BYTES, accept)
        if len(body) > MOST_BYTES:
            raise self.transport.odd(f"its manifest is larger than {MOST_BYTES} bytes")
        document = read_document(body, media_type, where)
        for expected in (pinned, announced if is_digest(announced) else ""):
            if expected and expected != document.digest:
                raise wrong_digest("the manifest", where, expected, document.digest)
        return document

    def small_blob(self, item: Descriptor, most: int = 4 << 20) -> bytes:
        """A blob that fits into memory, such as an image's configuration.

        Raises:
            FairleadError: it is larger than ``most`` bytes, or not what its digest says.
        """
        if item.size > most:
            raise self.transport.odd(
                f"its {item.media_type} has {item.size} bytes, {most} at most are read"
            )
        body, _, _ = self._whole(f"{self._name}/blobs/{item.digest}", item.size, {})
        if (real := digest_of(body)) != item.digest:
            raise wrong_digest("a part of the image", str(self.reference), item.digest, real)
        return body

    def _whole(self, place: str, most: int, headers: Mapping[str, str]) -> tuple[bytes, str, str]:
        """A small body, its media type and the digest that the registry announces."""
        request = Request("GET", place, "pull images", self._scope("pull"), headers=headers)
        pauses = list(self.transport.pauses_s)
        while True:
            with self.transport.request(request) as answer:
                try:
                    body = read_most(answer, most, str(self.reference))
                except requests.exceptions.ChunkedEncodingError:
                    if not pauses:
                        raise self.transport.odd("its answer is cut off repeatedly") from None
                    time.sleep(pauses.pop(0))
                    continue
                fields = answer.headers
                return body, fields.get("Content-Type", ""), fields.get("Docker-Content-Digest", "")

    def blob_size(self, digest: str, *, pushing: bool = False) -> int | None:
        """Bytes of a blob; None when the repository does not have it."""
        scope = self._scope("pull,push" if pushing else "pull")
        place = f"{self._name}/blobs/{digest}"
        request = Request("HEAD", place, "look for parts of an image", scope, (200, 404))
        with self.transport.request(request) as answer:
            if answer.status_code == 404:
                return None
            text = answer.headers.get("Content-Length", "")
            if not (text.isascii() and text.isdigit() and len(text) < 16):
                raise self.transport.odd("it does not say how large a part of the image is")
            return int(text)

    @contextmanager
    def open_blob(self, item: Descriptor, start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """The byte of a blob from which on the registry sends it, ``start`` or 0, and its pieces.

        Raises:
            requests.exceptions.ConnectionError: the connection was cut.
            FairleadError: it is refused, or sent below the pace of :mod:`fairlead_build.base.pace`.
        """
        place, scope = f"{self._name}/blobs/{item.digest}", self._scope("pull")
        headers = {"Range": f"bytes={start}-"} if start else {}
        request = Request("GET", place, "pull images", scope, (200, 206, 416), headers)
        with self.transport.request(request) as answer:
            if answer.status_code == 416:  # it knows another size than the descriptor
                yield 0, iter(())
                return
            if answer.status_code == 200:
                start = 0
            elif not (sent := answer.headers.get("Content-Range", "")).startswith(
                f"bytes {start}-"
            ):
                raise self.transport.odd(f"asked from byte {start} on, it sends `{sent[:60]}`")
            length, left = answer.headers.get("Content-Length"), item.size - start
            if length is not None and length != str(left):
                why = f"{left} bytes of the image are to come, it announces {length[:20]}"
                raise self.transport.odd(why)
            yield start, pieces(answer, str(self.reference))

    def push_blob(
        self,
        content: Path | bytes,
        digest: str,
        advance: Advance = lambda amount: None,
        mount_from: str = "",
    ) -> Sent:
        """Gives the registry a file, or a few bytes, unless it has them.

        Args:
            digest: of the content; the registry checks it too.
            mount_from: another repository of the registry that may have it.
            advance: called with the bytes that are there, as they come.
        Raises:
            FairleadError: refused, or cut off repeatedly.
        """
        size = content.stat().st_size if isinstance(content, Path) else len(content)
        if self.blob_size(digest, pushing=True) is not None:
            advance(size)
            return "there"
        pauses = list(self.transport.pauses_s)
        while True:
            place = self._begin_upload(digest, mount_from)
            if not place:
                advance(size)
                return "mounted"
            reader = _Reader(content, advance)
            try:
                self._send_blob(place, digest, size, reader)
                return "sent"
            except FairleadError as exc:
                # What was sent of a cut upload is lost; the file is sent again.
                if not pauses or exc.findings[0].check not in _PASSING:
                    raise
                advance(-reader.bytes_read)
                time.sleep(pauses.pop(0))
                mount_from = ""

    def check_push(self) -> None:
        """Begins an upload and takes it back, to know whether there may be one.

        Raises:
            FairleadError: the registry cannot be reached, or forbids to push.
        """
        place = self._begin_upload("", "")
        scope = self._scope("pull,push")
        # A registry that keeps the session instead forgets it by itself.
        with suppress(FairleadError):
            request = Request("DELETE", place, "push images", scope, (200, 202, 204), once=True)
            with self.transport.request(request):
                pass

    def _begin_upload(self, digest: str, mount_from: str) -> str:
        """The address for the bytes; empty when the blob was mounted."""
        query = f"?{urlencode({'mount': digest, 'from': mount_from})}" if mount_from else ""
        place, scope = f"{self._name}/blobs/uploads/{query}", self._scope("pull,push", mount_from)
        empty = {"Content-Length": "0"}
        request = Request("POST", place, "push images", scope, (201, 202), empty)
        with self.transport.request(request) as answer:
            if answer.status_code == 201:
                return ""
            if "Location" not in answer.headers:
                raise self.transport.odd("it takes an upload and does not say where")
            place = urljoin(answer.url, answer.headers["Location"])
            old, new = urlsplit(answer.url), urlsplit(place)
            if new.scheme not in ("http", "https") or (old.scheme, new.scheme) == ("https", "http"):
                raise self.transport.odd("it wants an upload over plain HTTP")
            return place

    def _send_blob(self, place: str, digest: str, size: int, source: _Reader) -> None:
        mark = "&" if urlsplit(place).query else "?"

        def body() -> IO[bytes]:
            source.seek(0)
            return source

        url = f"{place}{mark}{urlencode({'digest': digest})}"
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        scope = self._scope("pull,push")
        expect = (201, 404)
        request = Request("PUT", url, "push images", scope, expect, headers, body, once=True)
        with self.transport.request(request) as answer:
            # A session that ended, or that another server behind the name has.
            if answer.status_code == 404:
                raise fail("registry-upload-lost", reference=self.reference)

    def push_manifest(self, data: bytes, media_type: str, name: str) -> None:
        """Gives the registry a manifest under a tag or its digest.

        Raises:
            FairleadError: refused, or the registry computes another digest than ours.
        """
        place, headers = f"{self._name}/manifests/{name}", {"Content-Type": media_type}
        scope = self._scope("pull,push")
        with self.transport.request(
            Request("PUT", place, "push images", scope, (200, 201), headers, lambda: data)
        ) as answer:
            theirs, ours = answer.headers.get("Docker-Content-Digest", ""), digest_of(data)
        if theirs and theirs != ours:
            raise wrong_digest(
                "the manifest, as the registry has it", str(self.reference), ours, theirs
            )


_PASSING = (
    *("registry-unreachable", "registry-failing", "registry-busy", "registry-cut"),
    "registry-upload-lost",
)


class _Reader(io.BufferedReader):
    """Content that counts how much of it has been read."""

    def __init__(self, content: Path | bytes, advance: Advance):
        raw = io.FileIO(content) if isinstance(content, Path) else io.BytesIO(content)
        super().__init__(cast(io.RawIOBase, raw), buffer_size=_CHUNK)
        self.advance, self.bytes_read = advance, 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.bytes_read += len(data)
        self.advance(len(data))
        return data

    def seek(self, offset: int, whence: int = 0, /) -> int:
        if offset == 0 and whence == 0:
            self.advance(-self.bytes_read)
            self.bytes_read = 0
        return super().seek(offset, whence)


def wrong_digest(what: str, where: str, expected: str, real: str) -> FairleadError:
    """What came is not what its name says."""
    return fail("registry-digest", what=what, where=where, expected=expected, real=real)
