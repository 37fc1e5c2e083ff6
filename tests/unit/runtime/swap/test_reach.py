"""What named programs can load, in a small tree of compiled files, and what preflight says of it."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.support.compiled import (
    CALLS,
    MAIN,
    MPICH,
    OPENS,
    PLAIN,
    STARTS,
    archive,
    compiled,
    image_tree,
)
from tests.support.compiled import OPENMPI as OPENMPI_CODE
from tests.support.recorded import HYDRA, OPENMPI, ROOT_ENGINE, SITE, host, planned

from fairlead.base.errors import FairleadError, Finding, Severity
from fairlead.elf import reader
from fairlead.elf.facts import AbiFamily, Elf, ImageFacts
from fairlead.elf.patchelf import find_patchelf
from fairlead.image.scan import scan_tree
from fairlead.launchers import registry
from fairlead.launchers.image import own_launcher
from fairlead.launchers.model import Shape
from fairlead.launchers.registry import is_in_image
from fairlead.mpi.cross_abi import is_python
from fairlead.session.choose import launchers_named, outside, texts
from fairlead.swap import checks
from fairlead.swap.family import image_family, own_library
from fairlead.swap.model import Bind, Inputs, Plan, Request
from fairlead.swap.plan import plan
from fairlead.swap.reach import Kind, interpreted, reach, texts_within

MODULE = "/usr/lib/python3/dist-packages/mpi4py/MPI.cpython-311.so"
FAST = "/venv/lib/python3.11/site-packages/fast.so"


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> ImageFacts:
    found = scan_tree(image_tree(tmp_path_factory.mktemp("tree") / "root"))
    env = {"/.singularity.d/env/90-environment.sh": "#!/bin/sh"}  # which may set any PATH
    programs = {**found.programs, **env}
    return replace(found, glibc="2.99", libstdcxx="3.4.99", arch="x64", programs=programs)


def said(facts: ImageFacts, family: str = "mpich", **request: object) -> dict[str, Finding]:
    """What the checks say of a plan on a host of that family, by check and severity."""
    name, launcher = {
        "mpich": ("mpich-5.0.2", HYDRA),
        "openmpi": ("openmpi-5.0.11", OPENMPI),
    }[family]
    made = planned(facts, host(name), launcher=launcher, **request)
    return {f"{f.check} {f.severity.value}": f for f in checks.check(made)}


def errors(found: dict[str, Finding]) -> list[str]:
    return [name.split()[0] for name in found if name.endswith("error")]


@pytest.mark.parametrize(
    ("name", "kind", "files"),
    [
        ("/opt/app/c", Kind.LINKED, {"/opt/app/c"}),
        ("c", Kind.LINKED, {"/opt/app/c"}),
        ("deep", Kind.LINKED, {"/usr/lib/libsolver.so.1"}),
        ("o", Kind.LINKED, {"/opt/app/o"}),
        ("plain", Kind.NONE, set()),
        ("holds", Kind.LINKED, {"/opt/app/holds"}),
        ("/opt/app/alone", Kind.LINKED, {"/opt/app/alone"}),
        ("lonely", Kind.STATIC, set()),
        ("/bin/python3", Kind.PYTHON, {MODULE}),
        ("/venv/bin/python3", Kind.PYTHON, {MODULE, FAST}),
        ("python3", Kind.PYTHON, {MODULE, FAST}),
        ("tool", Kind.PYTHON, {MODULE, FAST}),
        ("no-such", Kind.MISSING, set()),
        ("/opt/app/no-such", Kind.MISSING, set()),
    ],
)
def test_program_reaches_what_it_loads_and_nothing_else(
    facts: ImageFacts, name: str, kind: Kind, files: set[str]
) -> None:
    found = reach(facts, Request(apps=(name,)))
    assert {p.kind for p in found.programs} == {kind}
    assert {e.path for e in found.files} == files


@pytest.mark.parametrize(
    ("command", "python"),
    [
        (("tool", "x"), True),
        (("python3", "x"), True),
        (("c",), False),
        (("sh", "-c", "tool"), True),
        (("sh", "-c", "tool; c"), False),
        ((), False),
    ],
)
def test_script_of_python_stands_for_its_python(
    facts: ImageFacts, command: tuple[str, ...], python: bool
) -> None:
    names = interpreted(facts, Request(command=command))
    assert all(is_python(name) for name in names) == python or not names
    assert python or names == command[:1]


@pytest.mark.parametrize("name", ["sh", "/bin/sh", "any.sh", "/opt/app/lost", "./a.out"])
def test_what_is_started_or_unknown_may_load_anything(facts: ImageFacts, name: str) -> None:
    found = reach(facts, Request(command=(name,)))
    assert found.files == facts.consumers


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (("sh", "-c", "cd /data && c -in x >log 2>&1 | tee log"), {"c"}),
        (("sh", "-ec", "ls; python3 x.py"), {"python3"}),
        (("sh", "-c", "N=$(plain | wc -l); exec /opt/app/c $N"), {"/opt/app/c"}),
        (("run.sh",), {"/opt/app/c"}),
        (("sh", "/opt/app/run.sh"), {"/opt/app/c"}),
        (("either.sh",), {"/opt/app/c", "/opt/app/holds"}),
        (("sh", "job.sh"), {"c", "python3"}),
        (("./job.sh",), {"c", "python3"}),
    ],
)
def test_text_of_a_shell_that_names_all_that_it_starts_reaches_these(
    facts: ImageFacts, command: tuple[str, ...], names: set[str]
) -> None:
    job = "#!/bin/sh\nset -e\nc -in x  # first\nif [ -f y ]; then\n  python3 y.py\nfi\n"
    outside = {"./job.sh": Elf("/data/job.sh", "")} if command[0].startswith(".") else {}
    own = {command[-1]: job} if command[-1].endswith("job.sh") else {}
    request = Request(command=command, texts=own, outside=outside)
    found = reach(facts, request)
    assert {p.asked for p in found.programs} == names
    assert found.exact == (names in ({"c"}, {"/opt/app/c"}))
    assert "/opt/app/o" not in {e.path for e in found.files}


@pytest.mark.parametrize(
    "text",
    [
        "$PROGRAM", "eval c", ". /opt/env.sh; c", "run() { c; }; run", "PATH=/x:$PATH; c", "export LD_LIBRARY_PATH=/x; c", "`c`",
        "c; no-such", "c; ./a.out", "sh $X; c", "c <(plain)", "env PATH=/x c", "case $1 in a) c;; esac", "c; find . -exec o ;",
        "trap o EXIT; c", "cat <<E\n$(o)\nE\nc", "c; \"", "unset LD_LIBRARY_PATH; c", "sh -c '$X' c", "awk 'BEGIN{system(x)}'; c",
    ],
)  # fmt: skip
def test_text_that_can_start_more_than_it_names_reaches_everything(
    facts: ImageFacts, text: str
) -> None:
    for command in (("sh", "-c", text), ("sh", "job.sh"), ("sh", "-c", text, "c")):
        found = reach(facts, Request(command=command, texts={"job.sh": text}))
        assert found.files == facts.consumers and not found.exact, command


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("sh", "-c", "mkdir -p out && mpirun -n 4 c"), [(("mpirun", "-n", "4", "c"),)]),
        (("sh", "-c", "python3 p.py; mpirun c"), [(("python3", "p.py"), ("mpirun", "c"))]),
        (("sh", "job.sh"), [(("mpirun", "-n", "2", "c"),)]),
        (("sh", "-c", "sh job.sh"), [(("sh", "job.sh"),), (("mpirun", "-n", "2", "c"),)]),
        (("sh", "-c", "$LAUNCHER c"), []),
        (("c",), []),
        ((), []),
    ],
)
def test_texts_that_a_command_leads_to_are_read_one_by_one(
    facts: ImageFacts, command: tuple[str, ...], expected: list[object]
) -> None:
    request = Request(command=command, texts={"job.sh": "#!/bin/sh\nmpirun -n 2 c\n"})
    assert list(texts_within(facts, request)) == expected


def test_program_with_mpi_that_has_a_tools_name_is_no_tool(tmp_path: Path) -> None:
    root = image_tree(tmp_path / "root")
    compiled(root / "opt/app/sort", MAIN + CALLS, str(root / "opt/openmpi/lib/libmpi.so.40"))
    found = reach(scan_tree(root), Request(command=("sh", "-c", "c x | sort")))
    assert {p.path for p in found.programs} == {"/opt/app/c", "/opt/app/sort"} and not found.exact


def test_login_shell_and_one_that_reads_a_file_first_start_anything(facts: ImageFacts) -> None:
    first = {"BASH_ENV": "/opt/init"}
    for request in (
        Request(command=("sh", "-lc", "c")),
        Request(command=("sh", "-c", "c"), image_env=first),
    ):
        assert reach(facts, request).files == facts.consumers


def test_script_of_this_machine_is_read_where_the_container_has_it(
    facts: ImageFacts, tmp_path: Path
) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\nc\n")
    bound = Request(command=("sh", "/data/job.sh"), binds=(Bind(str(tmp_path), "/data"),))
    assert texts(bound, facts) == {"/data/job.sh": "#!/bin/sh\nc\n"}
    here = Request(command=("nice", "sh", "-e", str(script), "x"))
    assert texts(here, facts) == {str(script): "#!/bin/sh\nc\n"}
    assert texts(Request(command=("python3", str(script))), facts) == {}
    script.write_text("#!/usr/bin/python3\nc\n")
    assert texts(Request(command=(str(script),)), facts) == {}
    assert texts(Request(command=("sh", "/opt/app/run.sh")), facts) == {}


def test_launcher_that_a_text_names_and_may_run_is_known(tmp_path: Path) -> None:
    """A text of which all commands are seen is left to what looks at these."""
    tree = image_tree(tmp_path / "root")
    nested = "#!/usr/bin/python3\nimport subprocess\nsubprocess.run(['mpirun', 'c'])\n"
    for name, text in (
        ("mb", "#!/bin/sh\nexec mpirun `echo $MPI_OPTIONS` c\n"),
        ("shown", "#!/bin/sh\n# mpirun\necho srun\n$1\n"),
        ("seen", "#!/bin/sh\nmpirun -n 2 c\n"),
        ("nested", nested),
    ):
        (tree / "opt/app" / name).write_text(text)
        (tree / "opt/app" / name).chmod(0o755)
    (tree / "usr/bin/mpirun").write_bytes((tree / "opt/app/plain").read_bytes())
    facts = scan_tree(tree)
    outside_, job = tmp_path / "job.py", tmp_path / "job.sh"
    outside_.write_text(nested.partition("\n")[2])
    job.write_text("#!/bin/sh\n$1 mpiexec c\n")

    def named(*command: str) -> dict[str, str]:
        request = Request(command=command)
        return launchers_named(replace(request, texts=texts(request, facts)), facts)

    assert named("mb") == {"/opt/app/mb": "mpirun"}
    assert named("sh", "/opt/app/mb") == {"/opt/app/mb": "mpirun"}
    assert named("nice", "/opt/app/nested") == named("/opt/app/nested")
    assert named("/opt/app/nested") == {"/opt/app/nested": "mpirun"}
    assert named("shown") == named("seen") == named("c", "mpirun") == {}
    assert named("sh", "-c", "L=srun; $L c") == {"sh -c": "srun"}
    assert named("python3", "-c", "import os; os.system('orterun c')") == {"python3 -c": "orterun"}
    assert named("python3", str(outside_)) == {str(outside_): "mpirun"}
    assert named("sh", str(job)) == {str(job): "mpiexec"}


def test_path_of_the_image_decides_which_of_two_is_meant(facts: ImageFacts) -> None:
    first = partial(Request, apps=("python3",))
    own = reach(facts, first(image_env={"PATH": "/venv/bin:/usr/bin"}))
    assert [p.chain[0] for p in own.programs] == ["/venv/bin/python3"]
    system = reach(facts, first(image_env={"PATH": "/usr/bin"}))
    assert {e.path for e in system.files} == {MODULE}
    anywhere = reach(facts, first(image_env={"PATH": "/usr/bin", "PYTHONPATH": "/x"}))
    assert {e.path for e in anywhere.files} == {MODULE, FAST}


@pytest.mark.parametrize("given", ["image_env", "searched"])
def test_module_on_the_python_path_is_reached_wherever_it_is(
    tmp_path_factory: pytest.TempPathFactory, given: str
) -> None:
    """As `--env PYTHONPATH=` sets it; the user's PATH replaces the image's."""
    root = image_tree(tmp_path_factory.mktemp("path") / "root")
    far = compiled(
        root / "opt/modules-1.2/far.so", CALLS, str(root / "usr/lib/libmpich.so.12"), "-Wl,-soname,"
    )
    (root / "opt/modules").symlink_to("modules-1.2")
    compiled(root / "opt/modules-1.2/bin/x", PLAIN)
    facts, path = scan_tree(root), "/" + str(far.relative_to(root))
    there = {given: {"PYTHONPATH": "/opt/modules"}}
    assert path in {e.path for e in reach(facts, Request(apps=("python3",), **there)).files}
    assert path not in {e.path for e in reach(facts, Request(apps=("python3",))).files}
    first = Request(
        apps=("python3",), image_env={"PATH": "/usr/bin"}, searched={"PATH": "/venv/bin"}
    )
    assert [p.chain[0] for p in reach(facts, first).programs] == ["/venv/bin/python3"]


@pytest.mark.parametrize(
    ("line", "lost"),
    [
        ("#!/opt/moved/venv/bin/python3 -u", "/opt/moved/venv/bin/python3"),
        ("#!/usr/bin/env -S pythn3 -u", "pythn3"),
        ("#!/usr/bin/env python3", ""),
        ("#!/home/u/venv/bin/python3", ""),  # the engine may show it
        ("#!/bound/bin/python3", ""),
    ],
)
def test_script_whose_interpreter_the_image_lacks_is_refused(
    line: str, lost: str, facts: ImageFacts
) -> None:
    of = replace(facts, programs={**facts.programs, "/opt/app/moved": line})
    binds = (Bind("/x", "/bound"),)
    found = said(of, command=("/opt/app/moved",), binds=binds)
    assert errors(found) == ["program"] * bool(lost)
    assert not lost or f"is a script for {lost}," in found["program error"].what
    perhaps = said(
        of, command=("/opt/app/moved",), binds=binds, engine_args=("--bind", "/opt/moved")
    )
    assert not errors(perhaps) and ("program warning" in perhaps) is bool(lost)


def test_facts_without_programs_leave_nothing_out_but_other_programs(facts: ImageFacts) -> None:
    old = replace(facts, programs={}, leads={})
    found = reach(old, Request(apps=("/opt/app/c",)))
    assert [p.kind for p in found.programs] == [Kind.UNKNOWN]
    paths = {e.path for e in found.files}
    assert {"/opt/app/c", MODULE, FAST, "/usr/lib/libsolver.so.1"} <= paths
    assert "/opt/app/o" not in paths
    assert "program error" not in said(old, apps=("/opt/app/no-such",))


@pytest.mark.parametrize("name", ["holds", "alone"])
@pytest.mark.parametrize("by", ["apps", "command"])
def test_program_with_an_mpi_inside_is_refused_and_no_function_is_called_fine(
    facts: ImageFacts, name: str, by: str
) -> None:
    found = said(facts, **{by: (f"/opt/app/{name}", "-v")[: 1 + (by == "command")]})
    assert errors(found) == ["static"]
    assert f"/opt/app/{name} contains an MPI" in found["static error"].what
    assert "symbols ok" not in found


@pytest.mark.parametrize("name", ["/opt/app/c", "deep", "plain"])
def test_static_programs_elsewhere_refuse_no_other(facts: ImageFacts, name: str) -> None:
    found = said(facts, apps=(name,))
    assert not errors(found)
    assert not [f for f in found if f.startswith("static")]


def test_static_programs_are_listed_where_anything_may_run(facts: ImageFacts) -> None:
    found = said(facts, command=("sh", "-c", "x"))
    assert not errors(found)
    assert "/opt/app/alone, /opt/app/holds" in found["static warning"].why


def test_missing_program_is_refused_with_its_near_name(facts: ImageFacts) -> None:
    found = said(facts, apps=("pythn3",))
    assert errors(found) == ["program"]
    assert "/usr/bin/python3" in found["program error"].why
    assert "symbols ok" not in found
    more = replace(facts, programs={**facts.programs, "/sbin/chmem": "", "/bin/nwchem.mpich": ""})
    assert (
        "; near: /bin/nwchem.mpich, /sbin/chmem"
        in said(more, apps=("nwchem",))["program error"].why
    )
    shown = said(facts, command=("/data/x",), binds=(Bind("/d", "/data"),))
    assert errors(shown) == [] and "symbols ok" in shown


def test_program_that_is_in_no_folder_of_path_is_refused_with_its_places(facts: ImageFacts) -> None:
    own = {"image_env": {"PATH": "/usr/bin:/bin"}}
    found = said(facts, command=("c",), **own)
    assert errors(found) == ["program"]
    assert "/usr/bin:/bin; the image has /opt/app/c" in found["program error"].why
    assert found["program error"].remedy.endswith("/opt/app/c")
    assert not errors(said(facts, apps=("c",), **own)), "something else may start it"
    assert "program warning" in said(facts, apps=("c",), **own)
    for request in (
        {"image_env": {"PATH": "/usr/bin:/opt/app"}},
        {"searched": {"PATH": "/opt/app"}, **own},
        {"image_env": {"PATH": "/data/bin:/bin"}, "binds": (Bind("/d", "/data"),)},
        {"binds": (Bind("/d/c", "/usr/bin/c"),), **own},
        {"engine_args": ("--overlay", "x"), **own},
        {},
    ):
        assert not errors(said(facts, command=("c",), **request)), request
    assert not errors(said(facts, command=("/opt/app/c",), **own))
    without = {
        path: what for path, what in facts.programs.items() if "/.singularity.d/" not in path
    }
    bare = replace(facts, programs=without)
    found = said(bare, command=("c",))
    assert errors(found) == ["program"], "nothing adds to Apptainer's PATH"
    assert "/usr/local/bin" in found["program error"].why
    assert not errors(said(bare, command=("c",), searched={"APPEND_PATH": "/opt/app"}))
    assert not errors(said(bare, command=("python3",)))


def test_login_shell_of_debian_loses_the_images_path(facts: ImageFacts) -> None:
    debian = replace(facts, os="Debian GNU/Linux 12 (bookworm)")
    own = {"image_env": {"PATH": "/opt/app:/venv/bin:/usr/bin"}}
    for command in (
        ("sh", "-lc", "c x"),
        ("/bin/sh", "--login", "-c", "exec c x"),
        ("sh", "-l", "-c", "c"),
    ):
        found = said(debian, command=command, **own)["program warning"]
        assert "c is not found" in found.what and found.remedy.endswith("/opt/app/c"), command
    assert "python3 is not found, or is another" in said(
        debian, command=("sh", "-lc", "python3 x"), **own
    )["program warning"].what  # fmt: skip
    for command in (
        ("sh", "-c", "c x"),
        ("sh", "-lc", "/opt/app/c x"),
        ("sh", "-lc", "sh x; cat y"),
    ):
        assert "program warning" not in said(debian, command=command, **own), command
    assert "program warning" not in said(debian, command=("sh", "-lc", "c"))
    more = {"/usr/bin/su": "starts", "/usr/bin/nice": "starts"}
    login = replace(debian, programs={**debian.programs, **more})
    for command in (
        ("sh", "-c", "cd /data && sh -lc 'c x'"),
        ("nice", "sh", "-lc", "c x"),
        ("su", "-", "nobody", "-c", "c x"),
        ("su", "-lc", "c x"),
    ):
        assert "program warning" in said(login, command=command, **own), command
    assert "program warning" not in said(login, command=("su", "nobody", "-c", "c x"), **own)
    assert "program warning" not in said(facts, command=("sh", "-lc", "c"), **own)


@pytest.mark.parametrize(
    "first", ["#!/bin/bash -l", "#!/bin/sh -l", "#!/bin/sh --login", "#!/usr/bin/env -S bash -el"]
)
def test_script_of_a_login_shell_starts_anything_and_loses_the_images_path(
    first: str, facts: ImageFacts, tmp_path: Path
) -> None:
    """In the image and of this machine; a shell that is given it reads no profile."""
    root = image_tree(tmp_path / "root")
    script = root / "opt/app/login.sh"
    script.write_text(f"{first}\nset -e\nc x\n")
    script.chmod(0o755)
    image = replace(scan_tree(root), os="Debian GNU/Linux 12 (bookworm)")
    path = {"PATH": "/opt/app:/usr/bin:/bin"}
    own = tmp_path / "job.sh"
    own.write_text(script.read_text())
    here = Request(command=(str(own),))
    for command, more in (
        (("login.sh",), {}),
        (("sh", "-c", "login.sh"), {}),
        ((str(own),), {"texts": texts(here, image), "outside": outside(here, image)}),
    ):
        request = Request(command=command, image_env=path, **more)
        files = {e.path for e in reach(image, request).files}
        assert files >= {e.path for e in image.consumers}, command
        found = said(image, command=command, image_env=path, **more)
        assert first in found["program warning"].what, command
        assert "c is not found" in found["program warning"].what
    assert {
        p.asked for p in reach(image, Request(command=("sh", "/opt/app/login.sh"))).programs
    } == {"c"}
    assert "program warning" not in said(image, command=("sh", "/opt/app/login.sh"), image_env=path)


def test_script_of_bsd_csh_is_refused_under_hydra_alone(facts: ImageFacts) -> None:
    own = {
        "/run.csh": "#!/bin/csh -f", "/usr/bin/csh": "-> /etc/alternatives/csh", "/usr/bin/tcsh": "starts",
        "/etc/alternatives/csh": "-> /usr/bin/bsd-csh", "/usr/bin/bsd-csh": "starts", "/run.tcsh": "#!/bin/tcsh",
        "/usr/bin/nice": "starts",
    }  # fmt: skip
    more = replace(facts, programs={**facts.programs, **own})
    for command in (
        ("/run.csh",),
        ("csh", "x"),
        ("nice", "csh", "x"),
        ("sh", "-c", "cd /data && exec csh x"),
        ("sh", "-c", "nice /run.csh | tee log"),
        ("sh", "-lc", "csh x"),
        ("sh", "-c", "sh -c 'csh x'"),
    ):
        found = said(more, command=command)
        assert "rank-cut-off" in errors(found), command
        assert "tcsh" in found["rank-cut-off error"].remedy
    for command in (("/run.tcsh",), ("tcsh", "x"), ("sh", "-c", "tcsh x")):
        assert "rank-cut-off" not in errors(said(more, command=command))
    found = said(more, command=("sh", "-c", "c x && csh post"))
    assert not errors(found) and "rank-cut-off warning" in found, (
        "which of them uses MPI is not known"
    )
    assert "rank-cut-off" not in errors(said(more, "openmpi", command=("/run.csh",)))


@pytest.mark.parametrize(
    ("command", "severity"),
    [
        (("sudo", "-E", "c"), "error"),
        (("sudo", "-E", "-C", "99", "c"), ""),
        (("sh", "-c", "sudo -E date; /opt/app/c"), "warning"),
    ],
)
def test_sudo_that_keeps_the_environment_closes_hydras_descriptor(
    facts: ImageFacts, command: tuple[str, ...], severity: str
) -> None:
    programs = {**facts.programs, "/usr/bin/sudo": "starts", "/usr/bin/date": ""}
    facts = replace(facts, programs=programs)
    findings = [n for n in said(facts, command=command, ranks=2) if n.startswith("rank-cut-off")]
    assert findings == ([f"rank-cut-off {severity}"] if severity else [])
    twice = replace(facts, programs={**programs, "/opt/bin/sudo": "starts"})
    made = planned(twice, host("mpich-5.0.2"), launcher=HYDRA, command=command, ranks=2)
    assert sum(f.check == "rank-cut-off" for f in checks.check(made)) == len(findings)
    openmpi = said(facts, "openmpi", command=command, ranks=2)
    assert not any(n.startswith("rank-cut-off") for n in openmpi)


@pytest.mark.parametrize("name", ["plain", "lonely"])
@pytest.mark.parametrize("family", ["mpich", "openmpi"])
def test_program_without_mpi_is_of_no_wrong_family(
    facts: ImageFacts, name: str, family: str
) -> None:
    assert not errors(said(facts, family, apps=(name,)))


def test_program_with_an_mpi_inside_is_of_the_family_of_that_mpi(facts: ImageFacts) -> None:
    mostly = tuple(e for e in facts.consumers if e.path in ("/opt/app/o", "/opt/app/holds", MODULE))
    found = said(replace(facts, consumers=mostly), apps=("holds",))
    assert errors(found) == ["static"]


def test_program_without_mpi_is_fine_and_says_that_nothing_is_proved(facts: ImageFacts) -> None:
    found = said(facts, apps=("/opt/app/plain",))
    assert "needs no MPI; nothing will be proved" in found["program ok"].what
    assert not [f for f in found if f.startswith("symbols")]


def test_static_program_without_mpi_in_it_is_a_warning(facts: ImageFacts) -> None:
    found = said(facts, apps=("lonely",))
    assert errors(found) == [] and "no MPI was found in it" in found["program warning"].what


def test_nothing_found_behind_a_program_is_never_ok(facts: ImageFacts) -> None:
    modules = [e for e in facts.consumers if e.path in (MODULE, FAST)]
    bare = replace(facts, consumers=tuple(e for e in facts.consumers if e not in modules))
    found = said(bare, command=("python3", "x.py"))
    assert "symbols ok" not in found
    assert "nothing of the image was checked" in found["symbols warning"].what


def test_two_families_are_refused_until_a_program_is_named(facts: ImageFacts) -> None:
    found = said(facts)
    assert errors(found) == ["families"]
    text = " ".join((found["families error"].why, found["families error"].remedy))
    for words in ("mpich: ", "/opt/app/c", "openmpi: ", "/opt/app/o", "--app /opt/app/"):
        assert words in text
    for family, name in (("mpich", "c"), ("mpich", "deep"), ("openmpi", "o")):
        assert not errors(said(facts, family, apps=(f"/opt/app/{name}",)))
    assert not errors(said(facts, "openmpi", command=("/usr/bin/python3", "x.py")))


def test_other_family_that_may_be_loaded_is_a_warning(facts: ImageFacts) -> None:
    found = said(facts, "openmpi", command=("/venv/bin/python3", "x.py"))
    assert image_family(facts, Request(command=("/venv/bin/python3",))) is AbiFamily.MPICH
    found = said(facts, command=("/venv/bin/python3", "x.py"))
    assert not errors(found) and MODULE in found["families warning"].why


def test_two_named_programs_of_two_families_are_refused(facts: ImageFacts) -> None:
    found = said(facts, apps=("/opt/app/c", "/opt/app/o"))
    assert errors(found) == ["families"]
    assert "programs of the image" in found["families error"].what


def test_two_families_in_one_program_are_refused(facts: ImageFacts) -> None:
    both = next(e for e in facts.consumers if e.path == "/opt/app/c")
    both = replace(both, needed=("libmpich.so.12", "libmpi.so.40"))
    others = tuple(e for e in facts.consumers if e.path != "/opt/app/c")
    found = said(replace(facts, consumers=(both, *others)), apps=("/opt/app/c",))
    assert errors(found) == ["families"] and "loads libraries" in found["families error"].what


def test_program_of_this_machine_is_inspected(facts: ImageFacts, tmp_path: Path) -> None:
    inside = compiled(tmp_path / "inside", MAIN + CALLS, str(archive(tmp_path, MPICH)))
    outside = {"./inside": reader.read(inside), "./run": Elf("/app/run", "")}
    found = said(facts, command=("./inside",), outside=outside)
    assert errors(found) == ["static"] and str(inside) in found["static error"].what
    found = said(facts, command=("./run",), outside=outside)
    assert not errors(found) and "families warning" in found


def test_program_of_this_machine_is_looked_at_only_if_the_image_has_none_there(
    facts: ImageFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(tmp_path / "a.out", PLAIN)
    (tmp_path / "run").write_text("#!/bin/sh\n")
    monkeypatch.chdir(tmp_path)
    names = ("./a.out", "./run", "./gone", "/bin/sh", "/usr/bin/python3", f"{tmp_path}/a.out", "sh")
    found = outside(Request(apps=names), facts)
    assert {n: e.machine for n, e in found.items()} == {
        "./a.out": facts.arch, "./run": "", f"{tmp_path}/a.out": facts.arch,
    }  # fmt: skip
    old = replace(facts, programs={})
    assert list(outside(Request(apps=names), old)) == ["./a.out", "./run"]
    there = outside(Request(apps=names), facts, elsewhere=True)
    assert set(there) == {"./a.out", "./run", "./gone", f"{tmp_path}/a.out"}


def test_program_keeps_the_mpi_that_it_links_of_several_of_its_family(tmp_path: Path) -> None:
    root = image_tree(tmp_path / "root")
    other = compiled(root / "opt/a/lib/libmpi.so.12", MPICH)
    compiled(root / "opt/app/other", MAIN + CALLS, str(other), "-Wl,-rpath,/opt/a/lib")
    facts = scan_tree(root)
    for name, path in (("c", "/usr/lib/libmpich.so.12"), ("other", "/opt/a/lib/libmpi.so.12")):
        own = own_library(facts, Request(mpi="container", command=(f"/opt/app/{name}",)))
        assert own and own.path == path


@pytest.mark.parametrize(
    ("command", "workdir"),
    [
        (("./o",), "/opt/app"),
        (("app/o",), "/opt"),
        (("../opt/app/o",), "/usr"),
        (("nice", "./o"), "/opt/app"),
        (("sh", "-c", "./o"), "/opt/app"),
        (("sh", "-c", "cd app && exec ./o"), "/opt"),
        (("sh", "-c", "cd /opt/app && ./o <in.txt"), ""),
    ],
)
def test_program_by_a_relative_path_is_found_from_the_folder_where_it_is_started(
    command: tuple[str, ...], workdir: str, tmp_path: Path
) -> None:
    root = image_tree(tmp_path / "root")
    compiled(root / "usr/bin/nice", STARTS)
    found = reach(scan_tree(root), Request(command=command, workdir=workdir))
    assert [(p.path, p.kind) for p in found.programs] == [("/opt/app/o", Kind.LINKED)]


def test_program_of_this_machine_is_looked_for_from_the_folder_of_the_command(
    facts: ImageFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--workdir /opt/app -- ./o` is a program of the image, whatever is called so here."""
    compiled(tmp_path / "o", PLAIN)
    monkeypatch.chdir(tmp_path)
    for workdir, known in (("", ["./o"]), ("/opt/app", []), ("/opt", []), (str(tmp_path), ["./o"])):
        request = Request(command=("./o",), workdir=workdir)
        assert list(outside(request, facts)) == known


