"""What ranks print, as a cell shows it."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.notebook.display import Key, Output, spans
from fairlead.notebook.terminal import Stream


class Screen:
    def __init__(self) -> None:
        self.text = {"stdout": "", "stderr": ""}
        self.shown: list[dict[str, Any]] = []
        self.order: list[str] = []
        self.bars: list[str] = []

    def write(self, name: str, text: str) -> None:
        self.text[name] += text
        self.order += text.splitlines()

    def show(
        self, data: dict[str, Any], metadata: dict[str, Any], key: Key = (), new: bool = True
    ) -> None:
        self.shown.append(data)
        self.order.append(
            f"{'new' if new else 'again'} {data['text/plain']}" if "text/plain" in data else ""
        )

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


def test_lines_keep_the_order_of_each_rank_where_some_are_equal(screen: Screen) -> None:
    output = Output(range(3), screen)
    for rank in range(3):
        printed(output, rank, f"----\nlayer {rank}\n----\nlayer 2\n----\n")
    printed(output, 0, "on stderr\n", "stderr")
    printed(output, 0, "----\n")
    output.flush(last=True)
    for rank in range(3):
        own = [line.partition("] ")[2] for line in screen.order if rank in listed(line)]
        more = ["on stderr", "----"] if rank == 0 else []
        assert own == ["----", f"layer {rank}", "----", "layer 2", "----", *more]
    assert screen.order[0] == "[0-2] ----"


def listed(line: str) -> set[int]:
    """The ranks that a line is of."""
    found: set[int] = set()
    for part in line[1:].partition("]")[0].split(","):
        first, _, last = part.partition("-")
        found |= {*range(int(first), int(last or first) + 1)}
    return found


def test_what_is_printed_after_a_bar_is_shown(screen: Screen) -> None:
    output = Output([0], screen)
    for epoch in range(2):
        printed(output, 0, f"epoch {epoch}\n")
        for step in ("\r 50%", "\r100%"):
            printed(output, 0, step)
            output.flush(last=True)
        printed(output, 0, f"\nloss {epoch}\nwarning\n")
        output.flush(last=True)
    lines = [
        f"[0] {text}" for n in range(2) for text in (f"epoch {n}", "100%", f"loss {n}", "warning")
    ]
    assert screen.order == lines
    assert screen.bars == ["[0]  50%", "[0] 100%", ""] * 2


@pytest.mark.parametrize(
    ("text", "lines", "bars"),
    [
        ("\r 50%\r     \rnote\n\r 60%", ["note"], [" 60%"]),  # tqdm.write
        ("\r 50%\r     \r", [], []),  # a bar that leaves nothing
        (
            "\r 0%\n\r a 1%\x1b[A\n\r a 2%\x1b[A\r50%\n\r b 1%\x1b[A",
            [],
            ["50%", " b 1%"],
        ),  # nested ones
        ("1/9 a" + "\b" * 5 + "\r9/9 b\n", [], ["9/9 b"]),  # Keras
        ("of Windows\r\nand its next\r\n", ["of Windows", "and its next"], []),
        ("\r1\n\r2\n\r3\n\r4\n\r5\n\r6", ["1"], ["2", "3", "4", "5", "6"]),
        ("\x1b[31mred\x1b[0m\n", ["\x1b[31mred\x1b[0m"], []),
        ("\r long text\r\x1b[Kshort", [], ["short"]),
    ],
)
def test_stream_is_what_a_terminal_shows_however_it_is_cut(
    text: str, lines: list[str], bars: list[str]
) -> None:
    for size in (1000, 1) if "\r\n" not in text and "\x1b" not in text else (1000,):
        stream = Stream()
        ended = [
            line for n in range(0, len(text), size) for line in stream.take(text[n : n + size])
        ]
        assert (ended, stream.bars()) == (lines, bars)


def test_display_is_updated_in_place_and_after_clear_output_the_next_takes_its_place(
    screen: Screen,
) -> None:
    output = Output(range(2), screen)

    def shown(rank: int, text: str, kind: str = "display_data", name: str = "") -> None:
        transient = {"display_id": name} if name else {}
        output.take(rank, kind, {"data": {"text/plain": text}, "transient": transient})

    shown(0, "0%", name="bar")
    output.flush(last=True)
    for text in ("50%", "100%"):
        shown(0, text, "update_display_data", "bar")
    printed(output, 0, "before")
    shown(0, "plot 1")
    shown(1, "plot 1")
    output.flush(last=True)
    for rank in range(2):
        output.take(rank, "clear_output", {"wait": True})
        shown(rank, "plot 2")
    output.flush(last=True)
    shown(0, "plot 3")
    output.flush(last=True)
    assert screen.order == [
        "[0]", "new 0%", "again 100%", "[0] before", "[0-1]", "new plot 1", "again plot 2", "[0]", "new plot 3",
    ]  # fmt: skip


def test_cell_that_prints_300_000_lines_ends(screen: Screen) -> None:
    """Work that grew by the square of the lines would take hours."""
    output = Output([0], screen)
    for _ in range(300):
        printed(output, 0, "x\n" * 1000)
    output.flush(last=True)
    assert len(screen.text["stdout"]) == 1_800_000 and len(output.of[0].stdout) == 600_000


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
