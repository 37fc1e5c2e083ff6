"""Messages: the code, the catalogues and the page why-it-stopped hold each other complete."""

from __future__ import annotations

import ast
import re
import string
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tools import why_it_stopped

from fairlead.base import errors, messages
from fairlead.base.errors import ExitCode, FairleadError, Severity, error, fail, finding_of
from fairlead.doctor.registry import ordered

# One worker reads all of the code.
pytestmark = pytest.mark.xdist_group("messages")
ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "fairlead": ROOT / "runtime/fairlead",
    "fairlead_build": ROOT / "containers/fairlead_build",
}
KEYS = {"like", "check", "severity", "exit", "if_empty", "what", "where", "why", "remedy", "host"}
# Functions that take a message, the place of its id, and what else they take by name.
CALLS = {
    "fail": (0, {"code"}),
    "os_error_as": (0, set()),
    "error": (0, set()),
    "warning": (0, set()),
    "info": (0, set()),
    "finding_of": (0, {"severity"}),
    "note": (0, set()),
    "ill": (0, {"fix", "severity"}),
    "mistake_at": (1, set()),
}  # fmt: skip
IMPLIED = {"os_error_as": {"reason"}}  # fields that a function fills in
SEVERITIES = {"fail": "error", "os_error_as": "error", "error": "error", "warning": "warning", "info": "info", "note": "info", "mistake_at": "error"}  # fmt: skip

Room = tuple[str, str]


@dataclass(frozen=True)
class Use:
    """One call of the code that names messages."""

    place: str
    room: Room
    function: str
    ids: tuple[str, ...]
    fields: frozenset[str] | None  # None: not all of them are named in the call


# Cached, and not constants of the module: each worker collects every test, and few run these.
@cache
def _sources() -> list[tuple[Room, Path, list[ast.AST]]]:
    """Every module's room, file and nodes of the kinds that the tests read."""
    read = (ast.Call, ast.Constant, ast.ImportFrom, ast.Assign, ast.AnnAssign)
    return [
        (
            (package, path.relative_to(folder).parts[0].removesuffix(".py")),
            path,
            [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, read)],
        )
        for package, folder in FOLDERS.items()
        for path in sorted(folder.rglob("*.py"))
    ]


def _ids(node: ast.expr) -> tuple[str, ...]:
    """The ids that an argument may be: a constant, or a choice of constants."""
    if isinstance(node, ast.IfExp):
        return _ids(node.body) + _ids(node.orelse)
    return (node.value,) if isinstance(node, ast.Constant) and isinstance(node.value, str) else ()


def _imported(nodes: list[ast.AST]) -> set[str]:
    """Functions of ``CALLS`` that a module has from those who make them."""
    makers = {"fairlead.base.errors", "fairlead.base.toml", "fairlead.doctor.diagnosis"}
    imports = (n for n in nodes if isinstance(n, ast.ImportFrom) and n.module in makers)
    return {alias.name for node in imports for alias in node.names} & set(CALLS)


@cache
def _uses() -> list[Use]:
    uses = []
    for room, path, nodes in _sources():
        ours = _imported(nodes)
        for node in nodes:
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") not in ours:
                continue
            assert isinstance(node.func, ast.Name)
            position, options = CALLS[node.func.id]
            named = frozenset(k.arg for k in node.keywords if k.arg) - options
            named |= IMPLIED.get(node.func.id, set())
            whole = all(k.arg for k in node.keywords)
            ids = _ids(node.args[position])
            place = f"{path.relative_to(ROOT)}:{node.lineno}"
            uses.append(Use(place, room, node.func.id, ids, named if whole else None))
    return uses


def _tables() -> Iterator[tuple[Room, str, dict[str, Any]]]:
    for package, folder in FOLDERS.items():
        for file in sorted((folder / "messages").glob("*.toml")):
            if file.name != why_it_stopped.SECTIONS:
                for name, table in tomllib.loads(file.read_text()).items():
                    yield (package, file.stem), name, table


TABLES = list(_tables())
ROOM_OF = {name: room for room, name, _ in TABLES}


@cache
def _whole() -> dict[str, Mapping[str, Any]]:
    """Each message as the code finds it, with what it takes over from another."""
    return {name: messages.find(name) for name in ROOM_OF}


