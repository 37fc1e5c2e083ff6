"""A job as the text of a POSIX shell script."""

from __future__ import annotations

import shlex

from fairlead.base.errors import fail
from fairlead.schedulers.model import Job, lacks
from fairlead.schedulers.registry import SCHEDULERS

INDEX = "FAIRLEAD_ARRAY_INDEX"
# Module systems define a function in the shells of a login; a job's shell may be none.
_MODULES = """\
if ! command -v module >/dev/null 2>&1; then
    for file in "${MODULESHOME:-/none}/init/sh" /etc/profile.d/lmod.sh /etc/profile.d/modules.sh; do
        if [ -r "$file" ]; then . "$file"; break; fi
    done
fi
"""


def script(kind: str, job: Job) -> str:
    """The script for a scheduler.

    Raises:
        FairleadError: exit code 2; the scheduler has no word for something.
    """
    reader = SCHEDULERS.get(kind)
    if job.array and not reader.index:
        reader.directives(job)  # says so
        raise lacks(kind, "an array", "leave out --array")
    directives = (*job.leading, *reader.directives(job))
    lines = ["#!/bin/sh", *(f"{reader.sentinel}{words}" for words in directives)]
    if job.written_by:
        lines += ["", f"# Written by: {' '.join(job.written_by.split())}"]
    if job.modules:  # before `set -eu`, which few of their scripts bear
        lines += ["", _MODULES.rstrip()]
        for name in job.modules:
            verb = "unload" if name.startswith("-") else "load"
            lines.append(f"module {verb} {shlex.quote(name.removeprefix('-'))} || exit")
    lines += ["", "set -eu"]
    if reader.folder:
        lines.append(f'cd "${reader.folder}"')
    lines += [f"export {name}={shlex.quote(value)}" for name, value in job.exports]
    if job.array:
        lines.append(f'export {INDEX}="${reader.index}"')
    text = "\n".join([*lines[1 + len(directives) :], job.body, ""])
    for line in text.splitlines():
        if line.lstrip().startswith(reader.sentinel.strip()):  # LSF reads them wherever they are
            raise fail("script-line-in-word", line=line[:60], kind=kind)
    return "\n".join([*lines[: 1 + len(directives)], text])
