"""The words of engines that cannot be had everywhere, as their documents and sources give them."""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import recorded

from fairlead.base.errors import ExitCode, FairleadError, Severity
from fairlead.base.system import Machine
from fairlead.elf.facts import AbiFamily
from fairlead.engines.ce import ContainerEngine, edf
from fairlead.engines.enroot import Enroot
from fairlead.engines.model import Call, Driver, Engine, Takes
from fairlead.engines.podman_hpc import PodmanHpc
from fairlead.engines.registry import ENGINES, kinds, other_image
from fairlead.engines.sarus import Sarus, image_name
from fairlead.engines.shifter import Shifter
from fairlead.launch.launch import CommandLine, command_line, terminal_line
from fairlead.launchers.model import Launcher
from fairlead.site import all_sites
from fairlead.swap.model import Plan

BINDS = (
    ("/cache/stage/mpich", "/opt/fairlead/mpi", True),
    ("/scratch", "/scratch", False),
)
ENV = {"LD_LIBRARY_PATH": "/opt/fairlead/mpi/lib"}
GREETING = {"GREETING": "good, $morning = 'you'"}


def call(image: str, **more: object) -> Call:
    values = {"binds": BINDS, "env": ENV, "literal": GREETING, "image_env": {"PATH": "/image/bin"}}
    return Call(image, ("python3", "-c", "print(1)"), **{**values, **more})  # type: ignore[arg-type]


def engine(driver: Driver, path: Path) -> Engine:
    """The engine whose program is in a folder on PATH."""
    program = path / driver.kind
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    found = driver.detect({"PATH": str(path)})
    assert found and found.path == str(program) and found.kind == driver.kind
    return found


OTHERS = [Shifter(), PodmanHpc(), Sarus(), Enroot()]


@pytest.mark.parametrize("driver", OTHERS, ids=lambda d: d.kind)
def test_engine_is_found_on_path_or_named_and_never_started(driver: Driver, tmp_path: Path) -> None:
    assert driver.detect({"PATH": str(tmp_path)}) is None
    found = engine(driver, tmp_path)  # its program would not end well
    assert found.reasons or not found.options
    variable = f"FAIRLEAD_{driver.kind.upper().replace('-', '_')}"
    with pytest.raises(FairleadError) as caught:
        driver.detect({"PATH": "/nowhere", variable: "/nowhere/x"})
    assert caught.value.code is ExitCode.USAGE and variable in caught.value.findings[0].what
    named = driver.detect({"PATH": "/nowhere", variable: found.path})
    assert named == found


def test_registry_has_a_driver_of_each_kind_by_its_name() -> None:
    assert {"shifter", "podman-hpc", "sarus", "enroot", "ce"} <= set(kinds())
    assert all(ENGINES.get(kind).kind == kind for kind in kinds())


def test_shifter_words(tmp_path: Path) -> None:
    found = engine(Shifter(), tmp_path)
    assert not found.binds_files and found.takes is Takes.NAME and not found.userns_per_rank
    words = Shifter().words(found, call("/images/mpi-base.squashfs", workdir="/scratch"))
    assert words.argv == (
        found.path, "--image=id:mpi-base", "--module=none",
        "--volume=/cache/stage/mpich:/opt/fairlead/mpi:ro", "--volume=/scratch:/scratch",
        "--env=LD_LIBRARY_PATH=/opt/fairlead/mpi/lib", "--env=GREETING=good, $morning = 'you'",
        "--workdir=/scratch", "python3", "-c", "print(1)",
    )  # fmt: skip
    assert words.environ == {}


@pytest.mark.parametrize("option", ["--module=gpu", "-mgpu"])
def test_shifter_takes_the_users_modules_instead_of_none(option: str, tmp_path: Path) -> None:
    found = engine(Shifter(), tmp_path)
    argv = Shifter().words(found, call("/images/a.squashfs", extra=(option,))).argv
    assert "--module=none" not in argv and option in argv


def test_shifter_takes_the_profiles_module_instead_of_none(tmp_path: Path) -> None:
    found = engine(Shifter(), tmp_path)
    with_gpu = replace(found, options=(*found.options, "--module=gpu"))
    argv = Shifter().words(with_gpu, call("/images/a.squashfs")).argv
    assert [word for word in argv if word.startswith("--module")] == ["--module=gpu"]


