"""Launchers: the words of each against its documented grammar, for any shape that it can express."""

from __future__ import annotations

import argparse
import doctest
import os
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import grammars
from tests.support.recorded import HYDRA, OPENMPI, SITE, planned

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.elf.facts import AbiFamily
from fairlead.launch import allocate, shared_cache
from fairlead.launch import request as request_module
from fairlead.launch.request import Asked, on_this_machine, seconds, shape
from fairlead.launchers import model as launcher_model
from fairlead.launchers import pmi, registry, srun
from fairlead.launchers.model import BINDINGS, Launcher, Shape
from fairlead.schedulers import model as jobscript_model
from fairlead.schedulers import slurm
from fairlead.schedulers.model import Allocation
from fairlead.schedulers.registry import find_allocation as find
from fairlead.schedulers.slurm import counts, expand
from fairlead.session import choose
from fairlead.site.model import Scheduler, Starter
from fairlead.swap import checks

COUNT = st.integers(1, 500)
MAYBE = st.one_of(st.just(0), COUNT)
WORD = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
SHAPES = st.builds(
    Shape,
    ranks=COUNT,
    nodes=MAYBE,
    per_node=MAYBE,
    cores=MAYBE,
    gpus=MAYBE,
    bind=st.sampled_from(("", *BINDINGS)),
    hosts=st.lists(st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True), max_size=4, unique=True).map(tuple),
    time_s=MAYBE,
    account=st.sampled_from(("", "m1234_g")),
    partition=st.sampled_from(("", "debug")),
)  # fmt: skip


def of(kind: str, **more: Any) -> Launcher:
    title = {"openmpi": "Open MPI 5.0.11", "hydra": "MPICH Hydra 5.0.2"}.get(kind, kind)
    return Launcher(f"/opt/bin/{kind}", AbiFamily.MPICH, title, kind, **more)


def parsed(kind: str, made: Shape, inner: tuple[str, ...] = ("app",)) -> argparse.Namespace:
    words = registry.words(of(kind), made, inner)
    assert words.argv[0] == f"/opt/bin/{kind}"
    return grammars.launcher(kind, words.argv[1:])


@pytest.mark.parametrize("kind", registry.LAUNCHERS.names())
@given(shape=SHAPES, rest=st.lists(WORD, max_size=4))
def test_words_are_in_the_grammar_and_say_the_shape(
    kind: str, shape: Shape, rest: list[str]
) -> None:
    """Whatever a launcher cannot say is refused; nothing of a shape is left out silently."""
    inner = ("/bin/app", *rest)
    try:
        said = parsed(kind, shape, inner)
    except FairleadError as exc:
        assert exc.code is ExitCode.USAGE and exc.findings[0].check == "shape"
        assert exc.findings[0].remedy
        return
    values = vars(said)
    assert tuple(said.inner) == inner
    assert values.get("ntasks", values.get("n")) == shape.ranks
    if shape.cores and not (kind == "hydra" and shape.bind not in ("", "core")):
        text = " ".join(map(str, values.values()))
        assert str(shape.cores) in text
    if shape.gpus:
        assert str(shape.gpus) in map(str, (values.get("gpus_per_task"), values.get("g")))
    if shape.bind in ("socket", "numa"):
        names = {"socket": ("socket", "package"), "numa": ("numa", "ldoms")}[shape.bind]
        assert any(name in str(v) for v in values.values() for name in names)
    if shape.bind == "none":
        assert any("none" in str(v) or "off" in str(v) for v in values.values())
    if shape.hosts and kind not in ("openmpi", "hydra"):
        assert any(",".join(shape.hosts) in str(v) for v in values.values())
    if shape.per_node and kind not in ("ibrun", "flux", "hydra") and not shape.hosts:
        assert any(str(shape.per_node) in str(v) for v in values.values())


