"""What is concluded from the files that processes have mapped, where no proof has come."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.compiled import CALLS, MPICH, archive, compiled
from tests.support.recorded import host, image, planned

from fairlead import native
from fairlead.base.errors import ExitCode, FairleadError, Severity
from fairlead.base.python_imports import Imports
from fairlead.elf.facts import Elf
from fairlead.proof import closure
from fairlead.proof.closure import File, Library, judged, libraries, setting
from fairlead.proof.observe import Bare, Observer, Sighting, bare, mapped_files, reported
from fairlead.proof.preload import Expected, Startup, asked
from fairlead.proof.unproved import Unproved, blind_ranks
from fairlead.proof.verdict import judged as judged_ranks
from fairlead.swap.model import Plan

PLANNED = 77
# Starts the program behind the word by that function of the C library, with an environment without anything in it.
STARTS = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static int is(char **v, const char *name) { return !strcmp(v[1], name); }
int main(int c, char **v)
{
    char *none[] = {0}, **to = v + 2;
    pid_t pid = 0;
    int status = 1;
    if (is(v, "execve")) execve(to[0], to, none);
    if (is(v, "execvpe")) execvpe(to[0], to, none);
    if (is(v, "fexecve")) fexecve(open(to[0], O_RDONLY), to, none);
    if (is(v, "execle")) execle(to[0], to[0], to[1], (char *)0, none);
    if (is(v, "kept")) return execle(to[0], to[0], to[1], (char *)0, environ);
    if (is(v, "proofless")) { unsetenv("FAIRLEAD_PROOF"); execv(to[0], to); }
    if (is(v, "posix_spawn")) posix_spawn(&pid, to[0], 0, 0, to, none);
    if (is(v, "posix_spawnp")) posix_spawnp(&pid, to[0], 0, 0, to, none);
    if (pid) return waitpid(pid, &status, 0) != pid || status;
    clearenv();
    char line[900];
    snprintf(line, sizeof line, "%s %s", to[0], to[1]);
    if (is(v, "execl")) execl(to[0], to[0], to[1], (char *)0);
    if (is(v, "execlp")) execlp(to[0], to[0], to[1], (char *)0);
    if (is(v, "execv")) execv(to[0], to);
    if (is(v, "execvp")) execvp(to[0], to);
    if (is(v, "system")) return system(line);
    if (is(v, "popen")) return pclose(popen(line, "w"));
    return 9;
}
"""
PAL = Library("libopen-pal", 78, False)
HWLOC = Library("libhwloc", 79, True)


def mapped(plan: Plan, *files: tuple[str, int], inode: int = PLANNED) -> closure.Mapped:
    known = (Library("libmpi", PLANNED, False), PAL, HWLOC)
    return judged([File(*file) for file in files], plan, inode, known)


@pytest.mark.parametrize(
    "path",
    [
        "/opt/mpich/lib/libmpi.so.12.2.2",
        "/usr/lib/x86_64-linux-gnu/libmpich.so.12",
        "/venv/lib/libmpi-1f9dc2a4.so.12",
        "/usr/lib/libpmpi_abi.so.1",
        "/usr/lib/libmpi_abi.so.1",
        "/usr/lib/libopen_mpi.so.40",
        "/opt/ibm/libmpi_ibm.so.3",
    ],
)
def test_mpi_of_another_inode_is_foreign(path: str) -> None:
    assert mapped(planned(), (path, 5)).foreign == (File(path, 5),)
    assert mapped(planned(), (path, PLANNED)).planned == (File(path, PLANNED),)  # bound over it


@pytest.mark.parametrize(
    "path", ["/usr/lib/libmpi_cxx.so.40", "/usr/lib/libmpifort.so.12", "/usr/lib/libmpiwrap.txt"]
)
def test_binding_of_another_language_is_no_mpi(path: str) -> None:
    assert mapped(planned(), (path, 5)) == ((), (), ())


def test_library_that_belongs_to_the_mpi_must_be_the_staged_file() -> None:
    mpi = ("/opt/fairlead/mpi/lib/libmpi.so.40", PLANNED)
    other = ("/usr/lib/libopen-pal.so.40", 5)
    assert mapped(planned(), mpi, ("/opt/fairlead/mpi/lib/libopen-pal.so.80", 78)).odd == ()
    assert mapped(planned(), mpi, other).odd == (File(*other),)
    renamed = ("/venv/openmpi.libs/libopen-pal-0a1b2c3d.so.40", 5)
    assert mapped(planned(), mpi, renamed).odd == (File(*renamed),)
    assert mapped(planned(), mpi, ("/usr/lib/libopen-pal-tools.so.40", 5)).odd == ()
    assert mapped(planned(), other).odd == (), "without an MPI it belongs to none"


