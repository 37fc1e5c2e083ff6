"""Source archives of a Python index, by name and version: pip itself would run their code to list
them. Speaks the simple API, HTML or JSON (PEP 503, 691), over http(s) or from a folder, which
pypi-simple does not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import url2pathname

from packaging.version import InvalidVersion, Version

from fairlead.base.errors import fail
from fairlead_build.recipe.inherit import project
from fairlead_build.resolve.download import Place, get
from fairlead_build.resolve.pip import PipSettings

_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"


@dataclass(frozen=True)
class IndexFile:
    """One file of an index. ``sha256`` is empty where the index does not say."""

    file: str
    place: Place
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
                yield IndexFile(path.name, Place(str(path)), "")
    for url in settings.indexes:
        yield from _page(f"{url}/{project(name)}/", settings)


def _page(url: str, settings: PipSettings) -> Iterator[IndexFile]:
    if url.startswith("file:"):
        folder = Path(url2pathname(urlsplit(url).path))
        page = folder / "index.html"
        text, kind = (page.read_text("utf-8"), "text/html") if page.is_file() else ("", "")
    else:
        answer = get(url, settings.certificates, accept=_ACCEPT, absent_ok=True)
        text, kind = answer if answer is not None else ("", "")
    if "json" in kind:
        yield from _from_json(text, url, settings)
    else:
        yield from _from_html(text, url, settings)


def _from_json(text: str, url: str, settings: PipSettings) -> Iterator[IndexFile]:
    try:
        files = json.loads(text)["files"]
        for item in files:
            place = Place(urljoin(url, item["url"]), settings.certificates)
            yield IndexFile(item["filename"], place, item["hashes"].get("sha256", ""))
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


def _from_html(text: str, url: str, settings: PipSettings) -> Iterator[IndexFile]:
    parser = _Links()
    parser.feed(text)
    for link in parser.links:
        whole = urlsplit(urljoin(url, link))
        digest = re.search(r"sha256=([0-9a-f]{64})", whole.fragment)
        plain = whole._replace(fragment="").geturl()
        place = url2pathname(whole.path) if whole.scheme == "file" else plain
        file, sha256 = unquote(whole.path.rsplit("/", 1)[-1]), digest[1] if digest else ""
        yield IndexFile(file, Place(place, settings.certificates), sha256)


def _parsed(version: str) -> Version | None:
    try:
        return Version(version)
    except InvalidVersion:
        return None