def only(facts: ImageFacts, *paths: str) -> ImageFacts:
    kept = tuple(e for e in facts.consumers if e.path in paths)
    return replace(facts, consumers=kept, mpis=())


def test_no_mpi_static_only_and_unknown_are_three_answers(facts: ImageFacts) -> None:
    odd = Elf("/opt/app/odd", "x64", needed=("libmpi.so.1",), interpreter="/lib/ld.so")
    whats = []
    for image in (
        only(facts),
        only(facts, "/opt/app/alone"),
        replace(only(facts), consumers=(odd,)),
    ):
        with pytest.raises(FairleadError) as raised:
            planned(image)
        finding = raised.value.findings[0]
        assert finding.severity is Severity.ERROR and finding.check == "no-mpi"
        whats.append(f"{finding.what} {finding.where} {finding.why} {finding.remedy}")
    assert "no MPI was found in the image" in whats[0]
    assert "/opt/app/alone" in whats[1] and "cannot be proved" in whats[1]
    assert "libmpi.so.1 of /opt/app/odd" in whats[2] and "no family that fairlead knows" in whats[2]


def test_family_of_what_a_script_names_counts_and_for_others_that_start_anything_the_hosts(
    facts: ImageFacts,
) -> None:
    script = Request(command=("/opt/app/run.sh",), family=AbiFamily.OPENMPI)
    assert image_family(facts, script) is AbiFamily.MPICH  # it names /opt/app/c
    for family in (AbiFamily.MPICH, AbiFamily.OPENMPI):
        assert image_family(facts, Request(command=("sh", "-c", "x"), family=family)) is family
        # What Python imports is known by its modules; of nothing named, `families` speaks.
        one = image_family(facts, Request(command=("/bin/python3",), family=family))
        assert one is AbiFamily.OPENMPI
        assert image_family(facts, Request(family=family)) is image_family(facts)