def test_library_that_any_version_serves_may_be_another_and_not_two() -> None:
    mpi = ("/opt/fairlead/mpi/lib/libmpi.so.40", PLANNED)
    own, other = ("/opt/fairlead/mpi/dep/libhwloc.so.15", 79), ("/usr/lib/libhwloc.so.5", 6)
    assert mapped(planned(), mpi, other).odd == ()
    assert mapped(planned(), mpi, own, other).odd == (File(*other),)
    bundled = ("/venv/h5py.libs/libhwloc-0a1b2c3d.so.15", 6)
    assert mapped(planned(), mpi, own, bundled).odd == ()


def test_image_that_keeps_its_mpi_is_judged_by_path() -> None:
    plan = replace(
        planned(),
        mode="container",
        host=None,
        staging=None,
        planned_file="/opt/mpich/lib/libmpi.so.12",
    )
    here = (plan.planned_file, 5)
    parts = (str(Path(plan.planned_file).with_name("libopen_mpi.so.40")), 6)
    assert mapped(plan, here, parts, inode=0).foreign == ()
    assert mapped(plan, ("/elsewhere/libmpi.so.12", 7), inode=0).foreign
    assert mapped(plan, ("/elsewhere/libpmpi_abi.so.1", 7), inode=0).foreign


def test_libraries_of_a_staged_mpi_are_listed_with_their_inodes(tmp_path: Path) -> None:
    plan = planned(mpi=host("openmpi-5.0.11"))
    assert plan.staging
    for item in plan.staging.files:
        path = tmp_path / "stage" / plan.staging.key / item.target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(
            b"\0.gnu.version_d\0" if path.name.startswith(("libz.", "libfabric.")) else b""
        )
    found = {lib.stem: lib for lib in libraries(plan, tmp_path)}
    strict = {stem for stem, lib in found.items() if not lib.loose}
    assert {"libmpi", "libopen-pal", "libucp", "libucs", "libuct", "libfabric", "libpmix"} <= strict
    assert found["libhwloc"].loose and "libc" not in found and "libz" not in found
    own = tmp_path / "stage" / plan.staging.key / "lib" / "libmpi.so.40"
    assert found["libmpi"].inode == own.stat().st_ino
    value = setting([found["libmpi"], found["libhwloc"]])
    assert value == f"{own.stat().st_ino}/libmpi|{found['libhwloc'].inode}/libhwloc+"
    assert asked(plan, 2, 1, known=[PAL])[0]["FAIRLEAD_PROOF_LIBS"] == "78/libopen-pal"
    assert len("|".join(map(str, found))) < 2000, "every process of the job carries it"


def sighting(**changes: Any) -> Sighting:
    wrong = closure.Mapped((), (File("/opt/mpich/lib/libmpi.so.12", 5),), ())
    values = {"rank": "1", "host": "node1", "pid": 9, "how": "end", "mapped": wrong, **changes}
    return Sighting(**values)


@pytest.mark.parametrize(
    ("changes", "why", "remedy"),
    [
        ({}, "opens that file by its path", "by name"),
        (
            {"how": "session", "library_path": "/wrapped:/opt/fairlead/mpi/lib"},
            "MPI_Session_init; LD_LIBRARY_PATH there begins with /wrapped",
            "have the script append",
        ),
        ({"unseen": "static"}, "/opt/mpich/lib/libmpi.so.12 contains an MPI", "shared libmpi"),
        (
            {"unseen": "privileged", "program": "/app/a"},
            "/app/a is setuid, setgid",
            "setcap -r /app/a",
        ),
        (
            {"unseen": "unloaded", "program": "/app/a"},
            "LD_PRELOAD did not reach /app/a",
            "environment",
        ),
    ],
)
def test_foreign_mpi_fails_with_rank_host_file_title_plan_and_reason(
    changes: dict[str, str], why: str, remedy: str
) -> None:
    plan = planned()
    finding = Unproved(plan, (sighting(**changes),)).failed()
    assert finding and finding.severity is Severity.ERROR and finding.check == "planned-file"
    assert finding.what.startswith("rank 1 runs on another MPI than planned")
    assert finding.where == "node1: /opt/mpich/lib/libmpi.so.12 (MPICH 3.4.3)"
    assert plan.planned_file in finding.why and plan.planned_title in finding.why
    assert why in finding.why and remedy in finding.remedy


def test_unproved_launch_claims_no_more_than_was_seen() -> None:
    plan, right = planned(), closure.Mapped((File("/x/libmpi.so.12", PLANNED),), (), ())
    none, blind = Unproved(plan), Unproved(plan, (), ("0", "3"))
    some = Unproved(plan, (sighting(mapped=right),), ("0",))
    assert not any(known.failed() for known in (none, blind, some))
    said = [known.doubt(("a", "b")) for known in (none, blind, some)]
    assert {f.check for f in said} == {"unproved"} and {f.severity for f in said} == {
        Severity.WARNING
    }
    assert not any("never called" in f"{f.what} {f.why}" for f in said)
    assert "rank 0, 3" in said[1].what and "MPI_Init" not in said[1].what
    assert "the planned MPI was mapped" in said[2].what
    assert "it was not called, or called by its address" in said[2].why
    assert blind_ranks({"10", "2", "1"}, {"1"}) == ("2", "10")


