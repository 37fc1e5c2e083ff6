"""The tuner that comes with a network plugin: found, planned, staged, checked by its own interface, and read in the log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.compiled import compiled
from tests.support.nccl import gpu_ask, gpu_image, gpu_plan, network, plugin, plugin_of
from tests.unit.runtime.nccl.test_checks import asked, found

from fairlead.base.errors import Severity
from fairlead.base.nccl_log import parse
from fairlead.base.nccl_verdict import summary
from fairlead.base.system import Machine
from fairlead.elf.facts import Elf, NetPlugin
from fairlead.nccl.decide import decide
from fairlead.nccl.host import discover
from fairlead.nccl.interfaces import common_tuner, tuner_versions
from fairlead.nccl.model import HostNetwork, NcclRules

FOLDER = "/opt/site/plugin/lib"
TUNER = f"{FOLDER}/libnccl-ofi-tuner.so"
STAGED = "/opt/fairlead/nccl/lib/libnccl-ofi-tuner.so"


def tuner_of(versions: tuple[int, ...] = (1, 2, 3), path: str = TUNER) -> NetPlugin:
    made = plugin_of((), path=path)
    return replace(made, interfaces={"tuner": versions})


def with_tuner(versions: tuple[int, ...] = (1, 2, 3)) -> HostNetwork:
    return replace(network(), tuner=tuner_of(versions))


def code(versions: tuple[int, ...], release: str) -> str:
    symbols = "".join(f"const void *ncclTunerPlugin_v{n}[] = {{ 0 }};\n" for n in versions)
    return f'const char *release = "Initializing aws-ofi-nccl {release}";\n{symbols}'


def looked(root: Path) -> HostNetwork:
    rules = NcclRules(folders=("/opt/site/lib",), source="the profile")
    [there] = discover(rules, Machine({}, root), {}, root).networks
    return there


@pytest.mark.parametrize("name", ["libnccl-ofi-tuner.so", "libnccl-tuner-ofi.so"])
def test_tuner_is_the_file_next_to_the_plugin(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "opt/site/lib"
    plugin(folder / "libnccl-net.so", release="1.14.2")
    compiled(folder / name, code((2, 3), "1.14.2"))
    there = looked(tmp_path)
    assert there.tuner and Path(there.tuner.path).name == name
    assert there.tuner.interfaces == {"tuner": (2, 3)}
    assert there.tuner.elf in there.parts


def test_tuner_of_another_release_or_without_its_libraries_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "opt/site/lib"
    plugin(folder / "libnccl-net.so", release="1.14.2")
    compiled(folder / "libnccl-tuner-ofi.so", code((3,), "1.9.2"))
    lost = compiled(tmp_path / "gone/libmodel.so.1", "int model(void) { return 1; }")
    words = ("-Wl,--no-as-needed", str(lost))
    compiled(folder / "libnccl-ofi-tuner.so", code((3,), "1.14.2"), *words)
    compiled(folder / "libnccl-tuner-other.so", "int nothing;")
    assert looked(tmp_path).tuner is None


def test_tuner_brings_what_it_needs(tmp_path: Path) -> None:
    folder = tmp_path / "opt/site/lib"
    plugin(folder / "libnccl-net.so", release="1.14.2")
    model = compiled(tmp_path / "usr/lib/libmodel.so.1", "int model(void) { return 1; }")
    words = ("-Wl,--no-as-needed", str(model))
    compiled(folder / "libnccl-ofi-tuner.so", code((3,), "1.14.2"), *words)
    assert "libmodel.so.1" in [elf.name for elf in looked(tmp_path).closure]


def test_tuner_in_the_plugin_itself_is_staged_once(tmp_path: Path) -> None:
    folder = tmp_path / "opt/site/lib"
    plugin(folder / "libnccl-net-ofi.so", more=code((3,), "1.18.0").partition("\n")[2])
    there = looked(tmp_path)
    assert there.tuner == there.plugin and len(there.parts) == len(there.closure) + 1
    plan = gpu_plan(gpu_image("2.27.5"), gpu_ask(there))
    assert plan.env["NCCL_TUNER_PLUGIN"] == plan.env["NCCL_NET_PLUGIN"]


@pytest.mark.parametrize(
    ("version", "versions", "common"),
    [
        ("2.18.3", (1, 2, 3), 0),  # knows no tuner
        ("2.19.3", (1, 2), 1),
        ("2.21.5", (1, 2, 3), 2),
        ("2.21.5", (3,), 0),
        ("2.27.5", (2, 3), 3),
        ("2.30.7", (2, 3, 6), 6),
    ],
)
def test_tuner_serves_by_a_version_of_its_own_interface(version, versions, common) -> None:
    library = gpu_image(version).nccl[0]
    assert common_tuner(library, tuner_of(versions)) == common
    decision = decide(gpu_image(version), gpu_ask(with_tuner(versions)))
    assert decision.env.get("NCCL_TUNER_PLUGIN") == (STAGED if common else None)
    missed = bool(tuner_versions(library)) and not common
    assert ("NCCL_TUNER_PLUGIN" in dict(decision.left_out)) is missed
    warned = found(gpu_plan(gpu_image(version), asked(with_tuner(versions))), Severity.WARNING)
    assert ("nccl-tuner" in warned) is missed
    if missed:
        assert "v3" in warned["nccl-tuner"] and "v2" in warned["nccl-tuner"]


def test_tuner_is_staged_next_to_the_plugin_and_explained() -> None:
    plan = gpu_plan(asked=gpu_ask(with_tuner()))
    assert plan.nccl_staging
    assert "lib/libnccl-ofi-tuner.so" in {file.target for file in plan.nccl_staging.files}
    shown = {line.what: line.why for line in plan.lines}
    assert "v2 of the tuner interface" in shown["libnccl-ofi-tuner.so"]
    assert "algorithms" in shown[f"NCCL_TUNER_PLUGIN={STAGED}"]
    unserved = gpu_plan(asked=gpu_ask(with_tuner((6,))))
    assert unserved.nccl_staging and unserved.nccl
    assert not [f for f in unserved.nccl_staging.files if "tuner" in f.target]


@pytest.mark.parametrize(
    ("value", "kept"),
    [(TUNER, False), ("/opt/amazon/lib/libnccl-ofi-tuner.so", False), ("/own/tuner.so", True), ("none", True)],
)  # fmt: skip
def test_users_own_tuner_stays_and_a_modules_is_the_staged_one(value: str, kept: bool) -> None:
    ask = gpu_ask(with_tuner(), user={"NCCL_TUNER_PLUGIN": value})
    [variable] = [v for v in decide(gpu_image(), ask).variables if v.name == "NCCL_TUNER_PLUGIN"]
    assert variable.value == (value if kept else STAGED)
    assert variable.kept is kept and "your own" in variable.why


def test_image_of_unknown_nccl_gets_the_tuner() -> None:
    decision = decide(gpu_image("", runtime=""), gpu_ask(with_tuner((9,))))
    assert decision.env["NCCL_TUNER_PLUGIN"] == STAGED


def test_glibc_of_the_tuner_counts_too() -> None:
    newer = replace(
        tuner_of(), elf=Elf(TUNER, "x64", "libnccl-ofi-tuner.so", needs={"GLIBC": "2.99"})
    )
    plan = gpu_plan(asked=asked(replace(network(), tuner=newer)))
    assert TUNER in found(plan)["nccl-glibc"]


@pytest.mark.parametrize(
    "text",
    [
        "Using tuner plugin: 'nccl_ofi_tuner'",  # 2.19, 2.20
        "TUNER/Plugin: Using tuner plugin nccl_ofi_tuner",  # 2.21 and newer
        "Successfully loaded external tuner plugin nccl_ofi_tuner",  # 2.27 and newer
    ],
)
def test_log_names_the_tuner(text: str) -> None:
    lines = (
        "TUNER/Plugin: Plugin name set by env to /x/tuner.so",
        text,
        "Using network Libfabric",
    )
    [record] = parse("\n".join(f"nid1:7:7 [0] NCCL INFO {line}" for line in lines))
    assert record.tuner == "nccl_ofi_tuner" and not record.asked
    assert "tuner nccl_ofi_tuner" in summary([record])
