"""What a run takes over from the image itself."""

from __future__ import annotations

import pytest
from tests.support.recorded import host, image, planned

from fairlead import __version__
from fairlead.image.open import Image
from fairlead.session.prepare import _versions, _with_images_own
from fairlead.swap.model import Request


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
    # They come before a DT_RUNPATH: the host's own libraries must be named first.
    assert "/opt/fairlead/mpi/lib/mpich" in path
    assert made.env["LD_PRELOAD"].endswith(":/opt/own.so")
    output = {line.what for line in made.lines if line.kind == "behind"}
    assert output == {"LD_LIBRARY_PATH=/usr/local/nvidia/lib64", "LD_PRELOAD=/opt/own.so"}


@pytest.mark.parametrize(
    ("name", "inner"), [("mpich-5.0.2", "mpich"), ("openmpi-5.0.11", "openmpi")]
)
def test_folders_behind_the_hosts_mpi_come_before_a_users(name: str, inner: str) -> None:
    """Whatever they are called; those that hold modules only are no folders of libraries."""
    path = planned(mpi=host(name), library_path="/home/u/lib").env["LD_LIBRARY_PATH"].split(":")
    assert path.index(f"/opt/fairlead/mpi/lib/{inner}") < path.index("/home/u/lib")
    assert not any(folder.endswith(("/ucx", "/libfabric", "/glibc")) for folder in path)


def test_image_that_sets_nothing_changes_nothing() -> None:
    found = Image("x", "/x.sif", "sif", 1, "", False, image())
    assert _with_images_own(Request(), found) == Request()


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
