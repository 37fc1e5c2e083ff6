"""The report at the end of a run, and what the host gets of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from fairlead.base import comm_waits
from fairlead.comm import wait_report
from fairlead.comm.core import Timings


@pytest.mark.parametrize("shown", ["1", "0"])
def test_waits_of_every_team_are_left_for_the_host(
    shown: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also where the text is silenced."""

    class Gathering:
        def gather(self, mine: object, root: int) -> list[object]:
            return [mine, mine]

    rows = [
        ("without a team", Timings(9, 4_000_000, 0.5, aggregates=9)),
        ("idle", Timings(0, 0, 0.0, aggregates=0)),
    ]
    environ = {"FAIRLEAD_RUN_FOLDER": str(tmp_path), "FAIRLEAD_COMM_REPORT": shown}
    wait_report.report(rows, cast("Any", Gathering()), environ)
    assert comm_waits.read(tmp_path) == (
        comm_waits.TeamWaits("without a team", 9, 4_000_000, (0.5, 0.5)),
    )
    assert ("without a team" in capfd.readouterr().err) == (shown == "1")
