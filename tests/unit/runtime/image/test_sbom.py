"""Bills of materials, validated by CycloneDX's own library; packages found in a tree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packageurl import PackageURL
from tests.support.json_schema import sbom_mistake, validates

from fairlead.image.packages import Installed, Package, installed
from fairlead.image.sbom import (
    component,
    deb_purl,
    document,
    generic_purl,
    pypi_purl,
)


def written(*components: dict[str, Any], **change: Any) -> bytes:
    output: dict[str, Any] = {
        "version": "",
        "summary": "a summary",
        "identity": "lock",
        "epoch": 1783764997,
    }
    return document("mpi-base", components=components, **{**output, **change})


@validates
def test_sbom_is_valid_and_says_where_packages_come_from() -> None:
    deb = component(
        Package("deb", "libc6", "2.36-9"), Installed(), sha256="ab" * 32, properties={"index": "x"}
    )
    wheel = component(
        Package("wheel", "torch", "2.13.0+cpu", licence="BSD-3-Clause", spdx=True), Installed()
    )
    free = component(Package("wheel", "odd", "1", licence="my own words"), Installed())
    text = written(wheel, deb, free).decode()
    assert sbom_mistake(text) is None
    output = json.loads(text)
    first, second, third = output["components"]
    assert first["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]
    assert (second["name"], second["licenses"]) == ("odd", [{"license": {"name": "my own words"}}])
    assert (third["type"], third["licenses"]) == ("framework", [{"expression": "BSD-3-Clause"}])
    assert output["dependencies"][0]["dependsOn"] == [c["bom-ref"] for c in output["components"]]
    assert output["metadata"]["timestamp"] == "2026-07-11T10:16:37Z"


def test_sbom_of_the_same_packages_is_the_same_text() -> None:
    parts = [component(Package("wheel", name, "1"), Installed()) for name in ("a", "b", "c")]
    assert written(*parts) == written(*reversed(parts), parts[0])
    assert written(*parts) != written(*parts, identity="another lock")
    assert "timestamp" not in json.loads(written(*parts, epoch=None))["metadata"]


@validates
def test_sbom_without_packages_is_valid() -> None:
    text = written(epoch=None, summary="").decode()
    assert sbom_mistake(text) is None


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9.+~:!_-]*", fullmatch=True))
def test_purl_of_any_version_is_read_back_by_the_library(version: str) -> None:
    for purl in (
        deb_purl("libstdc++6", version, "amd64", "debian", "bookworm"),
        pypi_purl("Typing_Extensions", version),
        generic_purl("horovod", version, "ab" * 32),
    ):
        read = PackageURL.from_string(purl)
        assert read.version == version
        assert read.to_string() == purl


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with dpkg's records and wheels in several places."""
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/os-release").write_text('ID=debian\nVERSION_CODENAME="bookworm"\n')
    dpkg = root / "var/lib/dpkg"
    (dpkg / "status.d").mkdir(parents=True)
    (dpkg / "status").write_text(
        "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36-9\n"
        "Description: the C library\n Package: not this\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n"
    )
    (dpkg / "status.d/tzdata").write_text("Package: tzdata\nVersion: 2025b\nArchitecture: all\n")
    wheels = {
        "opt/python/lib/python3.11/site-packages/numpy": (
            "License-Expression: BSD-3-Clause AND MIT\nLicense: a\n b"
        ),
        "usr/local/lib/python3.11/dist-packages/old": "License: MIT",
        "usr/lib/python3/dist-packages/debians": "License: MIT",
        "home/somebody/env/lib/python3.11/site-packages/long": (
            f"License: {'x' * 200}\nClassifier: License :: OSI Approved :: Apache Software License"
        ),
    }
    for place, lines in wheels.items():
        path = root / place
        info = path.with_name(f"{path.name}-1.0.dist-info")
        info.mkdir(parents=True)
        text = f"Metadata-Version: 2.4\nName: {path.name}\nVersion: 1.0\n{lines}\n\nName: body\n"
        (info / "METADATA").write_text(text)
    return root


def test_packages_of_a_tree_are_those_that_are_installed(tree: Path) -> None:
    found = installed(tree)
    assert (found.distribution, found.suite) == ("debian", "bookworm")
    assert found.versions() == {
        "deb": {"libc6": "2.36-9", "tzdata": "2025b"},
        "wheel": {"long": "1.0", "numpy": "1.0", "old": "1.0"},
    }
    licences = {p.name: (p.licence, p.spdx) for p in found.packages if p.kind == "wheel"}
    assert licences == {
        "numpy": ("BSD-3-Clause AND MIT", True),
        "old": ("MIT", False),
        "long": ("Apache Software License", False),
    }


def test_packages_behind_links_out_of_the_tree_are_not_read(tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("Package: evil\nVersion: 1\n")
    status = tree / "var/lib/dpkg/status"
    status.unlink()
    status.symlink_to(outside)
    assert installed(tree).versions()["deb"] == {"tzdata": "2025b"}


def test_packages_of_an_empty_tree_are_none(tmp_path: Path) -> None:
    assert installed(tmp_path).packages == ()
