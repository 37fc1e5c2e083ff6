"""Shifter's image: the squashfs as it is, with ``.meta`` in the dialect that Shifter reads.

A file of ``KEY: value`` lines. Commands are Python lists in single quotes; JSON's double quotes
would become one word. What the dialect cannot hold is refused.
Source: NERSC/shifter, src/ImageData.c and src/utility.c (shifter_parseConfig, split_json_array).
"""

from __future__ import annotations

import re
from pathlib import Path

from fairlead.base.errors import FairleadError, Finding, error
from fairlead_build.formats import squashfs
from fairlead_build.formats.model import Format
from fairlead_build.formats.wrapping import Wrapping, wrapping_of


def meta(image: Wrapping) -> str:
    """The text of ``.meta``.

    Raises:
        FairleadError: a variable or a word of the command cannot be written in it.
    """
    wrong = [f for name, value in image.env.items() if (f := _line(f"env.{name}", value, image))]
    for word in image.command:
        if re.search(r"['\x00\n\r]", word):
            wrong.append(error("shifter-value-command-word", word=word, image_name=image.name))
    if wrong:
        raise FairleadError(wrong)
    words = ", ".join(f"'{word}'" for word in image.command)
    lines = [
        "FORMAT: squashfs",
        *(f"ENV: {name}={value}" for name, value in image.env.items()),
        f"CMD: [{words}]",
        "WORKDIR: /",
    ]
    return "\n".join(lines) + "\n"


def _line(key: str, value: str, image: Wrapping) -> Finding | None:
    if re.search(r"[\x00\n\r]", value):
        return error("shifter-value-line-break", key=key, image_name=image.name)
    if value != value.rstrip():
        return error("shifter-value-trailing-spaces", key=key, image_name=image.name)
    if value.endswith("\\"):
        return error("shifter-value-trailing-backslash", key=key, image_name=image.name)
    return None


FORMAT = Format(
    "shifter", ".squashfs", "the squashfs and `.meta`, for Shifter's imagePath", squashfs.write,
    sidecars={".meta": lambda entry: meta(wrapping_of(Path(entry.path), entry.sif_sha256))},
)  # fmt: skip