@given(SHAPES)
def test_spread_places_every_rank_that_fits_once(shape: Shape) -> None:
    spread = shape.spread
    count = shape.nodes or len(shape.hosts)
    assert len(spread) == count
    if count:
        room = count * shape.per_node if shape.per_node else shape.ranks
        assert sum(spread) == min(shape.ranks, room)
        assert max(spread) <= (shape.per_node or shape.ranks)
        if not shape.per_node:
            assert max(spread) - min(spread) <= 1


def test_hydra_of_intel_pins_by_variables() -> None:
    intel = Launcher("/opt/mpiexec", AbiFamily.MPICH, "Intel MPI Hydra 2021.18", "hydra")
    words = registry.words(intel, Shape(4, 2, hosts=("a", "b"), cores=3), ("app",))
    assert words.argv == ("/opt/mpiexec", "-hosts", "a,b", "-ppn", "2", "-n", "4", "app")
    assert words.environ == {"I_MPI_PIN_DOMAIN": "3:compact"}
    assert registry.words(intel, Shape(bind="none"), ("app",)).environ == {"I_MPI_PIN": "0"}


def test_users_words_come_after_the_sites_and_fairleads() -> None:
    launcher = of("srun", pmi="pmi2", options=("--exclusive",))
    words = registry.words(launcher, Shape(2, extra=("--mpi=none",)), ("app",)).argv
    assert words[1] == "--exclusive" and words[-2:] == ("--mpi=none", "app")
    assert words.index("--mpi=pmi2") < words.index("--mpi=none")


def test_launcher_of_which_only_the_family_is_known_is_shown_where_ranks_go() -> None:
    assert registry.words(HYDRA, Shape(4, 2), ("app",)).argv[1:] == ("-ppn", "2", "-n", "4", "app")
    assert "--map-by" in registry.words(OPENMPI, Shape(4, 2), ("app",)).argv
    unknown = Launcher("/opt/prun", AbiFamily.UNKNOWN, "prun")
    assert registry.words(unknown, Shape(4), ("app",)).argv == ("/opt/prun", "-n", "4", "app")
    with pytest.raises(FairleadError) as caught:
        registry.words(unknown, Shape(4, 2), ("app",))
    assert "--launcher-arg" in caught.value.findings[0].remedy


# --- allocations --------------------------------------------------------------------------------


def test_allocation_of_slurm(tmp_path: Path) -> None:
    found = find(
        {
            "SLURM_JOB_ID": "77",
            "SLURM_JOB_NODELIST": "nid[001-002],x9",
            "SLURM_JOB_NUM_NODES": "3",
            "SLURM_JOB_CPUS_PER_NODE": "128(x2),64",
        }
    )
    assert found == Allocation("slurm", "77", 3, ("nid001", "nid002", "x9"), 320, "SLURM_JOB_ID")
    assert found.title == "slurm job 77 (3 nodes, 320 slots)"


