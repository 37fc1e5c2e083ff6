"""Images whose record says another thing than what is in them: what is in them counts."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.compiled import OPENMPI, compiled, image_tree
from tests.support.recorded import image

from fairlead.base.errors import FairleadError
from fairlead.base.progress import Silent
from fairlead.base.serde import to_json
from fairlead.elf.facts import AbiFamily, ImageFacts
from fairlead.image.contents import keep_tree, known_tree
from fairlead.image.open import Image, open_image
from fairlead.image.sbom_reader import tree_of
from fairlead.image.scan import scan_tree
from fairlead.image.tree_digest import scan_folder, tree_sha256
from fairlead_build.diff import compare
from fairlead_build.formats.sif import write_sif

pytestmark = pytest.mark.skipif(
    not shutil.which("mksquashfs") or not shutil.which("squashfuse_ll"),
    reason="needs mksquashfs and squashfuse_ll",
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_tree(tmp_path_factory.mktemp("tree") / "root")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}


def sif_of(root: Path, folder: Path, name: str = "app.sif", **record: Any) -> Path:
    """A SIF as fairlead makes it, digests and identifier and all, with ``record`` as its statements."""
    folder.mkdir(exist_ok=True)
    squashfs = folder / f"{name}.squashfs"
    subprocess.run(
        ["mksquashfs", root, squashfs, "-noappend", "-quiet", "-all-root"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    digest = hashlib.sha256(squashfs.read_bytes()).hexdigest()
    text = json.dumps({"squashfs_sha256": digest, "recipe": "app", **record}).encode()
    write_sif(
        folder / name, squashfs, ("image.json", text), arch="amd64", epoch=1, squashfs_sha256=digest
    )
    return folder / name


def lies(root: Path) -> dict[str, ImageFacts]:
    true = scan_tree(root)
    return {
        "no MPI": replace(true, mpis=(), consumers=()),
        "another MPI": image("mpi-base"),
        "no programs": replace(true, programs={}, consumers=()),
        "nothing at all": replace(true, mpis=(), consumers=(), programs={}, files=0),
    }


@pytest.mark.parametrize("lie", ["no MPI", "another MPI", "no programs", "nothing at all"])
def test_facts_that_an_image_states_falsely_do_not_count(
    lie: str, root: Path, tmp_path: Path, environ: dict[str, str]
) -> None:
    path = sif_of(root, tmp_path, facts=to_json(lies(root)[lie]))
    found = open_image(str(path), environ)
    assert found.looked and found.facts == scan_tree(root)
    assert {mpi.family for mpi in found.facts.mpis} == {AbiFamily.MPICH, AbiFamily.OPENMPI}
    assert found.record["recipe"] == "app" and "facts" not in found.record


def test_a_digest_is_looked_into_once_whatever_the_file_is_called(
    root: Path, tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_image(str(sif_of(root, tmp_path)), environ)
    monkeypatch.setattr("fairlead.image.contents.look", None)
    copy = shutil.copy(tmp_path / "app.sif", tmp_path / "copy.sif")
    again = open_image(str(copy), environ)
    assert again.facts == first.facts and again.looked
    bare = open_image(str(tmp_path / "app.sif.squashfs"), environ)
    assert bare.facts == first.facts


def without(program: str, environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """A PATH with everything on it but one program."""
    folder.mkdir()
    for place in reversed(environ["PATH"].split(":")):
        for file in Path(place).iterdir() if Path(place).is_dir() else ():
            if file.name != program:
                (folder / file.name).unlink(missing_ok=True)
                (folder / file.name).symlink_to(file)
    return {**environ, "PATH": str(folder)}


def test_machine_without_squashfuse_takes_the_statements_marks_them_and_keeps_none(
    root: Path, tmp_path: Path, environ: dict[str, str]
) -> None:
    path = sif_of(root, tmp_path, facts=to_json(lies(root)["no MPI"]))
    poor = without("squashfuse_ll", environ, tmp_path / "bin")
    found = open_image(str(path), poor)
    assert not found.looked and found.facts.mpis == ()
    assert open_image(str(path), environ).facts == scan_tree(root), "installed since"


def test_machine_that_cannot_look_refuses_an_image_that_states_nothing(
    root: Path, tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    poor = without("squashfuse_ll", environ, tmp_path / "bin")
    with pytest.raises(FairleadError) as caught:
        open_image(str(sif_of(root, tmp_path)), poor)
    assert caught.value.findings[0].check == "squashfuse"
    monkeypatch.setattr("fairlead.image.mount._FUSE", str(tmp_path / "absent"))
    with pytest.raises(FairleadError) as caught:
        open_image(str(tmp_path / "app.sif"), environ)
    assert "absent cannot be opened" in caught.value.findings[0].why
    with pytest.raises(FairleadError) as caught:
        open_image(str(sif_of(root, tmp_path, facts={"mpis": 7})), environ)
    assert caught.value.findings[0].check == "image-record"


def test_squashfs_that_cannot_be_mounted_is_never_taken_at_its_word(
    root: Path, tmp_path: Path, environ: dict[str, str]
) -> None:
    """Else an image could hide from the look and still be started by a kernel that reads more."""
    facts = to_json(scan_tree(root))
    broken = tmp_path / "broken.squashfs"
    broken.write_bytes(b"hsqs" + bytes(9000))
    digest = hashlib.sha256(broken.read_bytes()).hexdigest()
    text = json.dumps({"squashfs_sha256": digest, "facts": facts}).encode()
    path = tmp_path / "app.sif"
    write_sif(path, broken, ("image.json", text), arch="amd64", epoch=1, squashfs_sha256=digest)
    with pytest.raises(FairleadError) as caught:
        open_image(str(path), environ)
    assert caught.value.findings[0].check == "image-mount"


def test_digest_of_the_tree_is_computed_not_taken_from_the_record(
    root: Path, tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", environ["XDG_CACHE_HOME"])
    other = tmp_path / "other"
    compiled(other / "usr/lib/libmpi.so.40", OPENMPI)
    (other / "bin").mkdir()
    one, two = (
        open_image(str(sif_of(tree, tmp_path, f"{n}.sif", tree_sha256="ab" * 32)), environ)
        for n, tree in enumerate((root, other))
    )
    assert not compare(one, two, Silent()).same_tree
    assert tree_of(one, environ) == tree_sha256(scan_folder(root)) != tree_of(two, environ)


def test_tree_digest_is_kept_by_the_squashfs(tmp_path: Path) -> None:
    assert known_tree("aa", tmp_path) == ""
    keep_tree("aa", "bb", tmp_path)
    assert known_tree("aa", tmp_path) == "bb" and known_tree("ab", tmp_path) == ""


@pytest.mark.parametrize(
    ("recorded", "looked", "wanted"),
    [
        ({"a": "1"}, True, {"a": "1"}),  # b is in another package
        ({"a": "2"}, True, {"a": "1", "b": "1"}),
        ({"a": "1", "c": "1"}, True, {"a": "1", "b": "1"}),
        ({"a": "2"}, False, {"a": "2"}),
    ],
)
def test_recorded_packages_count_where_they_are_there(
    recorded: dict[str, str], looked: bool, wanted: dict[str, str]
) -> None:
    class Seen:
        packages = ("a", "b")

        def versions(self) -> dict[str, dict[str, str]]:
            return {"deb": {}, "wheel": {"a": "1", "b": "1"}}

    found: Any = Seen()
    one = Image("x", "/x", "sif", 1, "", looked, image(), {"packages": {"wheel": recorded}}, found)
    assert one.packages["wheel"] == wanted
