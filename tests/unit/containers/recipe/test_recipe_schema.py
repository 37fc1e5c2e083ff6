"""The published JSON Schema: up to date, true to every recipe, and as strict as an editor needs."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.support import json_schema

from fairlead.base.json_schema import schema_of, schema_text
from fairlead_build.recipe.model import Written

ROOT = Path(__file__).parents[4]
SCHEMA = schema_of(Written)
PUBLISHED = ROOT / "docs" / "reference" / "recipe.schema.json"
RECIPES = sorted(
    path
    for folder in ("recipes", "examples", "tests/recipes")
    for path in (ROOT / folder).glob("*/recipe.toml")
)
SMALL = """
extends = "mpi-base"
[recipe]
name = "mine"
"""


pytestmark = json_schema.validates


def mistakes(recipe: str) -> list[str]:
    return json_schema.mistakes(SCHEMA, tomllib.loads(recipe))


def test_schema_published_is_that_of_the_code() -> None:
    assert PUBLISHED.read_text() == schema_text(SCHEMA), "fairlead recipe schema -o " + str(
        PUBLISHED
    )


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.parent.name)
def test_schema_fits_every_recipe_and_each_names_it(path: Path) -> None:
    assert mistakes(path.read_text()) == []
    named = re.match(r"#:schema (\S+)\n", path.read_text())
    assert named and (path.parent / named[1]).resolve() == PUBLISHED


@pytest.mark.parametrize(
    "wrong",
    [
        "[recipes]\n",
        '[mpi]\nfamily = "mpch"\nsource = "apt"\n',
        '[mpi]\nfamily = "mpich"\nsource = "wheel"\n',  # no version
        '[base]\nsuite = "bookworm"\nimage = "docker://a/b:1"\n',
        "[base]\n",
        '[packages]\napt = "less"\n',
        '[packages]\napt = ["Less!"]\n',
        '[[source]]\nname = "x"\nversion = "1"\nindex = "PyPI"\n',  # not built in any way
        '[[source]]\nname = "x"\nversion = "1"\nbuild = "wheel"\n',  # from nowhere
        '[[source]]\nname = "x"\nversion = "1"\nbuild = "wheel"\nurl = "https://a.invalid/x"\n',
        '[[source]]\nname = "x"\nversion = "1"\nbuild = "wheel"\nindex = "PyPI"\npath = "x"\n',
        '[variant."Two words"]\n',
        '[variant.x]\naccelerator = "npu"\n',
        "[architecture.ppc64le]\n",
        '[env]\n"A B" = "1"\n',
        '[image]\nlevel = 99\n',
    ],
)  # fmt: skip
def test_schema_refuses_what_the_recipe_reader_refuses(wrong: str) -> None:
    assert mistakes(SMALL) == []
    assert mistakes(SMALL + wrong)


def test_schema_wants_a_base_or_something_to_extend() -> None:
    assert mistakes('[recipe]\nname = "mine"\n')


def _keys(node: Any, at: str = "") -> Any:
    if isinstance(node, dict):
        for name, inner in node.get("properties", {}).items():
            yield f"{at}.{name}", inner
            yield from _keys(inner, f"{at}.{name}")
        for name, inner in node.get("$defs", {}).items():
            yield from _keys(inner, name)


def test_schema_says_of_every_key_what_it_means() -> None:
    keys = dict(_keys(json.loads(schema_text(SCHEMA))))
    assert len(keys) > 40
    assert [key for key, node in keys.items() if not node.get("description")] == []
    assert '"null"' not in schema_text(SCHEMA)  # TOML has none