def test_fortran_that_links_the_interface_alone_is_of_its_family(tmp_path: Path) -> None:
    root = tmp_path / "root"
    mpich = compiled(root / "usr/lib/libmpich.so.12", MPICH)
    calls = CALLS.replace("call(", "solve(")
    fortran = compiled(root / "usr/lib/libmpichfort.so.12", calls, str(mpich))
    openmpi = compiled(root / "opt/openmpi/lib/libmpi.so.40", OPENMPI_CODE)
    for name in ("one", "two"):
        compiled(root / "opt/app" / name, MAIN + CALLS, str(openmpi))
    code = "int solve(void); int main(void) { return solve(); }"
    compiled(root / "opt/app/f", code, str(fortran))
    found = scan_tree(root)
    assert image_family(found) is AbiFamily.OPENMPI
    assert image_family(found, Request(command=("/opt/app/f",))) is AbiFamily.MPICH


def test_script_is_not_refused_for_a_tied_program_that_it_does_not_name(tmp_path: Path) -> None:
    root = image_tree(tmp_path / "root")
    tied = ("-Wl,-rpath,/usr/lib", "-Wl,--disable-new-dtags")
    compiled(root / "opt/app/tied", MAIN + CALLS, str(root / "usr/lib/libmpich.so.12"), *tied)
    found = replace(scan_tree(root), glibc="2.99", libstdcxx="3.4.99", arch="x64")
    engine = replace(ROOT_ENGINE, binds_files=False)
    script = said(found, command=("/opt/app/any.sh",), engine=engine)
    assert "rpath error" not in script and "/opt/app/tied" in script["rpath warning"].why
    assert "rpath error" in said(found, command=("sh", "-c", "x"), engine=engine)
    assert "rpath error" in said(found, command=("/opt/app/tied",), engine=engine)


