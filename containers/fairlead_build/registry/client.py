"""What fairlead asks a registry: manifests and blobs, checked by their digests.

Source: OCI distribution specification 1.1. ``transport.py`` speaks HTTP, ``manifest.py`` reads what
comes, ``download.py`` goes on where a transfer was cut.
"""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Literal
from urllib.parse import urlencode, urljoin, urlsplit

import requests

from fairlead.base.errors import FairleadError, fail
from fairlead_build.registry.manifest import (
    INDEXES,
    MANIFESTS,
    MOST_BYTES,
    Descriptor,
    Index,
    Manifest,
    read_document,
)
from fairlead_build.registry.reference import Reference, is_digest
from fairlead_build.registry.transport import PAUSES_S, Transport, read_most

Sent = Literal["there", "mounted", "sent"]
Advance = Callable[[float], None]

_ACCEPT = ", ".join((*MANIFESTS, *INDEXES))
_CHUNK = 256 << 10  # what is lost at most when a connection is cut


def _nothing(amount: float) -> None: ...


class Client:
    """The repository of ``reference`` in its registry."""

    def __init__(
        self,
        reference: Reference,
        *,
        insecure: bool = False,
        environ: Mapping[str, str] = os.environ,
        pauses_s: tuple[float, ...] = PAUSES_S,
        sleep: Callable[[float], None] = time.sleep,
    ):
        """
        Args:
            insecure: plain HTTP is good enough where the host speaks no TLS.
        """
        self.reference = reference
        self.transport = Transport(
            reference, insecure=insecure, environ=environ, pauses_s=pauses_s, sleep=sleep
        )

    @property
    def _name(self) -> str:
        return self.reference.repository

    def _scope(self, actions: str, other: str = "") -> str:
        scope = f"repository:{self._name}:{actions}"
        return f"{scope} repository:{other}:pull" if other else scope

    def has_manifest(self, wanted: str, *, pushing: bool = True) -> str:
        """The digest of the manifest called ``wanted``; empty when there is none.

        Args:
            pushing: ask for the right to push too, once for all that follows.
        """
        with self.transport.request(
            "HEAD",
            f"{self._name}/manifests/{wanted}",
            doing="look for images",
            scope=self._scope("pull,push" if pushing else "pull"),
            expect=(200, 404),
            headers={"Accept": _ACCEPT},
        ) as answer:
            digest = answer.headers.get("Docker-Content-Digest", "")
            return digest if answer.status_code == 200 and is_digest(digest) else ""

    def manifest(self, wanted: str = "") -> Manifest | Index:
        """The manifest or index called ``wanted`` (a tag or digest; the reference's without it).

        Raises:
            FairleadError: there is none, it may not be had, or it is not what its digest says.
        """
        wanted = wanted or self.reference.wanted
        where = str(
            self.reference.at(wanted) if is_digest(wanted) else self.reference.tagged(wanted)
        )
        data, kind, told = self._whole(
            f"{self._name}/manifests/{wanted}", "pull images", MOST_BYTES, {"Accept": _ACCEPT}
        )
        if len(data) > MOST_BYTES:
            raise self.transport.odd(f"its manifest is larger than {MOST_BYTES} bytes")
        found = read_document(data, kind, where)
        for expected in (wanted if is_digest(wanted) else "", told if is_digest(told) else ""):
            if expected and expected != found.digest:
                raise wrong_digest("the manifest", where, expected, found.digest)
        return found

    def small_blob(self, item: Descriptor, most: int = 4 << 20) -> bytes:
        """A blob that fits into memory, such as an image's configuration.

        Raises:
            FairleadError: it is larger than ``most`` bytes, or not what its digest says.
        """
        if item.size > most:
            raise self.transport.odd(
                f"its {item.media_type} has {item.size} bytes, {most} at most are read"
            )
        data, _, _ = self._whole(f"{self._name}/blobs/{item.digest}", "pull images", item.size, {})
        real = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if real != item.digest:
            raise wrong_digest("a part of the image", str(self.reference), item.digest, real)
        return data

    def _whole(
        self, place: str, doing: str, most: int, headers: Mapping[str, str]
    ) -> tuple[bytes, str, str]:
        """A small body, its media type and the digest that the registry tells of it."""
        pauses = list(self.transport.pauses_s)
        while True:
            with self.transport.request(
                "GET", place, doing=doing, scope=self._scope("pull"), expect=(200,), headers=headers
            ) as answer:
                try:
                    data = read_most(answer, most)
                except requests.exceptions.ChunkedEncodingError:
                    if not pauses:
                        raise self.transport.odd("its answer is cut off again and again") from None
                    self.transport.sleep(pauses.pop(0))
                    continue
                return (
                    data,
                    answer.headers.get("Content-Type", ""),
                    answer.headers.get("Docker-Content-Digest", ""),
                )

    def blob_size(self, digest: str, *, pushing: bool = False) -> int | None:
        """Bytes of a blob; None when the repository does not have it."""
        with self.transport.request(
            "HEAD",
            f"{self._name}/blobs/{digest}",
            doing="look for parts of an image",
            scope=self._scope("pull,push" if pushing else "pull"),
            expect=(200, 404),
        ) as answer:
            if answer.status_code == 404:
                return None
            text = answer.headers.get("Content-Length", "")
            if not (text.isascii() and text.isdigit() and len(text) < 16):
                raise self.transport.odd("it does not say how large a part of the image is")
            return int(text)

    def open_blob(self, item: Descriptor, start: int) -> OpenBlob:
        """A blob's body from byte ``start`` on; to be used as a context manager."""
        return OpenBlob(self, item, start)

    def push_blob(
        self, path: Path, digest: str, advance: Advance = _nothing, mount_from: str = ""
    ) -> Sent:
        """Gives the registry the file ``path``, unless it has it.

        Args:
            digest: of the file; the registry checks it too.
            mount_from: another repository of the registry that may have it.
            advance: told the bytes that are there, as they come.
        Raises:
            FairleadError: refused, or cut off again and again.
        """
        size = path.stat().st_size
        if self.blob_size(digest, pushing=True) is not None:
            advance(size)
            return "there"
        pauses = list(self.transport.pauses_s)
        while True:
            place = self._begin_upload(digest, mount_from)
            if not place:
                advance(size)
                return "mounted"
            reader = _Reader(path, advance)
            try:
                self._send_blob(place, digest, size, reader)
                return "sent"
            except FairleadError as exc:
                # What was sent of a cut upload is lost; the file is sent anew.
                if not pauses or exc.findings[0].check not in _PASSING:
                    raise
                advance(-reader.told)
                self.transport.sleep(pauses.pop(0))
                mount_from = ""

    def push_bytes(self, data: bytes, digest: str) -> Sent:
        """As :meth:`push_blob`, for a small blob in memory."""
        if self.blob_size(digest, pushing=True) is not None:
            return "there"
        place = self._begin_upload(digest, "")
        self._send_blob(place, digest, len(data), io.BytesIO(data))
        return "sent"

    def _begin_upload(self, digest: str, mount_from: str) -> str:
        """The address for the bytes; empty when the blob was mounted."""
        query = f"?{urlencode({'mount': digest, 'from': mount_from})}" if mount_from else ""
        with self.transport.request(
            "POST",
            f"{self._name}/blobs/uploads/{query}",
            doing="push images",
            scope=self._scope("pull,push", mount_from),
            expect=(201, 202),
            headers={"Content-Length": "0"},
        ) as answer:
            if answer.status_code == 201:
                return ""
            if "Location" not in answer.headers:
                raise self.transport.odd("it takes an upload and does not say where")
            place = urljoin(answer.url, answer.headers["Location"])
            old, new = urlsplit(answer.url), urlsplit(place)
            if new.scheme not in ("http", "https") or (old.scheme, new.scheme) == ("https", "http"):
                raise self.transport.odd("it wants an upload over plain HTTP")
            return place

    def _send_blob(self, place: str, digest: str, size: int, source: IO[bytes]) -> None:
        mark = "&" if urlsplit(place).query else "?"

        def body() -> IO[bytes]:
            source.seek(0)
            return source

        with self.transport.request(
            "PUT",
            f"{place}{mark}{urlencode({'digest': digest})}",
            doing="push images",
            scope=self._scope("pull,push"),
            expect=(201,),
            headers={"Content-Type": "application/octet-stream", "Content-Length": str(size)},
            body=body,
            tries=1,
        ):
            pass

    def push_manifest(self, data: bytes, media_type: str, name: str) -> None:
        """Gives the registry a manifest under a tag or its digest.

        Raises:
            FairleadError: refused, or the registry understood another digest than ours.
        """
        with self.transport.request(
            "PUT",
            f"{self._name}/manifests/{name}",
            doing="push images",
            scope=self._scope("pull,push"),
            expect=(200, 201),
            headers={"Content-Type": media_type},
            body=lambda: data,
        ) as answer:
            told = answer.headers.get("Docker-Content-Digest", "")
        own = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if told and told != own:
            raise wrong_digest(
                "the manifest, as the registry has it", str(self.reference), own, told
            )