@pytest.mark.parametrize(
    ("lines", "nodes", "slots"), [("a\na\nb\nb\n", ("a", "b"), 4), ("a\nb\n", ("a", "b"), 0)]
)
def test_allocation_of_pbs(lines: str, nodes: tuple[str, ...], slots: int, tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text(lines)
    found = find({"PBS_JOBID": "9.host", "PBS_NODEFILE": str(tmp_path / "nodes")})
    assert found and (found.scheduler, found.hosts, found.slots) == ("pbs", nodes, slots)


def test_allocation_of_lsf_leaves_out_the_launch_node(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("batch5\n" + "a01\n" * 42 + "a02\n" * 42)
    found = find({"LSB_JOBID": "5", "LSB_DJOB_HOSTFILE": str(tmp_path / "hosts")})
    assert found and (found.hosts, found.slots) == (("a01", "a02"), 84)
    found = find({"LSB_JOBID": "5", "LSB_MCPU_HOSTS": "a 2 b 2"})
    assert found and (found.nodes, found.slots) == (2, 4)


def test_allocation_of_others_and_of_none(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("nid1\nnid2\n")
    cobalt = {
        "COBALT_JOBID": "1",
        "COBALT_NODEFILE": str(tmp_path / "nodes"),
        "COBALT_JOBSIZE": "2",
    }
    found = find({**cobalt, "PBS_NODEFILE": "/none"})
    assert found and (found.scheduler, found.nodes) == ("cobalt", 2)
    found = find({"FLUX_URI": "local:///x", "FLUX_JOB_NNODES": "4"})
    assert found and (found.scheduler, found.nodes, found.slots) == ("flux", 4, 0)
    assert find({"PATH": "/bin"}) is None


@given(st.lists(st.tuples(st.integers(1, 256), st.integers(1, 40)), min_size=1, max_size=6))
def test_counts_as_slurm_writes_them(groups: list[tuple[int, int]]) -> None:
    text = ",".join(f"{n}(x{times})" if times > 1 else str(n) for n, times in groups)
    assert counts(text) == tuple(n for n, times in groups for _ in range(times))


@given(st.integers(0, 9990), st.integers(0, 9), st.integers(1, 5))
def test_expand_keeps_leading_zeros(first: int, more: int, width: int) -> None:
    names = expand(f"n[{first:0{width}}-{first + more:0{width}}]")
    assert [int(n[1:]) for n in names] == list(range(first, first + more + 1))
    assert all(len(n) > width for n in names)


# --- what is asked for --------------------------------------------------------------------------


@given(st.integers(1, 64), st.integers(1, 64))
def test_nodes_and_ranks_a_node_make_the_ranks(nodes: int, per_node: int) -> None:
    made = shape(Asked(nodes=nodes, per_node=per_node))
    assert (made.ranks, made.nodes, made.each) == (nodes * per_node, nodes, per_node)
    back = shape(Asked(ranks=made.ranks, per_node=per_node))
    assert back.nodes == nodes


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Asked(ranks=2, nodes=3), "2 ranks cannot use 3 nodes"),
        (Asked(ranks=9, nodes=2, per_node=4), "2 nodes of 4 ranks hold 8, and 9 are requested"),
        (Asked(ranks=4, nodes=2, per_node=4), "2 nodes of 4 ranks hold 8, and 4 are requested"),
        (Asked(nodes=3, hosts=("a", "b")), "3 nodes are requested, and 2 hosts are named"),
        (Asked(time="90"), "a bare number is minutes to Slurm and seconds to PBS"),
        (Asked(time="soon"), "not a valid duration"),
        (Asked(time="0m"), "no time at all"),
    ],
)
def test_what_contradicts_itself_is_refused_with_a_remedy(asked: Asked, said: str) -> None:
    with pytest.raises(FairleadError) as caught:
        shape(asked)
    assert caught.value.code is ExitCode.USAGE
    words = " ".join(f"{f.what} {f.why}" for f in caught.value.findings)
    assert said in words and all(f.remedy for f in caught.value.findings)


def test_ranks_that_no_machine_would_hold_are_not_started_on_it() -> None:
    with pytest.raises(FairleadError) as raised:
        on_this_machine(shape(Asked(ranks=1000)), 2, {})
    assert raised.value.code is ExitCode.USAGE
    (finding,) = raised.value.findings
    assert finding.what == "1000 ranks on this machine, which has 2 cores"
    assert "not in a job" in finding.why and "fairlead script -n 1000" in finding.remedy
    on_this_machine(shape(Asked(ranks=128)), 2, {})
    on_this_machine(shape(Asked(ranks=1000, hosts=("n1", "n2"))), 2, {})
    on_this_machine(shape(Asked(ranks=1000)), 2, {"HYDRA_HOST_FILE": "hosts"})