def test_unproved_launch_names_a_removed_preload() -> None:
    right = closure.Mapped((File("/x/libmpi.so.12", PLANNED),), (), ())
    lost = sighting(mapped=right, unseen="unloaded", program="/app/a")
    plan = planned(command=("sh", "x"))
    said = Unproved(plan, (lost,)).doubt(("sh", "x"))
    assert "LD_PRELOAD did not reach /app/a" in said.why and "by address" not in said.why
    assert "environment that the rank has" in said.remedy and plan.planned_file in said.why
    started = Unproved(plan, (), (), (Bare("0", "/app/a", True), Bare("1", "/app/a", True)), 2)
    said = started.doubt(("sh", "x"))
    assert "without the witness" in said.what and "/app/a: `env -i`" in said.why


def test_library_of_the_image_that_a_file_is_linked_to_is_explained_by_the_link() -> None:
    """As Debian's libmpi_mpifh is to libopen-pal."""
    pal = File("/usr/lib/libopen-pal.so.40", 77)
    parts = {"/usr/lib/libmpi_mpifh.so.40": {"libopen-pal.so.40": pal.path}}
    odd = sighting(mapped=closure.Mapped((File("/x/libmpi.so.12", PLANNED),), (), (pal,)))
    for facts, why in (
        (replace(image(), parts=parts), "libmpi_mpifh.so.40 of the image is linked"),
        (image(), "by its path"),
    ):
        found = Unproved(planned(facts), (odd,)).failed()
        assert found and found.check == "closure" and why in found.why, found


def test_file_that_the_command_loads_explains_a_library_before_others() -> None:
    """As ompi_info is linked to libopen-pal too, and runs only where it is named."""
    pal = File("/usr/lib/libopen-pal.so.40", 77)
    fortran = Elf("/usr/lib/libmpi_mpifh.so.40", "x64", soname="libmpi_mpifh.so.40")
    app = Elf("/app/a", "x64", interpreter="/lib/ld.so", can_start=True)
    needed = {"libopen-pal.so.40": pal.path}
    facts = replace(
        image(),
        consumers=(app, fortran),
        leads={"/app/a": {"libmpi_mpifh.so.40": fortran.path}},
        parts={"/usr/bin/ompi_info": needed, fortran.path: needed},
        programs={"/app/a": "", "/usr/bin/ompi_info": ""},
    )
    odd = sighting(mapped=closure.Mapped((File("/x/libmpi.so.12", PLANNED),), (), (pal,)))
    for command, user in (("/app/a", "libmpi_mpifh.so.40"), ("/x", "ompi_info")):
        finding = Unproved(planned(facts, command=(command,)), (odd,)).failed()
        assert finding and f"{user} of the image is linked to it" in finding.why, finding


def test_unproved_launch_names_start_up_scripts_where_the_first_program_is_dynamic() -> None:
    facts = replace(image(), programs={"/app/a": "", "/app/s": "static", "/app/id": ""})
    facts = replace(facts, set_ids={"/app/id": ""})
    for name, scripts in (("/app/a", True), ("/app/s", False), ("/app/id", False)):
        plan = planned(facts, command=(name,))
        said = Unproved(plan, (), ("0", "1")).doubt((name,))
        assert ("/.singularity.d/env" in said.why) is scripts, name
        assert ("static, set-id" in said.why) is not scripts, name
    lost = sighting(unseen="unloaded", program="/app/a", rank="1")
    found = Unproved(planned(facts, command=("/app/a",)), (lost,), ("0", "1")).failed()
    assert found and "start-up script of the image" in found.why


