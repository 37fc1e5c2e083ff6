"""Message catalogues, which keep the texts of messages out of the code that raises them.

A catalogue is a package's folder ``messages``, with one TOML file for each subpackage. Each table
is a message, and its name is the message's id:

    [host-mpi-no-library-below]
    check = "host-mpi"                      # what `--json` shows, and a section of the docs
    severity = "warning"                    # left out: error
    exit = "usage"                          # the exit code of `fail`; left out: failed
    what = "no MPI library below {prefix}"  # fields as in str.format; {number:of rank} is `1 rank` or `2 ranks`
    where = "{option}"
    why = "no lib/ of it holds a libmpi"
    remedy = "give the prefix of an MPI"
    host = "{host}"                         # the node it is about, for programs; left out: none
    if_empty.option = "--mpi"               # stands for a field that is empty
    like = "host-mpi-any"                   # that message's keys, where this one has none

Ids are unique over all catalogues. A file is searched for the line ``[id]`` and only that table is
parsed, so that the first message of a process costs a few milliseconds and the others nothing. No
line of a text may look like such a header; ``tests/project/test_messages.py`` checks it.
"""

from __future__ import annotations

import re
import string
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fairlead.base.errors import CATALOGUES, ExitCode, Finding, Severity

PARTS = ("what", "where", "why", "remedy", "check", "host")


@cache
def find(message: str) -> Mapping[str, Any]:
    """The table of a message, merged with that of the message in its ``like``.

    Raises:
        LookupError: no catalogue has the message.
        OSError: a catalogue cannot be read.
    """
    header = re.compile(rb"^\[%s\]$" % re.escape(message.encode()), re.MULTILINE)
    for folder in CATALOGUES:
        for file in sorted(Path(folder).glob("*.toml")):
            text = file.read_bytes()
            if match := header.search(text):
                after = re.compile(rb"^\[[a-z0-9-]+\]$", re.MULTILINE).search(text, match.end())
                table = text[match.end() : after.start() if after else len(text)]
                values = tomllib.loads(table.decode())
                return {**find(values.pop("like")), **values} if "like" in values else values
    raise LookupError(f"no catalogue has a message {message}")


def render(message: str, fields: Mapping[str, object]) -> tuple[Finding, ExitCode]:
    """The finding of a message with its fields filled in, and the exit code of a failure with it."""
    try:
        table = find(message)
    except (OSError, LookupError) as exc:  # a damaged installation must not hide what went wrong
        known = "; ".join(f"{name}: {value}" for name, value in fields.items())
        why = f"its text is not here: {exc}"
        return Finding(Severity.ERROR, message.replace("-", " "), known, why), ExitCode.FAILED
    values = dict(fields)
    for name, text in table.get("if_empty", {}).items():
        values[name] = values[name] or _filled(text, fields)
    texts = {part: _filled(table.get(part, ""), values) for part in PARTS}
    severity = Severity(table.get("severity", Severity.ERROR))
    return Finding(severity, **texts), ExitCode[table.get("exit", "failed").upper()]


class _Formatter(string.Formatter):
    """As str.format, and ``{number:of NOUN}`` counts."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if not format_spec.startswith("of "):
            return str(super().format_field(value, format_spec))
        noun = format_spec.removeprefix("of ")
        return f"{value} {noun if str(value) == '1' else _plural(noun)}"


def _plural(noun: str) -> str:
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"


def _filled(text: str, fields: Mapping[str, object]) -> str:
    return _Formatter().vformat(text, (), fields)
