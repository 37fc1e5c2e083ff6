"""Dates of others."""

from __future__ import annotations

import pytest

from fairlead.base.dates import seconds_of_date


@pytest.mark.parametrize(
    "text",
    [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:37 -0000",
        "Sun, 06 Nov 1994 09:49:37 +0100",
    ],
)
def test_date_of_any_zone_is_the_same_second(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert seconds_of_date(text) == 784111777


@pytest.mark.parametrize(
    "text", ["", "soon", "Mon, 01 Jan 0001 00:00:00 -0000", "Mon, 99 Jan 2024 00:00:00 GMT"]
)
def test_what_is_not_a_date_is_a_value_error(text: str) -> None:
    try:
        seconds_of_date(text)
    except ValueError:
        return
    assert text.startswith("Mon, 01 Jan 0001")
