"""apt's two source formats, and which archive a lock's index name means."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.base.errors import FairleadError
from fairlead_build.recipe.lock import AptIndex
from fairlead_build.resolve.apt_sources import (
    AptSource,
    apt_sources,
    parse_deb822,
    parse_one_line,
    read_sources,
)

DEB822 = """\
# a comment
Types: deb deb-src
URIs: https://mirror.example/debian/ https://other.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
# another
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb-src
URIs: https://sources.example/debian
Suites: bookworm
Components: main

Enabled: no
Types: deb
URIs: https://off.example/debian
Suites: bookworm
Components: main

Types: deb
URIs: https://key.example/x
Suites: stable
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDMEZ
 -----END PGP PUBLIC KEY BLOCK-----
"""


def test_deb822_stanzas_are_read_and_disabled_ones_left_out() -> None:
    found = list(parse_deb822(DEB822))
    assert [s.uri for s in found] == [
        "https://mirror.example/debian",
        "https://other.example/debian",
        "https://key.example/x",
    ]
    assert found[0].suites == ("bookworm", "bookworm-updates")
    assert found[0].signed_by == "/usr/share/keyrings/debian-archive-keyring.gpg"
    assert "mDMEZ" in found[2].signed_by


def test_deb822_inline_key_survives_being_narrowed() -> None:
    source = list(parse_deb822(DEB822))[2]
    again = next(parse_deb822(source.narrowed("stable", ("main",))))
    assert again == source


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "deb http://a.example/debian bookworm main",
            AptSource("http://a.example/debian", ("bookworm",), ("main",)),
        ),
        (
            "deb [arch=amd64 signed-by=/k.gpg] https://a.example/debian/ bookworm main contrib # why",
            AptSource("https://a.example/debian", ("bookworm",), ("main", "contrib"), "/k.gpg"),
        ),
        (
            "deb [trusted=yes] file:/srv/debian bookworm main",
            AptSource("file:/srv/debian", ("bookworm",), ("main",), "", True),
        ),
    ],
)
def test_one_line_source_is_read(line: str, expected: AptSource) -> None:
    assert list(parse_one_line(line)) == [expected]


@pytest.mark.parametrize(
    "line", ["# deb http://a b c", "deb-src http://a b c", "", "nonsense", "deb"]
)
def test_one_line_other_text_is_no_source(line: str) -> None:
    assert list(parse_one_line(line)) == []


def etc(folder: Path, text: str) -> Path:
    (folder / "sources.list.d").mkdir()
    (folder / "sources.list.d" / "debian.sources").write_text(text)
    (folder / "sources.list").write_text("deb https://third.example/apt bookworm main\n")
    (folder / "sources.list.d" / "notes.txt").write_text("deb http://ignored.example x main")
    return folder


def test_index_is_found_debian_before_third_parties(tmp_path: Path) -> None:
    found = apt_sources(
        AptIndex("debian", "bookworm", ("main",)), etc_apt=etc(tmp_path, DEB822), environ={}
    )
    assert [s.uri for s in found] == [
        "https://mirror.example/debian",
        "https://other.example/debian",
        "https://third.example/apt",
    ]
    assert len(read_sources(tmp_path)) == 4


def test_index_override_wins_and_keeps_a_known_keyring(tmp_path: Path) -> None:
    environ = {"FAIRLEAD_INDEX_DEBIAN": "https://mirror.example/debian/"}
    (found,) = apt_sources(
        AptIndex("debian", "trixie", ("main",)), etc_apt=etc(tmp_path, DEB822), environ=environ
    )
    assert found.uri == "https://mirror.example/debian"
    assert found.signed_by.endswith("debian-archive-keyring.gpg")
    assert found.origin == "$FAIRLEAD_INDEX_DEBIAN"


def test_index_not_configured_names_the_variable(tmp_path: Path) -> None:
    with pytest.raises(FairleadError) as caught:
        apt_sources(
            AptIndex("debian", "sarge", ("main",)), etc_apt=etc(tmp_path, DEB822), environ={}
        )
    assert "FAIRLEAD_INDEX_DEBIAN" in caught.value.findings[0].remedy
