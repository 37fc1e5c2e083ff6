"""A first recipe: small, valid, and on top of another."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from fairlead.base.errors import fail, os_error_as
from fairlead.base.json_schema import schema_of, schema_text
from fairlead.base.paths import atomic_write, real
from fairlead_build.recipe.inherit import bundled_names, split_variant
from fairlead_build.recipe.load import find, load_recipe
from fairlead_build.recipe.model import Written

_TEXT = """\
#:schema recipe.schema.json
# {name}: what {parent} has, and what is written here. `fairlead recipe check` finds every mistake.

extends = {extends}

[recipe]
name = {quoted}
summary = {summary}

[packages]
apt = []  # Debian packages, e.g. "less"
pip = []  # requirements as pip knows them, e.g. "einops>=0.8"

# Files of this folder that go into the image:
# [files]
# "/opt/{name}/train.py" = "train.py"

# Variables that are set in it:
# [env]
# OMP_NUM_THREADS = "1"
"""


def plan(given: str, parent: str) -> tuple[Path, str]:
    """The folder and the text of the recipe ``given``, a name or a folder, that extends ``parent``.

    Raises:
        FairleadError: the name is taken or none, there is a recipe already, or ``parent`` is none.
    """
    folder = Path(given).expanduser()
    name = real(folder).name
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", name):
        near = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        raise fail("recipe-new-invalid-name", name=name, given=given, near=near)
    if name in bundled_names():
        raise fail("recipe-new-bundled-name", name=name, given=given)
    if (folder / "recipe.toml").exists():
        raise fail("recipe-new-exists", folder=folder)
    load_recipe(parent)  # it must be valid
    extends = parent
    if split_variant(parent)[0] not in bundled_names():
        place, variant = find(parent)
        relative = os.path.relpath(place, real(folder))
        extends = f"{relative}:{variant}" if variant else relative
    text = _TEXT.format(
        name=name,
        parent=parent,
        extends=json.dumps(extends),
        quoted=json.dumps(name),
        summary=json.dumps(f"{parent} and more"),
    )
    return folder, text


def write(folder: Path, text: str) -> None:
    """Writes the recipe, and the schema that editors read, into its folder.

    Raises:
        FairleadError: the folder cannot be written to.
    """
    with os_error_as("recipe-new-unwritable", folder=folder):
        folder.mkdir(parents=True, exist_ok=True)
        schema = schema_text(schema_of(Written))
        for name, content in (("recipe.schema.json", schema), ("recipe.toml", text)):
            with atomic_write(folder / name, "w") as out:
                out.write(content)