def own(facts: ImageFacts, path: str) -> Plan:
    """A plan to keep the image's MPI."""
    asked = Request(ranks=2, apps=(path,), mpi="container")
    inputs = Inputs("/x.sif", facts, None, HYDRA, SITE, ROOT_ENGINE, asked, Path("/cache"))
    return plan(inputs)


@pytest.mark.parametrize("name", ["alone", "holds"])
def test_program_with_an_mpi_inside_runs_on_it_where_that_is_asked_for(
    facts: ImageFacts, name: str
) -> None:
    """Also in an image with no other MPI. What it is judged by is its own file."""
    path = f"/opt/app/{name}"
    for image in (facts, only(facts, path)):
        made = own(image, path)
        found = {f"{f.check} {f.severity.value}": f for f in checks.check(made)}
        assert errors(found) == [] and made.planned_file == path
        assert path in found["static warning"].what
        assert "launcher-family ok" in found
    alone = only(facts, path)
    with pytest.raises(FairleadError) as raised:
        planned(alone)
    assert "--mpi container" in raised.value.findings[0].remedy
    assert own(facts, "/opt/app/o").planned_file == "/opt/openmpi/lib/libmpi.so.40"


@pytest.fixture(scope="module")
def started(facts: ImageFacts, tmp_path_factory: pytest.TempPathFactory) -> ImageFacts:
    """The image, and static programs that start others: an init, whose symbols say so, and one without symbols."""
    root = tmp_path_factory.mktemp("started")
    compiled(root / "usr/bin/tini-static", STARTS, "-static")
    compiled(root / "usr/bin/gosu", PLAIN, "-static", "-s")
    go = 'void go(void) __asm__("syscall.Exec"); void go(void) { } int main(void) { go(); return 0; }'
    compiled(root / "usr/bin/go-exec", go, "-static")
    others = ("env", "unshare", "perf", "gdb", "run")
    for name in ("nice", "setpriv", "chroot", "timeout", "su", "runuser", "numactl", *others):
        compiled(root / "usr/bin" / name, STARTS)
    compiled(root / "usr/bin/install", PLAIN)
    compiled(root / "usr/bin/stat", OPENS)
    return replace(facts, programs={**facts.programs, **scan_tree(root).programs})


