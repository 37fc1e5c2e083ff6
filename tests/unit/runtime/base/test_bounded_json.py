"""JSON that Python would take and nothing after it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.base.bounded_json import loads

TEXT = st.text(st.characters(exclude_categories=("Cs",)))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES, st.booleans(), st.booleans())
def test_what_is_written_is_read_back(value: Any, ascii_only: bool, as_bytes: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert loads(text.encode() if as_bytes else text) == value


@pytest.mark.parametrize(
    "text",
    [
        "9" * 400,
        "-" + "9" * 400,
        str(2**64),
        str(-(2**63) - 1),
        "9" * 5000,  # beyond what Python converts
        "1e999",
        "-1e999",
        "NaN",
        "[Infinity]",
        r'"\ud800"',
        r'{"\uDFFF": 1}',
        r'["\udc00\ud800"]',
        '"\ud800"',
        b'"\xed\xa0\x80"',
        b'"\xff"',
        "1".encode("utf-16"),
        "[" * 65 + "]" * 65,
        "[" * 100_000,
        '{"a":' * 100_000,
        "",
        "{",
    ],
)
def test_what_python_reads_and_nothing_can_use_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        loads(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"\ud83d\ude00"', "\N{GRINNING FACE}"),
        (r'"\\ud800"', r"\ud800"),  # a backslash, then letters
        ("[" * 64 + "]" * 64, json.loads("[" * 64 + "]" * 64)),
        (b"\xef\xbb\xbf1", 1),
        ("0." + "1" * 400, 0.1111111111111111),
    ],
)
def test_what_only_looks_odd_is_read(text: str | bytes, value: Any) -> None:
    assert loads(text) == value