def test_no_profile_asks_an_engine_for_an_mpi_other_than_the_one_that_is_staged() -> None:
    """A module's comes before it, a hook's over it: the proof would stop every launch."""
    for site in all_sites().sites.values():
        words = {**site.engine.options, **site.gpu.options}
        for kind in ("shifter", "podman-hpc", "sarus"):
            assert not [word for word in words.get(kind, ()) if "mpi" in word], site.name


def test_shifter_leaves_vendors_folders_to_the_site() -> None:
    """A user may show nothing below /var and /etc; siteFs does."""
    found = Engine("shifter", "shifter", False, (), (), binds_files=False)
    alps = ("/var/opt/cray/alps", "/var/opt/cray/alps", False)
    assert "cray" not in " ".join(Shifter().words(found, call("/i/a.squashfs", binds=(alps,))).argv)


@pytest.mark.parametrize("image", ["/images/a.sif", "/images/folder", "/images/a.sqsh"])
def test_shifter_opens_what_is_in_its_store(image: str) -> None:
    found = Engine("shifter", "shifter", False, (), (), binds_files=False)
    with pytest.raises(FairleadError) as caught:
        Shifter().words(found, call(image))
    assert caught.value.code is ExitCode.PREFLIGHT_REFUSED
    assert caught.value.findings[0].check == "engine-image"
    assert "--format shifter" in caught.value.findings[0].remedy


@pytest.mark.parametrize(
    ("kind", "image", "bad"),
    [
        ("shifter", "/i/a.squashfs", "/a b"),
        ("shifter", "/i/a.squashfs", "/a:b"),
        ("shifter", "/i/a.squashfs", "/a;b"),
        ("shifter", "/i/a.squashfs", "/a,b"),
        ("podman-hpc", "/i/tree", "/a:b"),
        ("sarus", "/s/images/a/b/c/1.squashfs", "/a,b"),
        ("sarus", "/s/images/a/b/c/1.squashfs", "/a=b"),
        ("enroot", "/i/a.squashfs", "/a b"),
        ("enroot", "/i/a.squashfs", "/a:b"),
        ("enroot", "/i/a.squashfs", "/a$b"),
    ],
)
def test_path_that_would_be_read_as_two_is_refused(kind: str, image: str, bad: str) -> None:
    found = Engine(kind, kind, False, (), ())
    for bind in ((bad, "/x", False), ("/x", bad, True)):
        with pytest.raises(FairleadError) as caught:
            ENGINES.get(kind).words(found, call(image, binds=(bind,)))
        assert caught.value.findings[0].check == "engine-bind"


def stored(kind: str, tmp_path: Path) -> tuple[Engine, Path]:
    """An engine with a configuration, and the file of its store that it opens for ``a/b/c:1`` or ``1``."""
    driver, prefix = ENGINES.get(kind), tmp_path / kind
    (prefix / "bin").mkdir(parents=True)
    (prefix / "etc").mkdir()
    if kind == "shifter":
        kept = prefix / "store/1.squashfs"
        (prefix / "etc/udiRoot.conf").write_text(f"# imagePath=/wrong\nimagePath={kept.parent}\n")
    else:
        base = {"localRepositoryBaseDir": str(prefix / "home")}
        (prefix / "etc/sarus.json").write_text(json.dumps(base))
        kept = prefix / "home" / Machine().user / ".sarus/images/a/b/c/1.squashfs"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"hsqs of the store")
    if kind == "shifter":
        kept.with_suffix(".meta").write_text("FORMAT: squashfs\n")
    return engine(driver, prefix / "bin"), kept


NAMED = [driver.kind for driver in ENGINES if driver.takes is Takes.NAME]


@pytest.mark.parametrize("kind", NAMED)
def test_engine_that_opens_images_by_name_is_compared_with_the_inspected_file(
    kind: str, tmp_path: Path
) -> None:
    found, kept = stored(kind, tmp_path)
    mine = tmp_path / "images/a/b/c/1.squashfs"
    mine.parent.mkdir(parents=True)
    for same in (kept.read_bytes(), kept.read_bytes()[:-1] + b"X", b"hsqs"):
        mine.write_bytes(same)
        finding = other_image(found, str(mine))
        assert (finding is None) == (same == kept.read_bytes()), same
        if finding:
            assert finding.check == "engine-other-image" and finding.severity is Severity.ERROR
            assert finding.where == str(kept) and str(mine) in finding.why
            assert str(kept) in finding.remedy
    assert other_image(found, str(kept)) is None
    link = tmp_path / "images/a/b/c/1.link.squashfs"
    link.symlink_to(kept)
    mine.unlink()
    link.rename(mine)
    assert other_image(found, str(mine)) is None, "a link into the store"
    kept.rename(kept.with_suffix(".away"))
    mine.unlink()
    mine.write_bytes(b"hsqs of the store")
    gone = other_image(found, str(mine))
    assert gone and "No such file" in gone.why


