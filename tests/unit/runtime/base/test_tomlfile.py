"""TOML at the door: each mistake is told with its line, all at once, and nothing else happens."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from fairlead.base.errors import ExitCode, FairleadError, Finding
from fairlead.base.toml import Mistake, Strict, load


class Part(Strict):
    name: str
    kind: Literal["shared", "static"] = "shared"


class Table(Strict):
    count: int = Field(1, ge=1)
    parts: tuple[Part, ...] = ()


class Document(Strict):
    title: str
    table: Table = Table()


GOOD = """title = "x"

[table]
count = 2

[[table.parts]]
name = "a"

[[table.parts]]
name = "b"
kind = "static"
"""


def parse(text: str, path: Path, *rest: Any) -> Any:
    """:func:`load`, of a file with that text."""
    with TemporaryDirectory() as folder, chdir(folder):
        path.write_bytes(text.encode())
        return load(path, *rest)


def mistakes(text: str) -> list[Finding]:
    with pytest.raises(FairleadError) as caught:
        parse(text, Path("doc.toml"), Document, "fairlead check")
    assert caught.value.code is ExitCode.USAGE
    for finding in caught.value.findings:
        assert finding.what and finding.where and finding.why and "fairlead check" in finding.remedy
    return list(caught.value.findings)


def test_parse_good_is_a_frozen_value() -> None:
    value = parse(GOOD, Path("doc.toml"), Document, "x")
    assert [p.kind for p in value.table.parts] == ["shared", "static"]
    with pytest.raises(Exception, match="frozen"):
        value.title = "y"  # type: ignore[misc]


def test_parse_lists_every_mistake_with_its_line() -> None:
    text = GOOD.replace("count = 2", "count = 0").replace('"static"', '"statik"')
    found = mistakes(text.replace('title = "x"', 'titel = "x"'))
    by_place = {f.where: f for f in found}
    assert set(by_place) == {"doc.toml:1", "doc.toml", "doc.toml:4", "doc.toml:11"}
    assert by_place["doc.toml:1"].what == "unknown key `titel`"
    assert "Did you mean `title`?" in by_place["doc.toml:1"].why
    assert by_place["doc.toml"].what == "`title` is missing"
    assert "greater than or equal to 1" in by_place["doc.toml:4"].why
    last = by_place["doc.toml:11"]
    assert "allowed: shared, static" in last.why and "Did you mean `static`?" in last.why
    assert last.remedy == "edit line 11, then `fairlead check`"


def test_parse_unknown_key_far_from_any_lists_the_known() -> None:
    [finding] = mistakes(GOOD.replace("count = 2", "zzz = 2"))
    assert finding.where == "doc.toml:4" and "[table]" in finding.what
    assert "Known: count, parts." in finding.why


def test_parse_broken_toml_names_the_line() -> None:
    [finding] = mistakes('title = "x"\n[table\n')
    assert finding.check == "toml-syntax" and finding.where == "doc.toml:2"


def test_parse_cross_mistakes_come_with_the_others() -> None:
    def cross(data: dict) -> list[Mistake]:
        return [Mistake(("table", "count"), "two do not fit", "because")]

    with pytest.raises(FairleadError) as caught:
        parse(GOOD.replace("title", "titel"), Path("d.toml"), Document, "r", cross)
    assert {f.check for f in caught.value.findings} >= {"unknown-key", "contradiction"}
    [finding] = [f for f in caught.value.findings if f.check == "contradiction"]
    assert finding.where == "d.toml:4"


def test_load_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "doc.toml"
    path.write_text("\ufeff" + GOOD, encoding="utf-8")
    good = parse(GOOD, tmp_path / "good.toml", Document, "fairlead check")
    assert load(path, Document, "fairlead check") == good


def test_load_missing_or_not_text_is_reported(tmp_path: Path) -> None:
    for name, content, check in (
        ("gone.toml", None, "toml-unreadable"),
        ("latin.toml", b'title = "\xe9"', "toml-encoding"),
    ):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(FairleadError) as caught:
            load(path, Document, "fairlead check")
        [finding] = caught.value.findings
        assert finding.check == check and str(path) in finding.where


@given(
    text=st.one_of(
        st.text(max_size=80),
        st.lists(
            st.sampled_from(
                [*GOOD.splitlines(), "[[table]]", "[a.b]", 'x = """', "= 1", "table = 3"]
            ),
            max_size=8,
        ).map("\n".join),
    )
)
def test_parse_any_text_is_a_value_or_findings(text: str) -> None:
    try:
        parse(text, Path("doc.toml"), Document, "fairlead check")
    except FairleadError as exc:
        assert exc.code is ExitCode.USAGE and exc.findings
