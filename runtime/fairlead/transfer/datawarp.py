"""The directive by which a Slurm job gets space in Cray's DataWarp.

Sources: Slurm's Burst Buffer Guide (doc/html/burst_buffer.shtml of its source: the suffixes of a capacity, the
order of a sample script) and the DataWarp User Guide S-2558, "DataWarp Job Script Commands" (``jobdw``).
No directive may have blanks in a value: both parsers split there, and neither knows quotes.
"""

from __future__ import annotations

import re

from fairlead.base.errors import FairleadError, fail

_SUFFIXES = r"(?:[KMGTP](?:i?B)?|N)?"  # [KMGTP]iB and bare: powers of 1024; [KMGTP]B: of 1000


def job_space(capacity: str, options: tuple[str, ...] = ()) -> str:
    """``#DW jobdw``: space for this job alone, gone when it ends.

    Args:
        capacity: as ``200GiB``.
        options: words of the site, as ``optimization_strategy=interference``; they override.
    Raises:
        FairleadError: exit code 2; a value that the grammar does not allow.

    >>> job_space("200GiB")
    '#DW jobdw type=scratch access_mode=striped capacity=200GiB'
    """
    if not re.fullmatch(rf"[1-9]\d*{_SUFFIXES}", capacity):
        raise _wrong("capacity", capacity, "a whole number and a unit, as 200GiB or 2TB")
    words = {"type": "scratch", "access_mode": "striped", "capacity": capacity}
    for option in options:
        if not re.fullmatch(r"[^\s\"'=]+=[^\s\"']+", option):
            raise _wrong("option", option, "NAME=VALUE, one word")
        name, _, value = option.partition("=")
        if name == "access_mode" and value not in ("striped", "private"):
            raise _wrong("access mode", value, "one of striped, private")
        words[name] = value
    return " ".join(["#DW jobdw", *(f"{name}={value}" for name, value in words.items())])


def inserted(script: str, directive: str) -> str:
    """A job script with a directive behind its ``#SBATCH`` lines, before anything that is executed.

    >>> inserted("#!/bin/sh\\n#SBATCH -N 1\\n\\nrun\\n", "#DW x")
    '#!/bin/sh\\n#SBATCH -N 1\\n#DW x\\n\\nrun\\n'
    """
    text = script.splitlines()
    place = max((n for n, line in enumerate(text) if line.startswith("#SBATCH")), default=0) + 1
    return "\n".join([*text[:place], directive, *text[place:], ""])


def _wrong(what: str, text: str, rule: str) -> FairleadError:
    return fail("stage-directive", text=text, what=what, rule=rule)
