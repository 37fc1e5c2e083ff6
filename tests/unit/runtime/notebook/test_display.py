"""What ranks print, as a cell shows it."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.notebook.display import Output, spans


class Screen:
    def __init__(self) -> None:
        self.text = {"stdout": "", "stderr": ""}
        self.shown: list[dict[str, Any]] = []
        self.bars: list[str] = []

    def write(self, name: str, text: str) -> None:
        self.text[name] += text

    def show(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        self.shown.append(data)

    def update(self, text: str) -> None:
        self.bars.append(text)


@pytest.fixture
def screen() -> Screen:
    return Screen()


def printed(output: Output, rank: int, text: str, name: str = "stdout") -> None:
    output.take(rank, "stream", {"name": name, "text": text})


def test_equal_lines_of_ranks_are_one_line(screen: Screen) -> None:
    output = Output(range(4), screen)
    for rank in range(4):
        printed(output, rank, "same\n" if rank != 2 else "other\n")
    output.flush(last=True)
    assert screen.text["stdout"] == "[0-1,3] same\n[2] other\n"


def test_line_that_a_rank_prints_twice_is_shown_twice(screen: Screen) -> None:
    output = Output(range(2), screen)
    printed(output, 0, "x\nx\n")
    printed(output, 1, "x\n")
    output.flush(last=True)
    assert screen.text["stdout"] == "[0-1] x\n[0] x\n"


def test_line_without_its_end_waits_and_is_shown_at_the_end(screen: Screen) -> None:
    output = Output([0], screen)
    printed(output, 0, "half ")
    printed(output, 0, "a line\nand a")
    output.flush(last=True)
    assert screen.text["stdout"] == "[0] half a line\n[0] and a\n"


def test_progress_bars_are_in_place_and_colours_are_not_counted(screen: Screen) -> None:
    output = Output(range(2), screen)
    for step in ("\r  0%", "\r\x1b[32m 50%\x1b[0m", "\r100%\n"):
        for rank in range(2):
            printed(output, rank, step, "stderr")
        output.flush(last=True)
    assert screen.bars == ["[0-1]   0%", "[0-1]  50%", "[0-1] 100%"]
    assert screen.text["stderr"] == ""


def test_equal_values_and_equal_displays_are_shown_once(screen: Screen) -> None:
    output = Output(range(3), screen)
    for rank in range(3):
        output.take(rank, "display_data", {"data": {"text/html": "<b>1</b>"}})
        output.take(rank, "execute_result", {"data": {"text/plain": str(rank // 2)}})
    output.flush(last=True)
    output.results()
    assert screen.shown == [{"text/html": "<b>1</b>"}]
    assert screen.text["stdout"] == "[0-2]\nOut[0-1]: 0\nOut[2]: 1\n"


def test_errors_are_grouped_by_what_they_say(screen: Screen) -> None:
    output = Output(range(3), screen)
    for rank in range(3):
        output.take(
            rank,
            "error",
            {"ename": "E", "evalue": "a" if rank else "b", "traceback": [f"line {rank}"]},
        )
    assert output.errors() == "[0] E: b; [1-2] E: a"
    assert screen.text["stderr"] == "[0] E\nline 0\n[1-2] E\nline 1\n"


def test_quiet_output_is_kept_and_not_shown(screen: Screen) -> None:
    output = Output([0], screen, quiet=True)
    printed(output, 0, "hidden\n")
    output.flush(last=True)
    assert output.of[0].stdout == "hidden\n" and not screen.text["stdout"]


def test_dead_rank_is_named_even_where_output_is_quiet(screen: Screen) -> None:
    output = Output([0, 1], screen, quiet=True)
    output.take(1, "died", "killed by SIGKILL")
    assert screen.text["stderr"] == "rank 1 killed by SIGKILL\n"


@pytest.mark.parametrize(
    ("ranks", "text"), [((), ""), ((3,), "3"), ((2, 0, 1), "0-2"), ((0, 2, 3, 9), "0,2-3,9")]
)
def test_spans_are_ranges(ranks: tuple[int, ...], text: str) -> None:
    assert spans(ranks) == text
