"""The bundled profiles: sound, whole in their sources, and true to what a fabric is."""

from __future__ import annotations

import datetime
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import archspec.cpu
import pytest
from tests.support.json_schema import mistakes, validates
from tools import site_reference

from fairlead.base.paths import bundled
from fairlead.site import Site, Status
from fairlead.site.profile import SECTIONS, SiteProfile, schema, schema_text

ROOT = Path(__file__).parents[4]
PUBLISHED = ROOT / "docs" / "reference" / "site.schema.json"
EXAMPLES = [ROOT / "examples" / f"{name}.toml" for name in ("my-site", "my-gpu-site")]
FILES = sorted([*bundled("sitecfg").rglob("*.toml"), *EXAMPLES])
SITES = site_reference.bundled_sites()
_EMPTY: Any = SiteProfile.model_construct()  # type: ignore[call-arg]
KEYS = {name: type(getattr(_EMPTY, name)).model_fields for name in SECTIONS}
TCP = {"tcp", "sockets", "udp", "ofi_rxd"}
FABRICS = {"aries", "slingshot", "infiniband", "omni-path", "efa"}

each_file = pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
each_site = pytest.mark.parametrize("site", SITES.values(), ids=SITES.keys())


def plain(path: Path) -> dict[str, Any]:
    """A profile as JSON has it: dates as words."""
    data: dict[str, Any] = json.loads(json.dumps(tomllib.loads(path.read_text()), default=str))
    return data


def test_profiles_of_the_machines_that_were_asked_for_are_there() -> None:
    families = {
        "cray-xc-aries",
        "cray-ex-slingshot",
        "infiniband",
        "omni-path",
        "efa",
        "ethernet",
        "laptop",
    }
    machines = {
        "cori", "edison", "perlmutter", "piz-daint", "alps", "theta", "polaris", "aurora", "frontier",
        "lumi", "archer2", "frontera", "summit", "urika-cs", "isambard-ai", "olivia", "aws",
    }  # fmt: skip
    assert families == {name for name, site in SITES.items() if site.is_family}
    assert machines <= {name for name, site in SITES.items() if not site.is_family}


@each_file
def test_profile_file_uses_each_of_its_sources(path: Path) -> None:
    data = plain(path)
    used = {r["source"] for r in data.get("performance", ())}
    for section in SECTIONS:
        values = data.get(section, {})
        used |= {values.get("source"), *values.get("sources", {}).values()}
        used |= set(values.get("alternatives", ()))
    assert set(data.get("sources", {})) <= used


@each_file
def test_profile_file_dates_what_was_read_and_not_what_was_run(path: Path) -> None:
    for name, source in plain(path).get("sources", {}).items():
        if source["status"] != "run":
            assert source.get("read"), name


@each_site
def test_profile_has_an_origin_for_each_value_that_is_no_default(site: Site) -> None:
    blank = Site("x", "x", (), 30.0)
    for section in SECTIONS:
        for key in KEYS[section]:
            if key in ("source", "sources") or section in ("binds", "devices", "watchdog"):
                continue
            own, default = (getattr(getattr(s, section), key) for s in (site, blank))
            if own != default:
                origin = site.origins[f"{section}.{key}"]
                assert origin.source and origin.profile in site.lineage
    assert not site.binds or "binds.paths" in site.origins
    assert not site.devices or "devices.paths" in site.origins
    assert site.start_s == 30 or "watchdog.start_s" in site.origins
    for measured in site.performance:
        assert measured.origin.status is not Status.GUESS and measured.conditions


@each_site
def test_profile_of_a_fabric_accepts_it_and_no_tcp(site: Site) -> None:
    within = {"self", "shm", "sysv", "posix", "cma"}
    assert within <= set(site.accepts)
    own = {
        "aries": "gni", "slingshot": "cxi", "infiniband": "rc_mlx5", "omni-path": "psm2",
        "efa": "efa", "ethernet": "tcp", "none": "tcp",
    }  # fmt: skip
    if site.name == "archer2":  # Slingshot 10 has Mellanox cards
        own["slingshot"] = "rc_mlx5"
    assert own[site.fabric.kind] in site.accepts
    assert bool(TCP & set(site.accepts)) == (site.fabric.kind not in FABRICS)
    assert len(set(site.accepts)) == len(site.accepts)
    assert "tcp" not in site.environment.set.get("FI_PROVIDER", "")


