"""What the project says of itself in several files agrees: version, lock, compiler, flags."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import fairlead

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
LOCK = (ROOT / "requirements-dev.lock").read_text("utf-8")
# What images and their tests bring, each from its own lock.
NOT_LOCKED = {"models"}


def locked(version: str) -> dict[str, str]:
    """Versions by name that the lock has for a Python."""
    environment = {
        **default_environment(), "python_version": version, "python_full_version": f"{version}.0",
        "sys_platform": "linux", "platform_python_implementation": "CPython", "implementation_name": "cpython",
    }  # fmt: skip
    rows = re.findall(r"^([a-z0-9][^ ]*==.*?) *\\?$", LOCK, re.MULTILINE)
    found = [Requirement(row) for row in rows]
    return {
        canonicalize_name(r.name): str(r.specifier).removeprefix("==")
        for r in found
        if r.marker is None or r.marker.evaluate(environment)
    }


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_lock_has_a_version_for_every_requirement_of_the_environment(version: str) -> None:
    pins = locked(version)
    wanted = [*PROJECT["project"]["dependencies"]]
    for extra, requirements in EXTRAS.items():
        if extra not in NOT_LOCKED:
            wanted += requirements
    for requirement in map(Requirement, wanted):
        if requirement.name == "fairlead":
            continue
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"{requirement} is not locked: make lock"
        assert requirement.specifier.contains(pin), f"{requirement}, locked {pin}: make lock"


def test_lock_names_no_host_and_hashes_every_file() -> None:
    assert "://" not in LOCK and "--index" not in LOCK
    rows = re.split(r"\n(?=[a-z0-9])", LOCK)
    assert all("--hash=sha256:" in row for row in rows if not row.startswith("#"))


def test_bootstrap_and_makefile_lock_the_same_extras() -> None:
    line = re.search(r"^EXTRAS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert line and set(line[1].split()) == set(EXTRAS) - NOT_LOCKED - {"sign"}
    assert "requirements-dev.lock" in (ROOT / "bootstrap.sh").read_text()


def test_files_that_the_set_up_reads_are_there() -> None:
    text = (ROOT / "bootstrap.sh").read_text("utf-8")
    named = re.findall(r"(?<![\w/])(?:runtime|containers|tools)/[\w./*-]+", text)
    assert named and not [name for name in named if not list(ROOT.glob(name))]


def test_version_has_one_source() -> None:
    assert "version" not in PROJECT["project"] and PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "runtime/fairlead/__init__.py"
    text = (ROOT / "CITATION.cff").read_text("utf-8")
    assert re.search(r"^version: (.*)$", text, re.MULTILINE)[1] == fairlead.__version__  # type: ignore[index]


def test_both_packages_declare_their_types() -> None:
    for package in ("runtime/fairlead", "containers/fairlead_build"):
        assert (ROOT / package / "py.typed").is_file()


def test_compiler_of_the_wheel_is_pinned_exactly() -> None:
    (pin,) = map(Requirement, EXTRAS["native"])
    assert re.fullmatch(r"==[0-9.]+", str(pin.specifier))


def test_backend_asks_for_the_compiler_before_a_wheel_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import build_backend  # type: ignore[import-not-found]

    try:
        assert EXTRAS["native"][0] in build_backend.get_requires_for_build_wheel()
        for other in ("editable", "sdist"):
            asked = getattr(build_backend, f"get_requires_for_build_{other}")()
            assert EXTRAS["native"][0] not in asked
    finally:
        sys.modules.pop("build_backend", None)


def test_repository_holds_text_of_its_own_and_no_downloads_dumps_or_results_of_runs() -> None:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip("not a clone")
    for name in filter(None, done.stdout.decode().split("\0")):
        path = ROOT / name
        if not path.is_file():  # removed, and not committed yet
            continue
        assert path.stat().st_size < 512 * 1024, f"{name} is large"
        assert not name.startswith(("fairlead-report/", "fairlead-tune/")), name
        if not name.startswith("tests/recorded/"):  # of which some are broken by intent
            path.read_text("utf-8")
