"""Net plugins of the tests' own C, driven by every version of the interface, and whatever can go wrong with one."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.base.nccl_verdict import Expected
from fairlead.proof.wire import Device, Settings, Wire, wire

SOURCE = Path(__file__).parents[3] / "support" / "net_plugin.c"
QUICK = Settings(size=40_001, count=40, window=6, wait_s=20, limit_s=60)
BRIEF = replace(QUICK, wait_s=0.5, limit_s=4)

Build = Callable[..., Path]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def compile_one(*flags: str, name: str = "libnccl-net.so") -> Path:
        plugin = tmp_path / name
        words = ["cc", "-shared", "-fPIC", *flags, "-o", str(plugin), str(SOURCE)]
        subprocess.run(words, check=True)
        return plugin

    return compile_one


def driven(plugin: Path, settings: Settings = QUICK) -> Wire:
    return wire(str(plugin), settings, folder=plugin.parent)


@pytest.mark.parametrize("version", range(5, 13))
def test_pattern_goes_through_each_version_of_the_interface(version: int, build: Build) -> None:
    plugin = build(f"-DVERSION={version}")
    done = driven(plugin)
    assert done.holds and not done.findings(), done.to_json()
    for side in done.sides:
        assert (side.interface, side.name, side.path) == (version, "Test", str(plugin))
        assert (side.bytes, side.errors, side.stage) == (40 * 40_001, 0, "close")
        assert side.devices == (
            Device("first", "/sys/test", 1000, 3),
            Device("second", "/sys/test", 2000, 4),
        )
    assert done.gb_s > 0 and f"interface v{version}, 2 network devices on " in done.line


@pytest.mark.parametrize("size", [1, 7, 8, 4096])
def test_messages_of_any_size_are_compared_whole(size: int, build: Build) -> None:
    assert driven(build(), replace(QUICK, size=size, count=300, window=32)).holds


@pytest.mark.parametrize(
    ("fault", "words", "why"),
    [
        ("CONSTRUCTOR", "ended its process in stage `load`: SIGABRT", ""),
        ("LOADING", "did not return from stage `load`", ""),
        ("INIT", "did not initialise: init returned an error (2)", "libcuda.so: not here"),
        ("DEVICES", "found no network device", ""),
        ("CONNECT", "did not connect", "no connection came about"),
        ("HANG", "did not return from stage `connect`", ""),
        ("STUCK", "messages stopped on their way", "did not get on"),
        ("DAMAGE", "1 messages arrived damaged", "not those that were sent"),
    ],
)
def test_fault_is_named_with_its_stage(fault: str, words: str, why: str, build: Build) -> None:
    done = driven(build(f"-DFAULT_{fault}"), BRIEF)
    (found,) = done.findings()
    assert not done.holds and words in found.what and why in found.why, found
    assert found.check == "nccl-wire" and found.where and found.remedy


def test_plugin_without_a_dependency_is_refused_in_the_loaders_words(
    build: Build, tmp_path: Path
) -> None:
    needed = tmp_path / "libneeded.so"
    subprocess.run(["cc", "-shared", "-x", "c", "/dev/null", "-o", str(needed)], check=True)
    plugin = build("-Wl,--no-as-needed", f"-L{tmp_path}", "-lneeded")
    needed.unlink()
    (found,) = driven(plugin).findings()
    assert "the loader refuses" in found.what and "libneeded.so: cannot open" in found.why


def test_damaged_and_foreign_files_are_refused(build: Build) -> None:
    plugin = build()
    whole = plugin.read_bytes()
    for change, words in (
        (lambda b: b[:3000], ("file too short", "SIGBUS", "SIGSEGV")),
        (lambda b: b[:20], ("file too short",)),
        (lambda b: b"\x7fELF\x01" + b[5:], ("wrong ELF class",)),
        (lambda b: b[:18] + (b"\xf3" if b[18] != 0xF3 else b"\x3e") + b[19:], ("cannot open shared object file", "wrong")),
        (lambda b: b"#!/bin/sh\n", ("file too short", "invalid ELF header")),
    ):  # fmt: skip
        plugin.write_bytes(change(whole))
        (found,) = driven(plugin, BRIEF).findings()
        assert any(word in found.why + found.what for word in words), found


def test_file_that_is_no_plugin_and_one_that_is_missing_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "libother.so"
    subprocess.run(["cc", "-shared", "-x", "c", "/dev/null", "-o", str(other)], check=True)
    (found,) = driven(other).findings()
    assert "not a net plugin" in found.what
    (found,) = driven(tmp_path / "missing.so").findings()
    assert "the loader refuses" in found.what and "missing.so" in found.why


def test_interface_that_is_asked_for_and_not_there_is_refused(build: Build) -> None:
    (found,) = driven(build("-DVERSION=8"), replace(QUICK, interface=9)).findings()
    assert "not a net plugin" in found.what


def test_look_at_devices_needs_one_process(build: Build) -> None:
    done = driven(build(), replace(QUICK, count=0))
    assert done.holds and len(done.sides) == 1 and len(done.sides[0].devices) == 2
    assert done.gb_s == 0 and "moved" not in done.line


def test_other_side_that_ends_is_not_waited_for(build: Build, tmp_path: Path) -> None:
    plugin = build()
    done = wire(str(plugin), replace(QUICK, wait_s=50, limit_s=55), ((), ("false",)), tmp_path)
    assert not done.holds and done.findings()


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        (Expected(("Test",), interface=7), []),
        (Expected(("test", "Other")), []),
        (Expected(("Other",)), ["Test is in use, Other was planned"] * 2),
        (Expected(interface=8), ["interface v7, v8 was planned"] * 2),
        (Expected(file="/elsewhere/libnccl-net.so"), ["/elsewhere/libnccl-net.so was planned"] * 2),
    ],
)
def test_what_is_not_as_planned_is_a_finding(
    expected: Expected, words: list[str], build: Build
) -> None:
    found = driven(build("-DVERSION=7")).findings(expected)
    assert [word in one.what for word, one in zip(words, found, strict=True)] == [True] * len(words)


def test_nothing_is_left_in_the_folder(build: Build, tmp_path: Path) -> None:
    plugin = build()
    driven(plugin)
    assert list(tmp_path.iterdir()) == [plugin]
