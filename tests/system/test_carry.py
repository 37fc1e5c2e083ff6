"""The host's libfabric below the image's own MPI, in real containers: which file ranks map, what is refused, and the proof."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.system import hosts
from tests.system.hosts import answer, fairlead

from fairlead.elf import reader

MAPPED = """
from mpi4py import MPI
paths = {line.split()[-1] for line in open("/proc/self/maps") if "libfabric" in line}
total = MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank + 1)
print("mapped", MPI.COMM_WORLD.rank, total, *sorted(paths), flush=True)
"""
STAGED = "/opt/fairlead/carried/lib/libfabric.so.1"


def of_mpich(folder: Path) -> Path:
    """A host's libfabric that is newer than the image's: that of MPICH 5.0.2's wheel."""
    shutil.copytree(hosts.mpich() / "lib/mpich", folder / "lib", symlinks=True)
    return folder / "lib"


def launched(folder: Path, *words: str, env: dict[str, str] | None = None):
    command = (
        "run", "-n", "2", "--json", "--mpi", "container", *words, hosts.image(), "--", "python3", "-c", MAPPED,
    )  # fmt: skip
    return fairlead(*command, env={"LD_LIBRARY_PATH": str(folder), **(env or {})})


def test_ranks_of_the_images_mpi_map_the_hosts_libfabric(tmp_path: Path) -> None:
    folder = of_mpich(tmp_path)
    done = launched(folder, "--carry", "libfabric")
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    assert text.count(f" 3 {STAGED}") == 2, text
    assert "MPICH 3.4.3" in text
    kept = launched(folder, "--carry", "none")
    text = kept.stdout + kept.stderr
    assert kept.returncode == 0 and text.count(" 3 /opt/mpich/lib/mpich/libfabric") == 2, text


def test_site_that_replaces_libfabric_gets_it_without_a_word(tmp_path: Path) -> None:
    site = tmp_path / "there.toml"
    site.write_text(
        '[site]\nname = "there"\nsummary = "replaces libfabric"\nextends = "laptop"\n'
        '[mpi]\nreplaces = "libfabric"\nsource = "guess"\n'
    )
    done = launched(of_mpich(tmp_path), "--site", str(site))
    text = done.stdout + done.stderr
    assert done.returncode == 0 and text.count(f" 3 {STAGED}") == 2, text


def test_image_that_finds_its_own_library_first_is_not_proved(tmp_path: Path) -> None:
    """The user's own search path leads to the image's libfabric, within the program that starts Python."""
    shell = 'LD_LIBRARY_PATH=/opt/mpich/lib/mpich exec python3 -c "$0"'
    command = (
        "run", "-n", "2", "--json", "--mpi", "container", "--carry", "libfabric", hosts.image(), "--", "sh", "-c",
        shell, MAPPED,
    )  # fmt: skip
    done = fairlead(*command, env={"LD_LIBRARY_PATH": str(of_mpich(tmp_path))})
    assert done.returncode == 122, done.stdout + done.stderr
    [finding] = [f for f in answer(done)["findings"] if f["check"] == "carried"]
    assert "another libfabric than the host's" in finding["what"]
    assert "/opt/mpich/lib/mpich/libfabric" in finding["where"]


@pytest.mark.full
def test_debians_libfabric_is_judged_by_its_versions(tmp_path: Path) -> None:
    """Debian 12's against what the image's MPI needs; Debian 13's needs a newer glibc than the image has."""
    old = hosts.debian_openmpi() / "usr/lib/x86_64-linux-gnu"
    offered = reader.read((old / "libfabric.so.1").resolve()).offers["FABRIC"]
    done = fairlead(
        "preflight", hosts.image(), "--mpi", "container", "--carry", "libfabric", "--json",
        env={"LD_LIBRARY_PATH": str(old)},
    )  # fmt: skip
    errors = {f["check"] for f in answer(done)["findings"] if f["severity"] == "error"}
    assert (done.returncode == 121) is (offered < "1.7") is (errors == {"carried"})
    newer = hosts.debian_files(
        "trixie", "libfabric1", "libibverbs1", "libpsm2-2", "librdmacm1t64", "libnl-3-200",
        "libnl-route-3-200", "libnuma1", "libuuid1",
    )  # fmt: skip
    done = fairlead(
        "preflight", hosts.image(), "--mpi", "container", "--carry", "libfabric", "--json",
        env={"LD_LIBRARY_PATH": str(newer / "usr/lib/x86_64-linux-gnu")},
    )  # fmt: skip
    assert done.returncode == 121
    [finding] = [f for f in answer(done)["findings"] if "glibc" in f["what"]]
    assert finding["check"] == "carried" and "GLIBC_2.3" in finding["why"]


@pytest.mark.full
def test_open_mpi_5_of_the_image_maps_the_hosts_libfabric(tmp_path: Path) -> None:
    command = (
        "run", "-n", "2", "--json", "--mpi", "container", "--carry", "libfabric", "--launcher",
        hosts.openmpi() / "bin/mpiexec", hosts.image("mpi-base:openmpi"), "--", "python3", "-c", MAPPED,
    )  # fmt: skip
    done = fairlead(*command, env={"LD_LIBRARY_PATH": str(of_mpich(tmp_path)), **hosts.AS_ROOT})
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    assert text.count(f" 3 {STAGED}") == 2 and "Open MPI" in text, text
