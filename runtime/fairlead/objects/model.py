"""What a store holds and does, whatever its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from fairlead.objects.url import Url

# Metadata of objects that fairlead has written: the sha256 of their content, permissions, and a link's target.
SHA256, MODE, LINK = "fairlead-sha256", "fairlead-mode", "fairlead-link"
MARK = ".fairlead-incomplete"  # below a prefix as long as results are written there
PART = 16 << 20  # bytes of a file that travel as one request


@dataclass(frozen=True)
class Object:
    """An object as a listing shows it.

    Attributes:
        name: its key below the URL that was listed; empty if the URL is the object's own.
        size: bytes.
        etag: changes with its content.
        sha256: of its content, if a list of the files says it.
    """

    name: str
    size: int
    etag: str
    sha256: str = ""


@dataclass(frozen=True)
class Listing:
    """What is at a URL: one object, or those below a prefix, sorted by name.

    Attributes:
        single: the URL is an object's own.
        listed: a ``data.json`` there names the files.
    """

    url: str
    objects: tuple[Object, ...]
    single: bool = False
    listed: bool = False

    @property
    def bytes(self) -> int:
        return sum(each.size for each in self.objects)


@dataclass(frozen=True)
class Body:
    """An answer that is being read.

    Attributes:
        metadata: what the object's writer has said about it.
        size: of the whole object, bytes.
        chunks: the bytes that were asked for.
    """

    metadata: Mapping[str, str]
    size: int
    chunks: Iterator[bytes]


@dataclass(frozen=True)
class Upload:
    """An object that travels in parts, by the store's name for it."""

    name: str
    token: str


class Store(Protocol):
    """What is below one URL of a store. Its methods may be called by several threads.

    All raise FairleadError with a message of ``objects.toml``; :class:`fairlead.objects.failures.Passing` where trying
    again may help.
    """

    url: Url
    endpoint: str  # where it is, as far as its URL does not say that
    in_parts: bool  # whether large objects travel in parts; else by put_file

    def list(self) -> tuple[tuple[Object, ...], bool]:
        """What is there, and whether it is the URL's own object."""

    def stat(self, name: str) -> tuple[Object, Mapping[str, str]] | None:
        """An object and its metadata; None if there is none."""

    def read(self, each: Object, start: int, end: int) -> AbstractContextManager[Body]:
        """Bytes of an object, which must still be the one that was listed."""

    def part_bytes(self, each: Object) -> int:
        """In parts of which size the object was written, which its etag depends on; 0 if unknown."""

    def put(
        self, name: str, content: bytes, metadata: Mapping[str, str], replaces: str | None = None
    ) -> None:
        """Writes a whole object; the store compares a checksum.

        Args:
            replaces: the etag of the object whose place it takes, empty for none; None for whatever is there. With
                another one there, a store that has such conditions refuses: ``object-changed`` or ``object-missing``.
        """

    def put_file(self, name: str, path: str, metadata: Mapping[str, str]) -> None:
        """Writes a whole object from a file, of a store without parts."""

    def begin(self, name: str, metadata: Mapping[str, str]) -> tuple[Upload, Mapping[int, str]]:
        """Starts an upload in parts, or goes on with an interrupted one; its parts, MD5 by number from 1."""

    def put_part(self, upload: Upload, number: int, content: bytes) -> None:
        """Writes one part; the store compares a checksum."""

    def finish(self, upload: Upload, parts: Mapping[int, str], replaces: str | None = None) -> None:
        """Makes the object of its parts, MD5 by number; ``replaces`` as in :meth:`put`."""

    def delete(self, name: str, etag: str | None = None) -> None:
        """Removes an object, if it is there; with ``etag``, that version alone, as far as the store can do that."""

    def check_writable(self) -> None:
        """Tests that objects can be written, without leaving one."""

    def link(self, name: str, seconds: int) -> str:
        """A URL by which anyone can read the object for a time."""


@dataclass(frozen=True)
class StoreKind:
    """One kind of store.

    Attributes:
        schemes: of its URLs.
        title: for people.
        packages: that it needs, for messages and documentation.
        knows: whether it also takes a scheme that no kind declares.
        settings: by scheme, where its own tools take credentials and its address from.
    """

    schemes: tuple[str, ...]
    title: str
    packages: tuple[str, ...]
    opened: Callable[[Url], Store]
    knows: Callable[[str], bool] = lambda scheme: False
    settings: Mapping[str, tuple[str, str]] = field(default_factory=dict)
