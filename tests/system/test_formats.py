"""One build in every format, and what each engine makes of its own."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.json_schema import sbom_mistake
from tests.system import hosts

from fairlead.base.errors import FairleadError
from fairlead.image.sif import read_sif
from fairlead_build.build import BuildResult, build
from fairlead_build.formats.registry import FORMATS
from fairlead_build.formats.sif import write_sif
from fairlead_build.formats.wrapping import wrapping_of
from fairlead_build.recipe.load import load_recipe
from fairlead_build.registry.layout import read_layout
from fairlead_build.squashfs.tree_stream import tree_digest

FAIRLEAD = (sys.executable, "-m", "fairlead")
ENV = "/opt/python/bin:/opt/mpich/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("formats")


@pytest.fixture(scope="module")
def built(folder: Path) -> BuildResult:
    """mpi-base in every format, handed out."""
    return build("mpi-base", formats=FORMATS.names(), output=folder)


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Podman with a store of its own, and settings with which root may run it in a container."""
    work = tmp_path_factory.mktemp("podman")
    (work / "containers.conf").write_text(
        '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n'
        '[engine]\nruntime = "runc"\nevents_logger = "file"\n'
    )
    if not shutil.which("podman"):
        pytest.skip("no podman: run `make test-setup`")

    def run(*words: str) -> str:
        store = ["--root", str(work / "store"), "--runroot", str(short)]
        return said("podman", *store, *words, CONTAINERS_CONF=str(work / "containers.conf"))

    # Podman takes a runroot of 50 characters at most.
    with tempfile.TemporaryDirectory(prefix="podman-") as short:
        yield run