@pytest.mark.parametrize(
    "words",
    [
        ("/usr/bin/tini-static", "--"),
        ("tini-static", "-s", "-g"),
        ("gosu", "nobody"),
        ("gosu", "65534:65534"),
        ("setpriv", "--reuid", "nobody", "--regid=1", "--clear-groups", "--"),
        ("chroot", "--userspec=nobody", "/"),
        ("chroot", "--userspec", "nobody", "/"),
        ("timeout", "-s", "KILL", "-k5", "1h"),
        ("numactl", "-m", "all", "--cpunodebind", "all"),
        ("runuser", "-u", "nobody", "--"),
        ("runuser", "--user=nobody"),
        ("su", "nobody", "-s", "/bin/sh", "-c"),
        ("su", "-p", "--command"),
        ("nice", "gosu", "nobody", "sh", "-c"),
        ("go-exec",),
        ("env", "-u", "LD_PRELOAD", "-C", "/tmp", "A=1"),
        ("unshare", "-r", "--propagation", "slave", "--"),
        ("perf", "stat", "-e", "cycles"),
        ("gdb", "-batch", "-ex", "run", "--args"),
        ("nice", "-n", "5"),
        ("tini-static", "--", "nice", "-n5"),
        ("sh", "-c"),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("name", "wrong"), [("/opt/app/c", "openmpi"), ("o", "mpich"), ("/opt/app/holds", "openmpi")]
)
def test_program_behind_one_that_starts_it_is_looked_at_by_itself(
    started: ImageFacts, words: tuple[str, ...], name: str, wrong: str
) -> None:
    command = (*words, name, "-x", "input")
    behind, alone = said(started, wrong, command=command), said(started, wrong, command=(name,))
    assert errors(behind) == errors(alone) != []
    right = "mpich" if wrong == "openmpi" else "openmpi"
    assert errors(said(started, right, command=command)) == (["static"] if "holds" in name else [])


@pytest.mark.parametrize("words", [("unshare", "-r"), ("nice", "unshare", "--fork", "-mp")])
def test_command_that_parts_the_ranks_of_a_node_gets_no_cross_memory_attach(
    started: ImageFacts, words: tuple[str, ...]
) -> None:
    """Each rank then has a user or PID namespace of its own, and the MPI aborts in its first large message."""
    made = planned(started, host("mpich-5.0.2"), launcher=HYDRA, command=(*words, "c"), ranks=2)
    assert made.env["MPIR_CVAR_CH4_CMA_ENABLE"] == "0"
    [finding] = [f for f in checks.check(made) if f.check == "namespaces"]
    assert finding.severity is Severity.INFO and "unshare -" in finding.what
    for other in (("unshare", "-m", "c"), ("c",)):
        same = planned(started, host("mpich-5.0.2"), launcher=HYDRA, command=other, ranks=2)
        assert "MPIR_CVAR_CH4_CMA_ENABLE" not in same.env


@pytest.mark.parametrize(
    "command",
    [
        ("tini-static",),
        ("gosu", "/opt/app/c"),
        ("/usr/bin/gosu", "nobody", "install"),
        ("gosu", "nobody", "/data/solver"),
        ("chroot", "/other", "/opt/app/c"),
        ("env", "-S", "/opt/app/c -v"),
        ("unshare", "--root=/other", "/opt/app/c"),
        ("perf", "stat", "sh", "/data/any.sh", "/opt/app/c"),
        ("timeout", "/opt/app/c"),
        ("su", "-", "nobody", "-c", "/opt/app/c"),
        ("su", "-lc", "/opt/app/c"),
        ("su", "nobody", "-s", "/bin/csh", "-c", "/opt/app/c"),
        ("su", "nobody"),
        ("runuser", "--login", "nobody", "-c", "/opt/app/c"),
        ("tini-static", "--", "/data/solver"),
        ("sh", "-c", "$1 && /opt/app/c"),
    ],
    ids=str,
)
def test_static_program_that_may_start_others_reaches_everything(
    started: ImageFacts, command: tuple[str, ...]
) -> None:
    found = reach(started, Request(command=command))
    assert {p.kind for p in found.programs} == {Kind.STARTS} and not found.exact
    assert found.files == started.consumers
    mpich = tuple(e for e in started.consumers if e.path in ("/opt/app/c", FAST))
    alone = replace(started, consumers=mpich)
    assert "abi-family" in errors(said(alone, "openmpi", command=command))
    assert not errors(said(alone, "mpich", command=command, ranks=1))


def test_static_program_that_is_named_as_the_one_with_mpi_is_taken_by_its_word(
    started: ImageFacts,
) -> None:
    (named,) = reach(started, Request(apps=("gosu",))).programs
    assert named.kind is Kind.STATIC


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> ImageFacts:
    """Programs whose MPI is in a library that they link, directly and behind another, or in a module of Python."""
    base = tmp_path_factory.mktemp("inside")
    root, code = base / "root", CALLS.replace("call(", "solve(")
    hidden = (str(archive(base, MPICH, pic="-fPIC")), "-Wl,--exclude-libs,ALL", "-s")
    lib = root / "usr/lib"
    solver = compiled(lib / "libsolver.so.1", code, *hidden)
    compiled(lib / "libopen.so.1", code.replace("solve(", "open_solve("), *hidden[:1])
    deep = "int solve(void); int deep(void) { return solve(); }"
    middle = compiled(lib / "libmiddle.so.1", deep, str(solver))
    compiled(
        root / "opt/app/near", "int solve(void); int main(void) { return solve(); }", str(solver)
    )
    compiled(root / "opt/app/far", "int deep(void); int main(void) { return deep(); }", str(middle))
    calls = "int open_solve(void); int main(void) { return open_solve(); }"
    compiled(root / "opt/app/exported", calls, str(lib / "libopen.so.1"))
    compiled(root / "usr/lib/python3.11/site-packages/ext.so", code, *hidden)
    compiled(root / "usr/bin/python3", OPENS)
    openmpi = compiled(root / "opt/openmpi/lib/libmpi.so.40", OPENMPI_CODE)
    compiled(root / "opt/app/o", MAIN + CALLS, str(openmpi))
    found = scan_tree(root)
    return replace(found, glibc="2.99", libstdcxx="3.4.99", arch="x64")


@pytest.mark.parametrize(
    ("app", "library"), [("near", "solver"), ("far", "solver"), ("exported", "open")]
)
@pytest.mark.parametrize("family", ["mpich", "openmpi"])
def test_mpi_in_a_library_behind_a_program_is_refused_by_the_librarys_name(
    inside: ImageFacts, family: str, app: str, library: str
) -> None:
    assert [m.soname for m in inside.mpis] == ["libmpi.so.40"]
    found = said(inside, family, apps=(f"/opt/app/{app}",))
    assert found["static error"].where == f"/usr/lib/lib{library}.so.1"
    assert image_family(inside, Request(apps=(f"/opt/app/{app}",))) is AbiFamily.MPICH
    assert "program ok" not in found and "symbols ok" not in found


def test_mpi_in_a_module_of_python_is_said(inside: ImageFacts) -> None:
    found = said(inside, "openmpi", apps=("python3",))
    assert "ext.so" in found["static warning"].why
    assert not errors(said(inside, "openmpi", apps=("/opt/app/o",)))


def test_script_that_starts_only_a_program_with_its_own_mpi_is_refused(facts: ImageFacts) -> None:
    held = said(facts, command=("/opt/app/held.sh",))
    assert "/opt/app/holds" in held["static error"].where
    for name in ("any.sh", "either.sh"):  # of two programs it is not known which will run
        found = said(facts, command=(f"/opt/app/{name}",))
        assert "static error" not in found and "static warning" in found


def opener(name: str) -> str:
    """A program that opens an MPI by ``name``."""
    return f'#include <dlfcn.h>\nint main(void) {{ return !dlopen("{name}", RTLD_NOW); }}'


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("libmpich.so.12", AbiFamily.MPICH),
        ("/usr/lib/libmpich.so.12", AbiFamily.MPICH),
        ("libmpi.so.40", AbiFamily.OPENMPI),
        ("/opt/openmpi/lib/libmpi.so.40", AbiFamily.OPENMPI),
    ],
)
def test_mpi_that_a_programs_text_names_decides_the_family(
    name: str, family: AbiFamily, tmp_path: Path
) -> None:
    root = image_tree(tmp_path / "root")
    compiled(root / "opt/app/opener", opener(name))
    facts = scan_tree(root)
    for mapped in (AbiFamily.MPICH, AbiFamily.OPENMPI):
        request = Request(command=("/opt/app/opener",), family=mapped)
        assert image_family(facts, request) is family


