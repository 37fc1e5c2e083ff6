"""The corpus: what fairlead says of images that nobody made for it, and what really happens.

    $ python -m tests.system.corpus.run [--only REGEX] [--seed N --count N] [--out FILE]

Each row of :mod:`.table` is run; a refused one is run again with ``--force``. The truth is what the ranks print of themselves
(:mod:`.truth`). The cells are kept in ``tests/recorded/corpus/cells.json``; ``python -m tools.corpus_page`` makes the page.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.system import hosts
from tests.system.corpus import truth
from tests.system.corpus.table import HOSTS, IMAGES, PROGRAMS, Row, drawn, rows

from fairlead.base.paths import atomic_write

KEPT = hosts.ROOT / "tests/recorded/corpus/cells.json"
REFUSED = 121
# In `make test`: one image of packages, and a program that the loader starts in secure-execution mode among them.
CELLS_OFTEN = (
    "bookworm-mpich/mpich/c/mpich-5.0.2/root",
    "bookworm-mpich/mpich/rpath/impi-2021.18.1/root",
    "bookworm-mpich/mpich/setgid-rpath/mpich-3.4.3/root",
    "bookworm-mpich/mpich/ctypes/mpich-5.0.2/user",
    "bookworm-mpich/mpich/child/openmpi-5.0.11/root",
)
# With the watchdog that a forced run has: a wrong one may wait for ranks that never come.
FORCED = ("--force", "--watchdog", "15")


@dataclass(frozen=True)
class Cell:
    """A row, what was said of it, and what happened.

    Attributes:
        code: the exit code of ``fairlead run``.
        refused: checks that refused it; none: it was allowed.
        why: the first of them says.
        wrong: why it does not work, forced where it was refused; empty if it works.
    """

    image: str
    family: str
    program: str
    host: str
    user: str
    code: int
    refused: tuple[str, ...]
    why: str
    wrong: str

    @property
    def row(self) -> Row:
        return Row(self.image, self.family, self.program, self.host, self.user)

    @property
    def false_yes(self) -> bool:
        return not self.refused and bool(self.wrong)

    @property
    def false_no(self) -> bool:
        return bool(self.refused) and not self.wrong

    @property
    def untrue(self) -> tuple[str, ...]:
        """Checks of the refusal whose claim is not so."""
        return tuple(name for name in self.refused if not _CLAIMS.get(name, _fails)(self))


def _fails(cell: Cell) -> bool:
    return bool(cell.wrong)


def _contains(cell: Cell) -> bool:
    return PROGRAMS[cell.program].static


def _crosses(cell: Cell) -> bool:
    return cell.family != HOSTS[cell.host].family


def _is_newer(cell: Cell) -> bool:
    return HOSTS[cell.host].newer and IMAGES[cell.image].suite != "sid"


def _is_cleaned(cell: Cell) -> bool:
    return cell.program.startswith("cleaned")


# What a check claims when it refuses, as it is by the table, and by what happened.
_CLAIMS = {
    "static": _contains,
    "abi-family": _crosses,
    "glibc": _is_newer,
    "rank-cut-off": _is_cleaned,
    "families": lambda cell: len(IMAGES[cell.image].mpis) > 1,
}


def run(row: Row, who: truth.User | None) -> Cell:
    """Asks and runs; forced, if it is refused."""
    done = truth.run(row, who)
    errors = [f for f in done.answer.get("findings", ()) if f.get("severity") == "error"]
    refused: tuple[str, ...] = ()
    if done.code == REFUSED:
        refused = tuple(dict.fromkeys(f["check"] for f in errors))
    why = " ".join(errors[0]["what"].split()) if refused else ""
    code = done.code
    wrong = ""
    if refused:
        try:
            done = truth.run(row, who, *FORCED, limit_s=60)
        except subprocess.TimeoutExpired:
            wrong = "no end within 60 s"
    shown = why.replace(str(who.shared / "kept") if who else "", "").replace(str(hosts.KEPT), "")
    wrong = wrong or truth.wrong(row, done)
    return Cell(**asdict(row), code=code, refused=refused, why=shown, wrong=wrong)


def read(path: Path = KEPT) -> tuple[list[Cell], dict[str, object]]:
    """The kept cells, and where and how they were made."""
    kept = json.loads(path.read_text())
    cells = [Cell(**{**cell, "refused": tuple(cell["refused"])}) for cell in kept.pop("cells")]
    return cells, kept


def write(path: Path, cells: Iterable[Cell], seed: int, count: int) -> None:
    machine = {"system": _os(), "processor": platform.machine(), "cores": os.cpu_count()}
    value = {"machine": machine, "seed": seed, "drawn": count}
    text = json.dumps(value, indent=1).removesuffix("\n}")
    shown = ",\n".join(
        "  " + json.dumps(asdict(cell)) for cell in sorted(cells, key=lambda c: c.row)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, "w") as out:
        out.write(f'{text},\n "cells": [\n{shown}\n ]\n}}\n')


def _os() -> str:
    values = dict(
        line.split("=", 1)
        for line in Path("/etc/os-release").read_text().splitlines()
        if "=" in line
    )
    return values.get("PRETTY_NAME", "").strip('"')


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="rows whose names match")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--count", type=int, default=0, help="rows that are drawn by chance, of all combinations"
    )
    parser.add_argument("--out", type=Path, default=KEPT)
    parser.add_argument("--new", action="store_true", help="only rows that FILE lacks")
    asked = parser.parse_args(words)
    kept = {cell.row: cell for cell in read(asked.out)[0]} if asked.out.exists() else {}
    wanted = [*rows(), *drawn(asked.seed, asked.count)]
    chosen = [r for r in wanted if re.search(asked.only, r.name) and not (asked.new and r in kept)]
    bad = 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the account is removed
    with ExitStack() as stack:
        who = stack.enter_context(truth.user()) if any(r.user == "user" for r in chosen) else None
        for number, row in enumerate(chosen, 1):
            began = time.monotonic()
            try:
                cell = run(row, who if row.user == "user" else None)
            except subprocess.TimeoutExpired:
                print(f"{number}/{len(chosen)} NO END {row.name}: not kept", flush=True)
                continue
            kept[row] = cell
            mark = (
                "FALSE YES"
                if cell.false_yes
                else "FALSE NO"
                if cell.false_no
                else "UNTRUE"
                if cell.untrue
                else "ok"
            )
            bad += mark != "ok"
            said = f"no {','.join(cell.refused)}" if cell.refused else f"yes {cell.code}"
            seconds = time.monotonic() - began
            print(
                f"{number}/{len(chosen)} {mark} {row.name}: {said} | {cell.wrong} [{seconds:.1f} s]",
                flush=True,
            )
            if number % 10 == 0:
                write(asked.out, kept.values(), asked.seed, asked.count)
    write(asked.out, [kept[r] for r in wanted if r in kept], asked.seed, asked.count)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
