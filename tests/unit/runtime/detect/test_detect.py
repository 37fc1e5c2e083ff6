"""What is seen of recorded machines (``tests/recorded/sites``), and which profile each is of.

The recordings say themselves what in them is from where, and what is made up.
"""

from __future__ import annotations

import datetime
import json
import tomllib
from dataclasses import fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from tests import recording
from tests.recording import Played, Recording

from fairlead import site as sites
from fairlead.base import paths
from fairlead.base.serde import from_json, to_json
from fairlead.base.system import Machine
from fairlead.cli.site_detect import why_not_site
from fairlead.detect.draft import draft, name_for
from fairlead.detect.gather import cautions, gather
from fairlead.detect.model import SiteFacts
from fairlead.detect.probes.system import _value
from fairlead.detect.table import rows
from fairlead.site import Site, layers
from fairlead.site import match as site_match
from fairlead.site.match import By, ClueKind, Detected, Says, account, detect, match, why_not
from fairlead.site.model import Clues, Fabric, Origin, Status

RECORDED = Path(__file__).parents[3] / "recorded" / "sites"


class Expected(NamedTuple):
    """What detection must say of a recording."""

    profile: str
    scheduler: str  # kind, version, cluster, whether in a job
    fabric: str
    engines: str
    pmi: str = ""
    processor: str = ""
    gpus: str = ""
    mpi: str = ""
    cautioned: bool = False


EXPECTED = {
    "cori-login": Expected(
        "cori", "slurm 20.11.8 cori out", "", "shifter", "cray pmi2", "haswell", "",
        "Cray MPICH 7.7.19", True,
    ),
    "cori-haswell": Expected(
        "cori", "slurm 20.11.8 cori in", "aries", "shifter", "cray pmi2", "haswell", "",
        "Cray MPICH 7.7.19",
    ),
    "piz-daint": Expected(
        "piz-daint", "slurm 20.11.8 daint in", "aries", "sarus 1.6.4-0-gfd6dcd4", "cray pmi2",
        "haswell", "1 nvidia", "Cray MPICH 7.7.6",
    ),
    "theta-login": Expected(
        "theta", "cobalt 1.0.35 out", "", "apptainer 3.8.0", "", "haswell", "",
        "Cray MPICH 7.7.14", True,
    ),
    "perlmutter-login": Expected(
        "perlmutter", "slurm 23.11.7 perlmutter out", "", "podman 4.7.0, podman-hpc 1.1.0, shifter",
        "cray pmi2 pmix", "zen3", "1 nvidia", "Cray MPICH 8.1.28", True,
    ),
    "perlmutter-gpu": Expected(
        "perlmutter", "slurm 23.11.7 perlmutter in", "slingshot",
        "podman 4.7.0, podman-hpc 1.1.0, shifter", "cray pmi2 pmix", "zen3", "4 nvidia",
        "Cray MPICH 8.1.28",
    ),
    "frontier-compute": Expected(
        "frontier", "slurm 24.05.4 frontier in", "slingshot", "apptainer 1.3.6", "cray pmi2",
        "zen3", "8 amd", "Cray MPICH 8.1.31",
    ),
    "lumi-login": Expected(
        "lumi", "slurm 22.05.10 lumi out", "slingshot", "apptainer 4.1.3-150500.10.7",
        "cray pmi2", "zen2", "", "Cray MPICH 8.1.29",
    ),
    "polaris-compute": Expected(
        "polaris", "pbs 2022.1.1.20220926110806 polaris-pbs-01 in", "slingshot",
        "apptainer 1.4.1", "cray", "zen3", "4 nvidia", "Cray MPICH 8.1.28",
    ),
    "aurora-compute": Expected(
        "aurora", "pbs 2023.1.2 in", "slingshot", "apptainer 1.3.2", "cray", "sapphirerapids",
        "6 intel", "MPICH 4.3.0",
    ),
    "alps-daint": Expected(
        "alps", "slurm 24.05.4 daint in", "slingshot", "ce", "cray pmi2 pmix", "neoverse_v2",
        "4 nvidia", "Cray MPICH 8.1.30",
    ),
    "flux-ex": Expected(
        "cray-ex-slingshot", "flux 0.70.0 in", "slingshot", "apptainer 1.3.4-1.el8, podman 4.9.4-rhel",
        "pmi1 cray", "zen4", "4 amd", "Cray MPICH 8.1.31",
    ),
    "summit-login": Expected(
        "summit", "lsf 10.1.0.11 summit out", "infiniband", "apptainer 1.1.9-1.el8, podman 4.0.2", "", "power9le",
        "4 nvidia", "Open MPI",
    ),
    "frontera-login": Expected(
        "frontera", "slurm 20.11.8 frontera out", "infiniband", "apptainer 1.3.3-1.el7",
        "pmi2 pmix", "cascadelake", "", "Intel MPI 2019.9.304",
    ),
    "stampede2-knl": Expected(
        "stampede2", "slurm 18.08.5 stampede2 in", "omni-path", "apptainer 3.7.2", "pmi2", "mic_knl",
    ),
    "ethernet-slurm": Expected(
        "ethernet", "slurm 22.05.8 physics in", "", "apptainer 1.3.4", "pmi2 pmix", "zen2", "",
        "MPICH 4.0.2",
    ),
    "laptop-ubuntu": Expected("laptop", "", "", "docker 27.1.1, podman 4.9.3", "", "skylake"),
    "docker-container": Expected("laptop", "", "", "", "", "zen3"),
    "tools-broken": Expected(
        "infiniband", "slurm out", "infiniband", "apptainer, enroot, podman, sarus", "", "icelake",
        "1 nvidia",
    ),
}  # fmt: skip