def said(*words: str | Path, **env: str) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def blob(layout: Path, digest: str) -> bytes:
    return (layout / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_bytes()


def test_formats_of_one_build_have_one_tree(built: BuildResult, folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert names == {f"mpi-base.{s}" for s in ("sif", "squashfs", "meta", "oci", "sandbox")}
    assert [path.name for path in built.outputs] == [
        "mpi-base.oci",
        "mpi-base.sandbox",
        "mpi-base.squashfs",
        "mpi-base.sif",
        "mpi-base.squashfs",
    ]
    assert built.entry is not None
    digests = {path.name: tree_digest(path) for path in built.outputs}
    assert set(digests.values()) == {built.entry.tree_sha256}, digests
    document = read_sif(folder / "mpi-base.sif").document("image.json")
    assert document is not None and document["tree_sha256"] == built.entry.tree_sha256


def test_formats_are_kept_and_shown_by_dry_run(built: BuildResult) -> None:
    shown = build("mpi-base", formats=FORMATS.names(), dry_run=True)
    states = {stage.name: stage.cached for stage in shown.stages}
    assert states["oci"] and not states["sandbox"], "a sandbox is handed out, never kept unasked"
    again = build("mpi-base", formats=("oci", "shifter"))
    assert again.entry is not None and built.entry is not None
    assert again.outputs[0].name == f"{built.entry.key}.oci"
    assert again.outputs[1].with_suffix(".meta").read_text().startswith("FORMAT: squashfs\n")


def test_oci_layout_keeps_the_rules_of_its_specification(built: BuildResult, folder: Path) -> None:
    layout = folder / "mpi-base.oci"
    assert json.loads((layout / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    for path in (layout / "blobs" / "sha256").iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    (listed,) = json.loads((layout / "index.json").read_text())["manifests"]
    manifest = json.loads(blob(layout, listed["digest"]))
    assert len(blob(layout, listed["digest"])) == listed["size"]
    config = json.loads(blob(layout, manifest["config"]["digest"]))
    diffs = [gzip.decompress(blob(layout, layer["digest"])) for layer in manifest["layers"]]
    assert config["rootfs"]["diff_ids"] == [
        f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in diffs
    ]
    assert len(config["history"]) == len(diffs) == 3
    assert {config["created"], *(h["created"] for h in config["history"])} == {
        manifest["annotations"]["org.opencontainers.image.created"]
    }
    assert built.entry is not None
    assert manifest["annotations"]["org.fairlead.tree.sha256"] == built.entry.tree_sha256
    assert manifest["annotations"]["org.fairlead.sif.sha256"] == built.entry.sif_sha256
    assert str(folder) not in json.dumps([manifest, config])


@pytest.mark.full
def test_oci_layout_is_the_same_on_one_core(built: BuildResult, tmp_path: Path) -> None:
    assert built.entry is not None
    script = (
        "import sys; from pathlib import Path; from fairlead_build.formats import oci; "
        "from fairlead_build.formats.wrapping import wrapping_of; image = Path(sys.argv[1]); "
        "wrapping = wrapping_of(image, sys.argv[2]); "
        "print(oci.write_layout(Path(sys.argv[3]), image, wrapping).digest)"
    )
    words = ("taskset", "--cpu-list", min(map(str, os.sched_getaffinity(0))), sys.executable, "-c")
    digest = said(
        *words, script, built.entry.path, built.entry.sif_sha256, tmp_path, TZ="Asia/Tokyo"
    )
    assert digest.strip() == read_layout(built.outputs[0]).digest


@pytest.mark.full
def test_oci_images_of_two_recipes_share_the_system(built: BuildResult) -> None:
    other = build("tensorflow", formats=("oci",))
    mine, theirs = (read_layout(path).layers for path in (built.outputs[0], other.outputs[0]))
    assert mine[0] == theirs[0] and mine[1].digest != theirs[1].digest


def test_oci_layout_is_what_skopeo_and_podman_run(
    built: BuildResult, folder: Path, podman: Callable[..., str]
) -> None:
    layout = folder / "mpi-base.oci"
    shown = json.loads(said("skopeo", "inspect", f"oci:{layout}"))
    assert shown["Digest"] == read_layout(layout).digest
    assert shown["Labels"]["org.fairlead.recipe"] == "mpi-base"
    image = podman("pull", "--quiet", f"oci:{layout}").strip()
    (known,) = json.loads(podman("inspect", image))
    assert known["Config"]["Cmd"] == ["/bin/bash"]
    assert set(known["Config"]["Env"]) == {f"PATH={ENV}", "PYTHONNOUSERSITE=1"}
    script = (
        "echo $PATH; python3 -m mpi4py --version; stat -c '%a %U' /tmp /root /opt; ls /dev/null"
    )
    ran = podman("run", "--rm", "--network=host", image, "sh", "-c", script).splitlines()
    assert ran[0] == ENV and ran[1].startswith("mpi4py 4.1.")
    assert ran[2:] == ["1777 root", "700 root", "755 root", "/dev/null"]


@pytest.mark.parametrize("transport", ["oci-archive", "docker-archive"])
@pytest.mark.full
def test_archive_that_skopeo_writes_is_opened_as_the_layout_is(
    transport: str, built: BuildResult, folder: Path, tmp_path: Path
) -> None:
    layout, archive = folder / "mpi-base.oci", tmp_path / "image.tar"
    said("skopeo", "copy", f"oci:{layout}", f"{transport}:{archive}:localhost/mpi-base:1")
    first = hosts.answer(hosts.fairlead("inspect", "--json", layout))["image"]
    for name in (archive, f"{archive}:1", f"{transport}:{archive}:localhost/mpi-base:1"):
        shown = hosts.answer(hosts.fairlead("inspect", "--json", name))["image"]
        assert shown["packages"] == first["packages"]
        if transport == "oci-archive":
            assert shown["path"] == first["path"], "one manifest, one SIF"
    done = hosts.fairlead(
        "run", "-n", "2", archive, "--", "python3", "-c", "from mpi4py import MPI"
    )
    assert done.returncode == 0 and "proved on 2 ranks" in done.stderr, done.stderr
    done = hosts.fairlead("preflight", f"{archive}:2")
    assert done.returncode == 2 and "mpi-base:1" in done.stderr


def test_oci_layout_is_what_apptainer_builds_from(
    built: BuildResult, folder: Path, tmp_path: Path
) -> None:
    made = tmp_path / "again"
    said(hosts.apptainer(), "build", "--sandbox", made, f"oci:{folder / 'mpi-base.oci'}")
    assert environment(made) == [ENV, "1"]


def environment(image: Path) -> list[str]:
    script = "echo $PATH; echo $PYTHONNOUSERSITE"
    argv = ["exec", "--userns", "--cleanenv", image, "sh", "-c", script]
    return said(hosts.apptainer(), *argv).split()


@pytest.mark.parametrize("name", ["mpi-base.sif", "mpi-base.squashfs", "mpi-base.sandbox"])
def test_image_has_the_same_environment_in_each_format_of_apptainer(
    built: BuildResult, folder: Path, name: str
) -> None:
    assert environment(folder / name) == [ENV, "1"]


@pytest.mark.skipif(not shutil.which("shifter"), reason="no shifter on PATH")
def test_shifter_runs_the_image_with_its_environment(built: BuildResult, folder: Path) -> None:
    config = Path(os.environ.get("SHIFTER_CONFIG", "/etc/shifter/udiRoot.conf")).read_text()
    images = next(
        Path(line.partition("=")[2].strip())
        for line in config.splitlines()
        if line.startswith("imagePath")
    )
    for suffix in ("meta", "squashfs"):
        shutil.copy(folder / f"mpi-base.{suffix}", images)
    words = ["setpriv", "--reuid=20001", "--regid=20001", "--clear-groups", "shifter"]
    assert said(*words, "--image=id:mpi-base", "sh", "-c", "echo $PATH").strip() == ENV


def test_sandbox_runs_on_the_hosts_mpi(built: BuildResult, folder: Path) -> None:
    done = hosts.fairlead(
        "run", "-n", "2", folder / "mpi-base.sandbox", "--", "python3", "-m", "mpi4py.bench",
        "helloworld",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Hello, World! I am process 1 of 2" in done.stdout
    assert "-> MPICH 5.0.2 of the host" in done.stderr


def test_sandbox_that_was_changed_is_not_replaced(built: BuildResult, folder: Path) -> None:
    made = folder / "mpi-base.sandbox"
    again = build("mpi-base", formats=("sandbox",), output=made)  # its name, not a folder for it
    assert again.outputs == (made,)
    mine = made / "opt" / "mine"
    mine.write_text("added")
    try:
        with pytest.raises(FairleadError, match="already exists and holds something else") as no:
            build("mpi-base", formats=("sandbox",), output=folder)
        assert no.value.findings[0].remedy.startswith(f"rm -r {made}")
        assert mine.read_text() == "added" and not list(folder.glob(".*"))
    finally:
        mine.unlink()


def test_image_of_others_cannot_be_wrapped_again(tmp_path: Path) -> None:
    image = tmp_path / "other.sif"
    write_sif(
        image,
        hosts.image_with_programs(),
        ("image.json", b"{}"),
        arch="amd64",
        epoch=0,
        squashfs_sha256="",
    )
    with pytest.raises(FairleadError, match=r"other\.sif cannot be converted to another format"):
        wrapping_of(image, "")


# --- what is inside ----------------------------------------------------------------------------


def test_image_carries_a_valid_bill_of_materials_of_its_lock(
    built: BuildResult, folder: Path
) -> None:
    text = said(*FAIRLEAD, "inspect", "mpi-base", "--sbom")
    assert sbom_mistake(text) is None
    shown = json.loads(text)
    lock = tomllib.loads(load_recipe("mpi-base").lock_path.read_text())
    hashes = {c["name"]: c["hashes"][0]["content"] for c in shown["components"]}
    locked = [*lock["deb"], *(w for w in lock["wheel"] if w["role"] in ("python", "mpi"))]
    assert {package["name"]: package["sha256"] for package in locked} == {
        name: digest for name, digest in hashes.items() if name != "fairlead"
    }
    purls = {c["purl"].partition("@")[0] for c in shown["components"]}
    assert {"pkg:deb/debian/libc6", "pkg:pypi/mpi4py", "pkg:pypi/fairlead"} <= purls
    licensed = {c["name"]: c["licenses"] for c in shown["components"] if "licenses" in c}
    assert "mpi4py" in licensed and "numpy" in licensed
    inside = (folder / "mpi-base.sandbox" / ".fairlead" / "sbom.cdx.json").read_text()
    assert inside == text


def test_inspect_reports_the_record_of_a_built_image(built: BuildResult) -> None:
    text = said(*FAIRLEAD, "inspect", "mpi-base")
    assert built.entry is not None
    for row in (
        f"tree sha256  {built.entry.tree_sha256}",
        f"lock sha256  {built.entry.lock_sha256}",
        "frameworks   mpi4py 4.1.",
        "SBOM         CycloneDX 1.6, ",
        "MPICH 3.4.3  mpich  MPI 3.1",
        "calls up to MPI 3.0",
    ):
        assert row in text, text


@pytest.mark.full
def test_inspect_of_an_image_of_others_lists_what_is_found_in_it(tmp_path: Path) -> None:
    """An image that Apptainer built: no record, no lock; Debian's packages and a wheel."""
    definition = tmp_path / "other.def"
    sandbox = tmp_path / "root"
    hosts.unpacked(sandbox, {})
    shutil.rmtree(sandbox / ".fairlead")
    definition.write_text(f"Bootstrap: localimage\nFrom: {sandbox}\n")
    image = tmp_path / "other.sif"
    quick = ("--mksquashfs-args", "-comp zstd -Xcompression-level 1")
    said(hosts.apptainer(), "build", *quick, image, definition)
    shown = json.loads(said(*FAIRLEAD, "inspect", image, "--json"))
    assert shown["image"]["looked"] and shown["image"]["record"] == {}
    assert shown["image"]["tree_sha256"] == tree_digest(image)
    assert shown["frameworks"]["mpi4py"].startswith("4.1.")
    assert shown["image"]["packages"]["deb"]["libc6"].startswith("2.36")
    text = said(*FAIRLEAD, "inspect", image, "--sbom")
    assert sbom_mistake(text) is None
    names = {component["purl"].partition("@")[0] for component in json.loads(text)["components"]}
    assert {"pkg:deb/debian/bash", "pkg:pypi/numpy"} <= names


# --- what has changed --------------------------------------------------------------------------


@pytest.mark.full
def test_diff_knows_same_bits_and_same_tree(built: BuildResult, folder: Path) -> None:
    copy = folder / "mpi-base.sif"
    assert said(*FAIRLEAD, "diff", copy, "mpi-base") == "same bits\n"
    for other in ("mpi-base.squashfs", "mpi-base.sandbox", "mpi-base"):
        shown = json.loads(said(*FAIRLEAD, "diff", copy, folder / other, "--json"))
        assert (shown["same_bits"], shown["same_tree"]) == (False, True), other


def test_diff_of_images_with_other_programs_names_them(built: BuildResult) -> None:
    done = hosts.fairlead("diff", "mpi-base", hosts.image_with_programs(), "--json")
    assert done.returncode == 1, done.stderr
    shown = json.loads(done.stdout)
    paths = {(f["kind"], f["path"]) for f in shown["files"]["paths"]}
    assert {("added", "opt/app"), ("added", "opt/app/allreduce")} <= paths
    assert shown["files"]["removed"] == shown["files"]["changed"] == 0
    assert {c["name"] for c in shown["mpi"]} == {"/opt/app/allreduce", "/opt/app/exchange"}
    assert shown["packages"] == []


def test_squashfs_with_damaged_content_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_text("text" * 1000)
    image = tmp_path / "image.squashfs"
    command = f"tar -C {tmp_path}/tree -c . | tar2sqfs -q {image}"
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    whole = image.read_bytes()
    image.write_bytes(whole[:96] + bytes(len(whole) - 96))  # the superblock stays
    done = hosts.fairlead("inspect", image, limit_s=25)
    assert done.returncode and "its top folder cannot be read" in done.stderr
