"""HTTP, Google Cloud Storage, Azure, and whatever else fsspec and its packages reach.

Over HTTP there is nothing to list: a URL is one file, or a folder with a ``data.json`` that names its files. Objects are
written whole.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from fairlead.base import data_list
from fairlead.base.errors import FairleadError, fail
from fairlead.objects.failures import Passing, no_credentials, of_code, passing, wait_s
from fairlead.objects.model import Body, Object, StoreKind, Upload
from fairlead.objects.url import Url

_ATTEMPTS = 3
_WHERE = (
    "account_url",
    "account_name",
    "_endpoint",
    "host",
)  # of a file system: Azure's, Google's, SFTP's
_STATUS = ("status", "code", "status_code")  # of an exception: aiohttp's, gcsfs', Azure's
_MOST_LIST = 64 << 20  # bytes of a list of files


class ByFsspec:
    """What is below one URL."""

    in_parts = False

    def __init__(self, url: Url):
        self.url = url
        try:
            import fsspec

            kind: Any = fsspec.get_filesystem_class(url.scheme)
            # What a package logs of a failure, with tracebacks, it raises too.
            logging.getLogger(kind.__module__.partition(".")[0]).addHandler(logging.NullHandler())
            settings = {**kind._get_kwargs_from_urls(str(url)), **_settings(url.scheme)}
            self._files: Any = kind(**settings)
        except ImportError as exc:  # fsspec's own text names the package for a scheme
            raise fail("object-package", url=url, reason=exc) from None
        except Exception as exc:  # some connect here
            if "credential" in str(exc):
                raise no_credentials(f"{type(exc).__name__}: {exc}", url) from None
            raise passing(f"{type(exc).__name__}: {exc}", url) from None
        self._top = str(kind._strip_protocol(str(url))).rstrip("/")
        self.endpoint = next((str(v) for n in _WHERE if (v := getattr(self._files, n, ""))), "")
        # Those that are not asynchronous may have one connection, which threads must not share.
        one_by_one = not getattr(kind, "async_impl", False)
        self._turn: AbstractContextManager[Any] = threading.RLock() if one_by_one else nullcontext()

    @property
    def _is_http(self) -> bool:
        return self.url.scheme in ("http", "https")

    def list(self) -> tuple[tuple[Object, ...], bool]:
        if self._is_http:
            return self._listed_by_web()
        top = self._path("").rstrip("/")
        with self._failures(), suppress(FileNotFoundError):  # of a prefix that is not an object
            self._info(top)
        with self._failures():
            try:
                entries = self._files.find(top, detail=True)
            except FileNotFoundError:
                self._check_bucket(top)
                raise
        if not entries:
            self._check_bucket(top)
        if list(entries) == [top]:
            return (self._object("", entries[top]),), True
        names = sorted((path[len(top) + 1 :], info) for path, info in entries.items())
        return tuple(self._object(name, info) for name, info in names), False

    def _check_bucket(self, path: str) -> None:
        """Of a bucket that does not exist, some packages say that nothing is below its prefixes."""
        bucket = path.partition("/")[0]
        with self._failures():
            try:
                if bucket:  # of a path from a root, as SFTP has them, there is none
                    self._info(bucket)
            except FileNotFoundError as exc:
                raise of_code("NoSuchBucket", str(exc), self.url) from None

    def _listed_by_web(self) -> tuple[tuple[Object, ...], bool]:
        is_folder = not self.url.key or self.url.key.endswith("/")
        if not is_folder and (own := self.stat("")) is not None:
            return (own[0],), True
        known = self.stat(data_list.NAME)
        if known is None:
            raise fail("object-web-folder", place=self.url)
        if known[0].size > _MOST_LIST:
            raise fail("object-failed", place=self.url, reason="its data.json is too large")
        with self.read(known[0], 0, known[0].size) as body:
            text = b"".join(body.chunks)
        objects = [known[0]]
        for file in data_list.parsed(text, str(self.url.below(data_list.NAME))).values():
            if (status := self.stat(file.name)) is None:
                raise of_code("404", "data.json lists it", self.url, file.name)
            objects.append(status[0])
        return tuple(sorted(objects, key=lambda each: each.name)), False

    def stat(self, name: str) -> tuple[Object, Mapping[str, str]] | None:
        try:
            with self._failures(name):
                info = self._info(self._path(name))
        except FairleadError as exc:
            if exc.findings[0].check == "object-missing":
                return None
            raise
        if info.get("type") == "directory":
            return None
        if info.get("size") is None:
            raise of_code("501", "it does not say how long the file is", self.url, name)
        return self._object(name, info), info.get("metadata") or {}

    @contextmanager
    def read(self, each: Object, start: int, end: int) -> Iterator[Body]:
        with self._failures(each.name):
            content = (
                self._files.cat_file(self._path(each.name), start=start, end=end) if end else b""
            )
        if len(content) != end - start:
            raise passing(f"{len(content)} of {end - start} bytes came", self.url, each.name)
        now = self.stat(each.name)
        if now is None or (now[0].etag, now[0].size) != (each.etag, each.size):
            raise of_code("412", "another version is there", self.url, each.name)
        yield Body(now[1], each.size, iter((content,)))

    def part_bytes(self, each: Object) -> int:
        return 0

    def put(
        self, name: str, content: bytes, metadata: Mapping[str, str], replaces: str | None = None
    ) -> None:
        with self._failures(name):
            self._files.pipe_file(self._path(name), content)
            back = self._files.cat_file(self._path(name))
        if hashlib.sha256(back).digest() != hashlib.sha256(content).digest():
            raise passing("other bytes came back", self.url, name)

    def put_file(self, name: str, path: str, metadata: Mapping[str, str]) -> None:
        with self._failures(name):
            self._files.put_file(path, self._path(name))
            size = self._files.info(self._path(name)).get("size")
        if size != Path(path).stat().st_size:
            raise passing(f"it has {size} bytes there", self.url, name)

    def begin(self, name: str, metadata: Mapping[str, str]) -> tuple[Upload, Mapping[int, str]]:
        raise of_code("NotImplemented", "uploads in parts need S3", self.url, name)

    def put_part(self, upload: Upload, number: int, content: bytes) -> None:
        raise of_code("NotImplemented", "uploads in parts need S3", self.url, upload.name)

    def finish(self, upload: Upload, parts: Mapping[int, str], replaces: str | None = None) -> None:
        raise of_code("NotImplemented", "uploads in parts need S3", self.url, upload.name)

    def delete(self, name: str, etag: str | None = None) -> None:
        with self._failures(name):
            if self._files.exists(self._path(name)):
                self._files.rm_file(self._path(name))

    def check_writable(self) -> None:
        if self._is_http:
            raise of_code("MethodNotAllowed", "results cannot be written over HTTP", self.url)
        self.put(".fairlead-probe", b"", {})
        self.delete(".fairlead-probe")

    def link(self, name: str, seconds: int) -> str:
        path = self._path(name)
        try:
            with self._failures(name):
                return str(self._files.sign(path, expiration=seconds))
        except Passing as exc:  # what cannot sign says so in its own way
            raise of_code("NotImplemented", exc.findings[0].why, self.url, name) from None

    def _info(self, path: str) -> Mapping[str, Any]:
        """One request, whose answer is not waited for as long as a package may try again."""
        if not getattr(self._files, "async_impl", False):
            return dict(self._files.info(path))
        from fsspec import asyn

        limit = _ATTEMPTS * wait_s()
        try:
            return dict(asyn.sync(self._files.loop, self._files._info, path, timeout=limit))
        except TimeoutError:
            raise TimeoutError(f"no answer within {limit:g} s") from None

    def _object(self, name: str, info: Mapping[str, Any]) -> Object:
        tag = info.get("ETag") or info.get("etag") or info.get("md5Hash") or info.get("mtime") or ""
        return Object(name, int(info["size"]), str(tag))

    def _path(self, name: str) -> str:
        if self._is_http:
            return str(self.url.below(name) if name else self.url)
        path = f"{self._top}/{name}".rstrip("/")
        # Some packages take `?` and `#` for a version of an object: it would be another one.
        split = getattr(self._files, "split_path", None)
        kept = "/".join(filter(None, split(path)[:2])) if split else path
        if kept != path:
            raise fail("object-renamed", place=self.url.below(name), kept=kept)
        return path

    @contextmanager
    def _failures(self, name: str = "") -> Iterator[None]:
        """Errors of fsspec and its packages as findings."""
        try:
            with self._turn:
                yield
        except FairleadError:
            raise
        except FileNotFoundError as exc:
            # For fsspec, a web server that refuses, fails or cannot be reached has no such file; the cause has the reason.
            cause = exc.__cause__ if self._is_http else None
            raise self._failure(cause or exc, name) from None
        except PermissionError as exc:
            raise of_code("403", str(exc), self.url, name) from None
        except NotImplementedError as exc:
            raise of_code("501", str(exc), self.url, name) from None
        except Exception as exc:  # of packages that are not known here
            raise self._failure(exc, name) from None

    def _failure(self, exc: BaseException, name: str) -> FairleadError:
        if isinstance(exc, FileNotFoundError):
            return of_code("404", str(exc), self.url, name)
        text = f"{type(exc).__name__}: {exc}"
        status = next((str(v) for n in _STATUS if (v := getattr(exc, n, ""))), "")
        return (
            of_code(status, text, self.url, name)
            if status.isdigit()
            else passing(text, self.url, name)
        )


def _settings(scheme: str) -> dict[str, Any]:
    if scheme in ("http", "https"):
        import aiohttp

        limits = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=wait_s())
        return {"client_kwargs": {"timeout": limits}, "skip_instance_cache": True}
    return {"skip_instance_cache": True}


def _knows(scheme: str) -> bool:
    """Whether fsspec has a scheme, with its package or without; local files are paths."""
    try:
        import fsspec
    except ImportError:
        return False
    try:
        return not getattr(fsspec.get_filesystem_class(scheme), "local_file", False)
    except ImportError:
        return True  # of a package that is not installed, which opening names
    except ValueError:
        return False


STORE = StoreKind(
    ("http", "https", "gs", "abfs"),
    "HTTP, Google, Azure",
    ("fsspec",),
    ByFsspec,
    _knows,
    {
        "gs": (
            "GOOGLE_APPLICATION_CREDENTIALS, or `gcloud auth application-default login`",
            "STORAGE_EMULATOR_HOST, which is unset for Google's",
        ),
        "abfs": (
            "AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or "
            "AZURE_STORAGE_SAS_TOKEN",
            "that of AZURE_STORAGE_CONNECTION_STRING, or the account's name",
        ),
    },
)