_PASSING = ("registry-unreachable", "registry-failing", "registry-busy", "registry-cut")


class OpenBlob:
    """The body of a blob, from some byte on."""

    def __init__(self, client: Client, item: Descriptor, start: int):
        self._client, self._item, self.start = client, item, start
        headers = {"Range": f"bytes={start}-"} if start else {}
        self._request = client.transport.request(
            "GET",
            f"{client._name}/blobs/{item.digest}",
            doing="pull images",
            scope=client._scope("pull"),
            expect=(200, 206, 416),
            headers=headers,
        )

    def __enter__(self) -> OpenBlob:
        self._answer = answer = self._request.__enter__()
        odd = self._client.transport.odd
        if answer.status_code != 206:
            self.start = 0  # it sends the whole, or (416) knows another size than the descriptor
        else:
            told = answer.headers.get("Content-Range", "")
            if not told.startswith(f"bytes {self.start}-"):
                raise odd(f"asked from byte {self.start} on, it sends `{told[:60]}`")
        self.usable = answer.status_code != 416
        length = answer.headers.get("Content-Length")
        left = self._item.size - self.start
        if self.usable and length is not None and length != str(left):
            raise odd(f"{left} bytes of the image are to come, it announces {length[:20]}")
        return self

    def __exit__(self, *what: object) -> None:
        self._request.__exit__(None, None, None)

    def read(self) -> bytes:
        """The next bytes; empty at the end.

        Raises:
            requests.exceptions.ConnectionError: the connection was cut.
        """
        try:
            data = self._answer.raw.read(_CHUNK)
        except Exception as exc:  # urllib3's, ssl's and the socket's own
            raise requests.exceptions.ConnectionError(exc) from None
        assert isinstance(data, bytes)
        return data


class _Reader(io.BufferedReader):
    """A file that tells how much of it has been read."""

    def __init__(self, path: Path, advance: Advance):
        super().__init__(io.FileIO(path, "rb"), buffer_size=_CHUNK)
        self.advance, self.told = advance, 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.told += len(data)
        self.advance(len(data))
        return data

    def seek(self, offset: int, whence: int = 0, /) -> int:
        if offset == 0 and whence == 0:
            self.advance(-self.told)
            self.told = 0
        return super().seek(offset, whence)


def wrong_digest(what: str, where: str, expected: str, real: str) -> FairleadError:
    """What came is not what its name says."""
    return fail(
        f"{what} is not what its digest says",
        where=where,
        why=f"expected {expected}, it is {real}: changed on the way, or in the registry",
        remedy="run the same command again; if it stays, push the image again",
        check="registry-digest",
    )