@cache
def played(name: str) -> Played:
    return Played(recording.read(RECORDED / f"{name}.toml"))


@cache
def facts_of(name: str) -> SiteFacts:
    return gather(played(name))


FOLDER = paths.bundled("sitecfg")
# Nobody's own profiles, which may hide those that come with fairlead.
ENVIRON = {"FAIRLEAD_SITES": f"{FOLDER}/families:{FOLDER}"}


@cache
def bundled() -> dict[str, Site]:
    found = sites.files(ENVIRON)
    return {name: layers.load(files[-1], ENVIRON) for name, files in found.items()}


def changed(name: str, **changes: Any) -> Played:
    return Played(replace(played(name).recording, **changes))


def test_recordings_all_have_an_expectation_and_say_where_they_are_from() -> None:
    assert {path.stem for path in RECORDED.glob("*.toml")} == set(EXPECTED)
    for name in EXPECTED:
        made = played(name).recording
        assert made.about and (made.sources or made.made_up), name


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_profile_is_not_decided_by_words(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was seen is for people, and could be in any language."""
    kept, clue = match(played(name), bundled()), site_match.Clue

    def translated(kind: ClueKind, wanted: str, says: Says, seen: str) -> site_match.Clue:
        return clue(kind, wanted, says, f"\u2603{len(seen)}")

    monkeypatch.setattr(site_match, "Clue", translated)
    found = match(played(name), bundled())
    assert (found.profile, found.by, found.guess) == (kept.profile, kept.by, kept.guess)
    assert found.reasons != kept.reasons or found.by is By.SILENCE
    assert set(found.against) == set(kept.against)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_recorded_machine_is_of_its_profile(name: str) -> None:
    found = match(played(name), bundled())
    assert found.profile == EXPECTED[name].profile, found
    assert found.by and found.reasons and not found.ties
    assert set(found.against) == set(bundled()) - {found.profile}
    assert all(found.against.values())
    output = cautions(facts_of(name), bundled()[found.profile])
    assert bool(output) is EXPECTED[name].cautioned
    assert all("fairlead site detect" in text for text in output)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_recorded_machine_shows_what_it_has(name: str) -> None:
    facts, wanted = facts_of(name), EXPECTED[name]
    schedulers = [
        " ".join(filter(None, (s.kind, s.version, s.cluster, "in" if s.job else "out")))
        for s in facts.schedulers
    ]
    assert ", ".join(schedulers) == wanted.scheduler
    assert ", ".join(dict.fromkeys(f.kind for f in facts.fast_fabrics)) == wanted.fabric
    assert ", ".join(f"{e.kind} {e.version}".strip() for e in facts.engines) == wanted.engines
    assert " ".join(p.flavour for p in facts.pmi) == wanted.pmi
    assert facts.processor and facts.processor.target == wanted.processor
    assert ", ".join(f"{g.count} {g.vendor}" for g in facts.gpus) == wanted.gpus
    mpis = [f"{m.vendor} {m.version}".strip() for m in facts.mpis]
    assert ", ".join(mpis) == wanted.mpi


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_fact_has_its_evidence_and_comes_back_from_json(name: str) -> None:
    facts = facts_of(name)
    assert from_json(SiteFacts, json.loads(json.dumps(to_json(facts)))) == facts
    shown = list(rows(facts))
    assert len(shown) > 12
    assert all(value and seen for _, value, seen in shown)


def test_plugins_of_nccl_are_facts_and_rows() -> None:
    [plugin] = facts_of("polaris-compute").plugins
    assert (plugin.title, plugin.interfaces) == ("aws-ofi-nccl 1.9.1", (2, 3, 4, 5, 6, 7, 8))
    shown = {what: value for what, value, _ in rows(facts_of("polaris-compute"))}
    assert shown["NCCL plugin"] == (
        "aws-ofi-nccl 1.9.1, network AWS Libfabric, net interface v2 to v8; lacks libhwloc.so.15"
    )
    assert "providers of its libfabric: cxi, tcp, shm" in shown.values()
    assert ("NCCL plugin", "none") in {(a, b) for a, b, _ in rows(facts_of("laptop-ubuntu"))}
    with_gdr = changed(
        "perlmutter-gpu", present=(*played("perlmutter-gpu").recording.present, "/dev/gdrdrv")
    )
    assert ("GDRCopy", "yes", "/dev/gdrdrv") in rows(gather(with_gdr))


def test_draft_names_the_folders_of_a_plugin_that_is_whole() -> None:
    facts, site = facts_of("perlmutter-gpu"), bundled()["cray-ex-slingshot"]
    text = draft("there", facts, match(played("perlmutter-gpu"), bundled()), site)
    made = tomllib.loads(text)["nccl"]
    assert made["folders"] == ["/global/common/software/nersc9/nccl/2.19/plugin/lib"]
    assert made["libraries"] == ["/opt/cray/libfabric/1.20.1/lib64"]
    lacking = draft(
        "there", facts_of("polaris-compute"), match(played("polaris-compute"), bundled()), site
    )
    assert "nccl" not in tomllib.loads(lacking)


def test_settings_of_engines_that_decide_are_read() -> None:
    settings = {
        name: {e.kind: dict(e.settings) for e in facts_of(name).engines}
        for name in ("cori-login", "ethernet-slurm", "piz-daint", "perlmutter-gpu", "alps-daint")
    }
    shifter = settings["cori-login"]["shifter"]
    assert shifter["defaultModules"] == "mpich" and shifter["modules"] == "mpich"
    assert "/etc/opt/cray/wlm_detect" in shifter["siteFs"]  # behind a continued line
    assert settings["ethernet-slurm"]["apptainer"]["user bind control"] == "no"
    assert settings["piz-daint"]["sarus"]["hooks"] == "05-ssh-hook, 07-mpi-hook"
    assert settings["perlmutter-gpu"]["podman-hpc"]["modules"] == "mpich"
    assert settings["alps-daint"]["ce"]["srun"] == "--environment"


def test_engines_that_start_as_root_are_reported() -> None:
    setuid = {
        name: {e.kind: e.setuid for e in facts_of(name).engines}
        for name in ("theta-login", "frontier-compute", "cori-haswell", "ethernet-slurm")
    }
    assert setuid["theta-login"]["apptainer"] is True
    assert setuid["frontier-compute"]["apptainer"] is False
    assert setuid["cori-haswell"]["shifter"] is True


def test_tools_that_hang_crash_or_lie_are_reported_and_cost_nothing_else() -> None:
    facts = facts_of("tools-broken")
    unknown = {u.what: u.why for u in facts.unknown}
    assert "no end after" in unknown["version of slurm"]
    assert "signal 6" in unknown["version of apptainer"]
    assert "signal 11" in unknown["providers of libfabric"]
    assert unknown["version of podman"].endswith("names none")
    assert facts.system and facts.system.name == "Rocky Linux 9.3"  # from a file that breaks off
    sarus = next(e for e in facts.engines if e.kind == "sarus")
    assert sarus.settings == {"": "not readable, or no JSON"}
    assert facts.processor and facts.processor.memory_bytes == 0
    assert not any("1.5" in e.version for e in facts.engines)


def test_probe_that_raises_or_never_answers_is_reported_and_the_rest_is_there() -> None:
    class Odd(Played):
        def host_mpis(self) -> Any:
            raise RuntimeError("out of order")

        def free_bytes(self, folder: str) -> int:
            raise OSError("stale file handle")

    facts = gather(Odd(played("ethernet-slurm").recording))
    assert ("MPI", "RuntimeError: out of order") in {(u.what, u.why) for u in facts.unknown}
    assert facts.schedulers and facts.engines and not facts.mpis
    assert {s.free_bytes for s in facts.storage} == {None}


def test_probe_that_hangs_is_left_behind() -> None:
    import threading

    forever = threading.Event()

    class Dead(Played):
        def cores(self) -> int:
            forever.wait(30)
            return 1

    facts = gather(Dead(played("laptop-ubuntu").recording), limit_s=0.5)
    forever.set()
    assert facts.processor is None
    assert ("processor", "no answer within 0.5 s") in {(u.what, u.why) for u in facts.unknown}
    assert facts.engines


def test_abilities_of_the_kernel_are_reported_with_their_reason() -> None:
    ubuntu = {a.name: a for a in facts_of("laptop-ubuntu").abilities}
    assert ubuntu["user namespaces"].value == "no"
    assert "apparmor_restrict_unprivileged_userns = 1" in ubuntu["user namespaces"].seen
    centos = {a.name: a for a in facts_of("frontera-login").abilities}
    assert centos["squashfs"].value == "module" and centos["fuse"].value == "no"
    assert {a.name: a.value for a in facts_of("cori-login").abilities}["fuse"] == "closed"
    broken = {a.name: a.value for a in facts_of("tools-broken").abilities}
    assert broken["user namespaces"] == "perhaps" and broken["cgroup"] == "hybrid"


def test_container_and_the_mark_that_an_image_leaves_are_distinguished() -> None:
    inside = facts_of("docker-container").system
    assert inside and inside.inside == "container: docker"
    # A disk that was made of an image has the file too, and nothing mounted.
    made = played("docker-container").recording
    files = {**made.files, "/proc/self/mounts": "/dev/vda / ext4 rw 0 0\n"}
    facts = gather(changed("docker-container", files=files))
    assert facts.system and facts.system.inside == ""


def test_slurms_plugin_for_cray_is_no_sign_of_cray() -> None:
    assert [p.flavour for p in facts_of("ethernet-slurm").pmi] == ["pmi2", "pmix"]


def test_program_called_flux_of_another_kind_is_no_scheduler() -> None:
    made = played("laptop-ubuntu").recording
    run = (*made.run, recording.Program("flux version", 0, "flux: v2.3.0\ndistribution: v2.3.0\n"))
    facts = gather(
        changed("laptop-ubuntu", programs={**made.programs, "flux": "/usr/bin/flux"}, run=run)
    )
    assert not facts.schedulers and not facts.launchers


def test_os_release_value_is_unquoted_as_the_shell_would() -> None:
    assert _value("NAME='A \"b\"'\nPRETTY_NAME=Plain\n", "NAME") == 'A "b"'
    assert _value('PRETTY_NAME="open', "PRETTY_NAME") == "open"


# Matching, on profiles of its own.


def profile(name: str, family: bool = False, below: tuple[str, ...] = (), **clues: Any) -> Site:
    until = clues.pop("until", "")
    since = clues.pop("since", "")
    return Site(
        name=name, summary=name, accepts=("tcp",), start_s=30.0, lineage=(name, *below),
        is_family=family, detect=Clues(**clues), until=until, since=since,
    )  # fmt: skip


DAY = datetime.date(2026, 6, 1)


def matched(world: Played, *profiles: Site) -> Detected:
    return match(world, {p.name: p for p in profiles}, DAY)


def test_match_own_clue_comes_before_a_familys_evidence() -> None:
    family = profile("aries", True, present_paths=("/opt/cray/ugni",))
    own = profile("mine", environ={"NERSC_HOST": "cori"})
    found = matched(played("cori-login"), family, own)
    assert (found.profile, found.by) == ("mine", "a clue of its own")
    assert found.reasons == ("$NERSC_HOST = cori",)
    assert found.against["aries"] == ("another has a clue of its own",)


def test_match_most_special_family_wins_over_those_it_extends() -> None:
    wide = profile("cray", True, present_paths=("/opt/cray/pe", "/opt/cray/ugni"))
    narrow = profile("aries", True, ("cray",), present_paths=("/opt/cray/ugni",))
    found = matched(played("cori-haswell"), wide, narrow)
    assert (found.profile, found.by) == ("aries", "the evidence of its family")


def test_match_two_that_fit_equally_are_both_reported_and_none_is_taken() -> None:
    one = profile("one", True, present_paths=("/opt/cray/pe",))
    other = profile("other", True, present_paths=("/opt/cray/ugni",))
    found = matched(played("cori-login"), one, other)
    assert found.profile is None and found.ties == ("one", "other")
    assert any("/opt/cray/ugni exists" in note for note in found.notes)


def test_match_retired_machine_gives_way_to_the_one_of_its_name() -> None:
    old = profile("old", clusters=("daint",), until="2024-12-31")
    new = profile("new", clusters=("daint",))
    assert matched(played("alps-daint"), old, new).profile == "new"
    alone = matched(played("alps-daint"), old)
    assert alone.profile == "old"
    assert alone.notes == ("old: retired: its profile is valid until 2024-12-31",)


def test_match_profile_of_a_machine_to_come_is_reported() -> None:
    found = matched(played("alps-daint"), profile("next", clusters=("daint",), since="2027-01-01"))
    assert "valid from 2027-01-01 only" in found.notes[0]


def test_match_host_name_alone_does_not_stand_against_what_is_not_there() -> None:
    # Every Cray calls its nodes nid….
    aries = profile("aries-site", hostnames=("nid*",), present_paths=("/opt/cray/ugni",))
    slingshot = profile("ss-site", hostnames=("nid*",), absent_paths=("/proc/cray_xt",))
    assert matched(played("cori-haswell"), aries, slingshot).profile == "aries-site"
    assert matched(played("perlmutter-gpu"), aries, slingshot).profile == "ss-site"


def test_match_named_site_whose_evidence_is_missing_is_taken_and_that_is_reported() -> None:
    own = profile("mine", environ={"NERSC_HOST": "perlmutter"}, present_paths=("/nowhere/*",))
    found = matched(played("perlmutter-login"), own)
    assert found.profile == "mine"
    assert found.notes == ("mine is named by its own clue, and yet there is no /nowhere/*",)


def test_match_laptop_is_the_last_and_never_a_machine_with_a_scheduler() -> None:
    laptop = profile("laptop", True, absent_programs=("srun",))
    ethernet = profile("ethernet", True)
    assert matched(played("laptop-ubuntu"), laptop, ethernet).profile == "laptop"
    found = matched(played("ethernet-slurm"), laptop, ethernet)
    assert (found.profile, found.by) == ("ethernet", By.SILENCE)
    assert found.against["laptop"] == ("`srun` is on PATH, and there is $SLURM_JOB_ID",)
    assert found.guess, "silence is no evidence"
    assert matched(played("ethernet-slurm"), laptop).profile is None


def test_match_silence_on_a_login_node_is_no_evidence() -> None:
    world = changed("ethernet-slurm", environ={})
    found = matched(world, profile("ethernet", True))
    assert found.profile is None
    output = cautions(gather(world), None)
    assert "A login node may lack" in output[0] and "srun -N 1" in output[0]


def test_match_path_with_a_variable_needs_it_set() -> None:
    own = profile("mine", True, present_paths=("$CRAY_DIR/ugni",))
    assert matched(played("cori-login"), own).profile is None
    world = changed("cori-login", environ={"CRAY_DIR": "/opt/cray"})
    assert matched(world, own).profile == "mine"


def test_account_lists_every_clue_with_what_is_here() -> None:
    own = profile(
        "mine", environ={"A": "b"}, clusters=("x", "y"), hostnames=("h*",),
        present_paths=("/opt/cray/pe",), absent_programs=("srun",), absent_paths=("/dev/cxi*",),
    )  # fmt: skip
    held = {
        c.what.split(":")[0]: (c.says, c.seen)
        for c in account(own, played("cori-login"), DAY).clues
    }
    assert held == {
        "environ": ("nothing", "$A is not set"),
        "clusters": ("nothing", "cori (ClusterName in /etc/slurm/slurm.conf)"),
        "hostnames": ("nothing", "host name cori07"),
        "present_paths": ("for", "/opt/cray/pe exists"),
        "absent_programs": ("against", "`srun` is on PATH, and there is /etc/slurm/slurm.conf"),
        "absent_paths": ("nothing", "there is no /dev/cxi*"),
    }


def test_clue_kinds_are_the_keys_that_a_profile_can_have() -> None:
    """What is decided rests on them, not on how a clue is worded."""
    of_detect = {kind.value for kind in ClueKind} - {ClueKind.FABRIC}
    assert of_detect == {f.name for f in fields(Clues)}
    assert ClueKind.FABRIC.key == "fabric.kind" and ClueKind.ENVIRON.key == "detect.environ"
    own = profile("mine", environ={"NERSC_HOST": "cori"})
    (clue,) = account(own, played("cori-login"), DAY).clues
    assert (clue.kind, clue.says) == (ClueKind.ENVIRON, Says.FOR)


def test_why_not_as_json_words_each_clue(capfd: pytest.CaptureFixture[str]) -> None:
    with click.Context(why_not_site) as context:
        context.invoke(why_not_site, name="laptop", as_json=True)
    answer = json.loads(capfd.readouterr().out)
    assert answer["clues"]
    for clue in answer["clues"]:
        assert list(clue) == ["what", "says", "seen"]
        assert clue["says"] in ("for", "against", "nothing")
        assert clue["what"].split(": ")[0] in list(ClueKind)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Nothing on PATH, and folders of our own."""
    names = ("CACHE", "CONFIG", "DATA")
    return {"PATH": str(tmp_path), **{f"XDG_{n}_HOME": str(tmp_path / n) for n in names}}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        ("aprun", "`aprun` is on PATH"),
        ("etc/slurm/slurm.conf", "`srun` is on PATH, and there is /etc/slurm/slurm.conf"),
        ("dev/cxi0", "cxi0 is slingshot (/dev/cxi0), and the profile says none"),
        ("opt/cray/pe", "/opt/cray/pe exists"),
    ],
)
def test_detect_scheduler_or_fabric_speaks_against_a_laptop(
    make: str, reason: str, environ: dict[str, str], tmp_path: Path
) -> None:
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\n")
    srun.chmod(0o755)
    assert detect(environ, Machine(environ, tmp_path)).profile == "laptop"
    laptop = sites.load_site("laptop", environ)
    assert why_not(laptop, environ, Machine(environ, tmp_path)) == ()
    path = tmp_path / make
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    found = detect(environ, Machine(environ, tmp_path))
    assert found.profile != "laptop"
    assert why_not(laptop, environ, Machine(environ, tmp_path)) == (reason,)


