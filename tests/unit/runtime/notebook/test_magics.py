"""Lists of ranks, as cells name them, and the line that shows what a cell waits for."""

from __future__ import annotations

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from fairlead.notebook.magics import Waiting, chosen


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("", [0, 1, 2, 3]), ("2", [2]), ("0-1,3", [0, 1, 3]), ("3,0", [3, 0]), ("1,0-1", [1, 0])],
)
def test_list_names_ranks_once_each(text: str, ranks: list[int]) -> None:
    assert chosen(text, 4) == ranks


@pytest.mark.parametrize("text", ["4", "0-4", "2-1"])
def test_rank_that_is_not_there_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="ranks are 0-3"):
        chosen(text, 4)


def test_short_wait_leaves_no_line_and_a_long_one_is_shown_to_its_end() -> None:
    steps = ["0 of 2 ranks are there", "0 of 2 ranks are there", "1 of 2 ranks are there", ""]
    shown = {}
    InteractiveShell.instance()
    for quiet_s in (60.0, 0.0):
        with capture_output() as captured:
            waiting = Waiting("all ranks are there", quiet_s)
            for text in steps:
                waiting(text)
        shown[quiet_s] = [line["data"]["text/plain"] for line in captured._outputs]
    InteractiveShell.clear_instance()
    assert shown == {60.0: [], 0.0: [steps[0], steps[2], "all ranks are there"]}