def _fields(table: Mapping[str, Any]) -> set[str]:
    """What a message's texts name in braces."""
    texts = [table[part] for part in messages.PARTS if part in table]
    texts += table.get("if_empty", {}).values()
    names = {name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name}
    return {re.split(r"[.\[]", name)[0] for name in names}


@cache
def _words() -> dict[Room, Counter[str]]:
    """Every string constant of each room's code."""
    words: dict[Room, Counter[str]] = {}
    for room, _, nodes in _sources():
        constants = (n.value for n in nodes if isinstance(n, ast.Constant))
        words.setdefault(room, Counter()).update(c for c in constants if isinstance(c, str))
    return words


def test_every_message_that_the_code_names_exists_in_the_file_of_its_room() -> None:
    assert len(_uses()) > 600
    missing = [(u.place, name) for u in _uses() for name in u.ids if ROOM_OF.get(name) != u.room]
    assert not missing


def test_calls_give_exactly_the_fields_that_their_messages_take() -> None:
    wrong = []
    for use in _uses():
        if use.ids and use.fields is not None:
            taken = set().union(*(_fields(_whole()[name]) for name in use.ids))
            if taken != use.fields:
                wrong.append((use.place, use.ids, sorted(taken ^ use.fields)))
    assert not wrong


def test_functions_say_the_severity_of_the_catalogue() -> None:
    wrong = [
        (use.place, name)
        for use in _uses()
        for name in use.ids
        if use.function in SEVERITIES
        and _whole()[name].get("severity", "error") != SEVERITIES[use.function]
    ]
    assert not wrong


def test_every_message_is_used() -> None:
    likes = {table["like"] for _, _, table in TABLES if "like" in table}
    idle = [name for room, name, _ in TABLES if not _words()[room][name] and name not in likes]
    assert not idle


def test_calls_without_a_plain_id_are_few_and_known() -> None:
    assert {use.place.split(":")[0] for use in _uses() if not use.ids} <= {
        "runtime/fairlead/base/toml.py",
        "runtime/fairlead/bridge/errors.py",
        "runtime/fairlead/doctor/diagnosis.py",
        "runtime/fairlead/native/__init__.py",
        "runtime/fairlead/objects/failures.py",
        "runtime/fairlead/proof/nccl.py",
        "runtime/fairlead/proof/probe_job.py",
        "runtime/fairlead/proof/wire.py",
    }


def test_ids_are_unique_and_sorted_in_their_files() -> None:
    assert not [name for name, n in Counter(name for _, name, _ in TABLES).items() if n > 1]
    for room in {room for room, _, _ in TABLES}:
        names = [name for other, name, _ in TABLES if other == room]
        assert names == sorted(names), room


def test_tables_have_known_keys_with_known_values() -> None:
    severities = {s.value for s in Severity}
    codes = {c.name.lower() for c in ExitCode}
    for _, name, table in TABLES:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
        assert set(table) <= KEYS, name
        assert table.get("severity", "error") in severities, name
        assert table.get("exit", "failed") in codes, name
        assert table.get("like", name) in ROOM_OF, name
        assert ROOM_OF[table.get("like", name)] == ROOM_OF[name]
        assert set(table.get("if_empty", {})) <= _fields(_whole()[name]), name


def test_every_table_is_found_by_its_header_as_the_whole_file_has_it() -> None:
    for _, name, table in TABLES:
        own = dict(table)
        whole = {**messages.find(own.pop("like")), **own} if "like" in own else own
        assert messages.find(name) == whole, name


def _checks() -> set[str]:
    """Every name that a finding's ``check`` can have."""
    names = {table["check"] for table in _whole().values() if "check" in table} - {"{check}"}
    names |= {check.name for check in ordered()}
    for _, _, nodes in _sources():
        for node in nodes:
            if isinstance(node, ast.Call):
                # Fields of messages that are called by another's name; findings of other makers.
                names |= set(_texts(k.value for k in node.keywords if k.arg == "check"))
                position = {"Finding": 5, "Mistake": 3, "_ok": 0}.get(getattr(node.func, "id", ""))
                if position is not None and len(node.args) > position:
                    names |= set(_texts([node.args[position]]))
            elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "check":
                names |= set(_texts([node.value]))
            elif isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "check":
                names |= set(_texts([node.value] if node.value else []))
    return names - {"", "check"}