# What public documents say of four machines, on top of recordings: a notebook with Slurm's clients, a Slingshot
# node whose libfabric is in /usr/lib64, an instance of EC2 with EFA under the name that udev gives it, an SGI ICE.


def test_program_of_a_scheduler_alone_does_not_make_a_laptop_a_cluster() -> None:
    for program in ("srun", "qsub", "bsub", "flux"):
        programs = {**played("laptop-ubuntu").recording.programs, program: f"/usr/bin/{program}"}
        found = match(changed("laptop-ubuntu", programs=programs), bundled())
        assert (found.profile, found.guess) == ("laptop", True), program
        assert found.reasons[:2] == (
            f"`{program}` is on PATH",
            "no scheduler is configured here",
        )
    for file in ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/opt/x/etc/slurm.conf"):
        programs = {"srun": "/opt/x/bin/srun"}
        world = changed("laptop-ubuntu", programs=programs, files={file: "ClusterName=x"})
        found = match(world, bundled())
        assert found.profile is None, file
        # A login node may lack the network of the compute nodes.
        assert found.candidates == ("efa", "ethernet", "infiniband", "omni-path"), file
        assert found.against["laptop"] == (f"`srun` is on PATH, and there is {file}",)


def without(name: str, part: str, **changes: Any) -> Played:
    """A recorded machine that has no path with ``part`` in it."""
    made = played(name).recording
    files = {path: text for path, text in made.files.items() if part not in path}
    present = tuple(path for path in made.present if part not in path)
    return changed(name, **{"files": files, "present": present, **changes})


