"""To add an engine, a scheduler, a check … takes one file. Each test adds a made-up one by an entry point."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.distribution import Distribution, install
from tools import declarations


def program(folder: Path, name: str, text: str) -> dict[str, str]:
    """A program on PATH that prints ``text``."""
    bin_ = folder / "bin"
    bin_.mkdir(exist_ok=True)
    file = bin_ / name
    file.write_text(f"#!/bin/sh\necho '{text}'\n")
    file.chmod(0o755)
    return {"PATH": f"{bin_}:/usr/bin:/bin"}


def listed(made: Distribution) -> str:
    """The generated page of all declarations."""
    done = made.python("-m", "tools.declarations", "--print")
    assert done.returncode == 0, done.stderr
    return done.stdout


ENGINE = """
    import shutil
    from fairlead.engines.model import Driver, Engine, Takes, Words

    class Boxer(Driver):
        kind = "boxer"
        title = "Boxer"
        programs = ("boxer",)
        processes = ("boxer",)
        inside_variables = ("BOXER_NAME",)

        def detect(self, environ):
            path = shutil.which("boxer", path=environ.get("PATH", ""))
            return Engine("boxer", path, False, (), (), takes=Takes.FOLDER) if path else None

        def words(self, engine, call):
            return Words((engine.path, "run", call.image, *call.command), {})

    ENGINE = Boxer()
"""


def test_engine_is_one_file(tmp_path: Path) -> None:
    made = install(tmp_path, "fairlead.engines", "boxer", "ENGINE", ENGINE)
    path = program(tmp_path, "boxer", "boxer version 3.2.1")
    assert "boxer" in made.fairlead("run", "--help")
    schema = json.loads(made.fairlead("site", "schema"))
    assert "boxer" in json.dumps(schema["$defs"]["EngineSection"])
    facts = json.loads(made.fairlead("site", "detect", "--json", FAIRLEAD_SITE="laptop", **path))
    [fact] = [engine for engine in facts["facts"]["engines"] if engine["kind"] == "boxer"]
    assert fact["version"] == "3.2.1"
    profile = tmp_path / "mine.toml"
    profile.write_text(
        '[site]\nname = "mine"\nsummary = "x"\nextends = "laptop"\n'
        '[engine]\nkinds = ["boxer"]\nsource = "guess"\n'
    )
    assert "boxer" in made.fairlead("site", "show", profile)
    done = made.python("-m", "fairlead", "doctor", "engine", "--json", **path)
    assert "boxer" in done.stdout, "doctor runs a command in an image with it"
    inside = "from fairlead.launch.processes import _engine_names as n; print(n().match('boxer'))"
    assert "match='boxer'" in made.python("-c", inside).stdout
    assert "| `boxer` | Boxer |" in listed(made)


SCHEDULER = """
    from fairlead.schedulers.model import Allocation, Scheduler

    class Queue(Scheduler):
        kind = "queue"
        title = "Queue"
        programs = ("qq",)
        version_command = ("qq", "--version")
        job_variable = "QQ_JOB"
        sentinel = "#QQ "
        submit = "qq submit"

        def directives(self, job):
            return (f"ranks={job.shape.ranks}",)

        def allocation(self, environ):
            job = environ.get("QQ_JOB")
            return Allocation("queue", job, 3, by="QQ_JOB") if job else None

    SCHEDULER = Queue()
"""


def test_scheduler_is_one_file(tmp_path: Path) -> None:
    made = install(tmp_path, "fairlead.schedulers", "queue", "SCHEDULER", SCHEDULER)
    assert "queue" in made.fairlead("script", "--help")
    assert "queue" in json.dumps(json.loads(made.fairlead("site", "schema"))["$defs"])
    path = program(tmp_path, "qq", "qq 7.1")
    facts = json.loads(made.fairlead("site", "detect", "--json", FAIRLEAD_SITE="laptop", **path))
    assert ["queue", "7.1"] in [[s["kind"], s["version"]] for s in facts["facts"]["schedulers"]]
    allocation = "from fairlead.schedulers.registry import find_allocation as f; print(f({'QQ_JOB': '9'}).title)"
    assert made.python("-c", allocation).stdout == "queue job 9 (3 nodes)\n"
    words = ("script", "--scheduler", "queue", "--site", "laptop", "-n", "4", "x.sif", "--", "true")
    assert "#QQ ranks=4" in made.fairlead(*words)
    assert "| `queue` | Queue |" in listed(made)


LAUNCHER = """
    from fairlead.launchers.model import Driver, Words

    class Starter(Driver):
        kind = "starter"
        title = "Starter"
        programs = ("starter",)

        def words(self, launcher, shape, inner):
            return Words((launcher.path, "-r", str(shape.ranks), *inner))

    LAUNCHER = Starter()
"""


def test_launcher_is_one_file(tmp_path: Path) -> None:
    made = install(tmp_path, "fairlead.launchers", "starter", "LAUNCHER", LAUNCHER)
    assert "starter" in made.fairlead("run", "--help")
    assert "starter" in json.dumps(json.loads(made.fairlead("site", "schema"))["$defs"])
    path = program(tmp_path, "starter", "starter 0.9")
    facts = json.loads(made.fairlead("site", "detect", "--json", FAIRLEAD_SITE="laptop", **path))
    assert "Starter 0.9" in [launcher["title"] for launcher in facts["facts"]["launchers"]]
    assert "| `starter` | Starter |" in listed(made)


CHECK = """
    from fairlead.base.errors import Finding, Severity
    from fairlead.doctor.diagnosis import Check, Diagnosis

    def examine(world):
        full = Finding(Severity.ERROR, "the moon is full", remedy="wait", check="moon-phase")
        yield Diagnosis(full)

    CHECK = Check("moon-phase", "the phase of the moon", examine)