def test_program_that_may_open_any_mpi_gets_the_hosts_family(tmp_path: Path) -> None:
    root = image_tree(tmp_path / "root")
    compiled(root / "opt/app/opener", opener("plugin.so"))
    facts = scan_tree(root)
    for mapped in (AbiFamily.MPICH, AbiFamily.OPENMPI):
        assert image_family(facts, Request(command=("/opt/app/opener",), family=mapped)) is mapped


@pytest.mark.parametrize(
    ("words", "family"),
    [
        (("python3", "x.py", "/opt/app/o"), AbiFamily.OPENMPI),
        (("python3", "x.py", "/opt/app/c"), AbiFamily.MPICH),
        (("sh", "-c", "cd /tmp && exec /opt/app/o -v"), AbiFamily.OPENMPI),
        (("sh", "-c", "cd /tmp && exec /opt/app/c -v"), AbiFamily.MPICH),
        (("python3", "x.py", "/opt/link.so"), AbiFamily.MPICH),
    ],
)
def test_file_of_the_image_that_the_command_names_decides_the_family(
    words: tuple[str, ...], family: AbiFamily, tmp_path: Path
) -> None:
    root = image_tree(tmp_path / "root")
    (root / "opt/link.so").symlink_to("/usr/lib/libmpich.so.12")
    assert image_family(scan_tree(root), Request(command=words)) is family