@pytest.mark.parametrize("job", [{}, {"SLURM_JOB_ID": "1"}])
def test_slingshot_without_cray_libfabric_is_known_by_its_device(job: dict[str, str]) -> None:
    made = without("lumi-login", "/opt/cray", hostname="node1", environ=job).recording
    files = {path: text for path, text in made.files.items() if "slurm.conf" not in path}
    world = changed("lumi-login", hostname="node1", environ=job, present=made.present, files=files)
    found = match(world, bundled())
    assert (found.profile, found.guess) == ("cray-ex-slingshot", False)
    assert any("cxi0 is slingshot" in reason for reason in found.reasons)
    site = bundled()["cray-ex-slingshot"]
    assert "cxi" in site.accepts and "tcp" not in site.accepts
    [fact] = [f for f in gather(world).fabrics if f.kind == "slingshot"]
    assert fact.device == "cxi0" and fact.profile_kind == site.fabric.kind, "the table agrees"
    assert "and the profile says ethernet" in found.against["ethernet"][0]
    against = why_not(bundled()["ethernet"], job, world)
    assert any("cxi0 is slingshot" in why for why in against), "for --site ethernet"


@pytest.mark.parametrize("device", ["efa_0", "rdmap0s31"])
def test_efa_is_a_family_of_its_own_and_no_infiniband(device: str) -> None:
    made = played("ethernet-slurm").recording
    card = f"/sys/class/infiniband/{device}"
    present = (*made.present, card, f"{card}/ports/1", "/dev/infiniband/uverbs0")
    for files, links in (
        ({f"{card}/ports/1/link_layer": "Unspecified\n"}, {}),
        (
            {f"{card}/ports/1/link_layer": "Ethernet\n"},
            {f"{card}/device/driver": "/sys/bus/pci/drivers/efa"},
        ),
    ):
        world = changed(
            "ethernet-slurm",
            present=present,
            files={**made.files, **files},
            links={**made.links, **links},
        )
        found = match(world, bundled())
        assert (found.profile, found.guess) == ("efa", False), found
        assert "and the profile says infiniband" in found.against["infiniband"][0]
        facts = gather(world)
        assert [f.profile_kind for f in facts.fast_fabrics] == ["efa"]
        site = bundled()["efa"]
        assert {"efa", "ofi_rxr"} <= set(site.accepts) and "rc_mlx5" not in site.accepts
        text = draft("ec2", facts, found, site)
        assert 'extends = "efa"' in text and 'kind = "efa"' in text
        own = draft("ec2", facts, Detected(None), None)
        assert '"efa"' in own.split("accepts = ")[1].split("]")[0]


