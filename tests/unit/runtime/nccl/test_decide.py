"""What is done about NCCL's network, and which variables ranks get."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.nccl import RULES, gpu_ask, gpu_image, library_of, network, plugin_of

from fairlead.elf.facts import ImageFacts
from fairlead.nccl.decide import Decision, decide, settings
from fairlead.nccl.model import Ask, NcclRules

FILE = "/opt/fairlead/nccl/lib/libnccl-net-ofi.so"


def decided(facts: ImageFacts | None = None, ask: Ask | None = None) -> Decision:
    return decide(facts or gpu_image(), ask or gpu_ask())


def test_decide_two_nodes_with_gpus_selects_the_plugin_and_its_network() -> None:
    found = decided()
    assert found.host and found.env["NCCL_NET_PLUGIN"] == FILE
    assert found.env["NCCL_NET"] == "AWS Libfabric"
    assert found.networks == ("AWS Libfabric", "Libfabric", "OFI")
    assert found.env["FI_MR_CACHE_MONITOR"] == "userfaultfd"
    assert found.env["NCCL_SOCKET_IFNAME"] == "hsn"
    assert all(variable.why for variable in found.variables)


@pytest.mark.parametrize(
    ("facts", "ask", "why"),
    [
        (replace(gpu_image(), nccl=()), gpu_ask(), "neither NCCL nor RCCL"),
        (gpu_image(), replace(gpu_ask(), gpus=False), "no GPUs"),
        (gpu_image(), replace(gpu_ask(), want="image"), "--nccl image"),
        (gpu_image(), replace(gpu_ask(), host=None), "nothing is known"),
        (gpu_image(), gpu_ask(networks=()), "no plugin was found"),
        (gpu_image(), gpu_ask(user={"NCCL_NET_PLUGIN": "none"}), "NCCL_NET_PLUGIN=none of yours"),
        (gpu_image(), gpu_ask(user={"NCCL_NET": "Socket"}), "NCCL_NET=Socket of yours"),
    ],
)
def test_decide_nothing_is_brought_and_the_reason_is_known(facts, ask, why: str) -> None:
    found = decided(facts, ask)
    assert found.host is None and not found.env
    assert why in found.why


def test_decide_host_is_asked_for_without_gpus() -> None:
    assert decided(ask=gpu_ask(gpus=False, want="host")).host


@pytest.mark.parametrize("nodes", [1, 2, 0])
def test_decide_network_is_not_set_on_one_node_unless_the_site_says_so(nodes: int) -> None:
    found = decided(ask=gpu_ask(nodes=nodes))
    assert ("NCCL_NET" in found.env) is (nodes != 1)
    assert ("NCCL_NET" in dict(found.left_out)) is (nodes == 1)
    assert found.env["NCCL_NET_PLUGIN"] == FILE
    always = decided(ask=gpu_ask(nodes=nodes, rules=replace(RULES, single_node=True)))
    assert always.env["NCCL_NET"]


def test_decide_unknown_number_of_nodes_is_said() -> None:
    [variable] = [v for v in decided(ask=gpu_ask(nodes=0)).variables if v.name == "NCCL_NET"]
    assert "not known" in variable.why


@pytest.mark.parametrize(
    ("release", "wish", "value"),
    [
        ("1.9.2", "OFI", "AWS Libfabric"),  # it would not answer to OFI
        ("1.18.0", "OFI", "OFI"),
        ("1.18.0", "", "AWS Libfabric"),
        ("1.18.0", "aws libfabric", "aws libfabric"),
        ("1.18.0", "IB", "AWS Libfabric"),
    ],
)
def test_decide_sites_name_of_the_network_counts_where_the_plugin_has_it(release, wish, value):
    rules = replace(RULES, networks=(wish,) if wish else ())
    host = network(plugin_of(range(2, 9), release))
    assert decided(ask=gpu_ask(host, rules=rules)).env["NCCL_NET"] == value
    by_env = replace(RULES, env={"NCCL_NET": wish} if wish else {})
    assert decided(ask=gpu_ask(host, rules=by_env)).env["NCCL_NET"] == value


@pytest.mark.parametrize(
    ("version", "plugin", "net", "by_name"),
    [
        ("2.11.4", None, None, True),
        ("2.12.12", "fairlead", "AWS Libfabric", True),
        ("2.20.5", "fairlead", "AWS Libfabric", True),
        ("2.21.5", FILE, "AWS Libfabric", False),
        ("2.30.7", FILE, "AWS Libfabric", False),
    ],
)
def test_decide_variables_are_those_that_the_release_knows(version, plugin, net, by_name) -> None:
    found = decided(gpu_image(version))
    assert found.env.get("NCCL_NET_PLUGIN") == plugin
    assert found.env.get("NCCL_NET") == net
    assert found.by_name is by_name


def test_decide_an_older_nccl_next_to_it_finds_the_plugin_too() -> None:
    old = replace(library_of("2.18.3"), path="/usr/lib/libnccl.so.2.18.3")
    found = decided(replace(gpu_image("2.27.5"), nccl=(library_of("2.27.5"), old)))
    assert found.by_name and found.env["NCCL_NET_PLUGIN"] == "fairlead"


def test_decide_users_own_values_stay_and_are_explained() -> None:
    user = {"NCCL_CROSS_NIC": "0", "NCCL_DEBUG_FILE": "/x.%h", "NCCL_NET": "OFI"}
    found = decided(ask=gpu_ask(user=user))
    assert {name: found.env[name] for name in user} == user
    kept = {v.name: v for v in found.variables if v.kept}
    assert set(kept) == set(user)
    assert kept["NCCL_CROSS_NIC"].instead == "1"
    assert found.networks == ("OFI",)


@pytest.mark.parametrize(
    ("value", "same"),
    [
        ("/opt/site/plugin/lib/libnccl-net.so", True),  # as its module sets it
        ("ofi", True),
        ("libnccl-net-ofi.so", True),
        ("/opt/other/libnccl-net.so", False),
        ("spcx", False),
        ("none", False),
    ],
)
def test_decide_users_plugin_that_is_the_hosts_is_brought(value: str, same: bool) -> None:
    names = ("libnccl-net-ofi.so", "libnccl-net.so")
    there = replace(network(), names=names, named="/opt/site/plugin/lib/libnccl-net.so")
    found = decided(ask=gpu_ask(there, user={"NCCL_NET_PLUGIN": value}))
    assert (found.host is not None) is same
    assert found.env.get("NCCL_NET_PLUGIN") == (FILE if same else None)
    if same:
        [variable] = [v for v in found.variables if v.name == "NCCL_NET_PLUGIN"]
        assert f"your own NCCL_NET_PLUGIN={value}" in variable.why


def test_decide_plugin_of_unknown_name_is_not_asked_for_by_one() -> None:
    found = decided(ask=gpu_ask(network(plugin_of(release=""))))
    assert "NCCL_NET" not in found.env
    assert "does not show" in dict(found.left_out)["NCCL_NET"]


GH200 = {"gpu_model": "NVIDIA GH200 120GB"}


def arm(version: str = "2.27.5") -> tuple[ImageFacts, Ask]:
    facts = gpu_image(version, machine="AArch64")
    return facts, gpu_ask(network(plugin_of(machine="AArch64")), **GH200)


def test_decide_ll128_is_switched_off_on_gh200_over_slingshot() -> None:
    assert decided(*arm()).env["NCCL_PROTO"] == "^LL128"
    facts, ask = arm()
    assert "NCCL_PROTO" not in decided(*arm("2.26.2")).env
    assert "NCCL_PROTO" not in decided(gpu_image("2.27.5")).env  # A100
    assert "NCCL_PROTO" in decided(facts, gpu_ask(gpu_model="", gpu="")).env  # by the processor
    elsewhere = gpu_ask(fabric="infiniband", devices=(), **GH200)
    assert "NCCL_PROTO" not in decided(facts, elsewhere).env
    assert decided(facts, replace(ask, user={"NCCL_PROTO": "Simple"})).env["NCCL_PROTO"] == "Simple"


def test_settings_user_before_plan_before_image_before_files() -> None:
    facts = replace(gpu_image(), nccl_conf={"NCCL_DEBUG": "WARN", "NCCL_NET": "IB", "NCCL_X": "1"})
    image = {"NCCL_NET_PLUGIN": "spcx", "NCCL_X": "2", "NCCL_DEBUG": "VERSION"}
    ask = gpu_ask(image=image, user={"NCCL_DEBUG": "INFO"})
    found = settings(decided(facts, ask), facts, ask)
    assert found["NCCL_NET_PLUGIN"] == FILE
    assert found["NCCL_NET"] == "AWS Libfabric"
    assert (found["NCCL_DEBUG"], found["NCCL_X"]) == ("INFO", "2")


def test_decide_without_rules_sets_only_what_selects_the_plugin() -> None:
    found = decided(ask=gpu_ask(rules=NcclRules()))
    assert set(found.env) == {"NCCL_NET", "NCCL_NET_PLUGIN"}