def test_python_module_is_out_of_reach_of_a_program_without_python(tmp_path: Path) -> None:
    root = image_tree(tmp_path / "root")
    library = compiled(root / "usr/lib/libpython3.11.so.1.0", "int Py_Main(void) { return 0; }")
    compiled(root / "opt/app/opener", opener("plugin.so"))
    embeds = (
        opener("plugin.so")
        .replace("return", "return Py_Main() ||")
        .replace("int main", "int Py_Main(void);int main")
    )
    compiled(root / "opt/app/embeds", embeds, str(library))
    facts = scan_tree(root)
    for name, reaches in (("opener", False), ("embeds", True)):
        files = {e.path for e in reach(facts, Request(apps=(name,))).files}
        assert (MODULE in files, "/usr/lib/libsolver.so.1" in files) == (reaches, True)


def test_r_reaches_its_packages(tmp_path: Path) -> None:
    root = image_tree(tmp_path / "root")
    compiled(root / "usr/bin/Rscript", STARTS)
    package = "usr/lib/R/site-library/Rmpi/libs/Rmpi.so"
    compiled(root / package, CALLS, str(root / "opt/openmpi/lib/libmpi.so.40"), "-Wl,-soname,")
    found = reach(scan_tree(root), Request(command=("Rscript", "x.R")))
    assert {e.path for e in found.files} == {f"/{package}"}
    assert {p.kind for p in found.programs} == {Kind.PACKAGES}


@pytest.mark.parametrize("name", ["octave", "octave-cli", "octave-cli-6.2.0"])
def test_octave_reaches_its_modules_alone(name: str, tmp_path: Path) -> None:
    """Of the two MPIs in an image the one that its module is linked to is planned."""
    root = image_tree(tmp_path / "root")
    compiled(root / f"usr/bin/{name}", OPENS)
    module = "usr/lib/octave/packages/mpi-3.1.0/MPI_Init.oct"
    compiled(
        root / module,
        CALLS + "int main(void) {}",
        str(root / "opt/openmpi/lib/libmpi.so.40"),
        "-shared",
        "-fPIC",
    )
    facts, request = scan_tree(root), Request(command=(name, "x.m"))
    found = reach(facts, request)
    assert {e.path for e in found.files} == {f"/{module}"}
    assert {p.kind for p in found.programs} == {Kind.PACKAGES}
    assert image_family(facts, request) is AbiFamily.OPENMPI


def test_library_behind_an_mpi_does_not_contain_one(tmp_path: Path) -> None:
    """Open MPI 6 has the messages of MPI_Init in libopen-pal."""
    root = image_tree(tmp_path / "root")
    text = 'const char *opal_help = "mpi_init:startup:internal-failure";'
    behind = compiled(root / "usr/lib/libopen-pal.so.40", text)
    mpi = OPENMPI_CODE + "extern const char *opal_help; const char *u(void) { return opal_help; }"
    compiled(root / "usr/lib/six/libmpi.so.40", mpi, str(behind))
    facts = scan_tree(root)
    assert "/usr/lib/libopen-pal.so.40" not in {e.path for e in facts.consumers}


def test_what_a_script_does_not_name_only_warns(tmp_path: Path) -> None:
    """A script that names the program that it starts, and a program of the image that the host's MPI does not suit."""
    root = image_tree(tmp_path / "root")
    lacking = (
        MAIN.replace("main", "main") + "int MPI_Later(void); int call(void) { return MPI_Later(); }"
    )
    newer = compiled(tmp_path / "newer/libmpich.so.12", MPICH + "int MPI_Later(void) { return 0; }")
    compiled(root / "opt/app/later", lacking, str(newer))
    (root / "opt/app/starts-c.sh").write_text("#!/bin/sh\n$1 /opt/app/c\n")
    (root / "opt/app/starts-c.sh").chmod(0o755)
    facts = scan_tree(root)
    for command, severity in (
        (("/opt/app/starts-c.sh",), "warning"),
        (("/opt/app/later",), "error"),
    ):
        found = said(facts, command=command)
        assert f"symbols {severity}" in found, found.keys()
        assert "MPI_Later" in found[f"symbols {severity}"].why


# A home-made MPI that reads what Hydra sets: too few functions for a whole one, and no MPI's name.
TINY = """
const char *variable = "PMI_RANK";
int MPI_Init(int *c, char ***v) { return 0; }
int MPI_Comm_rank(int c, int *r) { return *r = 0; }
"""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> ImageFacts:
    """Next to MPICH and Open MPI: a home-made MPI, and a tracer and a library with an MPI inside, which are none."""
    root = image_tree(tmp_path_factory.mktemp("mixed") / "root")
    tiny = compiled(root / "opt/tiny/lib/libtiny.so.1", TINY)
    compiled(root / "opt/tiny/bin/app", MAIN + CALLS, str(tiny), "-Wl,-rpath,/opt/tiny/lib")
    compiled(root / "opt/tiny/bin/mpiexec", STARTS)
    tracer = compiled(
        root / "opt/x/libtrace.so", TINY.replace("return 0", "return PMPI_Init(c, v)")
    )
    compiled(root / "opt/x/traced", MAIN + CALLS, str(tracer), str(root / "usr/lib/libmpich.so.12"))
    return replace(scan_tree(root), glibc="2.99", libstdcxx="3.4.99", arch="x64")


def test_home_made_mpi_is_found_by_its_use_and_the_image_keeps_its_known_ones(
    mixed: ImageFacts, facts: ImageFacts
) -> None:
    unknown = {m.soname: m.pmi for m in mixed.mpis if m.family is AbiFamily.UNKNOWN}
    assert unknown == {"libtiny.so.1": "pmi"}
    assert image_family(mixed) is image_family(facts)
    assert image_family(mixed, Request(apps=("/opt/app/c",))) is AbiFamily.MPICH
    assert image_family(mixed, Request(apps=("/opt/tiny/bin/app",))) is AbiFamily.UNKNOWN


def test_program_of_a_home_made_mpi_is_planned_on_it_in_container_mode_alone(
    mixed: ImageFacts,
) -> None:
    request = Request(mpi="container", ranks=2, apps=("/opt/tiny/bin/app",))
    made = plan(Inputs("/x", mixed, None, HYDRA, SITE, ROOT_ENGINE, request, Path("/cache")))
    assert made.unknown_mpi and made.planned_file == "/opt/tiny/lib/libtiny.so.1"
    found = {f.check: f for f in checks.check(made)}
    assert not checks.refused(tuple(found.values()))
    assert "the family of libtiny.so.1 is unknown" in found["mpi-unknown"].what
    assert "names PMI" in found["mpi-unknown"].why
    with pytest.raises(FairleadError, match="no family that fairlead knows") as raised:
        planned(mixed, apps=("/opt/tiny/bin/app",))
    assert "--mpi container" in raised.value.findings[0].remedy


