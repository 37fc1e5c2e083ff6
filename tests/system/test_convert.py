"""Images that Podman made, as SIFs: the same tree, the same command, and they run."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.podman import Podman, podman

from fairlead.engines.apptainer import find_apptainer
from fairlead.image.open import open_image
from fairlead_build.build import build
from fairlead_build.cache.store import Cache
from fairlead_build.formats.convert import from_layout, open_layout
from fairlead_build.squashfs.oci_layers import LayerFile, read_layers, write_tar
from fairlead_build.squashfs.squash import unsquash_argv
from fairlead_build.squashfs.tree_stream import image_tree, read_tree, tar_members

# What engines put into a container that runs, and what only they know of.
_ENGINE_FILES = ("run/.containerenv", "etc/hosts", "etc/resolv.conf", "etc/hostname", "etc/mtab")

CONTAINERFILE = """\
FROM localhost/base:1
RUN mkdir /data && echo old > /data/old && echo kept > /data/kept && ln -s /data /link
RUN rm /data/old && echo new > /link/new && rm -rf /opt/python/share && mkdir -p /srv/a
RUN rm -rf /srv/a && mkdir /srv/a && echo again > /srv/a/x && ln /data/kept /data/twin
ENV GREETING="it's me" PATH=/opt/python/bin:/usr/bin:/bin
LABEL org.example.purpose=test
WORKDIR /srv
ENTRYPOINT ["echo", "a b", "$HOME"]
CMD ["tail"]
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[Podman]:
    with podman() as made:
        yield made


@pytest.fixture(scope="module")
def layout(engine: Podman, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image of several layers, built and saved by Podman."""
    folder = tmp_path_factory.mktemp("podman")
    entry = build("mpi-base").entry
    assert entry is not None
    base = folder / "base.tar"
    with base.open("wb") as out:
        subprocess.run(unsquash_argv(Cache.default().tree(entry.tree)), stdout=out, check=True)
    engine("import", base, "localhost/base:1")
    base.unlink()
    (folder / "Containerfile").write_text(CONTAINERFILE)
    engine("build", "--isolation=chroot", "--layers", "-t", "localhost/made:1", folder)
    engine("save", "--format", "oci-dir", "-o", folder / "layout", "localhost/made:1")
    return folder / "layout"


@pytest.mark.full
def test_layers_merge_as_podman_unpacks_them(engine: Podman, layout: Path, tmp_path: Path) -> None:
    _, files, _ = open_layout(layout)
    assert len(files) >= 4
    ours = tmp_path / "ours.tar"
    with ours.open("wb") as out:
        write_tar(read_layers(files), out)
    name = engine("create", "localhost/made:1").strip()
    engine("export", "-o", tmp_path / "theirs.tar", name)
    engine("rm", name)
    trees = []
    for path in (ours, tmp_path / "theirs.tar"):
        with path.open("rb") as stream:
            trees.append(read_tree(tar_members(stream)))
    one, two = ({k: v for k, v in t.items() if k not in _ENGINE_FILES} for t in trees)
    assert {k for k in one if one[k] != two.get(k)} == set()
    assert set(one) == set(two)
    assert "data/old" not in one and "data/new" in one and "opt/python/share" not in one


@pytest.mark.full
def test_converted_image_says_and_does_what_its_configuration_says(
    layout: Path, tmp_path: Path
) -> None:
    sif = tmp_path / "made.sif"
    from_layout(layout, sif)
    apptainer = find_apptainer()
    assert apptainer is not None

    def inside(*words: str) -> str:
        argv = [str(apptainer), *words[:1], "-u", "--cleanenv", str(sif), *words[1:]]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    assert inside("exec", "sh", "-c", 'echo "$GREETING:$PATH"') == (
        "it's me:/opt/python/bin:/usr/bin:/bin\n"
    )
    assert inside("exec", "cat", "/data/new", "/srv/a/x", "/data/twin") == "new\nagain\nkept\n"
    # Quotes and dollars are the words themselves, as in a container.
    assert inside("run") == "a b $HOME tail\n"
    assert inside("run", "x  y") == "a b $HOME x  y\n"
    labels = json.loads(inside("exec", "cat", "/.singularity.d/labels.json"))
    assert labels["org.example.purpose"] == "test"
    found = open_image(str(sif))
    assert found.looked
    assert [m.version for m in found.facts.mpis] == ["3.4.3"]


@pytest.mark.full
def test_converted_image_is_the_same_every_time(layout: Path, tmp_path: Path) -> None:
    from_layout(layout, tmp_path / "a.sif")
    from_layout(layout, tmp_path / "b.sif")
    assert (tmp_path / "a.sif").read_bytes() == (tmp_path / "b.sif").read_bytes()


@pytest.mark.parametrize("packing", ["zstd", "gzip"])
def test_layers_packed_either_way_are_read(layout: Path, tmp_path: Path, packing: str) -> None:
    top = open_layout(layout)[1][-1]
    plain = tmp_path / "plain"
    with plain.open("wb") as out:
        write_tar(read_layers([top]), out)
    subprocess.run([packing, "-k", "-q", plain], check=True)
    packed = next(p for p in tmp_path.iterdir() if p.name.startswith("plain."))
    assert dict(read_layers([LayerFile(packed)]).tree.walk()).keys() == (
        dict(read_layers([LayerFile(plain)]).tree.walk()).keys()
    )


@pytest.mark.full
def test_converted_image_has_the_tree_of_its_layers(layout: Path, tmp_path: Path) -> None:
    sif = tmp_path / "made.sif"
    from_layout(layout, sif)
    _, files, _ = open_layout(layout)
    tar = tmp_path / "tree.tar"
    with tar.open("wb") as out:
        write_tar(read_layers(files), out)
    with tar.open("rb") as stream:
        wanted = read_tree(tar_members(stream))
    found = {k: v for k, v in image_tree(sif).items() if not k.startswith(".singularity.d")}
    assert found == wanted
