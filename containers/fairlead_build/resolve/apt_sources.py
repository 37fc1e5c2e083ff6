"""Where this machine gets .debs from: its own apt configuration, in both of apt's formats.

A lock says ``Debian bookworm main``; this module says at which URL, with which keyring. Nothing
here contacts a host. python-apt is not on PyPI, and python-debian is under the GPL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from fairlead.base.errors import fail
from fairlead_build.recipe.lock import AptIndex

_KEYRINGS = {
    "debian": "/usr/share/keyrings/debian-archive-keyring.gpg",
    "ubuntu": "/usr/share/keyrings/ubuntu-archive-keyring.gpg",
}
_KEYRING_PACKAGES = {"debian": "debian-archive-keyring", "ubuntu": "ubuntu-keyring"}
_SCHEMES = ("http://", "https://", "file:", "copy:", "mirror+")


@dataclass(frozen=True)
class AptSource:
    """One archive as apt knows it.

    Attributes:
        uri: the archive's root, without a closing slash.
        signed_by: key file, fingerprint, or the key itself, as in apt's sources; empty: apt's own.
        trusted: the administrator exempted it from signature checks.
        origin: the file that says so, or the variable.
    """

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str = ""
    trusted: bool = False
    origin: str = field(default="", compare=False)

    def narrowed(self, suite: str, components: tuple[str, ...]) -> str:
        """A deb822 stanza for one suite of it."""
        stanza = (
            f"Types: deb\nURIs: {self.uri}\nSuites: {suite}\nComponents: {' '.join(components)}\n"
        )
        stanza += f"Signed-By: {self.signed_by}\n" if self.signed_by else ""
        return stanza + ("Trusted: yes\n" if self.trusted else "")


def apt_sources(
    index: AptIndex, *, etc_apt: Path = Path("/etc/apt"), environ: Mapping[str, str] = os.environ
) -> tuple[AptSource, ...]:
    """Candidates for an index, the likeliest first.

    A third party's archive may use a distribution's suite names too, so the caller must check
    the Release file's origin, or the hash of what came.

    Raises:
        FairleadError: none is configured.
    """
    configured = [s for s in read_sources(etc_apt) if s.uri.startswith(_SCHEMES)]
    suite, components = index.suite, index.components
    fits = [s for s in configured if suite in s.suites and set(components) <= set(s.components)]
    if override := environ.get(index.override, "").rstrip("/"):
        known = next((s for s in configured if s.uri == override), None)
        base = known or AptSource(override, (suite,), components, _KEYRINGS[index.distribution])
        return (replace(base, origin=f"${index.override}"),)
    if not fits:
        keyring = _KEYRING_PACKAGES[index.distribution]
        given: dict[str, Any] = {"etc_apt": etc_apt, "configured": len(configured)}
        raise fail("apt-source-missing-no-offers", index=index, keyring=keyring, **given)
    likely = re.compile(rf"/{index.distribution}(-security)?$")
    return tuple(sorted(set(fits), key=lambda s: (not likely.search(s.uri), s.uri)))


def read_sources(etc_apt: Path) -> list[AptSource]:
    """Every binary archive of sources.list and sources.list.d, disabled ones left out."""
    files = [etc_apt / "sources.list", *sorted((etc_apt / "sources.list.d").glob("*"))]
    sources: list[AptSource] = []
    for path in files:
        if path.suffix not in (".list", ".sources") or not path.is_file():
            continue
        try:
            text = path.read_text("utf-8", "replace")
        except OSError:
            continue  # readable by root only: it may hold a password, and apt skips it for users too
        parse = parse_deb822 if path.suffix == ".sources" else parse_one_line
        sources += [replace(source, origin=str(path)) for source in parse(text)]
    return sources


_ONE_LINE = re.compile(r"^deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s*(.*)$")


def parse_one_line(text: str) -> Iterator[AptSource]:
    """``deb [signed-by=KEY] URI SUITE COMPONENT...`` lines, as in sources.list(5)."""
    for line in text.splitlines():
        if not (match := _ONE_LINE.match(line.split("#", 1)[0].strip())):
            continue
        options = dict(part.partition("=")[::2] for part in (match[1] or "").split())
        yield AptSource(
            uri=match[2].rstrip("/"),
            suites=(match[3],),
            components=tuple(match[4].split()),
            signed_by=options.get("signed-by", "").replace(",", " "),
            trusted=options.get("trusted") == "yes",
        )


def parse_deb822(text: str) -> Iterator[AptSource]:
    """Stanzas of ``Key: value`` lines, as in sources.list(5)."""
    for stanza in re.split(r"\n\s*\n", re.sub(r"^#.*\n?", "", text, flags=re.MULTILINE)):
        values = HeaderParser().parsestr(stanza.lstrip("\n"))
        enabled = values.get("enabled", "yes").strip().lower() != "no"
        if "deb" not in values.get("types", "").split() or not enabled:
            continue
        for uri in values.get("uris", "").split():
            yield AptSource(
                uri=uri.rstrip("/"),
                suites=tuple(values.get("suites", "").split()),
                components=tuple(values.get("components", "").split()),
                signed_by=values.get("signed-by", "").rstrip(),
                trusted=values.get("trusted", "").strip().lower() == "yes",
            )
