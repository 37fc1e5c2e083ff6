"""Runs what the documentation shows: console blocks that follow ``<!-- run -->``.

``<!-- run: 121 -->`` names the exit code of the block's last command; all others must end with 0.
Each line of output that is shown must appear in the real one. ``...`` stands for anything, and what
differs between machines is made equal first: numbers, digests, transports, the node, the home.
"""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.system import hosts

from fairlead.base.paths import cache_dir, data_dir


@dataclass(frozen=True)
class Shown:
    """One command of a page with the output shown for it."""

    page: str
    command: str
    output: tuple[str, ...]
    code: int

    def __str__(self) -> str:
        return f"{self.page}: {self.command[:60]}"


def _shown() -> Iterator[Shown]:
    pages = [*hosts.ROOT.glob("*.md"), *(hosts.ROOT / "docs").rglob("*.md")]
    block = re.compile(r"^<!-- run(?:: (\d+))? -->\n```console\n(.*?)^```$", re.M | re.S)
    for page in sorted(pages):
        for code, body in block.findall(page.read_text()):
            parts = re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]
            for number, part in enumerate(parts, start=1):
                command, *output = part.splitlines()
                expected = int(code or 0) if number == len(parts) else 0
                yield Shown(page.name, command, tuple(filter(None, output)), expected)


SHOWN = tuple(_shown())
# What another large image would have to be built for.
_LONG = ("pytorch",)


def alike(text: str) -> str:
    """``text`` without what differs from machine to machine and from run to run."""
    for folder, shown in ((cache_dir(), "~/.cache"), (data_dir(), "~/.local/share")):
        text = text.replace(str(folder.parent), shown)
    text = text.replace(str(Path.home()), "~")
    text = re.sub(rf"(?<![\w/.-])(?:{re.escape(socket.gethostname())}|vm)(?![\w-])", "NODE", text)
    text = re.sub(r"\b(?:ucx|ofi): [a-z_;]+(?:, [a-z_;]+)*", "TRANSPORT", text)
    text = re.sub(r"\b[0-9a-f]{12,}\b", "DIGEST", text)
    return re.sub(r"\s+", " ", re.sub(r"\d+(?:\.\d+)*", "N", text)).strip()


def _appears(line: str, said: list[str]) -> bool:
    parts = [re.escape(alike(part)) for part in line.split("...")]
    pattern = re.compile(r".*".join(f" ?{part} ?" for part in parts))
    return any(pattern.fullmatch(other) for other in said)


@pytest.fixture(scope="module")
def base_image() -> None:
    """The image that every block uses, in the cache."""
    done = hosts.typed("fairlead build mpi-base")
    assert done.returncode == 0, done.stdout


# Pages whose commands write files where one stands: they get a folder of their own.
WRITING = ("recipes.md", "collectives.md", "data.md", "object-store.md", "run-records.md")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("reader")
    shutil.copytree(hosts.ROOT / "examples", made / "examples")
    return made


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param(s, marks=pytest.mark.full) if any(w in s.command for w in _LONG) else s
        for s in SHOWN
    ],
    ids=str,
)
def test_command_shown_prints_what_is_shown(shown: Shown, base_image: None, folder: Path) -> None:
    done = hosts.typed(shown.command, folder if shown.page in WRITING else hosts.ROOT)
    assert done.returncode == shown.code, done.stdout
    said = [alike(line) for line in done.stdout.splitlines()]
    lacking = [line for line in shown.output if not _appears(line, said)]
    assert not lacking, done.stdout


def test_pages_have_blocks_that_are_run() -> None:
    assert {shown.page for shown in SHOWN} >= {"README.md", "first-run.md", "recipes.md"}


@pytest.mark.parametrize(
    ("line", "real", "same"),
    [
        ("ok  (0.95 s)", "ok (1.2 s)", True),
        ("... exec ... python3", "APPTAINER=1 mpiexec exec --bind x python3", True),
        ("MPICH 5.0.2 of the host", "MPICH 5.0.2 of the image", False),
        ("format sif ...", "the format sif of it", False),
    ],
)
def test_lines_are_compared_without_what_changes(line: str, real: str, same: bool) -> None:
    assert _appears(line, [alike(real)]) is same
