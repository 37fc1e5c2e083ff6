"""Files that somebody made to do harm, or that a disk has damaged: a clear error or a right result.

Never another exception, and never a write: an audit hook sees every file that the interpreter opens
or moves while a hostile one is read. `make test` tries some hundreds, `make test-full` 10,000.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.signed import make_layout, make_sif

from fairlead.base.errors import FairleadError
from fairlead.cli.screen import finding_lines
from fairlead.image import signature
from fairlead.image.open import open_image
from fairlead.image.sif import DESCRIPTOR, HEADER, read_sif
from fairlead.site import layers
from fairlead_build.cache.store import Cache
from fairlead_build.formats.convert import read_configuration
from fairlead_build.formats.images import read_entry
from fairlead_build.formats.sif import write_sif
from fairlead_build.recipe.load import load_recipe
from fairlead_build.recipe.lock import load_lock
from fairlead_build.registry.layout import read_layout
from fairlead_build.tree.wheel import runtime_requirements

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted([*ROOT.glob("recipes/*/recipe.toml"), *ROOT.glob("*/recipes/*/recipe.toml")])
SEEDS = [path.read_bytes() for path in (*RECIPES, ROOT / "examples/my-recipe/recipe.toml")]
MANY = settings(max_examples=5_000)


# --- what is fed ---------------------------------------------------------------------------------

_WORDS = [
    *("[", "]]", "{", '"', "'''", "\\", "=", ".", "\n", "#", "\r", "\x00", "\x1b[2J", "\x7f"),
    *("9" * 400, "-0", "1e400", "nan", "-inf", "0x" + "f" * 40, "1979-05-27T07:32:00Z", "true"),
    *("../../etc/passwd", "/", "//", "\u202e", "\ufeff", "e\u0301" * 9, "\\ud800", "$(reboot)"),
    *("[" * 2000, "[a" + ".a" * 500 + "]\n", "{a=" * 500, "x" * 70_000, "é", "\U0010ffff"),
]


@st.composite
def damaged(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A real file with bytes of it changed, cut out, repeated, or others put in."""
    raw = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(raw)))
        end = min(len(raw), at + draw(st.integers(0, 40)))
        how = draw(st.sampled_from(["change", "cut", "repeat", "put"]))
        if how == "change":
            raw = raw[:at] + draw(st.binary(min_size=1, max_size=4)) + raw[at + 1 :]
        elif how == "cut":
            raw = raw[:at] + raw[end:]
        elif how == "repeat":
            raw = raw[:at] + raw[at:end] * draw(st.integers(2, 50)) + raw[end:]
        else:
            raw = raw[:at] + draw(st.sampled_from(_WORDS)).encode() + raw[at:]
    return raw


_KEYS = sorted(
    {"variant", "architecture", "extends", "recipe", "base", "mpi", "python", "packages", "source"}
    | {"files", "env", "labels", "image", "name", "suite", "family", "version", "apt", "pip"}
    | {"index", "without", "url", "sha256", "path", "patches", "build", "run", "amd64", "arm64"}
    | {"prefix", "floor", "compressor", "level", "deb", "wheel", "inputs", "tools", "size", "file"}
)
_TEXT = st.text(max_size=20) | st.sampled_from(_WORDS)
_SCALARS = (
    _TEXT
    | st.integers(-(1 << 80), 1 << 80)
    | st.floats()
    | st.booleans()
    | st.datetimes()
    | st.dates()
    | st.sampled_from(["mpich", "wheel", "apt", "bookworm", "debian", "1.2", "a" * 64, "3.11"])
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(_KEYS) | _TEXT, inner, max_size=4)
    ),
    max_leaves=12,
)


