"""The published JSON Schema of ``--json``: every answer has its place in it, and real answers keep to it."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.json_schema import mistakes, validates
from tools import answers
from tools.json_schemas import shape_of

from fairlead.cli.main import entry

ROOT = Path(__file__).parents[2]
_AT = {"print_json": 0, "show_schema": 0, "dry_run": 0, "answer": 1, "_remove": 0}
_LINES = (
    "images list",
    "images prune --dry-run",
    "key list",
    "key new --dry-run -o absent.key",
    "recipe check mpi-base",
    "recipe list",
    "recipe lock mpi-base --dry-run",
    "recipe new absent/mine --dry-run",
    "recipe render mpi-base --dry-run",
    "recipe requirements tensorflow",
    "recipe schema",
    "recipe show tensorflow",
    "report",
    "site compare",
    "site detect",
    "site list",
    "site new absent-site --extends ethernet --dry-run",
    "site schema",
    "site show perlmutter",
    "site why-not perlmutter",
    "inspect no-such-image",
)


def _kinds() -> set[str]:
    """The kinds that the code prints."""
    kinds = set()
    for folder in ("runtime/fairlead", "containers/fairlead_build"):
        for path in (ROOT / folder).rglob("cli/*.py"):
            for call in ast.walk(ast.parse(path.read_text("utf-8"))):
                if not isinstance(call, ast.Call):
                    continue
                at = _AT.get(ast.unparse(call.func).rpartition(".")[2], -1)
                given = call.args[at] if -1 < at < len(call.args) else None
                if isinstance(given, ast.Constant) and isinstance(given.value, str):
                    kinds.add(given.value)
    return kinds


@pytest.mark.parametrize(
    ("hint", "kept", "wrong"),
    [
        (str | None, ("a", None), (1,)),
        (str | int | float | bool, ("a", 1, 0.5, True), (None, [1])),
        (str | list[int | float], ("a", [], [1, 0.5]), (["a"], {})),
        (Mapping[str, float | None], ({"a": None, "b": 0.5},), ({"a": "b"},)),
    ],
)
def test_shape_has_each_type_of_a_union(
    hint: Any, kept: tuple[Any, ...], wrong: tuple[Any, ...]
) -> None:
    shape = shape_of(hint, {})
    assert not [value for value in kept if mistakes(shape, value)]
    assert not [value for value in wrong if not mistakes(shape, value)]


def test_every_kind_of_answer_is_published() -> None:
    kinds = _kinds()
    assert len(kinds) > 40
    # What is left is printed under a name that the code puts together, or written to a file.
    assert kinds - set(answers.ANSWERS) == set()
    assert set(answers.ANSWERS) - kinds == {"bench-collectives-plan", "run-report"}


def test_schema_is_the_published_one() -> None:
    published = ROOT / "docs/reference" / answers.FILE
    assert published.read_text("utf-8") == answers.text(), "python -m tools.answers"


# What other schemas describe, or what an image's builder left in it.
_OPEN = {
    "answer-inspect/image/record/*",
    "answer-recipe-lock/inputs",
    "answer-recipe-schema/json_schema",
    "answer-recipe/recipe",
    "answer-site-schema/json_schema",
}


def _open_parts(shape: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The parts of a schema that accept anything."""
    if not shape:
        yield path.removeprefix("/")
    for inner in ("properties", "definitions"):
        for name, part in shape.get(inner, {}).items():
            yield from _open_parts(part, f"{path}/{name}")
    for inner in ("items", "additionalProperties", "anyOf"):
        parts = shape.get(inner, ())
        for part in (
            parts if isinstance(parts, list) else (parts,) if isinstance(parts, dict) else ()
        ):
            yield from _open_parts(part, path if inner == "anyOf" else f"{path}/*")


def test_only_what_is_described_elsewhere_accepts_anything() -> None:
    assert set(_open_parts(answers.schema())) == _OPEN


@validates
@pytest.mark.parametrize("line", _LINES)
def test_answer_keeps_to_its_schema(
    line: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(SystemExit):
        entry([*line.split(), "--json"])
    assert mistakes(answers.schema(), json.loads(capsys.readouterr().out)) == []


@validates
@pytest.mark.parametrize(
    "change",
    [{"bytes": "7"}, {"more": 1}, {"version": 2}, {"schema": "fairlead/unknown"}, {"images": None}],
    ids=str,
)
def test_answer_that_differs_from_its_schema_is_noticed(change: dict[str, object]) -> None:
    right = {"schema": "fairlead/images", "version": 1, "images": [], "unpacked": [], "bytes": 7}
    assert mistakes(answers.schema(), right) == []
    assert mistakes(answers.schema(), {**right, **change})
