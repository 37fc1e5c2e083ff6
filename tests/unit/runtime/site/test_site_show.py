"""`fairlead site` as a stranger meets it: profiles shown, listed, begun, and their schema."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import click
import pytest
from tests.support import forked
from tools import site_reference

from fairlead.base.serde import from_json, to_json
from fairlead.cli.screen import table, wrap
from fairlead.cli.site_show import profile_lines
from fairlead.site import Site, Status, load_site
from fairlead.site.profile import schema, schema_text

SITES = site_reference.bundled_sites()
each_site = pytest.mark.parametrize("site", SITES.values(), ids=SITES.keys())


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    names = ("CACHE", "CONFIG", "DATA")
    folders = {f"XDG_{n}_HOME": str(tmp_path / n) for n in names}
    kept = {k: v for k, v in os.environ.items() if not k.startswith("FAIRLEAD_")}
    return {**kept, **folders, "COLUMNS": "100"}


def call(environ: dict[str, str], *words: str) -> tuple[int, str, str]:
    done = forked.fairlead(("site", *words), environ)
    return done.returncode, done.stdout, done.stderr


def shown(site: Site, sources: bool = False, width: int = 100) -> str:
    return click.unstyle("\n".join(profile_lines(site, sources, width)))


@each_site
@pytest.mark.parametrize(("width", "sources"), [(80, False), (100, True)])
def test_profile_is_shown_whole_within_the_width(site: Site, width: int, sources: bool) -> None:
    lines = shown(site, sources, width).split("\n")
    # Only a single word, as a long variable, may reach beyond.
    assert [line for line in lines if len(line) > width and len(line.split()[-1]) < 30] == []
    # A line break may stand between any two items, and behind the slash of a long path.
    said = re.sub(r"\s+", "", "".join(lines))
    for key in site.origins:
        value = site.value(key) if key.count(".") == 1 else ""
        for item in value if isinstance(value, tuple) else ():
            assert item.replace(" ", "") in said, key
    for note in site.notes:
        assert note.replace(" ", "") in said


@each_site
def test_profile_shown_marks_each_guess_and_numbers_each_source(site: Site) -> None:
    text = shown(site, True)
    guesses = re.findall(r"^(?:  \w+| ) +guess \?(?: \[\d+\])? ", text, re.MULTILINE)
    assert len(guesses) == site.known[Status.GUESS]
    sources = {o.source for o in site.origins.values() if o.status is not Status.GUESS}
    sources |= {r.origin.source for r in site.performance}
    listed = text.partition("\nsources\n")[2]
    assert len(re.findall(r"^  \[\d+\]", listed, re.MULTILINE)) == len(sources)
    for source in sources:
        assert re.sub(r"\s", "", source) in re.sub(r"\s", "", listed)
    assert "[1]" not in shown(site)


def test_entry_of_a_table_says_where_it_comes_from_when_it_is_another_profile(
    tmp_path: Path,
) -> None:
    path = tmp_path / "cori.toml"
    path.write_text(
        '[site]\nname = "cori"\nsummary = "x"\nextends = "cori"\n[sources.me]\ntext = "me"\nstatus = "run"\n'
        '[environment]\nsource = "me"\nset = { X = "1" }\n'
    )
    text = shown(load_site(str(path)))
    assert "HDF5_USE_FILE_LOCKING=FALSE (user, cori)" in text
    assert re.search(r"^ +X=1$", text, re.MULTILINE)


@each_site
def test_profile_survives_its_json(site: Site) -> None:
    assert from_json(Site, json.loads(json.dumps(to_json(site)))) == site


def test_list_has_every_profile_and_fits_a_screen(environ: dict[str, str]) -> None:
    code, out, err = call(environ, "list")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 100
    sites, families = out.split("\n\n")[:2]
    for name, site in SITES.items():
        row = re.search(rf"^{name} .*", families if site.is_family else sites, re.MULTILINE)
        assert row and f"{site.known[Status.GUESS]} of {sum(site.known.values())}" in row[0]
        assert site.until in row[0]


def test_list_and_show_in_json_are_whole(environ: dict[str, str], tmp_path: Path) -> None:
    own = tmp_path / "CONFIG/fairlead/sites"
    own.mkdir(parents=True)
    (own / "wrong.toml").write_text("[site]\n")
    code, out, err = call(environ, "list", "--json")
    said = json.loads(out)
    assert code == 0 and not err and {row["name"] for row in said["sites"]} == set(SITES)
    cori = next(row for row in said["sites"] if row["name"] == "cori")
    assert cori["lineage"] == ["cori", "cray-xc-aries"] and cori["until"] == "2023-05-31"
    assert cori["values"] == {s.value: n for s, n in SITES["cori"].known.items()}
    assert [Path(f).name for f in cori["files"]] == ["cori.toml"]
    assert {f["check"] for f in said["wrong"]["wrong"]} == {"missing-key"}
    shown: dict[str, Any] = json.loads(call(environ, "show", "cori", "--json")[1])["site"]
    assert from_json(Site, shown) == SITES["cori"]
    code, out, err = call(environ, "list")
    assert code == 0 and "error[missing-key]" in err and f"{own / 'wrong.toml'}:1" in err


def test_new_is_written_shown_and_not_written_over(environ: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "CONFIG/fairlead/sites/mine.toml"
    code, text, _ = call(environ, "new", "mine", "--extends", "omni-path", "--dry-run")
    assert code == 0 and not path.exists()
    code, out, err = call(environ, "new", "mine", "--extends", "omni-path")
    assert (code, out) == (0, f"{path}\n") and path.read_text() == text
    assert f"then: fairlead site show {path}" in err
    assert call(environ, "show", "mine")[1].startswith("mine: mine, on top of omni-path\n")
    path.write_text(text + "# mine\n")
    code, _, err = call(environ, "new", "mine", "--extends", "omni-path")
    assert code == 2 and "error[site-new]: the profile exists already" in err
    assert path.read_text().endswith("# mine\n")
    code, out, _ = call(
        environ, "new", "b", "--extends", "mine", "-o", str(tmp_path / "b.toml"), "--json"
    )
    assert code == 0 and json.loads(out)["written"] is True and (tmp_path / "b.toml").is_file()


def test_schema_goes_where_it_is_sent(environ: dict[str, str], tmp_path: Path) -> None:
    assert call(environ, "schema")[1] == schema_text()
    assert call(environ, "schema", "-o", str(tmp_path / "s.json"))[:2] == (0, "")
    assert (tmp_path / "s.json").read_text() == schema_text()
    assert json.loads(call(environ, "schema", "--json")[1])["json_schema"] == schema()
    code, _, err = call(environ, "schema", "-o", str(tmp_path / "s.json" / "x"))
    assert code == 1 and "error[output-unwritable]" in err


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("a bb ccc", 4, ["a bb", "ccc"]),
        ("/opt/cray/pe/lib64, /b", 10, ["/opt/cray/", "pe/lib64,", "/b"]),
        ("unbreakable", 4, ["unbreakable"]),
        ("a\nb", 9, ["a", "b"]),
        ("", 9, [""]),
    ],
)
def test_text_is_wrapped_between_words_and_behind_slashes(
    text: str, width: int, lines: list[str]
) -> None:
    assert wrap(text, width) == lines


def test_table_wraps_its_last_column_only() -> None:
    made = table([("one", "a b c"), ("twelve", "d")], ("x", "y"), width=28)
    assert made.splitlines()[1:] == ["one     a b c", "twelve  d"]
    assert table([("k", "one two three four five six")], indent=" ", width=25).splitlines() == [
        " k  one two three four",
        "    five six",
    ]


def test_profile_without_clues_says_so(environ: dict[str, str], tmp_path: Path) -> None:
    profile = tmp_path / "mine.toml"
    profile.write_text(
        '[site]\nname = "mine"\nsummary = "x"\n[fabric]\naccepts = ["tcp"]\nsource = "guess"\n'
    )
    code, out, _ = call(environ, "why-not", str(profile))
    assert code == 0 and "it has no clues" in out
    _, document, _ = call(environ, "why-not", str(profile), "--json")
    assert json.loads(document)["clues"] == []
