"""What a run takes over from the image itself."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.support.recorded import host, image, planned

from fairlead import __version__
from fairlead import site as sites
from fairlead.base.errors import ExitCode, FairleadError, Severity
from fairlead.base.system import Machine
from fairlead.engines.model import Takes
from fairlead.image.open import Image
from fairlead.launch.node_check import NodeMounts
from fairlead.proof.preload import Expected
from fairlead.session.gradients import CommChoice
from fairlead.session.model import Choices, LaunchOptions, Prepared
from fairlead.session.prepare import _another_machine, _versions, _with_images_own
from fairlead.session.run import _command_line
from fairlead.swap.model import Request

COMM = CommChoice(None, "", False, {}, (), ())  # type: ignore[arg-type]


def test_search_path_and_preload_of_the_image_stay_behind_the_users() -> None:
    env = {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64", "LD_PRELOAD": "/opt/own.so", "A": "b"}
    found = Image("x", "/x.sif", "sif", 1, "", False, image(), {"env": env})
    asked = _with_images_own(Request(ranks=2, library_path="/home/u/lib"), found)
    made = planned(
        library_path=asked.library_path,
        image_library_path=asked.image_library_path,
        image_preload=asked.image_preload,
    )
    path = made.env["LD_LIBRARY_PATH"].split(":")
    assert path[0] == "/opt/fairlead/mpi/lib"
    assert path[-2:] == ["/home/u/lib", "/usr/local/nvidia/lib64"]
    assert made.env["LD_PRELOAD"].endswith(":/opt/own.so")
    output = {line.what for line in made.lines if line.kind == "behind"}
    assert output == {"LD_LIBRARY_PATH=/usr/local/nvidia/lib64", "LD_PRELOAD=/opt/own.so"}


@pytest.mark.parametrize(
    ("name", "inner"), [("mpich-5.0.2", "mpich"), ("openmpi-5.0.11", "openmpi")]
)
def test_folders_behind_the_hosts_mpi_come_before_a_users(name: str, inner: str) -> None:
    """By the copies' DT_RPATH, or by the search path; folders with modules alone are not searched."""
    folder = f"/opt/fairlead/mpi/lib/{inner}"
    isolated = planned(mpi=host(name), library_path="/home/u/lib")
    assert isolated.staging and folder not in isolated.env["LD_LIBRARY_PATH"]
    for file in isolated.staging.files:
        assert folder in file.rpath.split(":") or file.target.startswith("lib/libstdc++"), file
    plain = planned(mpi=host(name), library_path="/home/u/lib", isolate=False)
    path = plain.env["LD_LIBRARY_PATH"].split(":")
    assert path.index(folder) < path.index("/home/u/lib")
    assert not any(place.endswith(("/ucx", "/libfabric", "/glibc")) for place in path)


def test_image_that_sets_nothing_changes_nothing() -> None:
    found = Image("x", "/x.sif", "sif", 1, "", False, image())
    assert _with_images_own(Request(), found) == Request()


def test_network_that_the_profile_does_not_have_is_reported_whoever_chose_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof would forbid the transports of the card that is here, and allow TCP."""
    monkeypatch.setattr("fairlead.site.match.Machine", partial(Machine, root=tmp_path))
    environ = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    ethernet, slingshot = (sites.load_site(n, environ) for n in ("ethernet", "cray-ex-slingshot"))
    assert not [*_another_machine(Choices(), ethernet, environ)]
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/cxi0").touch()
    [found] = _another_machine(Choices(), ethernet, environ)
    assert (found.check, found.severity) == ("site-fabric", Severity.WARNING)
    assert "cxi0 is slingshot (/dev/cxi0), and the profile says ethernet" in found.why
    [named] = _another_machine(Choices(site="ethernet"), ethernet, environ)
    assert named.check == "site-named" and "cxi0 is slingshot" in named.why
    for choices in (Choices(), Choices(site="cray-ex-slingshot")):
        assert not [*_another_machine(choices, slingshot, environ)]


def made(**record: object) -> Image:
    """An image by fairlead's builder."""
    record = {"fairlead_version": __version__, "wheel_sha256": "ab", **record}
    return Image("x", "/x.sif", "sif", 1, "", False, image(), record)


@pytest.mark.parametrize(
    ("record", "command", "refused"),
    [
        ({}, ("python3", "-m", "fairlead.comm.auto"), ""),
        ({"wheel_sha256": ""}, ("python3", "train.py"), ""),
        ({"wheel_sha256": ""}, ("python3", "-m", "fairlead.comm.auto", "x.py"), "fairlead.comm.auto"),
        ({"wheel_sha256": ""}, ("fairlead", "doctor"), "fairlead"),
        ({"wheel_sha256": "", "fairlead_version": "0.0.9"}, ("true",), ""),
        ({"fairlead_version": "0.0.9"}, ("true",), "contains fairlead 0.0.9"),
    ],
)  # fmt: skip
def test_command_of_fairlead_is_refused_where_the_image_does_not_carry_it(
    record: dict[str, str], command: tuple[str, ...], refused: str
) -> None:
    said = [f.what for f in _versions(made(python={"version": "3.9"}, **record), command)]
    assert len(said) == bool(refused)
    assert all(refused in what for what in said)


def test_nodes_cannot_mount_where_the_engine_starts_with_the_launcher(tmp_path: Path) -> None:
    plan = planned()
    engine = replace(plan.engine, kind="ce", takes=Takes.SQUASHFS, folder=str(tmp_path))
    launcher = replace(plan.launcher, kind="srun", path="/usr/bin/srun")
    plan = replace(plan, engine=engine, launcher=launcher, image="/x.squashfs", opened="")
    prepared = Prepared(
        Image("x", "/x.squashfs", "squashfs", 1, "", False, image()), plan, (), "", COMM
    )
    options = LaunchOptions(mounts=NodeMounts(("-m", "fairlead.transfer"), "/dev/shm/x"))
    with pytest.raises(FairleadError) as caught:
        _command_line(prepared, ("true",), Expected(plan, 2, 1, tmp_path), options)
    assert caught.value.code == ExitCode.USAGE
    (found,) = caught.value.findings
    assert found.check == "mount" and "part of srun" in found.what
