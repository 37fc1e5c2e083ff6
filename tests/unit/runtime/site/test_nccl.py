"""A profile's table [nccl]: its shape, its sources, the rules of a plan, and what sources disagree on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.json_schema import mistakes as schema_mistakes
from tests.support.json_schema import validates
from tools import site_reference

from fairlead.base.errors import ExitCode, FairleadError, Finding
from fairlead.base.serde import from_json, to_json
from fairlead.site import Site, Status, layers
from fairlead.site.nccl import NcclRules, compare, rules, with_variables
from fairlead.site.profile import schema
from fairlead.site.resolved_paths import look

SITES = site_reference.bundled_sites()
HEAD = """[site]
name = "mine"
summary = "of a test"
[sources.guide]
text = "a guide"
status = "documented"
read = 2026-11-01
[sources.old-guide]
text = "an older guide"
status = "user"
read = 2024-01-01
[fabric]
source = "guide"
kind = "slingshot"
accepts = ["cxi"]
"""
FULL = """[nccl]
source = "guide"
folders = ["/opt/plugin/*/lib"]
libraries = ["$FABRIC/lib64"]
files = ["/usr/lib64/libcxi.so*", "/usr/lib64/libjson-c.so*"]
modules = ["nccl-plugin"]
plugins = ["1.9.1-aws", "1.20.0"]
versions = ["2.27.7"]
networks = ["AWS Libfabric", "OFI"]
providers = ["cxi", "tcp;ofi_rxm"]
interfaces = ["hsn"]
single_node = true
gdr = true
directives = ["--network=disable_rdzv_get"]
env = { NCCL_NET = "aws libfabric", NCCL_PROTO = "^LL128", FI_PROVIDER = "cxi" }
annotations = { "com.hooks.cxi.enabled" = "true" }
sources."env.NCCL_PROTO" = "old-guide"
sources.directives = "guess"
[nccl.alternatives.old-guide]
NCCL_PROTO = "Simple"
NCCL_CROSS_NIC = "1"
"""


def put(folder: Path, text: str, name: str = "mine") -> Path:
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def read(folder: Path, table: str = FULL) -> Site:
    return layers.load(put(folder, HEAD + table), {})


def refused(folder: Path, table: str) -> list[Finding]:
    with pytest.raises(FairleadError) as caught:
        read(folder, table)
    assert caught.value.code is ExitCode.USAGE
    assert all(
        f.remedy and re.search(r"mine\.toml(:\d+)?$", f.where) for f in caught.value.findings
    )
    return list(caught.value.findings)


def test_table_is_read_whole_with_a_source_and_a_date_for_each_variable(tmp_path: Path) -> None:
    site = read(tmp_path)
    assert site.nccl.single_node and site.nccl.plugins == ("1.9.1-aws", "1.20.0")
    assert site.nccl.alternatives == {"old-guide": {"NCCL_PROTO": "Simple", "NCCL_CROSS_NIC": "1"}}
    origin = site.origins
    assert (origin["nccl.env.NCCL_NET"].source, origin["nccl.env.NCCL_NET"].read) == (
        "a guide", "2026-11-01",
    )  # fmt: skip
    assert origin["nccl.env.NCCL_PROTO"].source == "an older guide"
    assert origin["nccl.directives"].status is Status.GUESS
    assert origin["nccl.alternatives.old-guide"].status is Status.USER
    assert from_json(Site, to_json(site)) == site


def test_rules_have_what_a_plan_asks_for(tmp_path: Path) -> None:
    made = rules(read(tmp_path))
    assert made == NcclRules(
        folders=("/opt/plugin/*/lib",),
        # A single library is found in its folder; the folder itself is shown to no container.
        libraries=("$FABRIC/lib64", "/usr/lib64"),
        networks=("AWS Libfabric", "OFI"),
        providers=("cxi", "tcp;ofi_rxm"),
        interfaces=("hsn",),
        env={"NCCL_NET": "aws libfabric", "NCCL_PROTO": "^LL128", "FI_PROVIDER": "cxi"},
        single_node=True,
        gdr=True,
        source="the profile mine says so (documented: a guide, read 2026-11-01)",
    )


def test_gpudirect_of_a_bundled_site_has_its_source_and_its_date() -> None:
    stated = [site for site in SITES.values() if site.nccl.gdr]
    assert {"perlmutter", "alps", "olivia"} <= {site.name for site in stated}
    for site in stated:
        origin = site.origins["nccl.gdr"]
        assert origin.source and origin.read and origin.status is not Status.GUESS


def test_rules_of_a_profile_without_the_table_are_empty() -> None:
    made = rules(SITES["laptop"])
    assert made == NcclRules((), (), (), (), (), {}, single_node=False, source="")


@validates
@pytest.mark.parametrize(
    ("line", "check", "words"),
    [
        ('foldes = ["/opt/x"]', "unknown-key", "Did you mean `folders`"),
        ('alternative = { }', "unknown-key", "Did you mean `alternatives`"),
        ('folders = "/opt/x"', "bad-value", "nccl.folders"),
        ('folders = ["opt/x"]', "bad-value", "nccl.folders.0"),
        ("single_node = \"no idea\"", "bad-value", "nccl.single_node"),
        ('networks = ["lib*"]', "bad-value", "nccl.networks.0"),
        ('networks = [""]', "bad-value", "nccl.networks.0"),
        ('providers = ["CXI"]', "bad-value", "nccl.providers.0"),
        ('plugins = ["newest"]', "bad-value", "nccl.plugins.0"),
        ("versions = [2.19]", "bad-value", "nccl.versions.0"),
        ("env = { NCCL_CROSS_NIC = 1 }", "bad-value", "nccl.env.NCCL_CROSS_NIC"),
        ('env = { "NCCL NET" = "x" }', "bad-value", "nccl.env"),
        ('env = { nccl_net = "x" }', "bad-value", "nccl.env"),
        ('env = { NCCL_NET = "a\\nLD_PRELOAD=/x" }', "bad-value", "nccl.env.NCCL_NET"),
        ('env = ["NCCL_NET=x"]', "bad-value", "nccl.env"),
        ('annotations = { "com hooks" = "true" }', "bad-value", "nccl.annotations"),
        ("annotations = { x = true }", "bad-value", "nccl.annotations.x"),
        ('alternatives = { guide = "x" }', "bad-value", "nccl.alternatives.guide"),
        ("alternatives = { guide = { NCCL_NET = 1 } }", "bad-value", "nccl.alternatives.guide"),
    ],
)  # fmt: skip
def test_table_with_a_mistake_is_refused_with_its_line(
    line: str, check: str, words: str, tmp_path: Path
) -> None:
    import tomllib

    table = f'[nccl]\nsource = "guide"\n{line}\n'
    [finding, *_] = refused(tmp_path, table)
    assert finding.check == check and words in f"{finding.what} {finding.why}"
    assert finding.where.endswith(f":{(HEAD + table).count(chr(10))}")
    assert schema_mistakes(schema(), tomllib.loads(HEAD.replace("read = 2", "# ") + table))


def test_every_mistake_of_a_table_is_reported_at_once(tmp_path: Path) -> None:
    found = refused(
        tmp_path, '[nccl]\nsource = "guide"\nfoldes = []\nnetworks = 3\nenv = { x = "" }\n'
    )
    assert len(found) == 3


@pytest.mark.parametrize(
    ("table", "check", "words"),
    [
        ('[nccl]\nnetworks = ["IB"]\n', "site-source", "`nccl.networks` has no source"),
        ('[nccl.env]\nNCCL_NET = "IB"\n', "site-source", "`nccl.env` has no source"),
        ('[nccl]\nsource = "gide"\n', "site-source", "no entry `gide`"),
        ('[nccl.alternatives.gide]\nNCCL_NET = "IB"\n', "site-source", "Did you mean `guide`"),
        ('[nccl]\nsource = "guide"\nsources."env.NCCL_NET" = "guide"\n', "site-source", "does not set"),
        (
            '[nccl]\nsource = "guide"\nenv = { NCCL_PROTO = "x" }\nsources."env.NCCL_NET" = "guide"\n',
            "site-source", "does not set",
        ),
        (
            '[nccl]\nsource = "guide"\nnetworks = ["IB"]\nenv = { NCCL_NET = "OFI" }\n',
            "site-nccl", "NCCL_NET=OFI",
        ),
        (
            '[nccl]\nsource = "guide"\nproviders = ["cxi"]\nenv = { FI_PROVIDER = "tcp" }\n',
            "site-nccl", "FI_PROVIDER=tcp",
        ),
        ('[nccl]\nsource = "guide"\nenv = { LD_PRELOAD = "/x.so" }\n', "site-nccl", "LD_PRELOAD"),
    ],
)  # fmt: skip
def test_value_without_source_or_against_the_profile_itself_is_refused(
    table: str, check: str, words: str, tmp_path: Path
) -> None:
    [finding, *_] = refused(tmp_path, table)
    assert finding.check == check and words in f"{finding.what} {finding.why}"


def test_alternatives_alone_need_no_other_source(tmp_path: Path) -> None:
    site = read(tmp_path, '[nccl.alternatives.guide]\nNCCL_NET = "IB"\n')
    assert site.origins["nccl.alternatives"].source == "a guide"
    assert rules(site).env == {}


def test_layer_above_adds_variables_and_replaces_an_alternative(tmp_path: Path) -> None:
    environ = {"FAIRLEAD_SITES": str(tmp_path)}
    put(tmp_path, HEAD + FULL)
    above = HEAD.replace('name = "mine"', 'name = "other"\nextends = "mine"').replace(
        "a guide", "ops"
    )
    table = '[nccl]\nsource = "guide"\nenv = { NCCL_NET = "OFI" }\n[nccl.alternatives.old-guide]\nX = "1"\n'
    site = layers.load(put(tmp_path, above + table, "other"), environ)
    assert site.nccl.env["NCCL_NET"] == "OFI" and site.nccl.env["NCCL_PROTO"] == "^LL128"
    assert site.origins["nccl.env.NCCL_NET"].source == "ops"
    assert site.origins["nccl.env.FI_PROVIDER"].profile == "mine"
    assert site.nccl.alternatives == {"old-guide": {"X": "1"}}
    assert site.nccl.networks == ("AWS Libfabric", "OFI")


_ANY: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["env", "folders", "alternatives", "networks", "x"]), _ANY))
def test_table_of_anything_is_read_or_refused(table: dict[str, Any]) -> None:
    from pydantic import ValidationError

    from fairlead.site.profile import SiteProfile

    data = {"site": {"name": "mine", "summary": "x"}, "nccl": table}
    try:
        profile = SiteProfile.model_validate(data)
    except ValidationError:
        return
    assert all(isinstance(value, str) and "\n" not in value for value in profile.nccl.env.values())


def test_folders_of_the_plugin_are_found_on_the_machine_newest_first(tmp_path: Path) -> None:
    for version in ("1.9.1", "1.20.0"):
        (tmp_path / "opt/plugin" / version / "lib").mkdir(parents=True)
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64/libcxi.so.1").touch()
    here = look(read(tmp_path), {}, tmp_path)
    assert here.nccl_folders == ("/opt/plugin/1.20.0/lib", "/opt/plugin/1.9.1/lib")
    assert here.nccl_libraries == ()  # its variable is not set
    assert here.nccl_files == ("/usr/lib64/libcxi.so.1",)


GPU_SITES = ("perlmutter", "alps", "frontier", "lumi", "polaris", "isambard-ai", "olivia", "aws")


@pytest.mark.parametrize("name", GPU_SITES)
def test_bundled_site_says_what_a_run_may_end_on_and_never_tcp(name: str) -> None:
    made = rules(SITES[name])
    assert made.networks and made.providers and made.env and made.source
    assert not {"socket", "tcp"} & {n.lower() for n in (*made.networks, *made.providers)}
    assert made.env.get("NCCL_NET", made.networks[0]) in made.networks
    for variable in made.env:
        origin = SITES[name].origins[f"nccl.env.{variable}"]
        assert origin.read and origin.status is not Status.GUESS


def test_site_without_a_known_folder_says_so_in_a_note() -> None:
    for name in GPU_SITES:
        if not SITES[name].nccl.folders:
            assert any("documented" in n or "established" in n for n in SITES[name].notes), name


def test_notes_of_profiles_repeat_no_variable_of_the_table() -> None:
    for site in SITES.values():
        for note in site.notes:
            repeated = [n for n, v in site.nccl.env.items() if f"{n}={v}" in note]
            assert repeated == [], site.name


def test_compare_marks_what_sources_of_a_site_and_sites_disagree_on() -> None:
    found = {v.name: v for v in compare([SITES["alps"], SITES["frontier"], SITES["aws"]])}
    size = found["FI_CXI_DEFAULT_TX_SIZE"]
    assert (size.within, size.between, size.unset) == (("alps",), ("slingshot",), ())
    assert {(s.value, s.profile, s.used) for s in size.settings} == {
        ("16384", "alps", True), ("16384", "alps", False),
        ("2048", "frontier", True), ("2048", "cray-ex-slingshot", False),
    }  # fmt: skip
    assert all(s.origin.read for s in size.settings)
    agreed = found["FI_CXI_DEFAULT_CQ_SIZE"]
    assert not agreed.contradicted and not agreed.unset
    # EFA and Slingshot are different networks: that their providers differ contradicts nothing.
    provider = found["FI_PROVIDER"]
    assert {s.value for s in provider.settings} == {"cxi", "efa"} and not provider.contradicted
    assert found["NCCL_PROTO"].unset == ("frontier",)


def test_compare_lists_what_a_family_states_once() -> None:
    found = {v.name: v for v in compare([SITES["polaris"], SITES["lumi"]])}
    stated = [s for s in found["FI_CXI_DEFAULT_TX_SIZE"].settings if not s.used]
    assert [s.profile for s in stated] == ["cray-ex-slingshot"]


def test_compare_of_one_profile_is_about_its_sources(tmp_path: Path) -> None:
    [nic, proto] = [v for v in compare([read(tmp_path)]) if len(v.settings) > 1 or v.unset]
    assert (nic.name, nic.unset, nic.contradicted) == ("NCCL_CROSS_NIC", ("mine",), False)
    assert (proto.within, proto.between) == (("mine",), ())
    assert compare([]) == () == compare([SITES["laptop"]])


def test_sites_with_variables_are_those_of_gpu_machines() -> None:
    assert {site.name for site in with_variables(SITES.values())} == set(GPU_SITES)