def test_card_that_programs_cannot_reach_does_not_decide() -> None:
    """A container sees the node's /sys, and its /dev only where it was given."""
    made = played("laptop-ubuntu").recording
    card = ("/sys/class/infiniband/mlx5_0", "/sys/class/infiniband/mlx5_0/ports/1")
    seen = changed("laptop-ubuntu", present=(*made.present, *card))
    assert match(seen, bundled()).profile == "laptop"
    given = changed("laptop-ubuntu", present=(*made.present, *card, "/dev/infiniband/uverbs0"))
    assert match(given, bundled()).profile == "infiniband"


def test_network_between_the_nodes_comes_before_one_for_storage() -> None:
    made = played("laptop-ubuntu").recording
    cards = ("/dev/cxi0", "/sys/class/infiniband/mlx5_0/ports/1", "/dev/infiniband/uverbs0")
    found = match(changed("laptop-ubuntu", present=(*made.present, *cards)), bundled())
    assert found.profile == "cray-ex-slingshot"
    assert "infiniband" in found.against and not found.ties


def test_site_named_by_its_own_clue_keeps_its_network_and_says_that_another_is_there() -> None:
    origin = {"fabric.kind": Origin(Status.DOCUMENTED, "its guide", "", "mine")}
    own = replace(profile("mine", hostnames=("*",)), fabric=Fabric("ethernet"), origins=origin)
    found = matched(played("lumi-login"), own)
    assert found.profile == "mine"
    assert (
        "yet cxi0 is slingshot (/sys/class/cxi/cxi0), and the profile says ethernet"
        in found.notes[0]
    )


