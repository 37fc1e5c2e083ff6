"""Which storage is meant, what the options add up to, and the directive of DataWarp."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from fairlead.base.errors import FairleadError
from fairlead.cli.declare import declared
from fairlead.cli.staging import Staging, step_words
from fairlead.elf.facts import AbiFamily
from fairlead.launchers.model import Launcher, Shape
from fairlead.site.model import Site, Storage
from fairlead.transfer import datawarp, job
from fairlead.transfer.job import Wish
from fairlead.transfer.model import InItem, Links, Moved, OutItem
from fairlead.transfer.place import Place, choose, expanded, job_here

FULL = Storage(
    shared="$SCRATCH", node_local="/local/$SLURM_JOB_ID", memory="/dev/shm", burst_buffer="datawarp"
)
JOB = {"SLURM_JOB_ID": "17", "DW_JOB_STRIPED": "/var/opt/cray/dws/mounts/batch/17/ss/"}


def said(check: str, call: Callable[[], object]) -> str:
    """All words of the usage error that ends ``call``."""
    with pytest.raises(FairleadError) as caught:
        call()
    (found,) = caught.value.findings
    assert caught.value.code == 2 and found.check == check and found.remedy
    return " ".join(found.to_json().values())


@pytest.mark.parametrize(
    ("wanted", "kind", "path"),
    [
        ("", "node-local", "/local/17"),
        ("node-local", "node-local", "/local/17"),
        ("memory", "memory", "/dev/shm"),
        ("burst-buffer", "burst-buffer", JOB["DW_JOB_STRIPED"]),
        ("./x", "path", "./x"),
        ("/scratch/me", "path", "/scratch/me"),
    ],
)
def test_storage_is_that_of_the_profile(wanted: str, kind: str, path: str) -> None:
    place = choose(wanted, FULL, "cori", JOB)
    assert (place.kind, place.path) == (kind, path)
    assert ("cori" in place.why) is (kind in ("node-local", "memory"))


def test_site_without_a_disk_of_its_nodes_stages_in_memory() -> None:
    assert choose("", Storage(), "x", {}).kind == "memory"


def test_storage_that_the_site_does_not_have_is_reported_with_those_it_has() -> None:
    text = said("stage-place", lambda: choose("node-local", Storage(), "theta", JOB))
    assert "theta has no node-local storage" in text and "it has memory" in text
    text = said("stage-place", lambda: choose("burst-buffer", Storage(), "theta", JOB))
    assert "--stage-to memory" in text


def test_variable_that_only_a_job_has_is_named() -> None:
    text = said("stage-place", lambda: choose("node-local", FULL, "cori", {}))
    assert "$SLURM_JOB_ID is not set" in text and "inside a job" in text
    text = said("stage-place", lambda: choose("burst-buffer", FULL, "cori", {"SLURM_JOB_ID": "1"}))
    assert "#DW jobdw" in text
    assert expanded("${A}/$B.x", "s", {"A": "/a", "B": "b"}) == "/a/b.x"


def test_word_that_is_no_storage_is_refused() -> None:
    assert "`disk`" in said("stage-place", lambda: choose("disk", FULL, "cori", JOB))


def test_runs_are_of_one_job_by_the_schedulers_variable() -> None:
    assert job_here({"PBS_JOBID": "5.x", "SLURM_JOB_ID": ""}) == "PBS_JOBID=5.x"
    assert job_here({"PATH": "/bin"}) == ""


@pytest.mark.parametrize(
    ("launcher", "environ", "steps"), [("", JOB, True), ("mpiexec", {}, True), ("", {}, False)]
)
def test_steps_are_started_where_ranks_may_be_on_other_nodes(
    launcher: str, environ: dict[str, str], steps: bool
) -> None:
    mpiexec = Launcher("/bin/mpiexec", AbiFamily.MPICH, "MPICH", "hydra")
    plan: Any = SimpleNamespace(request=SimpleNamespace(shape=Shape()), launcher=mpiexec)
    planning: Any = SimpleNamespace(launcher=launcher)
    assert bool(step_words(plan, planning, 2, environ)) is steps


# --- options ---------------------------------------------------------------------------------------


def parsed(*words: str) -> Staging:
    """What the options add up to."""
    got: list[Staging] = []

    @click.command()
    @declared
    def command(data: Staging) -> None:
        got.append(data)

    command.main(list(words), standalone_mode=False)
    return got[0]


def test_names_come_from_paths_unless_they_are_given(tmp_path: Path) -> None:
    colons = tmp_path / "a:b"
    colons.mkdir()
    got = parsed(
        "--stage-in", f"{tmp_path}/x/", "--stage-in", f"{tmp_path}/y:in/side",
        "--stage-in", str(colons), "--stage-out", "res", "--stage-out", "w/last:/out/",
        "--stage-out", "log:sub/../log2",
    )  # fmt: skip
    assert got.ins == (
        InItem(f"{tmp_path}/x", "x"),
        InItem(f"{tmp_path}/y", "in/side"),
        InItem(str(colons), "a:b"),
    )
    here = Path.cwd()
    assert got.outs == (
        OutItem("res", f"{here}/res"),
        OutItem("w/last", "/out/last"),
        OutItem("log", f"{here}/log2"),
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--stage-in", "/x:/abs"),
        ("--stage-in", "/x:a//b"),
        ("--stage-in", "/x:."),
        ("--stage-in", "/x:a", "--stage-in", "/y:a"),
        ("--stage-out", "a", "--stage-out", "a/b"),
        ("--stage-out", "../a"),
        ("--stage-in", "/"),
    ],
)
def test_names_that_leave_the_folder_or_collide_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(click.UsageError):
        parsed(*words)


def site(storage: Storage) -> Site:
    return Site("cori", "", (), 30.0, storage=storage)


def test_target_that_exists_or_cannot_be_written_is_refused_before_the_launch(
    tmp_path: Path,
) -> None:
    file = tmp_path / "file"
    file.touch()
    for target in (tmp_path, file, file / "below"):
        got = parsed("--stage-out", f"res:{target}")
        assert str(target) in said("stage-target", lambda got=got: got.wish(site(FULL), JOB))
    wish = parsed("--stage-out", f"res:{tmp_path}/new/deep").wish(site(FULL), JOB)
    assert wish is not None and wish.job == "SLURM_JOB_ID=17"
    assert parsed().wish(site(FULL), JOB) is None


def test_keeping_needs_a_job(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="scheduler's job"):
        parsed("--stage-in", str(tmp_path), "--stage-keep").wish(site(FULL), {})


# --- lines -----------------------------------------------------------------------------------------


def test_two_wishes_have_two_folders_and_the_same_words_on_every_node() -> None:
    one, two = (
        Wish((InItem("/s", "n"),), (OutItem("n", "/d"),), Place("path", "/p/", ""), Links.FOLLOW, True, "J=1")
        for _ in range(2)
    )  # fmt: skip
    assert one.folder != two.folder
    assert Path(one.folder).parent == Path("/p")
    assert job.in_words(one, step=True)[4:] == [
        "in", one.folder, "--step", "--follow", "--job", "J=1", "--keep", "--item", "/s", "n",
    ]  # fmt: skip
    assert job.out_words(one, step=True, each=True)[4:] == [
        "out", one.folder, "--step", "--each", "--item", "n", "/d",
    ]  # fmt: skip
    assert one.bind.source == f"{one.folder}/data" and one.bind.target == "/opt/fairlead/stage"


def moved(node: str, **values: Any) -> Moved:
    base = {"files": 2, "bytes": 10**9, "data": 10**9, "copy_s": 2.0, "verify_s": 0.5, "digest": ""}
    return Moved(node, "n", "/s", "/t", **{**base, **values})  # type: ignore[arg-type]


def test_one_line_says_how_much_and_how_fast() -> None:
    assert job.in_short([]) == "nothing"
    assert (
        job.in_short([moved("a")]) == "1.0 GB in 2 files, 500.0 MB/s, verified in 0.5 s"
    )  # fmt: skip
    several = job.in_short([moved("a"), moved("b", copy_s=4.0, verify_s=3.0)])
    assert several == (
        "1.0 GB in 2 files on each of 2 nodes, 250.0 MB/s (the slowest, b), verified in 3.0 s"
    )
    holes = moved("a", data=10**6, copy_s=1.0)
    assert "1.0 MB/s" in job.in_short([holes])  # a hole is not copied, and makes nothing fast
    assert "kept from an earlier run" in job.in_short([moved("a", reused=True)])


# --- DataWarp --------------------------------------------------------------------------------------

# The grammar as the DataWarp User Guide has it: words NAME=VALUE in any order, each name once.
_REQUIRED, _OPTIONAL = {"type", "access_mode", "capacity"}, {"pool", "optimization_strategy"}
_VALUES = {
    "type": r"scratch|cache",
    "access_mode": r"striped|private",
    "capacity": r"\d+(N|[KMGTP](iB|B)?)?",
}


def grammatical(line: str) -> bool:
    pairs = [word.partition("=") for word in line.removeprefix("#DW jobdw ").split()]
    names = [name for name, _, _ in pairs]
    return (
        line.startswith("#DW jobdw ")
        and _REQUIRED <= set(names) <= _REQUIRED | _OPTIONAL
        and len(names) == len(set(names))
        and all(re.fullmatch(_VALUES.get(name, r"\S+"), value) for name, _, value in pairs)
    )


def test_directive_of_a_job_is_as_its_script_must_have_it() -> None:
    line = datawarp.job_space("2TiB", ("pool=wlm_pool", "optimization_strategy=interference"))
    space = "type=scratch access_mode=striped capacity=2TiB"
    assert line == f"#DW jobdw {space} pool=wlm_pool optimization_strategy=interference"
    assert grammatical(line)


def test_words_of_the_site_take_the_place_of_defaults() -> None:
    line = datawarp.job_space("1TB", options=("access_mode=private", "pool=sm_pool"))
    assert line == "#DW jobdw type=scratch access_mode=private capacity=1TB pool=sm_pool"
    assert grammatical(line)


def written(*options: str) -> subprocess.CompletedProcess[str]:
    words = (
        "--account",
        "m1",
        "--site",
        "cori",
        "-N",
        "2",
        "-n",
        "2",
        *options,
        "IMAGE",
        "--",
        "x",
    )
    return subprocess.run(
        [sys.executable, "-m", "fairlead", "script", *words],
        capture_output=True,
        text=True,
        check=False,
    )


def test_job_script_asks_for_space_before_its_commands_and_passes_the_options_on() -> None:
    options = (
        "--stage-to=burst-buffer",
        "--stage-in=/s/train:data",
        "--stage-in=/s/x:y",
        "--stage-keep",
    )
    done = written("--burst-buffer", "2TiB", *options, "--stage-out", "res:/d/res")
    lines = done.stdout.splitlines()
    (space,) = [n for n, line in enumerate(lines) if line.startswith("#DW")]
    assert grammatical(lines[space]), lines[space]
    assert lines[space - 1].startswith("#SBATCH") and not lines[space + 1]
    said = shlex.split(lines[-1])
    assert set(options) <= set(said) and "--stage-out=res:/d/res" in said
    assert said.index("IMAGE") > max(said.index(option) for option in options)
    assert "#DW" not in written(*options).stdout


def test_job_script_of_a_site_without_a_burst_buffer_is_refused() -> None:
    done = written("--site", "perlmutter", "--burst-buffer", "2TiB")
    assert done.returncode == 2 and "stage-place" in done.stderr
    assert written("--plain", "--stage-in", "/s").returncode == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda: datawarp.job_space("200 GiB"),
        lambda: datawarp.job_space("0GiB"),
        lambda: datawarp.job_space("1.5TB"),
        lambda: datawarp.job_space("1TB", options=("a b",)),
        lambda: datawarp.job_space("1TB", options=("a=b c",)),
        lambda: datawarp.job_space("1TB", options=("fast",)),
        lambda: datawarp.job_space("1TB", options=("access_mode=shared",)),
    ],
)
def test_what_a_directive_cannot_hold_is_refused(call: Callable[[], str]) -> None:
    assert "DataWarp directive" in said("stage-directive", call)
