"""Job scripts: golden files, each directive against its scheduler's documented grammar, quoting."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests import grammars

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.cli.script import script
from fairlead.launch.request import Asked, shape
from fairlead.launchers.model import Shape
from fairlead.schedulers import model
from fairlead.schedulers import script as render
from fairlead.schedulers.model import Array, Job
from fairlead.schedulers.registry import SCHEDULERS, with_scripts

GOLDEN = Path(__file__).parents[3] / "golden/jobscript"
BODY = "exec fairlead run -n 8 -N 2 mpi-base -- python3 train.py"
FULL = Job(
    Shape(8, 2, cores=4, gpus=1, time_s=5400, account="phys-12", partition="debug"),
    BODY, "train", "train.log", None, False, ("--exclusive",), ("cray-mpich-abi/8.1", "-xalt"),
    (("XDG_CACHE_HOME", "/scratch/my cache"),), "mpiexec", "fairlead script -n 8 …",
)  # fmt: skip
JOBS: dict[str, tuple[str, Job]] = {
    "slurm": ("slurm", FULL),
    "slurm-array": ("slurm", replace(FULL, array=Array(1, 99, 2, 8), requeue=True, modules=())),
    "pbs": ("pbs", replace(FULL, options=("-l filesystems=home:eagle",))),
    "pbs-array-uneven": (
        "pbs",
        replace(FULL, shape=replace(FULL.shape, ranks=5), array=Array(0, 9), options=()),
    ),
    "lsf": ("lsf", replace(FULL, options=('-alloc_flags "smt4 gpumps"',))),
    "lsf-jsrun-array": (
        "lsf",
        replace(FULL, launcher="jsrun", array=Array(1, 9, 1, 3), options=(), requeue=True),
    ),
    "flux": ("flux", replace(FULL, options=())),
    "cobalt": ("cobalt", replace(FULL, options=("--attrs mcdram=cache:numa=quad",))),
}
COUNT = st.integers(1, 99)
MAYBE = st.one_of(st.just(0), COUNT)
NAMES = st.from_regex(r"[a-z][a-z0-9_.-]{0,9}", fullmatch=True)


@pytest.mark.parametrize("name", JOBS)
def test_script_is_the_recorded_one_and_sh_reads_it(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    text = render.script(*JOBS[name])
    file = GOLDEN / f"{name}.sh"
    if request.config.getoption("--update"):
        file.write_text(text)
    assert file.is_file(), f"no {file.name}: write it with --update, and look at it"
    assert text == file.read_text()
    subprocess.run(["sh", "-n", file], check=True)


@pytest.mark.parametrize("name", JOBS)
def test_every_directive_of_the_recorded_ones_is_documented(name: str) -> None:
    kind, job = JOBS[name]
    said = vars(grammars.directives(kind, (GOLDEN / f"{name}.sh").read_text()))
    if kind == "slurm":
        assert (said["ntasks"], said["nodes"], said["cpus_per_task"]) == (8, 2, 4)
        assert said["time"] == "1:30:00" and said["account"] == "phys-12"
        assert said["requeue"] is job.requeue
        assert said["array"] == ("1-99:2%8" if job.array else None)
    elif kind == "pbs":
        (select,) = [r for r in said["resources"] if r.startswith("select=")]
        even = "select=2:ncpus=16:mpiprocs=4:ngpus=4"
        uneven = "select=1:ncpus=12:mpiprocs=3:ngpus=3+1:ncpus=8:mpiprocs=2:ngpus=2"
        assert select == (uneven if job.array else even)
        assert {"place=scatter", "walltime=1:30:00"} <= set(said["resources"])
        assert said["J"] == ("0-9" if job.array else None)
    elif kind == "lsf":
        assert said["W"] == "1:30"
        if job.launcher == "jsrun":
            assert (said["nnodes"], said["J"], said["r"]) == (2, "train[1-9]%3", True)
        else:
            assert said["n"] == 8
            assert said["requirements"] == ["span[ptile=4]", "affinity[core(4)]"]
            assert (said["gpu"], said["alloc_flags"]) == ("num=1/task", "smt4 gpumps")
    elif kind == "flux":
        assert (said["nslots"], said["nodes"], said["cores_per_slot"]) == (8, 2, 4)
        assert (said["gpus_per_slot"], said["time_limit"]) == (1, "5400s")
    else:
        assert (said["n"], said["t"], said["attrs"]) == (2, "90", "mcdram=cache:numa=quad")


@pytest.mark.parametrize("kind", with_scripts())
@given(
    ranks=COUNT, nodes=MAYBE, cores=MAYBE, gpus=MAYBE, time_s=st.integers(0, 10**6), account=NAMES,
    first=st.integers(0, 50), more=st.integers(0, 50), array=st.booleans(), requeue=st.booleans(),
)  # fmt: skip
def test_directives_of_any_job_are_documented_or_refused(
    kind: str, ranks: int, nodes: int, cores: int, gpus: int, time_s: int, account: str, first: int,
    more: int, array: bool, requeue: bool,
) -> None:  # fmt: skip
    job = Job(
        Shape(ranks, min(nodes, ranks), cores=cores, gpus=gpus, time_s=time_s, account=account),
        "true", array=Array(first, first + more) if array else None, requeue=requeue,
    )  # fmt: skip
    try:
        text = render.script(kind, job)
    except FairleadError as exc:
        assert exc.code is ExitCode.USAGE and exc.findings[0].check == "script"
        return
    said = vars(grammars.directives(kind, text))
    assert account in map(str, said.values())
    if kind == "pbs":
        (select,) = [r for r in said["resources"] if r.startswith("select=")]
        chunks = [c.partition(":") for c in select.partition("=")[2].split("+")]
        per = [(int(n), dict(p.split("=") for p in rest.split(":"))) for n, _, rest in chunks]
        assert sum(n * int(p["mpiprocs"]) for n, p in per) == ranks
        assert sum(n * int(p["ncpus"]) for n, p in per) == ranks * max(cores, 1)
    elif kind == "lsf":
        hours, _, minutes = (said["W"] or "0:00").partition(":")
        assert 0 <= (int(hours) * 60 + int(minutes)) * 60 - time_s < 60


@pytest.mark.parametrize(
    ("kind", "job", "what"),
    [
        ("flux", replace(FULL, array=Array(0, 3)), "an array"),
        ("flux", replace(FULL, requeue=True), "a requeue"),
        ("cobalt", replace(FULL, array=Array(0, 3)), "an array"),
        ("cobalt", replace(FULL, shape=Shape(8, 2)), "no time limit"),
        ("lsf", replace(FULL, array=Array(0, 3)), "an array from 0"),
        ("lsf", replace(FULL, launcher="jsrun", shape=Shape(8)), "without a number of nodes"),
        ("pbs", replace(FULL, array=Array(3, 3)), "an array of one"),
    ],
)
def test_what_a_scheduler_cannot_do_is_refused(kind: str, job: Job, what: str) -> None:
    with pytest.raises(FairleadError) as caught:
        render.script(kind, job)
    (finding,) = caught.value.findings
    assert what in finding.what and finding.remedy


@pytest.mark.parametrize(
    "text",
    ["", "5", "9-1", "1-2-3", "a-b", "1-9%", "1-9:0x", "1-9\n",
     "0-9%0", "0-9:0", "0-9:0%4", "0-9:2%0", "0-9%00"],
)  # fmt: skip
def test_array_that_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(FairleadError):
        model.array(text)


@pytest.mark.parametrize("text", ["0-9", "0-0", "1-99:2", "1-100%8", "1-100:3%1"])
def test_array_keeps_what_was_asked_for(text: str) -> None:
    assert model.array(text).words() == text


@pytest.mark.parametrize("text", ["a b", "x\n#SBATCH -N 99", "$(id)", "it's", "a;b", '"'])
def test_name_that_would_leave_its_directive_is_refused(text: str) -> None:
    with pytest.raises(FairleadError):
        model.name("--name", text)
    with pytest.raises(FairleadError):
        model.options(("-C x\n#SBATCH -N 99",))


@given(
    st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1)
)
def test_words_of_a_command_reach_it_as_they_are(words: list[str]) -> None:
    show = "import json, sys; print(json.dumps(sys.argv[1:]))"
    body = "exec " + shlex.join([sys.executable, "-IS", "-c", show, "--", *words])
    text = render.script(
        "slurm", replace(FULL, body=body, modules=(), written_by=shlex.join(words))
    )
    done = subprocess.run(["sh"], input=text.encode(), capture_output=True, check=True)
    assert json.loads(done.stdout) == ["--", *words]
    assert vars(grammars.directives("slurm", text))["ntasks"] == 8


def _called(*words: str, environ: dict[str, str] | None = None) -> tuple[int, str]:
    done = CliRunner().invoke(script, words, env=environ, standalone_mode=False)
    if isinstance(done.exception, FairleadError):
        return done.exception.code, " ".join(f.what for f in done.exception.findings)
    assert done.exception is None, done.exception
    return int(done.return_value or 0), done.stdout


def test_script_says_all_that_was_asked_for_to_fairlead_and_to_the_scheduler() -> None:
    code, text = _called(
        "--scheduler", "slurm", "-N", "2", "--ranks-per-node", "4", "--cores-per-rank", "8", "--time", "2h",
        "--bind-to", "core", "--launcher-arg=--exclusive", "--mpi", "container", "--env", "A=1 2",
        "--module", "gcc", "--directive", "-C gpu", "mpi-base", "--", "python3", "my train.py",
    )  # fmt: skip
    assert code == 0
    said = vars(grammars.directives("slurm", text))
    assert (said["ntasks"], said["nodes"], said["ntasks_per_node"]) == (8, 2, 4)
    assert (said["time"], said["constraint"]) == ("2:00:00", "gpu")
    words = shlex.split(text.strip().splitlines()[-1])
    assert words[:3] == ["exec", "fairlead", "run"] and words[-2:] == ["python3", "my train.py"]
    for pair in (("-n", "8"), ("-N", "2"), ("--bind-to", "core"), ("--mpi", "container")):
        assert words[words.index(pair[0]) + 1] == pair[1]
    assert {"--launcher-arg=--exclusive", "--env=A=1 2"} <= set(words)
    assert "--time" not in words and "module load gcc || exit" in text


def test_sites_options_come_first_and_give_way_to_the_users(tmp_path: Path) -> None:
    environ = {"FAIRLEAD_SITE": "archer2"}
    asked = ("-N", "2", "-n", "4", "--account", "z01", "mpi-base", "--", "true")
    code, text = _called(*asked, environ=environ)
    said = vars(grammars.directives("slurm", text))
    assert code == 0 and (said["partition"], said["qos"]) == ("standard", "standard")
    code, text = _called(
        "--partition", "highmem", "--directive=--qos=highmem", *asked, environ=environ
    )
    assert text.count("--partition") == text.count("--qos") == 1
    said = vars(grammars.directives("slurm", text))
    assert (said["partition"], said["qos"]) == ("highmem", "highmem")
    code, words = _called("-n", "4", "mpi-base", "--", "true", environ=environ)
    assert code == ExitCode.USAGE and "no account is named" in words


def test_script_without_a_scheduler_or_with_a_bad_word_is_refused() -> None:
    assert _called("mpi-base", "--", "true")[0] == ExitCode.USAGE
    for bad in (("--name", "a b"), ("--array", "x"), ("--time", "30")):
        code, said = _called("--scheduler", "slurm", *bad, "mpi-base", "--", "true")
        assert code == ExitCode.USAGE and said


@pytest.mark.parametrize("kind", with_scripts())
def test_word_that_a_scheduler_would_take_for_a_directive_is_refused(kind: str) -> None:
    line = f"{SCHEDULERS.get(kind).sentinel}-n 99"
    body = shlex.join(["echo", f"x\n{line}"])
    with pytest.raises(FairleadError) as caught:
        render.script(kind, replace(FULL, body=body, options=()))
    assert "looks like a directive" in caught.value.findings[0].what


def test_submit_line_is_quoted_and_cobalts_has_a_path() -> None:
    assert SCHEDULERS.get("slurm").submit_line("my job.sh") == "sbatch 'my job.sh'"
    assert SCHEDULERS.get("cobalt").submit_line("job.sh") == "qsub --mode script ./job.sh"
    assert shape(Asked(ranks=2)).ranks == 2