@pytest.mark.parametrize("kind", NAMED)
def test_engine_whose_store_is_not_known_is_refused_with_what_tells_it(
    kind: str, tmp_path: Path
) -> None:
    found, kept = stored(kind, tmp_path)
    finding = other_image(replace(found, store=""), str(kept))
    assert finding and finding.check == "engine-other-image" and finding.remedy
    assert finding.severity is Severity.ERROR


def test_shifter_opens_what_the_meta_file_of_its_store_says(tmp_path: Path) -> None:
    found, kept = stored("shifter", tmp_path)
    assert Shifter().opens(found, str(kept)) == str(kept)
    kept.with_suffix(".meta").write_text("FORMAT: xfs\nENV: FORMAT=x\n")
    assert Shifter().opens(found, str(kept)) == str(kept.with_suffix(".xfs"))
    assert other_image(found, str(kept))
    kept.with_suffix(".meta").write_text("ENV: A=b\n")  # Shifter takes it for a folder
    assert other_image(found, str(kept))
    for option in ("--image=id:other", "-iid:other", "-i"):
        assert other_image(found, str(kept), (option,)), option
    kept.with_suffix(".meta").write_text("FORMAT: squashfs\n")
    assert other_image(found, str(kept), ("--module=gpu",)) is None
    kept.with_suffix(".meta").unlink()
    missing = other_image(found, str(kept))
    assert missing and missing.where == str(kept.with_suffix(".meta")), "Shifter would not find it"


def test_sarus_with_the_central_repository_opens_another_file(tmp_path: Path) -> None:
    found, kept = stored("sarus", tmp_path)
    option = ("--centralized-repository",)
    unknown = other_image(found, str(kept), option)
    assert unknown and "not known" in unknown.what
    central = tmp_path / "central/images/a/b/c/1.squashfs"
    central.parent.mkdir(parents=True)
    central.write_bytes(b"hsqs of the site")
    Path(found.config).write_text(
        json.dumps({"centralizedRepositoryDir": str(tmp_path / "central")})
    )
    assert other_image(found, str(kept), option)
    assert other_image(found, str(central), option) is None


def test_shifter_reads_the_configuration_whose_path_is_in_its_program(tmp_path: Path) -> None:
    """Its path is compiled in; those of other installations are not read, and of several none is guessed."""
    driver, prefix = Shifter(), tmp_path / "shifter"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "etc/shifter").mkdir(parents=True)
    for file, store in (
        ("etc/shifter/udiRoot.conf", "one"),
        ("etc/udiRoot.conf", "two"),
        ("x/udiRoot.conf", "three"),
    ):
        (prefix / file).parent.mkdir(exist_ok=True)
        (prefix / file).write_text(f"imagePath=/{store}\n")
    found = engine(driver, prefix / "bin")
    assert (found.config, found.store) == ("", ""), "two places, and nothing tells which"
    program = Path(found.path)
    program.write_bytes(
        b"\x7fELF\0\xff\0" + str(prefix / "x/udiRoot.conf").encode() + b"\0FAILED\0"
    )
    program.chmod(0o4755)
    read = driver.detect({"PATH": str(prefix / "bin")})
    assert read and (read.config, read.store) == (str(prefix / "x/udiRoot.conf"), "/three")
    named = {
        "PATH": str(prefix / "bin"),
        "FAIRLEAD_SHIFTER_CONFIG": str(prefix / "etc/udiRoot.conf"),
    }
    said = driver.detect(named)
    assert said and said.store == "/two"


def test_engine_that_opens_paths_opens_the_image_itself() -> None:
    """Every engine's answer is the file that its words name, or a file of its store."""
    for driver in ENGINES:
        if driver.driven and driver.takes is not Takes.NAME:
            found = Engine(driver.kind, driver.kind, False, (), ())
            assert driver.opens(found, "/i/a.squashfs") == "/i/a.squashfs"
            assert other_image(found, "/i/a.squashfs") is None