def test_ranks_that_start_their_program_without_the_launchers_variables_are_alone() -> None:
    app = Elf("/app/a", "x64", needed=("libmpi.so.12",), interpreter="/lib/ld.so", can_start=True)
    facts = image()
    facts = replace(
        facts,
        consumers=(*facts.consumers, app),
        leads={"/app/a": {"libmpi.so.12": facts.mpis[0].path}},
        programs={"/app/a": "", "/bin/env": "starts", "/bin/date": ""},
    )
    plan = planned(facts, command=("env", "-i", "/app/a"))
    both = (Bare("0", "/app/a", False), Bare("1", "a", False))
    found = Unproved(plan, (), (), both, 2).failed()
    assert found and (found.check, found.severity) == ("world-size", Severity.ERROR)
    assert "every rank is alone" in found.what and "`env -i`" in found.why
    connected = tuple(replace(one, ranked=True) for one in both)
    other = tuple(replace(one, program="/bin/date") for one in both)
    for started, ranks in ((both, 1), (both, 3), (connected, 2), (other, 2)):
        assert Unproved(plan, (), (), started, ranks).failed() is None
    right = closure.Mapped((File("/x/libmpi.so.12", PLANNED),), (), ())
    seen = sighting(mapped=right, unseen="unloaded", program="/bin/python3", rank="")
    assert Unproved(plan, (seen,), (), other, 2).failed()
    assert Unproved(plan, (replace(seen, rank="0"),), (), other, 2).failed() is None
    besides = Unproved(plan, (), (), both, 2).failed(proved=True)
    assert besides and besides.check == "world-size" and "apart from what is proved" in besides.what
    assert Unproved(plan, (), (), both[:1], 2).failed(proved=True) is None
    # A static env, as busybox has one, notes nothing of what it starts.
    bare = replace(seen, program="/app/a", ranked=False)
    found = Unproved(plan, (bare, replace(bare, pid=8)), (), (), 2).failed()
    assert found and found.check == "world-size" and "/app/a" in found.where
    assert Unproved(plan, (bare,), (), (), 2).failed() is None
    assert (
        Unproved(plan, (replace(bare, ranked=True), replace(bare, pid=8)), (), (), 2).failed()
        is None
    )


@pytest.mark.parametrize(
    ("words", "loads"),
    [
        (("/app/a",), True),
        (("/bin/date",), False),
        (("/bin/env", "/app/a"), True),
        (("/usr/bin/python3", "-c", "from mpi4py import MPI"), True),
        (("/usr/bin/python3", "-c", "import json\nprint(1)"), False),
        (("/usr/bin/python3", "unknown.py"), None),
    ],
)
def test_program_without_the_witness_is_reported_unless_it_loads_no_mpi(
    words: tuple[str, ...], loads: bool | None
) -> None:
    module = "/usr/lib/python3/dist-packages/mpi4py/MPI.so"
    needed = ("libmpi.so.12",)
    app = Elf("/app/a", "x64", needed=needed, interpreter="/lib/ld.so", can_start=True)
    own = image()
    facts = replace(
        own,
        consumers=(app, Elf(module, "x64", needed=needed)),
        leads={path: {"libmpi.so.12": own.mpis[0].path} for path in ("/app/a", module)},
        programs={
            "/app/a": "",
            "/bin/env": "starts",
            "/bin/date": "",
            "/usr/bin/python3": "python",
        },
        python_imports={module: Imports()},
    )
    started = tuple(Bare(rank, words[0], False, words[1:]) for rank in ("0", "1"))
    unproved = Unproved(planned(facts), (), (), started, 2)
    assert bool(unproved.failed(proved=True)) is (loads is True)
    finding = unproved.besides()
    assert (finding is None) is (loads is False)
    assert finding is None or (finding.check, finding.severity) == ("unproved", Severity.WARNING)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("os.execve('/bin/true', ['true'], {})", [Bare("3", "/bin/true", False)]),
        ("os.environ.clear(); os.execvp('/bin/true', ['true'])", [Bare("3", "/bin/true", False)]),
        ("os.unsetenv('LD_PRELOAD'); os.execv('/bin/true', ['true'])", [Bare("3", "/bin/true", True)]),
        ("os.execve('/bin/true', ['true', 'a', 'b\\nc'], {'OMPI_MCA_x': '1'})", [Bare("3", "/bin/true", False, ("a", "b\nc"))]),
        ("os.execve('/bin/true', ['true', 'a' * 2000], {})", [Bare("3", "/bin/true", False)]),
        ("os.execv('/bin/true', ['true'])", []),
        ("subprocess.run(['true'], env={'PATH': '/bin'})", [Bare("3", "/bin/true", False)]),
    ],
)  # fmt: skip
def test_witness_notes_what_is_started_without_it(
    code: str, found: list[Bare], tmp_path: Path
) -> None:
    witness = native.ensure(native.WITNESS, tmp_path / "cache")
    env = {
        "PATH": "/bin",
        "PMI_RANK": "3",
        "LD_PRELOAD": str(witness),
        "FAIRLEAD_PROOF": f"2|0|{tmp_path}|/x",
    }
    subprocess.run(["python3", "-c", f"import os, subprocess; {code}"], env=env, check=True)
    assert sorted(bare(tmp_path), key=str) == found