def test_site_by_a_clue_that_no_source_states_is_marked_as_a_guess() -> None:
    own = profile("mine", hostnames=("cori*",))
    for status in Status:
        origins = {"detect.hostnames": Origin(status, "", "", "mine")}
        found = matched(played("cori-login"), replace(own, origins=origins))
        assert (found.profile, found.guess) == ("mine", status is Status.GUESS)


def test_draft_marks_what_it_concludes_as_a_guess() -> None:
    """The family, the names of other nodes, and a network of which no device was seen."""
    made = replace(facts_of("ethernet-slurm"), node="r1i0n12", fabrics=())
    made = replace(
        made, schedulers=tuple(replace(s, cluster="", kind="pbs") for s in made.schedulers)
    )
    found = Detected("ethernet", By.SILENCE, ("no fabric device",), guess=True)
    for base in (None, bundled()["ethernet"]):
        text = draft("ice", made, found, base)
        data = tomllib.loads(text)
        assert data["detect"]["hostnames"] == ["r[0-9]*i[0-9]*n[0-9]*", "r[0-9]*i[0-9]*n[0-9]*.*"]
        assert data["detect"]["sources"]["hostnames"] == "guess"
        assert data["fabric"]["kind"] == "ethernet"
        assert data["fabric"]["sources"]["kind"] == "guess"
        assert ("# a guess: no fabric device" in text) == bool(base)
    plain = draft("box", replace(facts_of("laptop-ubuntu"), node="box7"), found, None)
    assert tomllib.loads(plain)["detect"]["hostnames"] == ["box7", "box7.*"]
    assert "hostnames" not in tomllib.loads(plain)["detect"].get("sources", {})


