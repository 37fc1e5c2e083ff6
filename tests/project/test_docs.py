"""The documentation against the code: links, paths, commands, options, keys and check names."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tools.rendered import rendered

import fairlead
from fairlead.base.errors import ExitCode
from fairlead.base.toml import Strict
from fairlead.cli.main import main
from fairlead.doctor.registry import ordered
from fairlead_build.recipe.model import Overlay, Written

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(p for d in ("docs", "examples", "recipes") for p in (ROOT / d).rglob("*.md")),
    ]
)
SOURCES = sorted(p for d in ("runtime", "containers") for p in (ROOT / d).rglob("*.py"))

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def _text(name: str) -> str:
    return (ROOT / name).read_text()


def _prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text())


def _anchors(page: Path) -> set[str]:
    """The headings of a page, as forges write them in links."""
    titles = re.findall(r"^#+ (.+)$", rendered(_prose(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _dead_links(page: Path) -> Iterator[str]:
    for target in _LINK.findall(_prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in _anchors(there)):
            yield target


def _dead_paths(page: Path) -> Iterator[str]:
    """Code spans that begin like a path of this repository and lead nowhere."""
    rooms = {
        p.name for p in ROOT.iterdir() if p.is_dir() and not p.name.startswith((".venv", ".git"))
    }
    for span in _SPAN.findall(_prose(page)):
        room, slash, _ = span.partition("/")
        placeholder = re.search(r"[A-Z]{2,}/|[*<>{} ]", span)
        if slash and room in rooms and not placeholder and not (ROOT / span).exists():
            yield span


def _commands(page: Path) -> Iterator[str]:
    """Every `fairlead …` that a page shows, in blocks and in code spans."""
    for block in _FENCE.findall(page.read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            if match := re.match(r"(?:\$ )?(?:\.venv/bin/)?(fairlead [a-z].*)", line):
                yield re.split(r" {3,}", match[1])[0]  # an explanation may follow at a distance
    for span in _SPAN.findall(_prose(page)):
        if span.startswith("fairlead "):
            yield span


def _verbs() -> dict[str, click.Command]:
    """Every command by its full name, e.g. ``recipe lock``."""
    found: dict[str, click.Command] = {}

    def walk(command: click.Command, name: str) -> None:
        if isinstance(command, click.Group):
            for inner in command.list_commands(click.Context(command)):
                known = command.get_command(click.Context(command), inner)
                assert known is not None
                walk(known, f"{name} {inner}".strip())
        else:
            found[name] = command

    walk(main, "")
    return found


VERBS = _verbs()


def _options(command: click.Command) -> dict[str, click.Option]:
    return {
        name: option
        for option in command.params
        if isinstance(option, click.Option)
        for name in (*option.opts, *option.secondary_opts)
    }


def _mistake(line: str) -> str:
    """What is wrong with a command line of the documentation; empty when nothing is."""
    words = shlex.split(re.split(r" (?:\||&&|;|>) ?", line)[0], comments=True)[1:]
    if words in (["VERB", "--help"], ["--help"], ["--version"]):
        return ""
    verb = next((v for n in (2, 1) if (v := " ".join(words[:n])) in VERBS), None)
    if verb is None:
        return f"no verb `{' '.join(words[:2])}`"
    command = VERBS[verb]
    known = {**_options(command), "--help": None}
    words = words[len(verb.split()) :]
    given = words[: words.index("--")] if "--" in words else words
    skip = False
    for word in given:
        if skip:
            skip = False
        elif word.startswith("-"):
            name, equals, _ = word.partition("=")
            if name not in known:
                return f"`{verb}` has no option {name}"
            option = known[name]
            skip = option is not None and not option.is_flag and not equals
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_page_links_and_paths_lead_somewhere(page: Path) -> None:
    assert not list(_dead_links(page))
    assert not list(_dead_paths(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_page_commands_exist_with_their_options(page: Path) -> None:
    wrong = [f"{line}: {why}" for line in _commands(page) if (why := _mistake(line))]
    assert not wrong


@pytest.mark.parametrize(
    "line", ["fairlead runn x", "fairlead run --knots 2 x -- y", "fairlead recipe unlock x"]
)
def test_mistaken_command_is_found(line: str) -> None:
    assert _mistake(line)


def test_dead_link_and_dead_path_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One\n[a](#one) [b](#two) [c](no.md) `runtime/no.py` `runtime/fairlead/`\n")
    assert list(_dead_links(page)) == ["#two", "no.md"]
    assert list(_dead_paths(page)) == ["runtime/no.py"]


def test_pages_name_only_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", _text("Makefile"), re.MULTILINE))
    named = {t for page in PAGES for t in re.findall(r"`make ([a-z-]+)`", page.read_text())}
    named |= {
        t for page in PAGES for t in re.findall(r"^make ([a-z-]+) ", page.read_text(), re.MULTILINE)
    }
    assert {"demo", "test"} <= named <= targets


def test_reference_lists_every_verb_with_exactly_its_options() -> None:
    page = _text("docs/reference/command-line.md")
    assert "### `fairlead" not in page, "what --help says is rendered with the site, not kept"
    text = rendered(page)
    shared = dict(re.findall(r"^Options of (\w+):\n\n((?:- .*\n)+)", text, re.MULTILINE))
    assert set(shared) == {"planning", "placement", "staging"}
    sections = {
        " ".join(re.findall(r"(?<![\w\[-])[a-z]+(?:-[a-z]+)*(?![\w.-])", title)): body
        for title, body in re.findall(r"^### `fairlead ([^`]+)`\n(.*?)(?=^##)", text, re.M | re.S)
    }
    assert set(sections) == set(VERBS)
    for verb, command in VERBS.items():
        listed = _named_options(sections[verb]) | {"--json"}
        takes = re.findall(r"Takes the options of ([\w ]+)\.$", sections[verb], re.MULTILINE)
        for kind in takes[0].split(" and of ") if takes else ():
            listed |= _named_options(shared[kind])
        assert listed == set(_options(command)), verb


def _named_options(text: str) -> set[str]:
    """Options at the beginning of a list's items."""
    items = re.findall(r"^- ((?:`-[\w-]+`(?:, )?)+)", text, re.MULTILINE)
    return {o for item in items for o in re.findall(r"`(-[\w-]+)`", item)}