def toml(value: Any) -> str:
    """``value`` as TOML's inline text."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, str):
        return _quoted(value)
    return repr(value)


def _quoted(text: str) -> str:
    return json.dumps(text.encode("utf-8", "replace").decode()).replace("\x7f", "\\u007f")


@st.composite
def written(draw: st.DrawFn) -> bytes:
    """A TOML file of a recipe's or a lock's words, in no sensible order."""
    lines = []
    for key, value in draw(st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=8)).items():
        if isinstance(value, dict) and draw(st.booleans()):
            lines.append(draw(st.sampled_from(["[{}]", "[[{}]]", "[variant.{}]"])).format(key))
            lines += [f"{_quoted(k)} = {toml(v)}" for k, v in value.items()]
        else:
            lines.append(f"{key} = {toml(value)}")
    return "\n".join(lines).encode()


# --- what is watched -----------------------------------------------------------------------------

_seen: list[str] | None = None
_MOVES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _seen is None or "__pycache__" in str(
        arguments
    ):  # a module that is imported for the first time
        return
    if event == "open":
        path, mode, flags = arguments
        changes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if changes and not isinstance(
            path, int
        ):  # a descriptor, as of a pipe that a thread of pytest's has
            _seen.append(f"open {path} {mode}")
    elif event in _MOVES or event in ("subprocess.Popen", "socket.connect", "os.system"):
        _seen.append(f"{event} {arguments}")


sys.addaudithook(_audit)


@contextmanager
def touching_nothing(but: str = "\0") -> Iterator[None]:
    """Nothing outside ``but`` is written, moved, started or asked for in the block."""
    global _seen
    _seen = []
    try:
        yield
        assert [what for what in _seen if but not in what] == []
    finally:
        _seen = None


def judged(read: Callable[[], object], but: str = "\0") -> bool:
    """Whether ``read`` gave a result; if not, its error has all its parts."""
    with touching_nothing(but):
        try:
            read()
        except FairleadError as exc:
            assert exc.findings
            for finding in exc.findings:
                assert finding.what and finding.where and finding.remedy and finding.check
                shown = click.unstyle(finding_lines(finding))
                assert all(c.isprintable() or c in "\n\t\u00a0" for c in shown), shown
            return False
    return True


def test_write_while_a_file_is_read_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError), touching_nothing():
        (tmp_path / "x").write_bytes(b"")
    with pytest.raises(AssertionError), touching_nothing():
        (tmp_path / "x").rename(tmp_path / "y")
    with touching_nothing(but=str(tmp_path)):
        (tmp_path / "y").write_bytes(b"")


# --- recipes and locks ---------------------------------------------------------------------------


def hostile_recipe(folder: Path, raw: bytes) -> bool:
    (folder / "recipe.toml").write_bytes(raw)
    return judged(lambda: load_recipe(folder))


def hostile_lock(folder: Path, raw: bytes) -> bool:
    loaded = load_recipe(folder)
    loaded.lock_path.write_bytes(raw)
    return judged(lambda: load_lock(loaded, runtime_requirements()))


def _lock_seeds() -> list[bytes]:
    return [
        p.read_bytes()
        for p in (ROOT / "recipes/mpi-base/lock.toml", ROOT / "examples/my-recipe/lock.toml")
    ]


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A copy of mpi-base's folder."""
    return Path(shutil.copytree(ROOT / "recipes/mpi-base", tmp_path / "mine"))


@given(raw=damaged(SEEDS) | written())
def test_recipe_of_any_bytes_is_read_or_refused(mine: Path, raw: bytes) -> None:
    hostile_recipe(mine, raw)


@given(raw=damaged(_lock_seeds()) | written())
def test_lock_of_any_bytes_is_read_or_refused(mine: Path, raw: bytes) -> None:
    hostile_lock(mine, raw)


@pytest.mark.full
@pytest.mark.parametrize("what", ["recipe", "lock"])
def test_ten_thousand_recipes_and_locks_are_read_or_refused(
    mine: Path, what: str, record_property: Callable[[str, object], None]
) -> None:
    """5,000 of each."""
    counts = {True: 0, False: 0}
    seeds = SEEDS if what == "recipe" else _lock_seeds()
    feed = hostile_recipe if what == "recipe" else hostile_lock

    @MANY
    @given(raw=damaged(seeds) | written())
    def run(raw: bytes) -> None:
        counts[feed(mine, raw)] += 1

    run()
    record_property("files", sum(counts.values()))
    assert sum(counts.values()) >= 5_000 and counts[False] > 1_000


def test_recipe_that_leads_out_of_its_folder_reads_nothing_there(mine: Path) -> None:
    for path in ("../../../etc/passwd", "/etc/passwd", "link"):
        (mine / "link").unlink(missing_ok=True)
        (mine / "link").symlink_to("/etc/shadow")
        text = (ROOT / "recipes/mpi-base/recipe.toml").read_text()
        assert not hostile_recipe(mine, f'{text}\n[files]\n"/x" = "{path}"\n'.encode()), path


# --- profiles, images, layouts, signatures -------------------------------------------------------


@given(raw=damaged([p.read_bytes() for p in (ROOT / "sitecfg").glob("*.toml")]) | written())
def test_site_profile_of_any_bytes_is_read_or_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "site.toml"
    path.write_bytes(raw)
    judged(lambda: layers.load(path))


