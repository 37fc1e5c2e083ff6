"""The lines that tell of long work where there is no terminal: what each says when its work has ended."""

from __future__ import annotations

import re
import threading

import click
import pytest

from fairlead.cli import main, screen


def test_stage_ends_as_it_went(capsys: pytest.CaptureFixture[str]) -> None:
    shown = screen.progress()
    with shown.stage("well") as stage:
        stage.result("440 MB")
    with shown.stage("said nothing"):
        pass
    with shown.stage("broke and went on") as stage:
        stage.failed("the ranks did not report")
    with pytest.raises(OSError, match="full"), shown.stage("raised"):
        raise OSError("full")
    lines = re.sub(r"\d+\.\d s", "N s", capsys.readouterr().err).splitlines()
    assert lines == [
        "  ok    well: 440 MB (N s)",
        "  ok    said nothing (N s)",
        "  FAIL  broke and went on: the ranks did not report (N s)",
        "  FAIL  raised",
    ]


def until_shown(part: str, count: int = 1) -> list[str]:
    """The lines of a stage that does nothing until they have come; nothing depends on how long that takes."""
    lines: list[str] = []
    came = threading.Event()

    def keep(text: str, **rest: object) -> None:
        lines.append(re.sub(r"\d+(\.\d)? s", "N s", click.unstyle(text)))
        if sum(part in line for line in lines) >= count:
            came.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(screen, "SILENCE_S", 0.02)
        patch.setattr(click, "echo", keep)
        shown = screen.progress()
        with shown.stage("compile") as stage:
            if part == "compile":
                assert came.wait(60)
            else:
                stage.note("lane.cpp")
                with shown.stage("link") as inner:
                    inner.advance(3)
                    assert came.wait(60)
    return lines


def test_stage_that_says_nothing_shows_that_it_lives() -> None:
    lines = until_shown("compile", 3)
    assert lines[:3] == ["  ..    compile (N s)"] * 3
    assert lines[-1] == "  ok    compile (N s)"


def test_innermost_stage_speaks_and_ends_before_the_outer_one() -> None:
    lines = until_shown("link: 3")
    assert "  ..    link: 3 (N s)" in lines
    assert lines[-2:] == ["  ok    link (N s)", "  ok    compile (N s)"]


def test_nothing_is_said_after_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    before = threading.active_count()
    with pytest.raises(OSError, match="full"), screen.progress().stage("raised"):
        raise OSError("full")
    with screen.progress().stage("well"):
        pass
    assert threading.active_count() == before
    assert capsys.readouterr().err.splitlines()[0] == "  FAIL  raised"


def test_no_stage_is_silent_for_ten_seconds() -> None:
    assert screen.SILENCE_S < 10


@pytest.mark.parametrize(
    ("words", "muted", "shown"),
    [
        (["work"], False, True),
        (["work", "--quiet"], False, False),
        (["work", "-q"], False, False),
        (["work", "--", "-q"], False, True),
        (["work"], True, False),
    ],
)
def test_verb_shows_that_it_lives_also_outside_of_its_stages(
    words: list[str], muted: bool, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a verb does: unless it is to be quiet, or its ranks have the screen."""
    lines: list[str] = []
    came = threading.Event()

    def keep(text: str = "", **rest: object) -> None:
        lines.append(re.sub(r"\d+(\.\d)? s", "N s", click.unstyle(text)))
        came.set()

    @click.command()
    @click.option("-q", "--quiet", is_flag=True)
    @click.argument("rest", nargs=-1)
    def work(quiet: bool, rest: tuple[str, ...]) -> None:
        screen.hand_over(to_ranks=muted)
        if shown:
            assert came.wait(60)
        else:
            assert not came.wait(0.3)
        screen.hand_over(to_ranks=False)

    group = click.Group("tool", {"work": work})
    monkeypatch.setattr(screen, "SILENCE_S", 0.02)
    monkeypatch.setattr(click, "echo", keep)
    with pytest.raises(SystemExit) as ended:
        main.entry(words, command=group, name="tool")
    assert ended.value.code == 0
    assert [*dict.fromkeys(lines)] == (["  ..    tool work (N s)"] if shown else [])
