"""Source archives: found in a Python index by name and version, downloaded by address.

pip itself would run their code to list them. Speaks the simple API, HTML or JSON (PEP 503, 691), over
http(s) or from a folder, which pypi-simple does not read. An interrupted download goes on where it
stopped, also in another process: what is there already is kept under the hash that it is to have;
requests and pip resume nothing across processes.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit
from urllib.request import url2pathname

from packaging.version import InvalidVersion, Version

from fairlead.base import bounded_json
from fairlead.base.errors import FairleadError, fail
from fairlead_build.recipe.inherit import project
from fairlead_build.resolve.pip import PipSettings

if TYPE_CHECKING:
    from requests import Response, Session

_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_MOST_PAGE = 256 << 20  # of an index: the largest project's has 20 MB
_TRIES = 5
_PAUSE_S = 1
_TIMEOUT_S = (20, 60)  # to connect; between two bytes


@dataclass(frozen=True)
class Place:
    """Where a file is: an address, or a path on this machine."""

    address: str
    certificates: str = ""

    @property
    def shown(self) -> str:
        """Without a password."""
        parts = urlsplit(self.address)
        host = parts.netloc.rsplit("@", 1)[-1]
        return urlunsplit((parts.scheme, host, parts.path, "", ""))


# --- by name and version ------------------------------------------------------------------------


class IndexFile(NamedTuple):
    """One file of an index. ``sha256`` is empty where the index does not say."""

    file: str
    address: str
    sha256: str


def source_archive(name: str, version: str, settings: PipSettings, remedy: str) -> IndexFile:
    """The source archive of a project's version.

    Raises:
        FairleadError: no place of pip's configuration has it, or none can be reached.
    """
    others: set[str] = set()
    for file in _files(name, settings):
        # The version of a source archive of ``name``; other files have none.
        match = re.fullmatch(r"(.+)-([^-]+)\.(tar\.gz|tgz|tar\.bz2|tar\.xz|zip)", file.file)
        if match is None or project(match[1]) != project(name):
            continue
        if match[2] == version or _parsed(match[2]) == _parsed(version) is not None:
            return file
        others.add(match[2])
    numbers = {text: [int(number) for number in re.findall(r"\d+", text)] for text in others}
    known = ", ".join(sorted(others, key=numbers.__getitem__)[-5:])
    raise fail(
        "source-unknown-newest-ones" if known else "source-unknown-version",
        name=name,
        version=version,
        where=", ".join((*settings.indexes, *settings.links)),
        known=known,
        remedy=remedy,
    )


def _files(name: str, settings: PipSettings) -> Iterator[IndexFile]:
    for place in settings.links:
        folder = Path(unquote(urlsplit(place).path)) if place.startswith("file:") else Path(place)
        if "://" not in place or place.startswith("file:"):
            for path in sorted(folder.expanduser().glob("*")) if folder.is_dir() else ():
                yield IndexFile(path.name, str(path), "")
    for url in settings.indexes:
        yield from _page(f"{url}/{project(name)}/", settings)


def _page(url: str, settings: PipSettings) -> Iterator[IndexFile]:
    if url.startswith("file:"):
        folder = Path(url2pathname(urlsplit(url).path))
        page = folder / "index.html"
        text, kind = (page.read_text("utf-8"), "text/html") if page.is_file() else ("", "")
    else:
        text, kind = _get(Place(url, settings.certificates))
    return _from_json(text, url) if "json" in kind else _from_html(text, url)


def _from_json(text: str, url: str) -> Iterator[IndexFile]:
    try:
        for item in bounded_json.loads(text)["files"]:
            address, sha256 = urljoin(url, item["url"]), item["hashes"].get("sha256", "")
            yield IndexFile(item["filename"], address, sha256)
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise fail("index-answer", url=url, reason=exc) from None


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        link = dict(attrs).get("href")
        if tag == "a" and link:
            self.links.append(link)


def _from_html(text: str, url: str) -> Iterator[IndexFile]:
    parser = _Links()
    parser.feed(text)
    for link in parser.links:
        try:
            whole = urlsplit(urljoin(url, link))
        except ValueError:  # as of a damaged address: pip, too, goes on with the other links
            continue
        digest = re.search(r"sha256=([0-9a-f]{64})", whole.fragment)
        plain = whole._replace(fragment="").geturl()
        address = url2pathname(whole.path) if whole.scheme == "file" else plain
        file, sha256 = unquote(whole.path.rsplit("/", 1)[-1]), digest[1] if digest else ""
        yield IndexFile(file, address, sha256)


def _parsed(version: str) -> Version | None:
    try:
        return Version(version)
    except InvalidVersion:
        return None


# --- by address ---------------------------------------------------------------------------------


def _get(place: Place) -> tuple[str, str]:
    """The text of a page and its content type; both are empty where it is absent.

    Raises:
        FairleadError: it cannot be downloaded.
    """
    import requests

    from fairlead_build.base.pace import pieces

    with _session(place) as session:
        try:
            answer = _ask(session, place, {"Accept": _ACCEPT})
            if answer.status_code == 404:
                return "", ""
            _check(answer, place)
            body = bytearray()
            for piece in pieces(answer, place.shown):
                body += piece
                if len(body) > _MOST_PAGE:
                    raise _unreachable(place, f"the page is larger than {_MOST_PAGE >> 20} MiB")
            return body.decode("utf-8", "replace"), answer.headers.get("Content-Type", "")
        except requests.RequestException as exc:
            raise _unreachable(place, str(exc)) from None


def download(place: Place, partial: Path, advance: Callable[[float], None]) -> None:
    """Completes ``partial`` with the file at ``place``, from where it stopped.

    Args:
        advance: called with how many bytes came, those of earlier tries included.
    Raises:
        FairleadError: it cannot be downloaded; what came is kept.
    """
    partial.parent.mkdir(parents=True, exist_ok=True)
    if "://" not in place.address:
        shutil.copyfile(place.address, partial)
        advance(partial.stat().st_size)
        return
    import requests

    from fairlead_build.base.pace import pieces

    reported = 0
    with _session(place) as session:
        for left in reversed(range(_TRIES)):
            done = partial.stat().st_size if partial.exists() else 0
            advance(done - reported)
            reported = done
            try:
                answer = _ask(session, place, {"Range": f"bytes={done}-"} if done else {})
                if answer.status_code == 416:  # nothing is left of it, or it is another file
                    answer.close()
                    if answer.headers.get("Content-Range", "") == f"bytes */{done}":
                        return
                    partial.unlink()
                    continue
                _check(answer, place)
                with partial.open("ab" if answer.status_code == 206 else "wb") as out:
                    if answer.status_code != 206:
                        advance(-reported)
                        reported = 0
                    for chunk in pieces(answer, place.shown):
                        out.write(chunk)
                        reported += len(chunk)
                        advance(len(chunk))
                    out.flush()
                    os.fsync(out.fileno())
                return
            except requests.RequestException as exc:
                if not left:
                    raise _unreachable(place, str(exc)) from None
                time.sleep(_PAUSE_S)


def _session(place: Place) -> Session:
    import requests

    from fairlead_build.base.pace import Paced

    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, Paced())
    if place.certificates:
        session.verify = place.certificates
    session.headers["Accept-Encoding"] = "identity"  # a Range counts the file's own bytes
    return session


def _ask(session: Session, place: Place, headers: dict[str, str]) -> Response:
    return session.get(place.address, headers=headers, timeout=_TIMEOUT_S, stream=True)


def _check(answer: Response, place: Place) -> None:
    if answer.status_code not in (200, 206):
        answer.close()
        raise _unreachable(place, f"the answer is {answer.status_code} {answer.reason}")


def _unreachable(place: Place, why: str) -> FairleadError:
    name = Path(urlsplit(place.address).path).name or place.shown
    return fail("download", name=name, place=place, why=why.replace(place.address, place.shown))