def test_podman_hpc_words_for_a_folder_and_for_a_name(tmp_path: Path) -> None:
    found = engine(PodmanHpc(), tmp_path)
    argv = PodmanHpc().words(found, call("/i/tree", workdir="/w", passes=("RANK",))).argv
    assert "--env=RANK" in argv
    assert argv[:6] == (found.path, "run", "--rm", "--network=host", "--ipc=host", "--pid=host")
    assert "--volume=/cache/stage/mpich:/opt/fairlead/mpi:ro" in argv and "--env=PMI_*" in argv
    assert "--env=PATH=/image/bin" in argv, "a folder has no record of its own that Podman reads"
    assert argv[-6:] == ("--workdir=/w", "--rootfs", "/i/tree", "python3", "-c", "print(1)")
    named = PodmanHpc().words(found, call("localhost/a:1")).argv
    assert "--env=PATH=/image/bin" not in named and "--rootfs" not in named
    assert named[-4:] == ("localhost/a:1", "python3", "-c", "print(1)")


def test_sarus_words(tmp_path: Path) -> None:
    found = engine(Sarus(), tmp_path)
    image = "/scratch/u/.sarus/images/reg.example.org/ml/train/1.squashfs"
    argv = Sarus().words(found, call(image, workdir="/w")).argv
    assert argv == (
        found.path, "run",
        "--mount=type=bind,source=/cache/stage/mpich,destination=/opt/fairlead/mpi,readonly",
        "--mount=type=bind,source=/scratch,destination=/scratch",
        "--env=LD_LIBRARY_PATH=/opt/fairlead/mpi/lib", "--env=GREETING=good, $morning = 'you'",
        "--workdir=/w", "reg.example.org/ml/train:1", "python3", "-c", "print(1)",
    )  # fmt: skip
    assert "--mpi" not in argv


def test_sarus_images_are_named_by_their_place_in_its_repository() -> None:
    assert image_name("/h/.sarus/images/index.docker.io/library/debian/12.squashfs") == (
        "index.docker.io/library/debian:12"
    )
    assert image_name("/images/h/.sarus/images/load/library/a/b/x.squashfs") == "load/library/a/b:x"
    for other in ("/images/a.squashfs", "/a/b/c/d.squashfs", "/h/images/a/b/c/1.sif"):
        with pytest.raises(FairleadError):
            image_name(other)


def test_enroot_words(tmp_path: Path) -> None:
    found = engine(Enroot(), tmp_path)
    made = call("/i/a.squashfs", workdir="/w", extra=("--rw",), passes=("FAIRLEAD_RANK", "RANK"))
    argv = Enroot().words(found, made).argv
    assert argv[:2] == ("/bin/sh", "-c") and argv[3] == found.path
    assert argv[4:] == (
        "FAIRLEAD_RANK|RANK",
        "--mount", "/cache/stage/mpich:/opt/fairlead/mpi:none:x-create=auto,rbind,ro",
        "--mount", "/scratch:/scratch:none:x-create=auto,rbind",
        "--env", "PATH=/image/bin", "--env", "LD_LIBRARY_PATH=/opt/fairlead/mpi/lib",
        "--env", "GREETING=good, $morning = 'you'", "--rw", "/i/a.squashfs",
        "/bin/sh", "-c", 'cd -- "$0" && exec "$@"', "/w", "python3", "-c", "print(1)",
    )  # fmt: skip
    # By its own rule: no blanks in a mount, a name before `=`.
    for option, value in itertools.pairwise(argv):
        if option == "--mount":
            assert re.fullmatch(r"\S+(:\S+)*", value)
        if option == "--env":
            assert re.match(r"[A-Za-z_]\w*=", value)
    with pytest.raises(FairleadError) as caught:
        Enroot().words(found, call("/i/a.sif"))
    assert caught.value.findings[0].check == "engine-image"
    with pytest.raises(FairleadError):
        Enroot().words(found, call("/i/a.squashfs", literal={"A": "1\n2"}))