@pytest.mark.parametrize("words", ["", "-no-pie", "-Wl,-z,now,-z,relro", "-Wl,-z,lazy,-z,norelro"])
def test_program_that_may_do_without_mpi_sees_none_where_there_is_none(
    words: str, tmp_path: Path
) -> None:
    code = "int MPI_Init(void *, void *) __attribute__((weak));\n"
    code += "int main(void) { return MPI_Init ? 3 + MPI_Init(0, 0) : 0; }"
    witness = native.ensure(native.WITNESS, tmp_path / "cache")
    library = compiled(tmp_path / "libmpi.so.12", MPICH)
    for behind, result in (((), 0), (("-Wl,--no-as-needed", str(library)), 3)):
        program = compiled(tmp_path / "perhaps", code, *words.split(), *behind)
        env = {"LD_PRELOAD": str(witness), "LD_LIBRARY_PATH": str(tmp_path)}
        assert subprocess.run([program], env=env).returncode == result


def test_startup_with_another_mpi_and_no_proof_fails_at_the_end(tmp_path: Path) -> None:
    plan = planned()
    startup = Startup(Expected(plan, 2, PLANNED, tmp_path), 30.0, lambda proof: None)
    seen = "rank=0\nhost=n1\npid=4\nhow=end\nmpi=00:1b 5 /opt/mpich/lib/libmpi.so.12\n"
    (tmp_path / "seen.4.0").write_text(seen)
    startup.look()
    with pytest.raises(FairleadError) as caught:
        startup.last_look()
    assert caught.value.code is ExitCode.PROOF_FAILED


@pytest.mark.parametrize(
    ("lines", "fails"),
    [
        ("how=end\nlater=1\nbegun=1", True),
        ("how=end\nlater=0\nbegun=1", True),
        ("how=init\nlater=1\nbegun=0", True),
        ("how=session\nlater=1\nbegun=0", True),
        ("how=exec\nlater=1", True),
        ("how=exec\nlater=0", False),
        ("how=end\nlater=1\nbegun=0", False),
    ],
)
def test_program_on_another_mpi_fails_a_launch_that_was_proved(
    lines: str, fails: bool, tmp_path: Path
) -> None:
    """One that only maps it, as a tool does, harms nobody."""
    startup = Startup(Expected(planned(), 2, PLANNED, tmp_path), 30.0, lambda proof: None)
    startup.proof = judged_ranks(planned(), 0, PLANNED, (), 1.0)
    seen = f"rank=0\nhost=n1\npid=4\nmpi=00:1b 5 /opt/mpich/lib/libmpi.so.12\n{lines}\n"
    (tmp_path / "seen.4.0").write_text(seen)
    startup.look()
    if not fails:
        return startup.last_look()
    with pytest.raises(FairleadError) as caught:
        startup.last_look()
    assert caught.value.code is ExitCode.PROOF_FAILED
    assert "apart from what was proved" in caught.value.findings[0].what
    (tmp_path / "stopped.0").touch()
    startup._again = 0.0
    with pytest.raises(FairleadError):
        startup.look()


def test_startup_ends_at_once_where_a_session_was_stopped(tmp_path: Path) -> None:
    startup = Startup(Expected(planned(), 2, PLANNED, tmp_path), 30.0, lambda proof: None)
    seen = "rank=0\nhost=n1\npid=4\nhow=session\nmpi=00:1b 5 /opt/mpich/lib/libmpi.so.12\n"
    (tmp_path / "seen.4.0").write_text(seen)
    startup.look()
    (tmp_path / "stopped.0").touch()
    with pytest.raises(FairleadError):
        startup.look()


def test_damaged_report_of_a_process_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "seen.1.0").write_bytes(b"pid=\xff\nmpi=\nmpi=1 x /lib/libmpi.so.12\n\0=\n")
    (found,) = reported(tmp_path, planned(), PLANNED, ())
    assert found.pid == 0 and found.mapped == ((), (), ())