def test_what_does_not_fit_the_job_is_reported_in_one_message() -> None:
    job = Allocation("slurm", "7", 2, ("a", "b"), 8, "SLURM_JOB_ID")
    with pytest.raises(FairleadError) as caught:
        shape(Asked(ranks=5, nodes=3, cores=2, time="1h", hosts=("a", "b", "z")), job)
    whats = [f.what for f in caught.value.findings]
    assert len(whats) == 4
    assert "5 ranks of 2 cores each need 10 slots" in whats[-1]
    assert any(w.startswith("z: not in slurm job 7") for w in whats)
    # To share cores can be meant.
    assert shape(Asked(ranks=16, extra=("--overcommit",)), job).ranks == 16
    assert shape(Asked(ranks=8), job).ranks == 8


@given(st.integers(0, 30), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_seconds_of_every_way_to_write_it(d: int, h: int, m: int, s: int) -> None:
    whole = ((d * 24 + h) * 60 + m) * 60 + s
    if whole:
        assert seconds(f"{d}-{h:02}:{m:02}:{s:02}") == seconds(f"{whole}s") == whole


# --- PMI ----------------------------------------------------------------------------------------

OLD = "srun: MPI types are...\nsrun: none\nsrun: pmi2\nsrun: openmpi\n"
HEAD = "MPI plugin types are...\n"
NEW = f"{HEAD}\tnone\n\tcray_shasta\n\tpmi2\n\tpmix\nspecific pmix plugin versions available: pmix_v4,pmix_v3\n"


def test_pmi_listed_by_old_and_new_slurm() -> None:
    assert srun.pmi_listed(OLD) == ("none", "pmi2", "openmpi")
    assert srun.pmi_listed(NEW) == ("none", "cray_shasta", "pmi2", "pmix", "pmix_v4", "pmix_v3")
    assert srun.pmi_listed("srun: error: Unable to contact slurm controller") == ()


@pytest.mark.parametrize(
    ("family", "said", "preferred", "chosen"),
    [
        (AbiFamily.MPICH, NEW, (), "pmi2"),
        (AbiFamily.MPICH, NEW, ("cray", "pmi2"), "cray_shasta"),
        (AbiFamily.OPENMPI, NEW, (), "pmix"),
        (AbiFamily.OPENMPI, NEW, ("cray", "pmi2"), "pmix"),
        (AbiFamily.OPENMPI, OLD, (), ""),
        (AbiFamily.OPENMPI, f"{HEAD}\tpmix_v5\n", (), "pmix_v5"),
        (AbiFamily.MPICH, f"{HEAD}\tnone\n\tpmix\n", ("pmix",), ""),
        (AbiFamily.MPICH, OLD, ("cray", "pmi2"), ""),
    ],
)
def test_pmi_is_what_the_mpi_speaks_and_slurm_offers(
    family: AbiFamily, said: str, preferred: tuple[str, ...], chosen: str
) -> None:
    assert pmi.slurm_pmi(family, srun.pmi_listed(said), preferred) == chosen


def test_check_refuses_ranks_that_would_be_alone() -> None:
    def findings(pmi: str, *extra: str, ranks: int = 2) -> list[str]:
        launcher = of("srun", pmi=pmi)
        made = planned(launcher=launcher, ranks=ranks, shape=Shape(ranks, extra=extra))
        return [f.what for f in checks.check(made) if f.check == "pmi" and f.severity == "error"]

    assert findings("pmi2") == []
    assert "has no PMI plugin" in findings("")[0]
    assert "--mpi=none does not connect" in findings("pmi2", "--mpi=none")[0]
    assert "--mpi=pmix does not connect" in findings("pmi2", "--mpi", "pmix")[0]
    assert findings("", ranks=1) == []  # one rank is alone in any case
    cray = replace(SITE, launcher=Starter(("srun",), ("cray",)))
    made = replace(planned(launcher=of("srun")), site=cray)
    assert [f.severity for f in checks.check(made) if f.check == "pmi"] == ["ok"]


def test_intel_mpi_is_given_the_pmi_of_srun() -> None:
    from tests.support.recorded import HOSTS, host

    (name,) = [n for n in HOSTS if host(n).library.vendor == "Intel MPI"][:1]
    made = planned(mpi=host(name), launcher=of("srun", pmi="pmi2"))
    assert made.env["I_MPI_PMI"] == "pmi2"
    assert "I_MPI_PMI" not in planned(mpi=host(name)).env


def test_folders_of_slurms_pmix_are_shown_to_ranks() -> None:
    said = "SlurmdSpoolDir          = /var/spool/slurmd\nPMIxCliTmpDirBase       = /run/pmix.%h\nX = /y\n"
    folders = srun.pmix_configured(said)
    assert folders == ("/var/spool/slurmd", "/run")
    made = planned(launcher=of("srun", pmi="pmix", folders=("/var/spool/slurmd", "/tmp/pmix")))
    assert [(b.source, b.target) for b in made.binds if b.source.startswith(("/var", "/tmp"))] == [
        ("/var/spool/slurmd", "/var/spool/slurmd")
    ]


# --- which launcher -----------------------------------------------------------------------------


def program(folder: Path, name: str, text: str = "exit 0") -> Path:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    return folder / name


def test_sites_first_launcher_that_is_here_is_taken(tmp_path: Path) -> None:
    site = replace(SITE, launcher=Starter(("aprun", "srun", "mpiexec")))
    environ = {"PATH": str(tmp_path)}
    assert choose.here(site, environ) is None
    srun_here = program(tmp_path, "srun", f"printf '{NEW}'")
    assert choose.here(site, environ) == ("srun", str(srun_here))
    found = choose.of_kind(
        "srun", AbiFamily.OPENMPI, site, {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    )
    assert (found.pmi, found.family, found.title) == ("pmix", AbiFamily.OPENMPI, "srun --mpi=pmix")


def test_launcher_by_a_name_that_is_none_gets_the_kinds(tmp_path: Path) -> None:
    with pytest.raises(FairleadError) as caught:
        choose.named("srum", AbiFamily.MPICH, SITE, {"PATH": ""})
    assert "srun" in caught.value.findings[0].why
    with pytest.raises(FairleadError) as caught:
        choose.of_kind("jsrun", AbiFamily.MPICH, SITE, {"PATH": str(tmp_path)})
    assert caught.value.findings[0].what == "no jsrun on PATH"


def test_allocation_is_made_where_the_scheduler_can(tmp_path: Path) -> None:
    salloc = program(tmp_path, "salloc")
    environ = {"PATH": str(tmp_path)}
    argv = ["python3", "-m", "fairlead", "run", "a b"]
    site = replace(
        SITE,
        scheduler=Scheduler("slurm", ("-C haswell",), account=True),
        launcher=Starter(("srun",)),
    )
    asked = Asked(ranks=8, nodes=2, time="1h", account="m1")
    words = allocate.words(shape(asked), asked, site, None, argv, environ)
    assert words and words[0] == str(salloc) and words[-5:] == tuple(argv)
    assert {"--nodes=2", "--ntasks=8", "--time=1:00:00", "--account=m1"} <= set(words)
    assert words[1:3] == ("-C", "haswell")
    with pytest.raises(FairleadError, match="no account is named"):
        allocate.words(Shape(2), Asked(ranks=2), site, None, argv, environ)
    # One's own mpiexec on this node needs none, nor does a machine without a scheduler.
    assert allocate.words(Shape(2), Asked(ranks=2), site, "/opt/mpiexec", argv, environ) is None
    assert allocate.words(Shape(2), Asked(ranks=2), SITE, None, argv, environ) is None


@pytest.mark.parametrize(
    ("kind", "asked", "remedy"),
    [
        ("none", Asked(nodes=2), "--hosts"),
        ("none", Asked(time="1h"), "--site"),
        ("pbs", Asked(nodes=2), "fairlead script --scheduler pbs"),
        ("lsf", Asked(account="x"), "fairlead script --scheduler lsf"),
    ],
)
def test_allocation_that_cannot_be_made_is_refused(kind: str, asked: Asked, remedy: str) -> None:
    site = replace(SITE, scheduler=Scheduler(kind))
    with pytest.raises(FairleadError) as caught:
        allocate.words(shape(asked), asked, site, None, ["fairlead"], {"PATH": ""})
    (finding,) = caught.value.findings
    assert finding.check == "allocation" and remedy in finding.remedy


@pytest.mark.parametrize(
    "module", [jobscript_model, launcher_model, pmi, request_module, slurm, srun]
)
def test_examples_in_the_docstrings_hold(module: types.ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted and not found.failed


# --- who sees the cache -------------------------------------------------------------------------

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:5 / /dev/shm rw - tmpfs tmpfs rw
31 22 0:6 / /scratch rw - lustre 10.0.0.1@tcp:/fs rw
32 31 0:7 / /scratch/my\\040disk rw - xfs /dev/sdb rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "place"),
    [
        ("/home/u/.cache", "ext4", "/"),
        ("/scratch/u", "lustre", "/scratch"),
        ("/scratch/my disk/x", "xfs", "/scratch/my disk"),
        ("/scratchy", "ext4", "/"),
    ],
)
def test_file_system_of_a_path(path: str, kind: str, place: str) -> None:
    assert shared_cache.file_system(Path(path), MOUNTS) == (kind, place)


def test_cache_that_other_nodes_may_not_see_is_reported() -> None:
    hydra = of("hydra")

    def said(path: str, nodes: int) -> Any:
        return shared_cache.seen_by_all(Path(path), Shape(4, nodes), hydra, {}, MOUNTS)

    assert said("/home/u", 1) is None and said("/scratch/u", 2) is None
    assert said("/home/u", 2).check == "shared-cache" and "ext4" in said("/home/u", 2).where
    with pytest.raises(FairleadError) as caught:
        said("/dev/shm/cache", 2)
    assert caught.value.code is ExitCode.LAUNCH_FAILED


def test_fewer_ranks_take_fewer_nodes() -> None:
    """A validation on 16 ranks of 8 a node also measures on 1 and on 9."""
    shape = Shape(16, 2, 8, hosts=("a", "b"))
    one, nine = shape.of(1), shape.of(9)
    assert (one.nodes, one.hosts, one.spread) == (1, ("a",), (1,))
    assert (nine.nodes, nine.hosts, nine.spread) == (2, ("a", "b"), (8, 1))
    spread = Shape(4, 4)
    assert (spread.of(2).nodes, spread.of(4)) == (2, spread)
    assert Shape(4).of(2) == Shape(2)  # the launcher knows
    assert Shape(2, 2).of(8) == Shape(8, 2)


ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def test_open_mpi_objects_to_root_without_both_variables_or_the_option() -> None:
    """As its launchers 4.1.8 and 5.0.11 do; a system test starts those."""
    launcher = replace(OPENMPI, kind="openmpi")
    for started in (launcher, OPENMPI):  # the second is known by its family only
        finding = registry.objection(started, Shape(), 0, {})
        assert finding and finding.check == "launcher-root" and finding.where == launcher.path
        assert "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1" in finding.remedy
        assert registry.objection(started, Shape(), 1000, {}) is None
        assert registry.objection(started, Shape(), 0, ROOT) is None
    for name in ROOT:
        for value in ("", "0", "yes"):
            assert registry.objection(launcher, Shape(), 0, {**ROOT, name: value})
    option = "--allow-run-as-root"
    assert registry.objection(launcher, Shape(extra=(option,)), 0, {}) is None
    assert registry.objection(replace(launcher, options=(option,)), Shape(), 0, {}) is None


def test_other_launchers_do_not_object_to_root() -> None:
    for kind in registry.LAUNCHERS.names():
        if kind != "openmpi":
            assert registry.objection(of(kind), Shape(), 0, {}) is None