def test_container_engine_is_selected_by_a_file_that_srun_names(tmp_path: Path) -> None:
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    environ = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    found = ContainerEngine().detect(environ)
    assert found and found.takes is Takes.SQUASHFS
    words = ContainerEngine().words(found, call("/i/a.squashfs", workdir="/w", extra=("--x",)))
    ((file, text),) = words.files.items()
    assert file.startswith(f"{tmp_path}/fairlead/edf/fairlead-") and file.endswith(".toml")
    assert words.launcher == (f"--environment={file}", "--x")
    assert words.argv == ("python3", "-c", "print(1)")
    assert tomllib.loads(text) == {
        "image": "/i/a.squashfs",
        "workdir": "/w",
        "mounts": ["/cache/stage/mpich:/opt/fairlead/mpi:ro", "/scratch:/scratch"],
        "env": {
            "GREETING": "good, $$morning = 'you'",
            "LD_LIBRARY_PATH": "/opt/fairlead/mpi/lib",
            "PATH": "/image/bin",
        },
        "annotations": {"com": {"hooks": {"cxi": {"enabled": "false"}}}},
    }
    assert ContainerEngine().words(found, call("/i/a.squashfs")).files != words.files
    for image, binds, env in (
        ("/i/a.sif", BINDS, ENV),
        ("/i/a.squashfs", (("/a:b", "/x", False),), ENV),
        ("/i/a.squashfs", BINDS, {"A": ""}),
    ):
        with pytest.raises(FairleadError) as caught:
            ContainerEngine().words(found, call(image, binds=binds, env=env))
        assert caught.value.code is ExitCode.PREFLIGHT_REFUSED


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1))
def test_any_value_comes_through_an_edf(value: str) -> None:
    read = tomllib.loads(edf("", (), {"A": value}))["env"]["A"]
    assert read.replace("$$", "$") == value


def line(plan: Plan, tmp_path: Path, record: Path | None = None) -> CommandLine:
    engine = Engine("ce", "srun", False, (), (), takes=Takes.SQUASHFS, folder=str(tmp_path))
    made = replace(plan, engine=engine, opened="/i/a.squashfs")
    return command_line(made, ("true",), 2, record=record)


def test_engine_that_is_a_part_of_srun_comes_before_the_ranks_own_shell(tmp_path: Path) -> None:
    srun = Launcher("/usr/bin/srun", AbiFamily.MPICH, "Slurm", "srun")
    made = line(recorded.planned(launcher=srun), tmp_path, tmp_path / "run")
    environment = made.argv.index(f"--environment={next(iter(made.files))}")
    shell = made.argv.index("/bin/sh")
    assert made.argv[0] == "/usr/bin/srun" and environment < shell
    # The shell is in the container, where the folder of the run has another name.
    assert "/opt/fairlead/run" in made.argv and str(tmp_path / "run") not in made.argv
    made.write_files()
    assert tomllib.loads(Path(next(iter(made.files))).read_text())["image"] == "/i/a.squashfs"


def test_engine_that_is_a_part_of_srun_shows_the_folder_of_logs_to_the_ranks_shell(
    tmp_path: Path,
) -> None:
    srun = Launcher("/usr/bin/srun", AbiFamily.MPICH, "Slurm", "srun")
    plan = recorded.planned(launcher=srun)
    asked = replace(plan, request=replace(plan.request, output_dir="/home/u/logs"))
    made = line(asked, tmp_path, tmp_path / "run")
    assert "/opt/fairlead/output" in made.argv and "/home/u/logs" not in made.argv
    (text,) = made.files.values()
    assert "/home/u/logs:/opt/fairlead/output" in text


def test_engine_that_is_a_part_of_srun_is_refused_with_another_launcher(tmp_path: Path) -> None:
    with pytest.raises(FairleadError) as caught:
        line(recorded.planned(), tmp_path)
    assert caught.value.findings[0].check == "engine-launcher"


TERMINALS = {
    "shifter": (),
    "podman-hpc": ("--interactive", "--tty"),
    "sarus": ("--tty",),
    "enroot": (),
}


@pytest.mark.parametrize("driver", OTHERS, ids=lambda d: d.kind)
def test_engine_gives_a_terminal_only_to_a_shell(driver: Driver, tmp_path: Path) -> None:
    found, image = engine(driver, tmp_path), "/sarus/images/docker.io/library/a/1.squashfs"
    as_rank = driver.words(found, call(image)).argv
    as_shell = driver.words(found, call(image, terminal=True)).argv
    assert tuple(word for word in as_shell if word not in as_rank) == TERMINALS[driver.kind]
    assert not {"--tty", "-t"} & set(as_rank)


def test_engine_that_is_a_part_of_srun_gives_no_terminal(tmp_path: Path) -> None:
    srun_engine = Engine("ce", "srun", False, (), (), takes=Takes.SQUASHFS, folder=str(tmp_path))
    plan = replace(recorded.planned(), engine=srun_engine, opened="/i/a.squashfs")
    with pytest.raises(FairleadError) as caught:
        terminal_line(plan, ("sh",))
    assert caught.value.code is ExitCode.PREFLIGHT_REFUSED
    assert "at a terminal" in caught.value.findings[0].why
