"""The files that each release opens, and the names of networks."""

from __future__ import annotations

import pytest
from tests.support.nccl import library_of, plugin_of

from fairlead.nccl.selection import (
    has_selection,
    names_asked,
    names_of_network,
    names_staged,
    takes_paths,
)


@pytest.mark.parametrize(
    ("version", "value", "names"),
    [
        ("2.8.4", "", ("libnccl-net.so",)),
        ("2.8.4", "ofi", ("libnccl-net.so",)),  # it knows no such variable
        ("2.12.7", "ofi", ("libnccl-net-ofi.so",)),
        ("2.20.5", "/p/libnccl-net.so", ("libnccl-net-/p/libnccl-net.so.so",)),
        ("2.21.5", "", ("libnccl-net.so",)),
        ("2.21.5", "ofi", ("ofi", "libnccl-net-ofi.so")),
        ("2.21.5", "/p/libnccl-net.so", ("/p/libnccl-net.so",)),
        ("2.26.2", "libnccl-net.so", ("libnccl-net.so",)),
        ("2.26.2", "a,b", ("a,b", "libnccl-net-a,b.so")),
        ("2.27.5", "a,/p/b.so", ("a", "libnccl-net-a.so", "/p/b.so")),
        ("2.27.5", "none", ()),
        ("2.28.3", "NONE", ()),
        ("2.28.9", "none,/p/b.so", ("none", "libnccl-net-none.so", "/p/b.so")),
    ],
)
def test_names_asked_by_a_release(version: str, value: str, names: tuple[str, ...]) -> None:
    assert names_asked(library_of(version), value) == names


def test_names_asked_by_rccl_are_its_own() -> None:
    library = library_of("2.20.5", "rocm6.2", kind="rccl")
    assert names_asked(library) == ("librccl-net.so",)
    assert {"librccl-net.so", "librccl-net-ofi.so", "libnccl-net.so"} <= set(names_staged(library))


def test_names_staged_for_nccl_are_those_that_releases_and_scripts_ask_for() -> None:
    assert {"libnccl-net.so", "libnccl-net-ofi.so"} <= set(names_staged(library_of()))


@pytest.mark.parametrize(
    ("version", "selects", "paths"),
    [
        ("2.11.4", False, False),
        ("2.12.7", True, False),
        ("2.20.5", True, False),
        ("2.21.5", True, True),
    ],
)
def test_release_knows_the_variables_since(version: str, selects: bool, paths: bool) -> None:
    library = library_of(version)
    assert (has_selection(library), takes_paths(library)) == (selects, paths)


@pytest.mark.parametrize(
    ("release", "names"),
    [
        ("1.6.0", {"AWS Libfabric"}),
        ("1.12.1", {"AWS Libfabric"}),
        ("1.13.0", {"AWS Libfabric", "Libfabric", "OFI"}),
        ("1.21.1", {"AWS Libfabric", "Libfabric", "OFI"}),
    ],
)
def test_names_of_aws_ofi_nccl_by_release(release: str, names: set[str]) -> None:
    found = names_of_network(plugin_of(release=release))
    assert set(found) == names
    assert found[0] == "AWS Libfabric"  # which every release takes


def test_names_of_another_plugin_are_what_it_reports() -> None:
    from dataclasses import replace

    spectrum = replace(plugin_of(release=""), name="Spectrum-X")
    assert names_of_network(spectrum) == ("Spectrum-X",)
    assert names_of_network(plugin_of(release="")) == ()