def test_reference_lists_every_exit_code() -> None:
    rows = re.findall(
        r"^\| (\d+) \| `(\w+)` \|", _text("docs/reference/command-line.md"), re.MULTILINE
    )
    assert {(int(code), name) for code, name in rows} == {(c.value, c.name) for c in ExitCode}


def test_variables_of_fairlead_are_documented_and_real() -> None:
    pattern = re.compile(r"FAIRLEAD_[A-Z_]+[A-Z]")
    in_code = {v for p in SOURCES for v in pattern.findall(p.read_text())}
    reference = rendered(_text("docs/reference/command-line.md"))
    assert in_code == set(pattern.findall(reference))
    constants = set(pattern.findall(_text("runtime/native/include/fairlead_comm.h")))
    output = {v for page in PAGES for v in pattern.findall(page.read_text())}
    assert output <= in_code | constants


def _tables(annotation: object) -> Iterator[type[Strict]]:
    """The tables that a key of a recipe may hold."""
    if isinstance(annotation, type) and issubclass(annotation, Strict):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _tables(argument)


def test_recipe_guide_lists_every_key() -> None:
    text = _text("docs/reference/recipe.md")
    for key, field in Written.model_fields.items():
        section = re.search(
            rf"^### [^\n]*`\[*{key}[.\]`].*?(?=^##)", text, re.MULTILINE | re.DOTALL
        )
        assert section, key
        for table in _tables(field.annotation):
            listed = re.findall(r"^\| `(\w+)` \|", section[0], re.MULTILINE)
            inherited = Overlay.model_fields if issubclass(table, Overlay) else {}
            assert listed == [name for name in table.model_fields if name not in inherited], key


def test_doctor_page_has_a_section_for_every_check_in_order() -> None:
    text = _text("docs/reference/doctor.md")
    sections = re.findall(r"^(##+) `?([^`\n]+)`?$", text.split("## The checks")[1], re.MULTILINE)
    expected: list[tuple[str, str]] = []
    for check in ordered():
        if ("##", check.topic) not in expected:
            expected.append(("##", check.topic))
        expected.append(("###", check.name))
    assert sections == expected
    bodies = re.findall(r"^### `[\w-]+`\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    assert len(bodies) == len(ordered())
    assert all(len(body.split()) > 10 for body in bodies)
    assert text.count(f"{len(ordered())} checks: ...") == 1


def test_examples_are_short_and_say_how_they_are_run() -> None:
    for path in sorted(
        p for p in (ROOT / "examples").rglob("*") if p.suffix in (".py", ".sh", ".toml")
    ):
        lines = path.read_text().splitlines()
        if path.name == "lock.toml":
            continue
        if (path.parent / "README.md").is_file():  # an application, which says there how it is run
            assert len(lines) <= 150, path
            continue
        assert len(lines) <= 40, path
        beside_a_recipe = (path.parent / "recipe.toml").is_file() and path.name != "recipe.toml"
        assert beside_a_recipe or any("$ " in line for line in lines[:12]), path


def test_version_is_the_same_everywhere() -> None:
    project = tomllib.loads(_text("pyproject.toml"))
    assert project["tool"]["hatch"]["version"]["path"] == "runtime/fairlead/__init__.py"
    assert "version" in project["project"]["dynamic"]
    newest = re.search(r"^## (\d+\.\d+\.\d+)", _text("CHANGELOG.md"), re.MULTILINE)
    assert newest and newest[1] == fairlead.__version__
