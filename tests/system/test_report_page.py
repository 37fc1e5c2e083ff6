"""The pages of a validation, a training and a comparison in a real browser: nothing is loaded, nothing complains, all can be read."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.validated import demo, kept
from tests.system import browser
from tests.unit.runtime.perf.test_compare import BEFORE, SLOWER
from tests.unit.runtime.perf.test_report import own_run, split

from fairlead.perf.draw.comparison_page import write_comparison
from fairlead.perf.draw.run_page import write_report
from fairlead.perf.draw.validation_page import write_validation

pytestmark = pytest.mark.skipif(
    browser.found() is None, reason=f"none of {', '.join(browser.NAMES)} is on PATH"
)

# Every text that is seen: its colour, what is behind it, its size, and whether it leaves the window.
_TEXTS = """
(() => {
  const found = [];
  const parse = c => { const m = c.match(/[\\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), owner = walker.currentNode.parentElement;
    if (!text || ['STYLE', 'TITLE', 'title'].includes(owner.tagName)) continue;
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    const box = range.getBoundingClientRect(), style = getComputedStyle(owner);
    if (!box.width || style.visibility != 'visible') continue;
    const svg = owner.closest('svg');
    const matrix = svg && owner.getScreenCTM(), scale = svg ? Math.hypot(matrix.a, matrix.b) : 1;
    const colour = parse(svg ? style.fill : style.color);
    let behind = [255, 255, 255, 1];
    for (let e = owner; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c[3] == 1) { behind = c; break; }
    }
    found.push({text: text.slice(0, 40), colour, behind, px: parseFloat(style.fontSize) * scale,
                left: box.left, right: box.right, bold: Number(style.fontWeight) >= 700});
  }
  return JSON.stringify(found);
})()
"""
# Graphics that carry meaning, by what they are painted with, and what is behind them.
_MARKS = """
(() => JSON.stringify([...document.querySelectorAll('.chart .line, .tally i, .bars i, .strip .m, .split i, .forest .m, .forest .ci')].map(e => {
  const s = getComputedStyle(e), card = getComputedStyle(e.closest('section')).backgroundColor;
  const paint = e.closest('svg') ? s.stroke : s.backgroundColor;
  return {name: e.getAttribute('class'), colour: paint.match(/[\\d.]+/g).map(Number), behind: card.match(/[\\d.]+/g).map(Number)};
})))()
"""


_UNFOLD = "document.querySelectorAll('details').forEach(d => { d.open = true; })"
_WIDTHS = (400, 800, 1600, *(pytest.param(w, marks=pytest.mark.full) for w in (320, 1024)))
_FEWEST = {
    "validation": 300,
    "training": 60,
    "run": 40,
    "comparison": 300,
}  # texts that are seen, of each kind of page


@pytest.fixture(scope="module")
def tab() -> Iterator[browser.Page]:
    with browser.page() as one:
        yield one


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("page")
    return {
        "validation": write_validation(folder, demo(references=kept(), steps=1000))[0],
        "training": write_report(folder, split())[0],
        "run": write_report(folder / "run", own_run(codes=(0, 3)))[0],
        "comparison": write_comparison(folder, BEFORE, SLOWER),
    }


@pytest.fixture(scope="module", params=["validation", "training", "run", "comparison"])
def page(tab: browser.Page, files: dict[str, Path], request: pytest.FixtureRequest) -> browser.Page:
    """One of the pages, all of it unfolded."""
    tab.requests.clear()
    tab.complaints.clear()
    tab.kind = request.param
    tab.open(files[request.param])
    tab.evaluate(_UNFOLD)
    return tab


def contrast(one: list[float], other: list[float]) -> float:
    """Of WCAG 2.2: https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio."""

    def luminance(colour: list[float]) -> float:
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
            for c in (v / 255 for v in colour[:3])
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def texts(page: browser.Page) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(page.evaluate(_TEXTS))
    assert len(found) > _FEWEST[page.kind]
    return found


def test_what_these_tests_look_for_would_be_seen(tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!doctype html><body style='background: #fff'><p style='color: #999'>faint</p>"
        "<p style='width: 900px; font-size: 5px'>small and wide</p>"
        "<img src='http://127.0.0.1:9/x.png'><script>console.error('no')</script>"
    )
    with browser.page() as tab:
        tab.show(400)
        tab.open(bad)
        assert "http://127.0.0.1:9/x.png" in tab.requests and len(tab.complaints) >= 2
        assert tab.evaluate("document.documentElement.scrollWidth") > 400
        faint, small = json.loads(tab.evaluate(_TEXTS))
        assert (
            contrast(faint["colour"], faint["behind"])
            < 4.5
            < contrast(small["colour"], small["behind"])
        )
        assert small["px"] == 5


def test_page_asks_for_nothing_and_nothing_complains(
    page: browser.Page, files: dict[str, Path]
) -> None:
    for scheme in ("light", "dark"):
        for width in (400, 1600):
            page.show(width, scheme=scheme)
    page.evaluate("new Promise(r => setTimeout(r, 200))")
    # The icon is `data:,`, which is the page itself.
    assert [url for url in page.requests if not url.startswith("data:")] == [
        files[page.kind].as_uri()
    ]
    assert page.complaints == []
    assert page.evaluate("performance.getEntriesByType('resource').length") == 0


@pytest.mark.parametrize("width", _WIDTHS)
def test_page_fits_the_window_and_its_text_can_be_read(page: browser.Page, width: int) -> None:
    page.show(width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    seen = texts(page)
    assert not [t["text"] for t in seen if t["left"] < -0.5 or t["right"] > width + 0.5]
    least = 10.0 if width > 320 else 8.0
    assert not [(t["text"], t["px"]) for t in seen if t["px"] < least]


def test_page_tables_keep_words_whole(page: browser.Page) -> None:
    """At no width does a cell become a column of letters, nor its row taller than a window."""
    for width in (600, 761, 800, 900, 1001, 1200):
        page.show(width)
        tallest = page.evaluate(
            "Math.max(...[...document.querySelectorAll('tr')].map(e => e.getBoundingClientRect().height))"
        )
        assert 0 < tallest < 320, width


def test_page_can_be_walked_by_heading_and_key(page: browser.Page) -> None:
    assert page.evaluate("document.querySelectorAll('h1').length") == 1
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map(e => +e.tagName[1])")
    assert levels[0] == 1 and all(b - a <= 1 for a, b in itertools.pairwise(levels))
    unnamed = page.evaluate(
        """[...document.querySelectorAll('svg')].filter(e => !e.closest('[aria-hidden=true]')
        && !e.getAttribute('aria-label') && !e.closest('[aria-label]')).length"""
    )
    assert unnamed == 0
    assert page.evaluate("document.querySelectorAll('thead th:not([scope=col])').length") == 0
    gone = page.evaluate(
        "[...document.querySelectorAll('a[href]')].filter(a => !document.querySelector(a.getAttribute('href'))).length"
    )
    assert gone == 0 and page.evaluate("document.documentElement.lang") == "en"


@pytest.mark.parametrize(("media", "scheme"), [("screen", "light"), ("screen", "dark"), ("print", "light"), pytest.param("print", "dark", marks=pytest.mark.full)])  # fmt: skip
def test_page_text_and_marks_stand_out_from_what_is_behind(
    page: browser.Page, media: str, scheme: str
) -> None:
    page.show(1200, scheme=scheme, media=media)
    faint = {
        (t["text"], round(contrast(t["colour"], t["behind"]), 2))
        for t in texts(page)
        if contrast(t["colour"], t["behind"]) < 4.5
    }
    assert not faint
    page.show(1200, scheme=scheme, media=media)
    marks = json.loads(page.evaluate(_MARKS))
    faint_marks = {
        (m["name"], round(contrast(m["colour"], m["behind"]), 2))
        for m in marks
        # idle, and what is not known, are to stand back
        if m["name"] not in ("p5", "unknown", "c5", "same")
        and contrast(m["colour"], m["behind"]) < 3
    }
    assert marks and not faint_marks


def test_bad_node_is_a_stripe_in_another_colour(tab: browser.Page, files: dict[str, Path]) -> None:
    page = tab
    page.open(files["validation"])
    page.show(1600)
    place = page.evaluate(
        """(() => { const b = document.querySelector('.cells').getBoundingClientRect();
        return [b.left + scrollX, b.top + scrollY, b.width, b.height]; })()"""
    )
    assert place[2] > 600 and place[3] > 200
    # one look where the sixth of eight nodes is, one where the second is; between the slow steps
    seen = page.evaluate(
        """(() => [5.5, 1.5].map(node => { const svg = document.querySelector('.cells');
        svg.scrollIntoView(); const b = svg.getBoundingClientRect();
        const e = document.elementFromPoint(b.left + b.width * 0.07, b.top + b.height * node / 8);
        return e.getAttribute('class'); }))()"""
    )
    assert seen[0] in ("h3", "h4") and seen[1] == "cells"


def test_page_prints(page: browser.Page, tmp_path: Path) -> None:
    page.show(794, media="print")
    page.paper(tmp_path / "page.pdf")
    made = (tmp_path / "page.pdf").read_bytes()
    assert made.startswith(b"%PDF") and 2 <= made.count(b"/Type /Page\n") <= 30
