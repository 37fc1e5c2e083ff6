"""An image format is one file: in the package, or in another one that declares it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.base.errors import FairleadError
from fairlead.base.progress import Silent
from fairlead_build.cache.store import Cache
from fairlead_build.formats import images, store
from fairlead_build.formats.images import ImageEntry
from fairlead_build.formats.registry import FORMATS, chosen

MODULE = '''
"""A listing: which SIF an image is."""
from fairlead_build.formats.model import Format

def write(entry, target, progress):
    target.write_text(f"{entry.recipe} {entry.key}\\n")

FORMAT = Format("listing", ".txt", "a listing", write, sidecars={".who": lambda entry: entry.recipe})
'''


def package(folder: Path, module: str, target: str = "listing_format:FORMAT") -> None:
    """What `pip install` of a package with one module and one entry point leaves in ``folder``."""
    (folder / "listing_format.py").write_text(module)
    info = folder / "listing_format-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: listing-format\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[fairlead.formats]\nlisting = {target}\n")


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "listing_format", raising=False)
    return folder


def test_formats_are_the_modules_of_the_package() -> None:
    assert FORMATS.names() == ("oci", "sandbox", "shifter", "sif", "squashfs")
    assert all(FORMATS.get(name).name == name for name in FORMATS.names())


def test_format_of_another_package_is_in_the_help(plugin: Path) -> None:
    package(plugin, MODULE)
    path = os.pathsep.join([str(plugin), *filter(None, sys.path)])
    said = subprocess.run(
        [sys.executable, "-P", "-m", "fairlead", "build", "--help"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "Any of oci, sandbox, shifter, sif, squashfs, listing." in " ".join(said.split())


def test_format_of_another_package_is_made_kept_and_handed_out(
    plugin: Path, tmp_path: Path
) -> None:
    package(plugin, MODULE)
    cache = Cache(tmp_path / "cache")
    cache.make()
    cache.image("key").write_bytes(b"image")
    entry = ImageEntry("key", str(cache.image("key")), "", "", "", "mine:v", "", "", "", "", 5)
    (form,) = chosen(["listing"], None)
    assert not store.is_kept(form, cache, "key")
    made = store.make(form, entry, cache, Silent())
    assert made.read_text() == "mine:v key\n" and made.with_suffix(".who").read_text() == "mine:v"
    assert store.is_kept(form, cache, "key")
    output = tmp_path / "images"
    output.mkdir()
    given = store.hand_out(form, entry, cache, output, Silent())
    assert given == output / "mine-v.txt" and given.read_bytes() == made.read_bytes()
    assert given.stat().st_ino != made.stat().st_ino
    assert {p.name for p in output.iterdir()} == {"mine-v.txt", "mine-v.who"}
    with pytest.raises(FairleadError, match="cannot write the image to /dev/fd/1"):
        store.hand_out(form, entry, cache, Path("/dev/fd/1"), Silent())
    images.forget(cache, "key")
    assert not any((cache.root / "images").glob("key.*"))


@pytest.mark.parametrize(
    ("module", "target", "why"),
    [
        ("import nothing_of_this_name", "listing_format:FORMAT", "ModuleNotFoundError"),
        ("FORMAT = 'listing'", "listing_format:FORMAT", "it is a str, not a Format"),
        (MODULE, "listing_format:OTHER", "AttributeError"),
    ],
)
def test_broken_format_of_another_package_is_named(
    plugin: Path, module: str, target: str, why: str
) -> None:
    package(plugin, module, target)
    with pytest.raises(FairleadError) as caught:
        chosen(["listing"], None)
    (finding,) = caught.value.findings
    assert "`listing` cannot be" in finding.what and why in finding.why


def test_formats_are_documented() -> None:
    docs = Path(__file__).parents[4] / "docs"
    rows = {line for page in docs.rglob("*.md") for line in page.read_text("utf-8").splitlines()}
    for name in FORMATS.names():
        assert any(row.startswith(f"| `{name}` | NAME.") for row in rows), name
