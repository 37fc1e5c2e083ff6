"""Lists of ranks, as cells name them."""

from __future__ import annotations

import pytest
from IPython.core.error import UsageError

from fairlead.notebook.magics import chosen


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