def test_launcher_of_the_image_is_the_one_in_the_prefix_of_its_mpi(mixed: ImageFacts) -> None:
    found = own_launcher("/opt/tiny/lib/libtiny.so.1", mixed.programs)
    assert found and found.path == "/opt/tiny/bin/mpiexec" and is_in_image(found)
    assert own_launcher("/usr/lib/libmpich.so.12", mixed.programs) is None
    assert registry.words(found, Shape(2), ("app",)).argv == (found.path, "-n", "2", "app")


def with_lost_library(tree: Path) -> None:
    """A program that links a library which is then removed."""
    blas = compiled(tree / "usr/lib/libblas.so.3", PLAIN.replace("main", "blas"))
    mpich = tree / "usr/lib/libmpich.so.12"
    needs = "int blas(void); int more(void) { return blas(); }"
    compiled(tree / "opt/app/solver", MAIN + CALLS + needs, str(mpich), str(blas))
    blas.unlink()


def test_program_whose_library_is_nowhere_in_the_image_is_refused(tmp_path: Path) -> None:
    tree = image_tree(tmp_path / "root")
    with_lost_library(tree)
    facts = replace(scan_tree(tree), glibc="2.99", libstdcxx="3.4.99", arch="x64")
    command = ("/opt/app/solver",)
    finding = said(facts, command=command)["program error"]
    assert finding.what == "/opt/app/solver needs libblas.so.3, which is nowhere in the image"
    assert "program error" not in said(facts, command=("/opt/app/c",))
    folder = {"library_path": "/opt/blas", "binds": (Bind("/data", "/opt/blas"),)}
    assert "program warning" in said(facts, command=command, **folder)
    assert "program error" in said(facts, command=command, binds=(Bind("/data", "/data"),))
    for machine in ("x86_64", "aarch64"):
        file = Bind("/data", f"/usr/lib/{machine}-linux-gnu/libblas.so.3")
        assert "program warning" in said(facts, command=command, binds=(file,))


def test_package_of_python_whose_library_is_nowhere_in_the_image_is_refused(tmp_path: Path) -> None:
    tree = image_tree(tmp_path / "root")
    module = tree / FAST.lstrip("/")
    subprocess.run([find_patchelf(), "--add-needed", "libblas.so.3", module], check=True)
    facts = replace(scan_tree(tree), glibc="2.99", libstdcxx="3.4.99", arch="x64")
    python = ("/venv/bin/python3", "-c")
    finding = said(facts, command=(*python, "import fast"))["program error"]
    assert (
        finding.what == "the Python package fast needs libblas.so.3, which is nowhere in the image"
    )
    assert finding.where == FAST and "cannot open shared object" in finding.why
    for text in ("import other", "try:\n  import fast\nexcept ImportError: pass"):
        assert "program error" not in said(facts, command=(*python, text))
    bound = {"library_path": "/opt/blas", "binds": (Bind("/data", "/opt/blas"),)}
    findings = said(facts, command=(*python, "import fast"), **bound)
    assert "program warning" in findings and "program error" not in findings
    own = {"python_modules": {"fast": "/home/me"}}
    assert "program error" not in said(facts, command=(*python, "import fast"), **own)


def test_program_that_unpacks_an_mpi_is_refused(facts: ImageFacts) -> None:
    programs = {**facts.programs, "/opt/app/onefile": "opens"}
    facts = replace(facts, programs=programs, unpacks={"/opt/app/onefile": ("libmpi.so.12",)})
    finding = said(facts, command=("onefile",))["static error"]
    assert "libmpi.so.12" in finding.why and "--onedir" in finding.remedy
    assert "static error" not in said(facts, command=("/opt/app/c",))


def test_library_that_only_the_images_mpi_lacks_is_no_reason(tmp_path: Path) -> None:
    """Another MPI takes its place."""
    tree = image_tree(tmp_path / "root")
    mpich = tree / "usr/lib/libmpich.so.12"
    subprocess.run([find_patchelf(), "--add-needed", "libhwloc.so.15", mpich], check=True)
    assert not scan_tree(tree).lacking


def test_c_library_that_musls_loader_is_itself_is_missed_nowhere(tmp_path: Path) -> None:
    tree = image_tree(tmp_path / "root")
    with_lost_library(tree)
    loader = ("--set-interpreter", "/lib/ld-musl-x86_64.so.1")
    subprocess.run([find_patchelf(), *loader, tree / "opt/app/solver"], check=True)
    assert not scan_tree(tree).lacking


def test_preload_of_the_image_is_in_reach_of_every_program(tmp_path: Path) -> None:
    tree = image_tree(tmp_path / "root")
    openmpi = tree / "opt/openmpi/lib/libmpi.so.40"
    compiled(tree / "usr/lib/libshim.so", CALLS.replace("call(", "shim("), str(openmpi), "-Wl,-soname,libshim.so")  # fmt: skip
    (tree / "etc").mkdir(exist_ok=True)
    plain = replace(scan_tree(tree), glibc="2.99", libstdcxx="3.4.99", arch="x64")
    (tree / "etc/ld.so.preload").write_text("# of a tool\n/usr/lib/libshim.so /usr/lib/gone.so\n")
    facts = replace(scan_tree(tree), glibc="2.99", libstdcxx="3.4.99", arch="x64")
    for given in ({}, {"image_preload": "/usr/lib/libshim.so"}):
        there = said(plain if given else facts, command=("/opt/app/c",), **given)
        assert "families" in errors(there), there
    assert not errors(said(plain, command=("/opt/app/c",)))


@pytest.mark.parametrize(
    ("command", "severity"),
    [
        (("env", "-i", "c"), "error"),
        (("sh", "-c", "env -i /opt/app/c"), "error"),
        (("sh", "-c", "env -i date; /opt/app/c"), "warning"),
        (("env", "-u", "X", "c"), ""),
        (("env", "-u", "PMIX_RANK", "c"), ""),
        (("env", "-u", "X", "-u", "PMI_FD", "c"), "error"),
        (("timeout", "9", "env", "--unset=PMI_RANK", "c"), "error"),
        (("env", "-u", "PMI_FD", "PMI_FD=3", "c"), ""),
        (("env", "-i", "PMI_FD=3", "c"), ""),
        (("su", "-", "nobody", "-c", "/opt/app/c"), "error"),
        (("su", "nobody", "-c", "/opt/app/c"), ""),
        (("su", "-", "-w", "PMI_FD,PMI_RANK", "nobody", "-c", "/opt/app/c"), ""),
    ],
)
def test_command_that_cleans_the_environment_of_its_program_leaves_each_rank_alone(
    facts: ImageFacts, command: tuple[str, ...], severity: str
) -> None:
    starts = dict.fromkeys(("/usr/bin/env", "/usr/bin/su", "/usr/bin/timeout"), "starts")
    starts |= {"/usr/bin/date": ""}
    programs = {**facts.programs, **starts}
    facts = replace(facts, programs=programs)
    findings = said(facts, command=command, ranks=2)
    assert [n for n in findings if n.startswith("rank-cut-off")] == [
        f"rank-cut-off {severity}"
    ] * bool(severity)
    assert not any(n.startswith("rank-cut-off") for n in said(facts, command=command, ranks=1))


def test_python_that_is_given_a_compiled_program_does_not_cross_to_another_family(
    facts: ImageFacts,
) -> None:
    script = ("/usr/bin/python3", "-c", "import subprocess")
    assert interpreted(facts, Request(command=script)) == ("/usr/bin/python3.11",)
    command = (*script, "/opt/app/o")
    assert interpreted(facts, Request(command=command)) == ("/usr/bin/python3.11", "/opt/app/o")
