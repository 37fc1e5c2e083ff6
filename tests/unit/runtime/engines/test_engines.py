"""What each engine is passed, for recorded calls: words and variables, and nothing else."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.recorded import image, planned

from fairlead.base.errors import ExitCode, FairleadError, Severity
from fairlead.engines import apptainer, podman
from fairlead.engines.model import Call, Engine, Takes
from fairlead.engines.registry import ENGINES, choose, kinds
from fairlead.image.open import Image
from fairlead.launch.launch import command_line
from fairlead.launch.unpack import opened
from fairlead.swap.checks import check

USER = podman.describe("/usr/bin/podman", 1000, False, "")
ROOT = podman.describe("/usr/bin/podman", 0, True, "/usr/sbin/runc")
CH_RUN = Engine(
    "charliecloud", "/usr/bin/ch-run", True, (), (), takes=Takes.FOLDER, makes_places=False
)
CALL = Call(
    "/cache/unpacked/d1",
    ("python3", "-c", "print('a b')"),
    binds=(("/a", "/b", True), ("/a:c", "/d", False)),
    env={"LD_LIBRARY_PATH": "/opt/fairlead/mpi/lib"},
    literal={"A": "x y\n$HOME", "PATH": "/mine"},
    image_env={"PATH": "/opt/python/bin", "B": "of the image"},
    extra=("--hooks-dir=/x",),
    workdir="/w",
)


def pairs(words: tuple[str, ...]) -> dict[str, str]:
    """The variables among the words of Podman."""
    given = [words[i + 1] for i, word in enumerate(words) if word == "--env"]
    return dict(item.split("=", 1) for item in given)


@pytest.mark.parametrize("engine", [USER, ROOT])
def test_podman_words_hold_the_call_in_order(engine: Engine) -> None:
    words = ENGINES.get("podman").words(engine, CALL)
    assert words.environ == {}
    tail = ("--hooks-dir=/x", "--rootfs", "/cache/unpacked/d1:O", "python3", "-c", "print('a b')")
    assert words.argv[-len(tail) :] == tail
    assert "--volume=/a:/b:ro" in words.argv
    assert "--mount=type=bind,source=/a:c,target=/d" in words.argv
    assert pairs(words.argv) == {
        "PATH": "/mine",
        "LD_LIBRARY_PATH": "/opt/fairlead/mpi/lib",
        "LD_PRELOAD": "",
        "A": "x y\n$HOME",
        "B": "of the image",
    }
    own = words.argv[words.argv.index("fairlead-podman") + 3]
    assert own == ("" if engine is USER else "--cgroup-manager=cgroupfs --runtime=/usr/sbin/runc")
    assert own not in words.argv[words.argv.index(own) + 1 :]
    # Root's mounts would be everybody's.
    assert (words.argv[0] == "unshare") is (engine is ROOT)


def test_podman_options_have_their_reason() -> None:
    for engine in (USER, ROOT):
        output = " ".join(option for option, _ in engine.reasons)
        for option in engine.options:
            if option not in (
                "--interactive",
                "--security-opt=label=disable",
                "--read-only-tmpfs=false",
            ):
                assert option in output, option
    assert USER.userns_per_rank and not ROOT.userns_per_rank
    assert "--userns=keep-id" in USER.options and "--userns=keep-id" not in ROOT.options


def test_charliecloud_words_quote_each_value_once() -> None:
    words = ENGINES.get("charliecloud").words(CH_RUN, CALL).argv
    sets = [w.removeprefix("--set-env=") for w in words if w.startswith("--set-env=")]
    assert dict(item.split("=", 1) for item in sets)["A"] == "'x y\n$HOME'"
    assert words[-6:] == (
        "--hooks-dir=/x",
        "/cache/unpacked/d1",
        "--",
        "python3",
        "-c",
        "print('a b')",
    )
    assert words[words.index("--bind") + 1] == "/a:/b"


@pytest.mark.parametrize("engine", [USER, ROOT, CH_RUN])
def test_line_of_an_engine_is_one_that_a_shell_takes_apart_again(engine: Engine) -> None:
    plan = replace(planned(), engine=engine, opened="/cache/unpacked/d1")
    line = command_line(plan, ("prog", "a b"), 3, env={"A": "it's"})
    words = shlex.split(line.shell())
    assert tuple(words[words.index("-n") :]) == line.argv[1:]
    assert words[-2:] == ["prog", "a b"]


@pytest.mark.parametrize(
    ("takes", "form", "given"),
    [
        (Takes.FILE, "sif", "/i"),
        (Takes.NAME, "squashfs", "/i"),
        (Takes.SQUASHFS, "squashfs", "/i"),
        (Takes.SQUASHFS, "sif", "/c/unpacked/d1.squashfs"),
        (Takes.FOLDER, "sif", "/c/unpacked/d1"),
        (Takes.FOLDER, "squashfs", "/c/unpacked/d1"),
        (Takes.FOLDER, "sandbox", "/i"),
        (Takes.SQUASHFS, "sandbox", "/i"),
    ],
)
def test_engine_is_given_the_form_that_it_opens(takes: Takes, form: str, given: str) -> None:
    picture = Image("i", "/i", form, 1, "d1", False, image())
    assert opened(picture, replace(CH_RUN, takes=takes), Path("/c")) == given


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a program of root's")
@pytest.mark.parametrize("mode", [0o4755, 0o755])
@pytest.mark.parametrize("place", ["libexec/apptainer/bin", "lib/x86_64-linux-gnu/apptainer/bin"])
def test_apptainer_with_a_setuid_starter_shares_one_namespace(
    place: str, mode: int, tmp_path: Path
) -> None:
    program, starter = tmp_path / "bin/apptainer", tmp_path / place / "starter-suid"
    for path in (program, starter):
        path.parent.mkdir(parents=True)
        path.touch()
    starter.chmod(mode)
    setuid = mode == 0o4755
    made = apptainer.describe(program, 1000, 0)
    assert made.userns_per_rank is not setuid
    assert ("--userns" in made.options) is not setuid


@pytest.mark.parametrize("option", ["--ipc=private", "--network=none"])
def test_podman_option_that_parts_ranks_is_refused(option: str) -> None:
    asked = planned(engine=USER, engine_args=(option,))
    (found,) = [f for f in check(asked) if f.check == "namespaces"]
    assert found.severity is Severity.ERROR and option in found.what


def test_engine_that_is_not_here_names_what_is(tmp_path) -> None:
    (tmp_path / "ch-run").write_text("#!/bin/sh\n")
    (tmp_path / "ch-run").chmod(0o755)
    environ = {"PATH": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    for wanted in ("podman", None):
        with pytest.raises(FairleadError) as caught:
            choose(wanted, ("apptainer",), environ)
        assert caught.value.code is ExitCode.LAUNCH_FAILED
        (finding,) = caught.value.findings
        assert "charliecloud is here" in finding.why and "--engine charliecloud" in finding.remedy
    assert choose("charliecloud", (), environ).path == str(tmp_path / "ch-run")
    with pytest.raises(FairleadError, match="no engine is called") as caught:
        choose("podmann", (), environ)
    assert "podman" in kinds() and caught.value.code is ExitCode.USAGE


def installed(tmp_path: Path, settings: str = "") -> Path:
    """The files of a setuid Apptainer with these lines in its configuration."""
    program, starter = tmp_path / "bin/apptainer", tmp_path / "libexec/apptainer/bin/starter-suid"
    conf = tmp_path / "etc/apptainer/apptainer.conf"
    for path in (program, starter, conf):
        path.parent.mkdir(parents=True)
        path.touch()
    starter.chmod(0o4755)
    conf.write_text(f"allow setuid = yes\nmount dev = yes\n{settings}\n")
    return program


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a program of root's")
def test_apptainer_that_may_not_be_setuid_is_asked_for_a_namespace(tmp_path: Path) -> None:
    made = apptainer.describe(installed(tmp_path, "allow setuid = NO # no"), 1000, 0)
    assert made.userns_per_rank and made.options == ("--userns",)
    assert "apptainer.conf says `allow setuid = no`" in made.reasons[0][1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a program of root's")
@pytest.mark.parametrize(
    ("variable", "value", "apart"),
    [
        ("APPTAINER_USERNS", "1", True),
        ("SINGULARITY_FAKEROOT", "True", True),
        ("APPTAINER_USERNS", "0", False),
        ("APPTAINER_PWD", "1", False),
    ],
)
def test_apptainer_makes_a_namespace_where_a_variable_says_so(
    variable: str, value: str, apart: bool, tmp_path: Path
) -> None:
    made = apptainer.describe(installed(tmp_path), 1000, 0, {variable: value})
    assert made.userns_per_rank is apart and made.options == ()


@pytest.mark.parametrize("uid", [0, 1000])
def test_apptainer_of_an_administrator_who_keeps_things_from_containers(
    uid: int, tmp_path: Path
) -> None:
    program = installed(tmp_path, "user bind control = no\nmount dev = minimal\nmount tmp = no")
    made = apptainer.describe(program, uid, 0)
    assert made.config == str(tmp_path / "etc/apptainer/apptainer.conf")
    assert made.forbids_binds == "user bind control = no"
    assert made.hides == (("/dev/shm", "mount dev = minimal"), ("/tmp", "mount tmp = no"))
    elsewhere = tmp_path / "other.conf"
    elsewhere.touch()
    named = apptainer.describe(program, uid, 0, {"APPTAINER_CONFIG_FILE": str(elsewhere)})
    assert (named.config, named.forbids_binds, named.hides) == (str(elsewhere), "", ())


def test_apptainer_that_may_bind_nothing_is_refused() -> None:
    engine = replace(USER, config="/c.conf", forbids_binds="user bind control = no")
    (found,) = [f for f in check(planned(engine=engine)) if f.check == "engine-settings"]
    assert found.severity is Severity.ERROR and "/c.conf: user bind control = no" in found.where
    assert "the host's MPI" in found.why


@pytest.mark.parametrize(
    ("hidden", "ranks", "stopped"),
    [("/dev/shm", 2, True), ("/dev/shm", 1, False), ("/tmp", 2, False)],
)
def test_apptainer_that_hides_where_ranks_meet_is_refused(
    hidden: str, ranks: int, stopped: bool
) -> None:
    """MPICH's ranks meet in /dev/shm, Open MPI's in /tmp too."""
    engine = replace(USER, hides=((hidden, "mount … = no"),))
    plan = planned(engine=engine)
    plan = replace(plan, request=replace(plan.request, ranks=ranks))
    found = [f for f in check(plan) if f.check == "engine-settings"]
    assert [f.severity for f in found] == [Severity.ERROR] * stopped