def test_observer_finds_processes_in_other_mount_namespaces_only(tmp_path: Path) -> None:
    """A file of an MPI's name, mapped by a process of the run: here and in a namespace of its own."""
    library = tmp_path / "libmpi.so.12"
    subprocess.run(["cc", "-shared", "-x", "c", "/dev/null", "-o", library], check=True)
    code = f"import ctypes, sys; ctypes.CDLL({str(library)!r}); print(flush=True); sys.stdin.read()"
    unshare = ["unshare", "--map-root-user", "--mount"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("no user namespaces")
    env = {**os.environ, "FAIRLEAD_RUN_ID": "observed", "PMI_RANK": "3"}
    for words, count in (([], 0), (unshare, 1)):
        observer = Observer(planned(), PLANNED, (), "observed")
        process = subprocess.Popen([*words, sys.executable, "-c", code], env=env,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
        assert process.stdout
        process.stdout.readline()
        observer.look()
        found = list(observer.sightings.values())
        assert len(found) == count and (observer.since is not None) is bool(count)
        process.communicate()
        observer._next = 0.0
        observer.look()
        assert len(observer.sightings) == count and observer.since is None, "it has ended"
        for sight in found:
            assert (sight.rank, sight.how, sight.unseen) == ("3", "running", "unloaded")
            assert [file.path for file in sight.mapped.foreign] == [str(library)]


def test_observer_finds_an_mpi_in_a_library_of_another_name(tmp_path: Path) -> None:
    """What is mapped as data does not count, nor does the planned MPI under a name of its own."""
    pad = "const char pad[400000] = {1};"
    hidden = (str(archive(tmp_path, MPICH + pad, pic="-fPIC")), "-Wl,--exclude-libs,ALL", "-s")
    library = compiled(
        tmp_path / "libsolver.so.1", CALLS + "extern char pad[]; char *p = pad;", *hidden
    )
    unshare = ["unshare", "--map-root-user", "--mount"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("no user namespaces")
    load = f"import ctypes; m = ctypes.CDLL({str(library)!r})"
    look = f"import mmap; m = mmap.mmap(open({str(library)!r}, 'rb').fileno(), 0, access=mmap.ACCESS_READ)"
    env = {**os.environ, "FAIRLEAD_RUN_ID": "inside"}
    own = library.stat().st_ino
    for code, inode, planned_one, foreign in (
        (load, PLANNED, 0, 1), (look, PLANNED, 0, 0), (load, own, 1, 0)
    ):  # fmt: skip
        observer = Observer(planned(), inode, (), "inside")
        wait = f"{code}; import sys; print(flush=True); sys.stdin.read()"
        process = subprocess.Popen([*unshare, sys.executable, "-c", wait], env=env,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
        assert process.stdout
        process.stdout.readline()
        observer.look()
        found = list(observer.sightings.values())
        process.communicate()
        assert len(found) == planned_one + foreign
        for sight in found:
            assert (len(sight.mapped.planned), len(sight.mapped.foreign)) == (planned_one, foreign)
            assert (*sight.mapped.planned, *sight.mapped.foreign) == (File(str(library), own),)
            assert sight.unseen == "static"


def test_maps_name_each_file_once() -> None:
    text = Path("/proc/self/maps").read_text()
    files = mapped_files(text)
    assert len(files) == len(set(files)) and any("python" in file.path for file in files)


def test_file_that_was_replaced_while_it_is_mapped_is_known_by_its_name(tmp_path: Path) -> None:
    line = "7f00-7f10 r-xp 00000000 00:1b 5 /opt/x/libmpi.so.12 (deleted)\n"
    assert mapped_files(line * 2) == (File("/opt/x/libmpi.so.12", 5),)
    (tmp_path / "seen.4.0").write_text("pid=4\nmpi=00:1b 5 /opt/x/libmpi.so.12 (deleted)\n")
    (found,) = reported(tmp_path, planned(), PLANNED, ())
    assert found.mapped.foreign == (File("/opt/x/libmpi.so.12", 5),)


def test_startup_ends_a_launch_that_has_been_on_another_mpi_for_long(tmp_path: Path) -> None:
    now = [100.0]
    startup = Startup(
        Expected(planned(), 2, PLANNED, tmp_path), 5.0, lambda proof: None, lambda: now[0]
    )
    observer = startup._observer
    for name in ("exit.0", "exit.1", "alive.0", "alive.1"):
        (tmp_path / name).write_text("node 1\n")
    startup.look()
    observer._next, observer.since = float("inf"), now[0]
    observer.sightings[9, "1"] = sighting(how="running")
    startup.look()  # a tool that a job begins with may map an MPI that it never starts
    now[0] += 60
    with pytest.raises(FairleadError) as caught:
        startup.look()
    assert caught.value.code is ExitCode.PROOF_FAILED


@pytest.mark.parametrize("inode_of", ["libmpi.so.12", ""], ids=["staged", "the image's own"])
def test_witness_and_host_judge_the_same_files_alike(inode_of: str, tmp_path: Path) -> None:
    """Every name that counts, or nearly does, in one process: both sides must see the same in it."""
    ours, theirs, out = tmp_path / "ours", tmp_path / "theirs", tmp_path / "out"
    names = (
        "libmpi.so.12", "libmpi.so.40.1.2", "libmpich-0a1b2c3d.so.12", "libmpi_gnu_123.so.12", "libmpi_ibm.so.3",
        "libmpi_cxx.so.40", "libmpifort.so.12", "libmpi_mpifh.so.40", "libmpi_shm_heap.so", "libpmpi_abi.so.1",
        "libopen_mpi.so.40", "libopen-pal.so.40", "libopen-pal-0a1b2c3d.so.80", "libopen-pal-x.so.1",
        "libhwloc.so.15", "libhwloc-0a1b2c3d.so.15", "libother.so.1",
    )  # fmt: skip
    stub = tmp_path / "stub.so"
    subprocess.run(["cc", "-shared", "-x", "c", "/dev/null", "-o", stub], check=True)
    for folder in (ours, theirs):
        folder.mkdir()
        for name in names:
            (folder / name).write_bytes(stub.read_bytes())
    out.mkdir()
    inode = (ours / inode_of).stat().st_ino if inode_of else 0
    known = [
        Library(
            "libopen-pal", (ours / "libopen-pal.so.40").stat().st_ino if inode else 0, not inode
        ),
        Library("libhwloc", (ours / "libhwloc.so.15").stat().st_ino if inode else 0, True),
        *(
            [Library("libpmpi_abi", (ours / "libpmpi_abi.so.1").stat().st_ino, False)]
            if inode
            else []
        ),
    ]
    plan = replace(planned(), planned_file=str(ours / "libmpi.so.12"), bound=())
    files = [str(folder / name) for folder in (ours, theirs) for name in names]
    code = f"import ctypes; l = [ctypes.CDLL(f) for f in {files!r}]; print(open('/proc/self/maps').read())"
    env = {
        **os.environ,
        "LD_PRELOAD": str(native.ensure(native.WITNESS, tmp_path / "cache")),
        "FAIRLEAD_PROOF": f"1|{inode}|{out}|{plan.planned_file}",
        "FAIRLEAD_PROOF_LIBS": setting(known),
        "PMI_RANK": "0",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    (found,) = reported(out, plan, inode, known)
    mapped = judged(mapped_files(done.stdout), plan, inode, known)
    assert found.mapped.foreign == mapped.foreign and len(mapped.foreign) > 6
    assert set(found.mapped.odd) == set(mapped.odd[:4]) and mapped.odd
    own = File(plan.planned_file, (ours / "libmpi.so.12").stat().st_ino)
    assert own in found.mapped.planned and set(found.mapped.planned) <= set(mapped.planned)


def test_program_that_a_rank_starts_without_the_witness_is_noted_whichever_function_starts_it(
    tmp_path: Path,
) -> None:
    starts, echo = compiled(tmp_path / "starts", STARTS), os.path.realpath("/bin/echo")
    witness = native.ensure(native.WITNESS, tmp_path)
    for way in re.findall(r'is\(v, "(\w+)"\)', STARTS):
        folder = tmp_path / way
        folder.mkdir()
        values = {"FAIRLEAD_PROOF": f"2|0|{folder}|/x", "LD_PRELOAD": str(witness), "PMI_RANK": "1"}
        line = [starts, way, echo, "arrives"]
        done = subprocess.run(line, env=values, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "arrives\n", ""), way
        shell = way in ("system", "popen")
        words = ("-c", f"{echo} arrives") if shell else ("arrives",)
        noted = Bare("1", "/bin/sh" if shell else echo, way == "proofless", words)
        assert list(bare(folder)) == ([] if way == "kept" else [noted]), way
        values["FAIRLEAD_PROOF"] = "2|0||/x"  # of a printed line, whose notes nobody reads
        done = subprocess.run(line, env=values, capture_output=True, text=True, check=False)
        started = f"rank 1 starts {noted.program} with a cleaned environment: nothing is proved"
        assert (started in done.stderr) is (way not in ("kept", "proofless")), way


def test_look_at_processes_is_soon_once_a_program_was_started_without_the_witness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be short: what is seen of it decides between an error and a warning."""
    looks, now = list[float](), 1000.0

    def of_run(run_id: str) -> list[int]:
        looks.append(now)
        return []

    monkeypatch.setattr("fairlead.proof.observe.processes.of_run", of_run)
    expected = Expected(planned(), 2, PLANNED, tmp_path)
    startup = Startup(expected, 1e6, lambda proof: None, lambda: now)
    for _ in range(1000):
        startup.look()
        now += 0.1
    assert looks[-1] - looks[-2] > 4
    begun = now
    (tmp_path / "bare.5.0").write_text("program=/app/a\n")
    for _ in range(5):
        startup.look()
        now += 0.1
    assert [look - begun for look in looks[-5:]] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


def test_reading_a_file_once_does_not_delay_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = [0.0]
    monkeypatch.setattr("fairlead.proof.observe.time.thread_time", lambda: spent[0])
    monkeypatch.setattr(
        "fairlead.proof.observe._contains_mpi", lambda path: spent.append(spent.pop() + 9)
    )
    monkeypatch.setattr("fairlead.proof.observe.processes.of_run", lambda run_id: [1])
    large = tmp_path / "large"
    large.write_bytes(b" " * 400_000)
    monkeypatch.setattr(
        Observer, "_observed", lambda self, pid: (self._contains_mpi(large), ((1, ""), None))[1]
    )
    observer = Observer(planned(), PLANNED, (), "read", lambda: 100.0)
    observer.look()
    assert spent == [9.0] and observer._next < 101


@pytest.mark.parametrize("front", [True, False])
def test_line_of_a_dry_run_lets_the_front_of_an_mpi_open_it(front: bool, tmp_path: Path) -> None:
    """As MPItrampoline does; an MPI that is none, and comes with another, is not as planned."""
    behind = "int MPI_Init(void *a, void *b) { return 0; } int MPI_Comm_size(int c, int *n) { return !(*n = 2); }"
    compiled(tmp_path / "libmpich.so.12", behind)
    code = (
        "#include <dlfcn.h>\n"
        f'static void *at(const char *name) {{ return dlsym(dlopen("{tmp_path}/libmpich.so.12", 1), name); }}\n'
        'int MPI_Init(void *a, void *b) { return ((int (*)(void *, void *))at("MPI_Init"))(a, b); }\n'
        'int MPI_Comm_size(int c, int *n) { *n = 2; return at("MPI_Comm_size") == 0; }\n'
        "int MPI_Comm_rank(int c, int *n) { *n = 1; return 0; }\n"
    )
    library = compiled(tmp_path / "libmpifront.so.5", code)
    program = (
        "int MPI_Init(void *, void *), MPI_Comm_size(int, int *), MPI_Comm_rank(int, int *);\n"
        "int main(void) { int n; return MPI_Init(0, 0) || MPI_Comm_size(0, &n) || MPI_Comm_rank(0, &n); }"
    )
    app = compiled(tmp_path / "app", program, str(library), f"-Wl,-rpath,{tmp_path}")
    witness = native.ensure(native.WITNESS_OF_CALLS, tmp_path / "cache")
    values = {
        "FAIRLEAD_PROOF": f"2|0||{library}{'|front' * front}",
        "LD_PRELOAD": str(witness),
        "PMI_RANK": "1",
    }
    done = subprocess.run([app], env=values, capture_output=True, text=True, check=False)
    words = "fairlead: proved on" if front else "fairlead: not as planned"
    assert (done.returncode, words in done.stderr) == (0 if front else 122, True), done.stderr


@pytest.mark.parametrize("size", [1, 2])
def test_session_is_asked_how_many_ranks_there_are(size: int, tmp_path: Path) -> None:
    code = (
        "int MPI_Session_init(int info, int errors, int *session) { *session = 7; return 0; }\n"
        "int PMPI_Group_from_session_pset(int session, const char *name, int *group)\n"
        "{ *group = 8; return session != 7 || name[6] != 'W'; }\n"
        f"int PMPI_Group_size(int group, int *size) {{ *size = {size}; return group != 8; }}\n"
        "int PMPI_Group_free(int *group) { return 0; }\n"
    )
    library = compiled(tmp_path / "libmpi.so.12", code)
    program = "int MPI_Session_init(int, int, int *);\nint main(void) { int s; return MPI_Session_init(0, 0, &s); }"
    app = compiled(tmp_path / "app", program, str(library), f"-Wl,-rpath,{tmp_path}")
    witness = native.ensure(native.WITNESS, tmp_path / "cache")
    values = {"LD_PRELOAD": str(witness), "PMI_RANK": "1"}
    for asked_for in (2, 1):
        values["FAIRLEAD_PROOF"] = f"{asked_for}|0||{library}"
        done = subprocess.run([app], env=values, capture_output=True, text=True, check=False)
        alone = size < asked_for
        words = "not as planned: 2 ranks were, and rank 1 sees 1"
        assert (done.returncode, words in done.stderr) == (122 if alone else 0, alone)
    values["FAIRLEAD_PROOF"] = f"{size}|0|{tmp_path}|{library}"
    subprocess.run([app], env=values, check=True)
    (sighting,) = reported(tmp_path, planned(), 0, ())
    assert (sighting.how, sighting.world) == ("session", size)


@pytest.mark.parametrize(("worlds", "fails"), [((1, 1), True), ((1,), False), ((2, 2), False)])
def test_ranks_whose_sessions_are_each_alone_are_an_error(
    worlds: tuple[int, ...], fails: bool, tmp_path: Path
) -> None:
    made = planned()
    startup = Startup(Expected(made, 2, PLANNED, tmp_path), 30.0, lambda proof: None)
    for rank, world in enumerate(worlds):
        text = f"rank={rank}\nhost=n1\npid={rank + 4}\nhow=session\nworld={world}\nmpi=00:1b {PLANNED} {made.planned_file}\n"
        (tmp_path / f"seen.{rank + 4}.{rank}").write_text(text)
    failure = startup.unproved().failed()
    assert (failure is not None and failure.check == "world-size") is fails
    assert startup.unproved().failed(proved=True) is None
    assert fails or f"mpi://WORLD has {worlds[0]} ranks" in startup.unproved().doubt(("x",)).why
