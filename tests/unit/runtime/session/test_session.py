"""What a run takes over from the image itself."""

from __future__ import annotations

import pytest
from tests.support.recorded import host, image, planned

from fairlead.image.open import Image
from fairlead.session.prepare import _with_images_own
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
