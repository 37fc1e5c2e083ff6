"""The lines that tell of long work where there is no terminal: what each says when its work has ended."""

from __future__ import annotations

import re

import pytest

from fairlead.cli import screen


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