"""


def test_doctor_check_is_one_file(tmp_path: Path) -> None:
    made = install(tmp_path, "fairlead.doctor.checks", "moon-phase", "CHECK", CHECK)
    assert "the phase of the moon" in made.fairlead("doctor", "--help")
    done = made.python("-m", "fairlead", "doctor", "moon-phase", "--json")
    assert "the moon is full" in done.stdout and done.returncode == 1
    assert "| `moon-phase` | the phase of the moon |" in listed(made)


EXPORT = """
    from fairlead.export.model import ExportFile, Target

    def files(facts):
        return (ExportFile("site.yaml", f"site: {facts.site.name}\\n", "anywhere"),)

    EXPORT = Target("a YAML file for a made-up tool", files)
"""


def test_export_target_is_one_file(tmp_path: Path) -> None:
    made = install(tmp_path, "fairlead.export", "made-up", "EXPORT", EXPORT)
    assert "a YAML file for a made-up tool" in made.fairlead("site", "export", "--help")
    words = ("site", "export", "--for", "made-up", "--site", "laptop", "--dry-run")
    assert "site: laptop" in made.fairlead(*words)
    assert "| `made-up` | a YAML file for a made-up tool |" in listed(made)


REMEDY = """
    from fairlead.swap.model import Line
    from fairlead.swap.remedies.model import Changes, Phase, Remedy

    class Quiet(Remedy):
        name = "quiet"
        title = "asks the MPI for silence"
        phase = Phase.RUNNING

        def applies(self, draft):
            return draft.inputs.request.ranks > 1

        def change(self, draft):
            return Changes(env={"QUIET": "1"}, lines=(Line("env", "QUIET=1", "it talks too much"),))

        def explain_failure(self, plan, rank):
            return ("it was too loud to hear", "set QUIET") if "loud" in rank.mpi_path else None

    REMEDY = Quiet()
"""


def test_swap_remedy_is_one_file(tmp_path: Path) -> None:
    made = install(tmp_path, "fairlead.swap.remedies", "quiet", "REMEDY", REMEDY)
    planned = (
        "from dataclasses import replace\n"
        "from tests.support.recorded import planned, proved\n"
        "from fairlead.proof.verdict import why_kept\n"
        "plan = planned()\n"
        "print(plan.env['QUIET'], [line.why for line in plan.lines if line.what == 'QUIET=1'])\n"
        "print(why_kept(plan, replace(proved(plan).ranks[0], mpi_path='/loud/libmpi.so'))[0])\n"
    )
    done = made.python("-c", planned)
    assert done.stdout == "1 ['it talks too much']\nit was too loud to hear\n", done.stderr
    assert "| `quiet` | asks the MPI for silence |" in listed(made)


NCCL_CHECK = """
    from fairlead.base.errors import Finding, Severity
    from fairlead.nccl.checks.model import Check

    class Loud(Check):
        about = "NCCL is not too loud"

        def look(self, case):
            yield Finding(Severity.WARNING, f"{case.library.title} is loud", check="loud")

    CHECK = Loud()
"""


def test_check_of_nccl_is_one_file(tmp_path: Path) -> None:
    made = install(tmp_path, "fairlead.nccl.checks", "loud", "CHECK", NCCL_CHECK)
    checked = (
        "from tests.support.nccl import gpu_image, gpu_plan\n"
        "from fairlead.swap.checks import check\n"
        "print([f.what for f in check(gpu_plan(gpu_image('2.27.5'))) if f.check == 'loud'])\n"
    )
    done = made.python("-c", checked)
    assert done.stdout == "['NCCL 2.27.5 is loud']\n", done.stderr
    assert "| `loud` | NCCL is not too loud |" in listed(made)


CARRIED = """
    from fairlead.elf.carried.model import CarriedLibrary

    LIBRARY = CarriedLibrary("Bridge", ("libbridge.so.3",), "BRIDGE", "BRIDGE_PATH", ("/opt/bridge/lib",))
"""


def test_library_below_the_images_mpi_is_one_file(tmp_path: Path) -> None:
    made = install(tmp_path, "fairlead.elf.carried", "bridge", "LIBRARY", CARRIED)
    assert "bridge" in made.fairlead("run", "--help")
    schema = json.loads(made.fairlead("site", "schema"))
    assert "bridge" in schema["$defs"]["MpiSection"]["properties"]["replaces"]["enum"]
    assert "`bridge`" in listed(made) or "| `bridge` |" in listed(made)


def test_declaration_that_fails_to_load_is_named(tmp_path: Path) -> None:
    made = install(tmp_path, "fairlead.engines", "broken", "ENGINE", "raise RuntimeError('no')\n")
    done = made.python("-m", "fairlead", "run", "--help")
    assert done.returncode != 0 and "Traceback" not in done.stderr, done.stderr
    assert "broken" in done.stderr and "made-up" in done.stderr


@pytest.mark.parametrize("name", ["podman-hpc", "apptainer"])
def test_declaration_of_another_distribution_does_not_hide_a_bundled_one(
    tmp_path: Path, name: str
) -> None:
    made = install(tmp_path, "fairlead.engines", name, "ENGINE", ENGINE)
    code = f"from fairlead.engines.registry import ENGINES; print(type(ENGINES.get({name!r})).__module__)"
    assert made.python("-c", code).stdout.startswith("fairlead.engines.")


def test_page_of_declarations_is_that_of_the_code() -> None:
    assert declarations.PAGE.read_text() == declarations.page(), "python -m tools.declarations"
