"""The tables of interface versions, one recorded fact for each row, and what they make of pairs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.nccl import library_of, plugin_of

from fairlead.nccl.interfaces import ROWS, common, is_newer, net_versions, row

# Release, what `git grep` of its tag shows: net, tuner, profiler, GIN.
RECORDED = [
    ("2.8.4", (4, 4), None, None, None),
    ("2.11.4", (4, 4), None, None, None),
    ("2.12.7", (4, 5), None, None, None),
    ("2.12.12", (4, 5), None, None, None),
    ("2.13.4", (4, 6), None, None, None),
    ("2.16.2", (4, 6), None, None, None),
    ("2.18.6", (4, 6), None, None, None),
    ("2.19.1", (5, 7), (1, 1), None, None),
    ("2.19.4", (5, 7), (1, 1), None, None),
    ("2.20.3", (5, 8), (1, 1), None, None),
    ("2.20.5", (5, 8), (1, 1), None, None),
    ("2.21.5", (5, 8), (2, 2), None, None),
    ("2.22.3", (5, 8), (2, 3), None, None),
    ("2.23.4", (5, 8), (2, 3), (1, 1), None),
    ("2.24.3", (5, 9), (2, 4), (1, 2), None),
    ("2.25.1", (5, 9), (2, 4), (1, 2), None),
    ("2.26.2", (6, 10), (2, 4), (1, 3), None),
    ("2.26.6", (6, 10), (2, 4), (1, 3), None),
    ("2.27.3", (6, 10), (2, 4), (1, 4), None),
    ("2.27.7", (6, 10), (2, 4), (1, 4), None),
    ("2.28.3", (6, 11), (2, 5), (1, 5), None),
    ("2.28.7", (6, 11), (2, 5), (1, 5), (11, 11)),
    ("2.28.9", (6, 11), (2, 5), (1, 5), (11, 11)),
    ("2.29.2", (6, 11), (2, 5), (1, 6), (11, 11)),
    ("2.29.7", (6, 11), (2, 5), (1, 6), (11, 12)),
    ("2.30.3", (6, 12), (2, 6), (1, 6), (11, 13)),
    ("2.30.4", (6, 12), (2, 6), (1, 6), (11, 13)),
    ("2.30.7", (6, 12), (2, 6), (1, 6), (13, 14)),
    ("2.32.3", (6, 12), (2, 6), (1, 7), (13, 14)),
]
# aws-ofi-nccl, by its sources: the versions that a release exports.
PLUGINS = {
    "1.6.0": range(2, 7),
    "1.7.4": range(2, 7),
    "1.8.1": range(2, 8),
    "1.9.2": range(2, 9),
    "1.11.1": range(2, 9),
    "1.13.2": range(2, 9),
    "1.14.2": range(2, 10),
    "1.15.0": range(2, 11),
    "1.16.3": range(2, 11),
    "1.17.3": range(2, 12),
    "1.18.0": range(2, 12),
    "1.19.2": range(6, 12),
    "1.20.0": range(6, 13),
    "1.21.1": range(6, 13),
}


@pytest.mark.parametrize(("version", "net", "tuner", "profiler", "gin"), RECORDED)
def test_row_of_a_release_is_what_its_sources_have(version, net, tuner, profiler, gin) -> None:
    found = row(version)
    assert found
    assert (found.net, found.tuner, found.profiler, found.gin) == (net, tuner, profiler, gin)


def test_rows_each_stand_for_a_recorded_release() -> None:
    assert {row(version) for version, *_ in RECORDED} == set(ROWS)


@pytest.mark.parametrize("version", ["", "2.7.8", "1.3.4"])
def test_row_of_an_unknown_release_is_none(version: str) -> None:
    assert row(version) is None
    assert net_versions(library_of(version)) == ()


def test_release_newer_than_the_table_is_taken_for_the_newest() -> None:
    assert row("2.33.1") is ROWS[-1]
    assert is_newer(library_of("2.33.1")) and is_newer(library_of("3.0.1"))
    assert not is_newer(library_of("2.30.7")) and not is_newer(library_of("2.30.9"))


def test_versions_that_the_file_names_come_before_the_table() -> None:
    later = replace(library_of("2.33.1"), asks={"net": (8, 9, 13), "tuner": (7,)})
    assert net_versions(later) == (8, 9, 13)
    assert not is_newer(later)
    assert common(later, plugin_of(range(6, 13), "1.21.1")) == 9
    nameless = replace(library_of(""), asks={"net": (6, 7)})
    assert common(nameless, plugin_of(range(2, 7), "1.6.0")) == 6


@pytest.mark.parametrize(
    ("nccl", "release", "version"),
    [
        ("2.8.4", "1.6.0", 4),
        ("2.8.4", "1.18.0", 4),
        ("2.8.4", "1.19.2", 0),
        ("2.11.4", "1.21.1", 0),
        ("2.12.12", "1.9.2", 5),
        ("2.12.12", "1.19.2", 0),
        ("2.13.4", "1.19.2", 6),
        ("2.18.6", "1.18.0", 6),
        ("2.19.4", "1.8.1", 7),
        ("2.21.5", "1.9.2", 8),
        ("2.21.5", "1.21.1", 8),
        ("2.25.1", "1.13.2", 8),
        ("2.25.1", "1.14.2", 9),
        ("2.26.2", "1.15.0", 10),
        ("2.27.5", "1.7.4", 6),
        ("2.28.9", "1.17.3", 11),
        ("2.30.7", "1.6.0", 6),
        ("2.30.7", "1.21.1", 12),
    ],
)
def test_common_version_of_a_pair_is_the_newest(nccl: str, release: str, version: int) -> None:
    assert common(library_of(nccl), plugin_of(PLUGINS[release], release)) == version


def test_common_version_with_a_library_of_unknown_version_is_not_claimed() -> None:
    assert common(library_of(""), plugin_of()) == 0