@each_site
def test_profile_of_a_machine_is_distinguished_from_its_family_and_says_what_is_not_known(
    site: Site,
) -> None:
    if site.is_family:
        return
    assert len(site.lineage) == 2 and SITES[site.lineage[1]].is_family
    assert (
        site.detect.named
        or site.detect.present_paths != SITES[site.lineage[1]].detect.present_paths
    )
    family = SITES[site.lineage[1]]
    own_notes = site.notes[: len(site.notes) - len(family.notes)]
    assert own_notes  # what is thin, or odd, is said
    if any("etired" in note for note in own_notes) and site.name != "magnus":  # nobody says when
        assert site.until < str(datetime.date(2026, 1, 1)) and site.until


@each_site
def test_profile_names_processors_as_archspec_does(site: Site) -> None:
    assert set(site.node.processor) <= set(archspec.cpu.TARGETS)


def test_schema_published_is_that_of_the_code() -> None:
    assert PUBLISHED.read_text() == schema_text(), f"fairlead site schema -o {PUBLISHED}"


@validates
@each_file
def test_schema_fits_every_profile_and_each_names_it(path: Path) -> None:
    assert mistakes(schema(), plain(path)) == []
    named = re.match(r"#:schema (\S+)\n", path.read_text())
    assert named and (path.parent / named[1]).resolve() == PUBLISHED


SMALL = '[site]\nname = "x"\nsummary = "x"\n'


@validates
@pytest.mark.parametrize(
    "wrong",
    [
        "[sites]\n",
        '[fabric]\nkind = "infinband"\n',
        '[fabric]\nacepts = ["shm"]\n',
        '[engine]\nkinds = []\n',
        '[engine]\noptions = { singularity = ["--nv"] }\n',
        '[mpi]\nsearch = ["opt/mpich"]\n',
        '[environment]\nset = { "A B" = "1" }\n',
        "[watchdog]\nstart_s = -1\n",
        '[sources.x]\ntext = "x"\nstatus = "perhaps"\n',
        '[[performance]]\nwhat = "x"\nvalue = 1\nunit = "us"\nbetter = "lower"\n',  # no source
    ],
)  # fmt: skip
def test_schema_refuses_what_the_reader_refuses(wrong: str) -> None:
    assert not mistakes(schema(), tomllib.loads(SMALL))
    assert mistakes(schema(), tomllib.loads(SMALL + wrong))


def test_schema_says_of_every_key_what_it_means() -> None:
    found = []
    for name, table in schema()["$defs"].items():
        found += [f"{name}.{k}" for k, v in table["properties"].items() if not v.get("description")]
    assert found == [] and '"null"' not in schema_text()


def test_page_of_profiles_is_made_of_them() -> None:
    published = (ROOT / "docs" / "reference" / "sites.md").read_text()
    assert published == site_reference.page(SITES), "python -m tools.site_reference"


def test_reference_lists_every_key_of_a_profile() -> None:
    text = site_reference.keys_section()
    shown = {
        name: re.findall(r"^- `(\w+)`: \w", body, re.MULTILINE)
        for name, body in re.findall(
            r"^## `\[+(\w+)(?:\.NAME)?\]+`\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL
        )
    }
    for name, fields in KEYS.items():
        assert shown[name] == [key for key in fields if key not in ("source", "sources")], name
    assert set(shown) == {*SECTIONS, "site", "sources", "performance"}


@pytest.mark.parametrize(
    ("name", "words"), [("my-site", '"my-site"'), ("my-gpu-site", "[nccl.alternatives.vendor]")]
)
def test_profile_in_the_guide_is_part_of_the_example(name: str, words: str) -> None:
    text = (ROOT / "docs" / "howto" / "site-profiles.md").read_text()
    block = next(b for b in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if words in b)
    example = tomllib.loads((ROOT / "examples" / f"{name}.toml").read_text())
    for table, values in tomllib.loads(block).items():
        for key, value in values.items():
            assert example[table][key] == value, (table, key)
