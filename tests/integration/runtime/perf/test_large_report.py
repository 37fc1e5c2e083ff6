"""The page of a validation on thousands of ranks."""

from __future__ import annotations

from tests.support.validated import demo

from fairlead.perf.draw.validation_page import render


def test_page_of_8192_ranks_is_small_and_names_the_slow_node() -> None:
    page = render(demo(nodes=1024, steps=100, bad_node=700))
    assert len(page.encode()) < 200_000
    assert "Node nid001701 is 1.5" in page.replace("\u00a0", " ")
    assert "1,024 hosts, nid001001 to nid002024" in page and "0–8191" in page
    assert page.count("<tr") < 400