@given(data=st.data())
def test_sif_of_any_header_and_table_is_read_or_refused(
    tmp_path: Path, data: st.DataObject
) -> None:
    path = make_sif(tmp_path)
    raw = bytearray(path.read_bytes())
    table = 4096
    for _ in range(data.draw(st.integers(1, 6))):
        first = data.draw(st.sampled_from([0, table, table + DESCRIPTOR.size]))
        at = first + data.draw(st.integers(0, max(HEADER.size, 72)))
        put = data.draw(
            st.binary(min_size=1, max_size=8)
            | st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\x7f" + b"\xff" * 7])
        )
        raw[at : at + len(put)] = put
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw)) | st.just(len(raw)))])

    def read() -> None:
        sif = read_sif(path)
        sif.document("image.json")
        assert sif.squashfs.offset + sif.squashfs.size <= path.stat().st_size

    judged(read)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)
_RECORD_KEYS = ["facts", "env", "packages", "recipe", "fairlead_version", "tree_sha256", "mpi"]
_RECORD_KEYS += ["glibc_floor", "python", "frameworks", "base", "labels", "variant", "schema"]


@given(record=st.dictionaries(st.sampled_from(_RECORD_KEYS), _JSON, max_size=6) | _JSON)
def test_record_of_any_json_is_read_or_refused(tmp_path: Path, record: object) -> None:
    squashfs = tmp_path / "root.squashfs"
    squashfs.write_bytes(b"hsqs" + bytes(600))
    path = tmp_path / "app.sif"
    text = json.dumps(record).encode()
    write_sif(
        path, squashfs, ("image.json", text), arch="amd64", epoch=1, squashfs_sha256="ab" * 32
    )
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": ""}  # nothing can be started
    judged(lambda: open_image(str(path), cache), but=str(tmp_path / "cache"))


@given(data=st.data())
def test_layout_of_any_json_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "app.oci"
    shutil.rmtree(folder, ignore_errors=True)
    make_layout(folder)
    index = json.loads((folder / "index.json").read_text())
    digest = index["manifests"][0]["digest"].partition(":")[2]
    blob = folder / "blobs/sha256" / digest
    manifest = json.loads(blob.read_text())
    place = data.draw(
        st.sampled_from(["schemaVersion", "config", "layers", "mediaType", "annotations"])
    )
    manifest[place] = data.draw(_JSON)
    for item in (manifest["config"], *(manifest["layers"] or ())) if place == "annotations" else ():
        item[data.draw(st.sampled_from(["digest", "size", "mediaType"]))] = data.draw(
            _JSON | st.sampled_from(["sha256:../../../../etc/passwd", "sha256:" + "0" * 64, -1])
        )
    _replace(blob, index, json.dumps(manifest).encode(), folder)
    judged(lambda: read_configuration(folder, read_layout(folder)))


@given(config=st.dictionaries(_TEXT | st.sampled_from(["config", "rootfs", "created"]), _JSON))
def test_layout_of_any_configuration_is_read_or_refused(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    folder = tmp_path / "app.oci"
    shutil.rmtree(folder, ignore_errors=True)
    make_layout(folder)
    index = json.loads((folder / "index.json").read_text())
    blob = folder / "blobs/sha256" / index["manifests"][0]["digest"].partition(":")[2]
    manifest = json.loads(blob.read_text())
    raw = json.dumps(config).encode()
    digest = hashlib.sha256(raw).hexdigest()
    (folder / "blobs/sha256" / digest).write_bytes(raw)
    manifest["config"] |= {"digest": f"sha256:{digest}", "size": len(raw)}
    _replace(blob, index, json.dumps(manifest).encode(), folder)
    judged(lambda: read_configuration(folder, read_layout(folder)))


def _replace(blob: Path, index: dict[str, Any], raw: bytes, folder: Path) -> None:
    """``raw`` as the layout's manifest, under its digest."""
    digest = hashlib.sha256(raw).hexdigest()
    blob.unlink()
    (blob.parent / digest).write_bytes(raw)
    index["manifests"][0] |= {"digest": f"sha256:{digest}", "size": len(raw)}
    (folder / "index.json").write_text(json.dumps(index))


@given(raw=_JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=200))
def test_signature_of_any_bytes_is_read_or_refused(tmp_path: Path, raw: bytes) -> None:
    judged(lambda: signature.parse(raw, tmp_path / "app.sif.sig"))


@given(raw=_JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=200))
def test_index_of_images_of_any_bytes_names_no_image(tmp_path: Path, raw: bytes) -> None:
    cache = Cache(tmp_path)
    cache.make()
    cache.by_name("app").write_bytes(raw)
    assert read_entry(cache, "app") is None
