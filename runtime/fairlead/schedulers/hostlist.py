"""Lists of hosts and counts as schedulers write them."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path


def first_words(path: str) -> list[str]:
    """The first word of each line of a file; none where it cannot be read."""
    with suppress(OSError):
        return [line.split()[0] for line in Path(path).read_text().splitlines() if line.strip()]
    return []


def counts(text: str) -> tuple[int, ...]:
    """What SLURM_JOB_CPUS_PER_NODE says, a number a node.

    >>> counts("72(x2),36")
    (72, 72, 36)
    """
    found: list[int] = []
    for number, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        found += [int(number)] * int(times or 1)
    return tuple(found)


def expand(names: str) -> tuple[str, ...]:
    """A list of hosts as Slurm writes it, name by name: ``scontrol show hostnames`` without Slurm.

    >>> expand("nid[0008-0010,12],login1,r[1-2]c[3,4]-x")
    ('nid0008', 'nid0009', 'nid0010', 'nid12', 'login1', 'r1c3-x', 'r1c4-x', 'r2c3-x', 'r2c4-x')
    """
    found: list[str] = []
    for word in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", names):
        made = [""]
        for plain, ranges in re.findall(r"([^\[]+)|\[([^\]]*)\]", word):
            ends = [plain] if plain else list(_numbers(ranges))
            made = [before + end for before in made for end in ends]
        found += made
    return tuple(found)


def _numbers(ranges: str) -> list[str]:
    found = []
    for part in ranges.split(","):
        first, dash, last = part.partition("-")
        if dash and first.isdigit() and last.isdigit():
            found += [f"{n:0{len(first)}}" for n in range(int(first), int(last) + 1)]
        else:
            found.append(part)
    return found