def _texts(nodes: Iterator[ast.expr] | list[ast.expr]) -> Iterator[str]:
    for node in nodes:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                yield inner.value


def test_every_check_has_a_section_and_every_section_a_check() -> None:
    documented = why_it_stopped.documented()
    assert set(documented) == _checks()


def test_what_stops_a_run_has_a_section_of_its_own() -> None:
    """Not a row of a table: the checks before the launch, and the proof."""
    own = {
        section["check"]
        for part in why_it_stopped.sections()[1]
        for section in part["section"]
        if "check" in section
    }
    rooms = {("fairlead", "swap"), ("fairlead", "proof")}
    needed = {
        _whole()[name]["check"]
        for room, name, _ in TABLES
        if room in rooms and "check" in _whole()[name]
    }
    assert {check for check in needed if "{" not in check} <= own


def test_sections_show_what_their_messages_say() -> None:
    patterns: dict[str, list[re.Pattern[str]]] = {}
    for name, table in _whole().items():
        whats = [table.get("what", "")]
        if whats == ["{what}"]:  # the sentence is a value: one of the code
            whats = [
                w.replace("{", "{{").replace("}", "}}") for w in _words()[ROOM_OF[name]] if " " in w
            ]
        for what in whats:
            parts = string.Formatter().parse(what)
            pattern = "".join(
                re.escape(text) + (".+" if field else "") for text, field, _, _ in parts
            )
            patterns.setdefault(table.get("check", ""), []).append(re.compile(pattern))
    shown = [
        (section["check"], text)
        for part in why_it_stopped.sections()[1]
        for section in part["section"]
        for text in section.get("shown", ())
    ]
    assert len(shown) > 25
    assert not [
        (c, t)
        for c, t in shown
        if not any(p.fullmatch(t) for p in (*patterns.get(c, ()), *patterns["{check}"]))
    ]


def test_rows_have_no_text_that_the_page_leaves_out() -> None:
    """The fix is in the message, once."""
    parts = why_it_stopped.sections()[1]
    rows = [
        row
        for part in parts
        for holder in (part, *part["section"])
        for row in holder.get("row", ())
    ]
    assert len(rows) > 200
    assert not [row for row in rows if set(row) != {"checks", "means"}]


def test_page_is_made_of_the_catalogues() -> None:
    published = (ROOT / why_it_stopped.PAGE).read_text()
    assert published == why_it_stopped.page(), "python -m tools.why_it_stopped"


def test_message_is_filled_in() -> None:
    made = fail("key-exists", file=Path("/k/mine.key"))
    assert (made.code, made.findings[0].check) == (ExitCode.USAGE, "key-exists")
    assert made.findings[0].what == "there is a key already: /k/mine.key"
    assert fail("key-exists", code=ExitCode.FAILED, file="k").code is ExitCode.FAILED
    assert finding_of("key-exists", severity=Severity.INFO, file="k").severity is Severity.INFO


def test_message_that_no_catalogue_has_still_says_what_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(errors, "CATALOGUES", [])
    monkeypatch.setattr(messages, "CATALOGUES", [str(tmp_path)])
    messages.find.cache_clear()
    made = error("no-such-message", path="/a/b")
    assert (made.what, made.where) == ("no such message", "path: /a/b")
    assert isinstance(fail("no-such-message", path="/a/b"), FairleadError)
    messages.find.cache_clear()


def test_catalogue_of_another_package_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "room.toml").write_text(
        '[any]\nwhat = "{n:,} things"\n\n[own]\nlike = "any"\nwhy = "{why}"\nif_empty.why = "as {n}"\n'
    )
    monkeypatch.setattr(messages, "CATALOGUES", [*errors.CATALOGUES, str(tmp_path)])
    messages.find.cache_clear()
    assert error("own", n=12345, why="").why == "as 12345"
    assert error("own", n=12345, why="so").what == "12,345 things"
    messages.find.cache_clear()


def test_nothing_is_loaded_for_messages_before_one_is_raised() -> None:
    import subprocess

    line = "import sys, fairlead.comm; print(*{'tomllib', 'fairlead.base.messages'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert not ran.stdout.strip()
