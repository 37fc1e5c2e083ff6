"""The wire proof between two hosts: the tests' own plugin, and the real aws-ofi-nccl where one is given.

FAIRLEAD_TEST_NET_PLUGIN names the plugin's file; FAIRLEAD_RECORD=1 keeps what came of it in
``tests/recorded/nccl/wire.json``, whose entries are otherwise compared with.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.system.netns import ADDRESSES, CABLE, Host, two_hosts
from tests.system.test_nccl import image as image

from fairlead.base.errors import Severity
from fairlead.base.nccl_verdict import Expected
from fairlead.base.progress import Silent
from fairlead.ml.train.session_runner import runner
from fairlead.perf.measure.step import Context, Options
from fairlead.perf.measure.steps import network
from fairlead.perf.records.validation import Way
from fairlead.proof.nccl import expected_of
from fairlead.proof.verdict import Proof
from fairlead.proof.wire import Settings, Wire, wire
from fairlead.session.model import Choices
from fairlead.session.prepare import prepare
from fairlead.swap.model import Request

SUPPORT = Path(__file__).parents[1] / "support"
RECORD = Path(__file__).parents[1] / "recorded" / "nccl" / "wire.json"
PLUGIN = os.environ.get("FAIRLEAD_TEST_NET_PLUGIN", "")
# What aws-ofi-nccl makes of Debian's libfabric: which provider it takes, by FI_PROVIDER; MB in each direction.
PROVIDERS = {"tcp": 1100, "sockets": 1100, "net": 1100, "udp;ofi_rxd": 50, "cxi": 1}

NIC = "hsn0"

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")


def compiled(source: str, target: Path, *flags: str) -> Path:
    words = ["cc", "-shared", "-fPIC", *flags, "-o", str(target), str(SUPPORT / source)]
    subprocess.run(words, check=True)
    return target


def rename(hosts: Sequence[Host]) -> None:
    """Gives the ends of the cable another name: aws-ofi-nccl does not look at interfaces called veth."""
    change = f"ip link set {CABLE} down && ip link set {CABLE} name {NIC} && ip link set {NIC} up"
    for host in hosts:
        subprocess.run(host.words("sh", "-c", change), check=True)
    wait = f"until ip -brief link show {NIC} | grep -qw UP; do sleep 0.02; done"
    for host in hosts:
        subprocess.run(host.words("sh", "-c", wait), check=True, timeout=30)


def sent(host: Host) -> int:
    """Bytes that have gone from it into the cable."""
    lines = Path(f"/proc/{host.init}/net/dev").read_text().splitlines()
    (counters,) = [line.split() for line in lines if line.strip().startswith(f"{NIC}:")]
    return int(counters[9])


def between(plugin: Path | str, settings: Settings, env: dict[str, str]) -> Wire:
    """Through that plugin, from host to host, with variables for both."""
    with two_hosts() as hosts:
        rename(hosts)
        starts = [
            host.words("env", f"TEST_ADDRESS={ADDRESSES[host.name]}", *map("=".join, env.items()))
            for host in hosts
        ]
        before = [sent(host) for host in hosts]
        done = wire(str(plugin), settings, starts, environ={**os.environ, **env})
        crossed = [sent(host) - then for host, then in zip(hosts, before, strict=True)]
    moved = done.sides[0].bytes
    assert all(count >= moved for count in crossed), "the messages did not cross the cable"
    return done


@root_only
def test_pattern_crosses_the_cable_between_two_hosts(tmp_path: Path) -> None:
    plugin = compiled("net_plugin.c", tmp_path / "libnccl-net.so", "-O2", "-DVERSION=11")
    done = between(plugin, Settings(count=100), {})
    assert done.holds, done.to_json()
    assert {side.host for side in done.sides} == {"node1", "node2"}
    assert [side.bytes for side in done.sides] == [100 << 20] * 2
    assert done.findings(Expected(("Test",), file=str(plugin), interface=11)) == ()


@root_only
def test_network_between_the_hosts_that_is_down_is_named(tmp_path: Path) -> None:
    plugin = compiled("net_plugin.c", tmp_path / "libnccl-net.so", "-DFAULT_CONNECT")
    done = between(plugin, Settings(count=1, wait_s=1, limit_s=20), {})
    (found,) = done.findings()
    assert "did not connect" in found.what and found.where.startswith("node")


def summary(done: Wire, provider: str) -> dict[str, Any]:
    """What must be so each time; without paths of this machine."""
    first = done.cause.record if not done.holds else done.sides[0].record
    return {
        "asked": provider,
        "release": first.release,
        "libfabric": first.libfabric,
        "interface": done.sides[0].interface,
        "network": done.sides[0].name,
        "provider": first.provider,
        "protocol": first.protocol,
        "hosts": sorted(side.host for side in done.sides),
        "bytes": sum(side.bytes for side in done.sides),
        "errors": sum(side.errors for side in done.sides),
        "holds": done.holds,
        "findings": [one.what for one in done.findings()],
    }


@pytest.mark.full
@root_only
@pytest.mark.skipif(not PLUGIN, reason="FAIRLEAD_TEST_NET_PLUGIN names no plugin")
@pytest.mark.parametrize("provider", PROVIDERS)
def test_real_plugin_moves_a_gigabyte_as_recorded(provider: str, tmp_path: Path) -> None:
    script = tmp_path / "versions"
    script.write_text("libcudart.so.12 { global: *; };\n")
    compiled("cuda_standin.c", tmp_path / "libcuda.so")
    compiled("cuda_standin.c", tmp_path / "libcudart.so.12", f"-Wl,--version-script={script}")
    path = ":".join(filter(None, (str(tmp_path), os.environ.get("LD_LIBRARY_PATH"))))
    env = {"FI_PROVIDER": provider, "LD_LIBRARY_PATH": path}
    megabytes = PROVIDERS[provider]
    done = between(PLUGIN, Settings(count=megabytes, wait_s=30, limit_s=300), env)
    found = summary(done, provider)
    known = json.loads(RECORD.read_text("utf-8")) if RECORD.is_file() else []
    same = ("asked", "release", "libfabric")
    if os.environ.get("FAIRLEAD_RECORD"):
        others = [one for one in known if any(one[key] != found[key] for key in same)]
        entry = {**found, "gb_s": round(done.gb_s, 2)}
        kept = sorted([*others, entry], key=lambda one: (one["release"], one["asked"]))
        RECORD.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
        return
    recorded = [one for one in known if all(one[key] == found[key] for key in same)]
    assert recorded, f"nothing is recorded of {[found[key] for key in same]}"
    assert found == {key: value for key, value in recorded[0].items() if key != "gb_s"}


def test_recorded_runs_of_real_plugins_moved_a_gigabyte_without_an_error() -> None:
    known = json.loads(RECORD.read_text("utf-8"))
    assert not any(one["errors"] for one in known)
    assert all(one["holds"] or one["findings"] for one in known)
    whole = {one["provider"] for one in known if one["holds"] and one["bytes"] >= 2 * 10**9}
    assert {"tcp;ofi_rxm", "sockets"} <= whole


def test_validation_moves_messages_between_ranks_in_the_container(
    image: Path, tmp_path: Path
) -> None:
    compiled("net_plugin.c", tmp_path / "libnccl-net.so", "-O2", "-DVERSION=8")
    request = Request(ranks=2, command=("python3",), nccl=str(tmp_path / "libnccl-net.so"))
    prepared = prepare(str(image), Choices(), request)
    proofs: list[Proof] = []
    run = runner(prepared, tmp_path / "ranks.log", proofs.append)
    network_planned = expected_of(prepared.plan)
    assert network_planned
    options = Options(tmp_path / "out", (2,), (), quick=True, network=network_planned)
    options.out.mkdir()
    context = Context(options, {Way.CONTAINER: run}, "mpiexec", Silent())
    network.STEP.measure(context)
    (found,) = context.observations.findings
    assert found.severity is Severity.INFO, (found, (tmp_path / "ranks.log").read_text())
    assert "Test from /opt/fairlead/nccl/lib/libnccl-net.so, interface v8" in found.what
    assert "0.21 GB moved" in found.what