def test_detect_on_a_dead_file_system_ends_and_says_so(environ: dict[str, str]) -> None:
    import threading

    forever = threading.Event()

    class Dead(Played):
        def matching(self, pattern: str) -> tuple[str, ...]:
            forever.wait(30)
            return ()

    world = Dead(played("laptop-ubuntu").recording)
    found = detect(environ, world=world, limit_s=0.3)
    forever.set()
    assert found.profile is None and "does not answer" in found.notes[0]


# Drafts.


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_draft_is_a_sound_profile_in_which_every_value_has_its_evidence(
    name: str, tmp_path: Path
) -> None:
    facts = facts_of(name)
    found = match(played(name), bundled())
    base = bundled()[found.profile] if found.profile else None
    for below in (base, None):
        text = draft("mine", facts, found, below, DAY)
        path = tmp_path / "mine.toml"
        path.write_text(text)
        made = layers.load(path, ENVIRON)
        assert tomllib.loads(text)["sources"]["detected"]["status"] == "run"
        own = [k for k, o in made.origins.items() if o.profile == "mine"]
        assert len(own) > 3
        guessed = {k for k in own if made.origins[k].status is sites.Status.GUESS}
        assert guessed <= {"fabric.accepts", "fabric.kind", "detect.hostnames", "scheduler.kind"}
        assert {made.origins[k].read for k in own if k not in guessed} == {"2026-06-01"}
        login = facts.schedulers and not any(s.job for s in facts.schedulers)
        assert not (login and {"node.cores", "gpu.per_node"} & set(own))
        values = text.partition("[sources.detected]")[2].partition("\n\n")[2].splitlines()
        for before, line in pairwise(values):
            if " = " in line and not line.startswith(("#", "source = ", "sources.")):
                assert before.startswith("# ") and len(before) > 3, line
        if facts.schedulers and EXPECTED[name].scheduler.split()[0] != "gridengine":
            assert made.scheduler.kind == EXPECTED[name].scheduler.split()[0]


def test_draft_of_a_machine_is_found_by_its_own_clue_afterwards(tmp_path: Path) -> None:
    world = played("ethernet-slurm")
    found = match(world, bundled())
    text = draft("physics", facts_of("ethernet-slurm"), found, bundled()["ethernet"], DAY)
    path = tmp_path / "physics.toml"
    path.write_text(text)
    made = layers.load(path, ENVIRON)
    again = match(world, {**bundled(), "physics": made})
    assert (again.profile, again.by) == ("physics", "a clue of its own")


def test_draft_survives_names_that_would_break_a_file(tmp_path: Path) -> None:
    odd = replace(
        facts_of("laptop-ubuntu"), node='a"b\n[x]\x1b[2J', unknown=facts_of("tools-broken").unknown
    )
    text = draft("mine", odd, Detected(None), None, DAY)
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert layers.load(path, ENVIRON).name == "mine"
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("node", "cluster", "name"),
    [
        ("login2.frontera.tacc.utexas.edu", "", "login2"),
        ("physics-login1", "", "physics"),
        ("nid001234", "Perlmutter", "perlmutter"),
        ("ÄÖ", "", "here"),
    ],
)
def test_draft_is_called_as_the_machine(node: str, cluster: str, name: str) -> None:
    facts = facts_of("ethernet-slurm")
    scheduler = replace(facts.schedulers[0], cluster=cluster)
    assert name_for(replace(facts, node=node, schedulers=(scheduler,))) == name


# Recordings.


def test_recording_of_this_machine_plays_back_the_same(tmp_path: Path) -> None:
    recorder = recording.Recorder()
    seen = gather(recorder, limit_s=20)
    made = recorder.recording("here", ("TMPDIR", "XDG_DATA_HOME", "HOME"))
    path = tmp_path / "here.toml"
    path.write_text(recording.dumps(made))
    again = recording.read(path)
    assert again == made
    back = gather(Played(again), limit_s=20)

    def plain(facts: SiteFacts) -> dict[str, Any]:
        output = to_json(facts)
        for place in output["storage"]:
            place["free_bytes"] = bool(place["free_bytes"])
        return {key: output[key] for key in ("system", "processor", "abilities", "fabrics", "storage", "gpus")} | {
            "engines": [(e["kind"], e["version"], e["settings"]) for e in output["engines"]],
            "mpis": [(m["path"], m["version"], m["closure"]) for m in output["mpis"]],
        }  # fmt: skip

    assert plain(back) == plain(seen)


def test_recording_holds_only_the_variables_that_were_asked_for(tmp_path: Path) -> None:
    recorder = recording.Recorder({"PATH": str(tmp_path), "SECRET": "x", "NERSC_HOST": "y"})
    assert recorder.recording("here", ("NERSC_HOST",)).environ == {"NERSC_HOST": "y"}


def test_recording_with_an_unknown_field_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('about = "x"\nhostnam = "y"\n')
    with pytest.raises(ValueError, match="unknown field hostnam"):
        recording.read(path)


def test_played_file_system_has_links_globs_and_closed_files() -> None:
    world = Played(
        Recording(
            about="", hostname="h", uid=1, user="u", kernel="6", machine="x86_64", cores=1,
            files={"/a/b/c": "text"}, present=("/dev/x0", "/dev/x1"), closed=("/a/secret",),
            links={"/l": "a/b"},
        )
    )  # fmt: skip
    assert world.read("/l/c") == "text" and world.read("/a/secret") is None
    assert world.access("/a/secret", 0) and not world.access("/a/secret", 4)
    assert world.matching("/dev/x*") == ("/dev/x0", "/dev/x1")
    assert world.matching("/l/*") == ("/l/c",) and world.matching("/nothing/*") == ()
    assert world.listdir("/a") == ("b", "secret")
    assert world.ask(("nothing",)).returncode == 127
