"""Layers merged as an engine unpacks them, and what no layer may do."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.base.errors import FairleadError
from fairlead_build.squashfs import oci_layers as layers_module
from fairlead_build.squashfs.oci_layers import LayerFile, read_files, read_layers, write_tar
from fairlead_build.squashfs.tree_stream import tar_members

Entry = tuple[str, str, bytes | str]  # kind, name, content or target


def member(kind: str, name: str, what: bytes | str = b"", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    kinds = {
        "file": tarfile.REGTYPE,
        "dir": tarfile.DIRTYPE,
        "link": tarfile.SYMTYPE,
        "hard": tarfile.LNKTYPE,
        "char": tarfile.CHRTYPE,
        "fifo": tarfile.FIFOTYPE,
    }
    info.type, info.mode, info.mtime = kinds[kind], 0o755 if kind == "dir" else mode, 1000
    if isinstance(what, bytes):
        info.size = len(what) if kind == "file" else 0
    else:
        info.linkname = what
    return info


def layer(folder: Path, name: str, *entries: Entry, pack: bool = True) -> LayerFile:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for kind, path, what in entries:
            info = member(kind, path, what)
            archive.addfile(info, io.BytesIO(what) if isinstance(what, bytes) else None)
    plain = buffer.getvalue()
    body = gzip.compress(plain, mtime=0) if pack else plain
    file = folder / name
    file.write_bytes(body)
    return LayerFile(file, sha(body), sha(plain))


def sha(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def merged(*files: LayerFile) -> dict[str, bytes | str]:
    """Names to content, ``-> target`` for symlinks, ``dir`` for folders."""
    out = io.BytesIO()
    write_tar(read_layers(files), out)
    out.seek(0)
    found: dict[str, bytes | str] = {}
    for info, content in tar_members(out):
        if info.islnk():
            found[info.name] = found[info.linkname.removeprefix("./")]
        elif content is not None:
            found[info.name] = content.read()
        else:
            found[info.name] = f"-> {info.linkname}" if info.issym() else "dir"
    return {name: what for name, what in found.items() if name != "."}


def refused(*files: LayerFile, check: str = "layer-hostile") -> str:
    with pytest.raises(FairleadError) as caught:
        read_layers(files)
    (finding,) = caught.value.findings
    assert finding.check == check
    assert finding.remedy
    return finding.why


def test_layers_upper_file_replaces_lower(tmp_path: Path) -> None:
    one = layer(tmp_path, "1", ("file", "a", b"old"), ("file", "b", b"kept"))
    two = layer(tmp_path, "2", ("file", "./a", b"new"))
    assert merged(one, two) == {"a": b"new", "b": b"kept"}


def test_layers_whiteout_hides_what_is_below_and_nothing_else(tmp_path: Path) -> None:
    one = layer(
        tmp_path,
        "1",
        ("dir", "d", ""),
        ("file", "d/x", b"1"),
        ("file", "d/y", b"2"),
        ("file", "f", b"3"),
    )
    two = layer(
        tmp_path, "2", ("file", "d/.wh.x", b""), ("file", ".wh.f", b""), ("file", ".wh.no", b"")
    )
    assert merged(one, two) == {"d": "dir", "d/y": b"2"}


@pytest.mark.parametrize("order", [0, 1])
def test_layers_opaque_folder_keeps_what_its_own_layer_brings(tmp_path: Path, order: int) -> None:
    one = layer(tmp_path, "1", ("dir", "d", ""), ("dir", "d/s", ""), ("file", "d/s/x", b"1"))
    entries: list[Entry] = [("file", "d/.wh..wh..opq", b""), ("file", "d/s/new", b"2")]
    two = layer(tmp_path, "2", *(entries if order else entries[::-1]))
    assert merged(one, two) == {"d": "dir", "d/s": "dir", "d/s/new": b"2"}


def test_layers_folder_replaced_by_file_loses_its_content(tmp_path: Path) -> None:
    one = layer(tmp_path, "1", ("dir", "d", ""), ("file", "d/x", b"1"))
    assert merged(one, layer(tmp_path, "2", ("file", "d", b"f"))) == {"d": b"f"}


def test_layers_path_through_symlink_stays_inside(tmp_path: Path) -> None:
    one = layer(
        tmp_path,
        "1",
        ("dir", "usr/lib", ""),
        ("link", "lib", "usr/lib"),
        ("link", "up", "../../../../etc"),
        ("link", "abs", "/usr"),
    )
    two = layer(
        tmp_path,
        "2",
        ("file", "lib/a", b"1"),
        ("file", "up/passwd", b"2"),
        ("file", "abs/lib/b", b"3"),
    )
    found = merged(one, two)
    assert found["usr/lib/a"] == b"1"
    assert found["etc/passwd"] == b"2"
    assert found["usr/lib/b"] == b"3"
    assert not any(".." in name for name in found)


def test_layers_hard_links_share_content_across_layers(tmp_path: Path) -> None:
    one = layer(tmp_path, "1", ("file", "a", b"same"))
    two = layer(tmp_path, "2", ("hard", "b", "a"), ("file", ".wh.a", b""))
    assert merged(one, two) == {"b": b"same"}


def test_layers_bookkeeping_of_aufs_is_left_out_and_what_its_links_lead_to_is_not(
    tmp_path: Path,
) -> None:
    # As Docker's own reader of layers does: moby/moby, pkg/archive/diff.go.
    one = layer(
        tmp_path,
        "1",
        ("dir", ".wh..wh.plnk", ""),
        ("file", ".wh..wh.plnk/123.4", b"linked"),
        ("hard", "a", ".wh..wh.plnk/123.4"),
        ("hard", "d/b", "/.wh..wh.plnk/123.4"),
        ("file", ".wh..wh.aufs", b""),
        ("dir", "d/.wh..wh.orph", ""),
        ("file", "d/.wh..wh.orph/x", b"unlinked"),
    )
    assert merged(one) == {"a": b"linked", "d": "dir", "d/b": b"linked"}


def test_layers_hard_link_to_a_file_below_dev_has_its_content(tmp_path: Path) -> None:
    entries: list[Entry] = [("file", "dev/x", b"1"), ("hard", "a", "dev/x")]
    assert merged(layer(tmp_path, "1", *entries)) == {"a": b"1"}


def test_layers_devices_below_dev_are_left_to_engines(tmp_path: Path) -> None:
    found = merged(
        layer(tmp_path, "1", ("dir", "dev", ""), ("char", "dev/null", ""), ("file", "a", b"1"))
    )
    assert found == {"dev": "dir", "a": b"1"}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (("file", "../evil", b"x"), "out of the image"),
        (("file", "a/../../evil", b"x"), "out of the image"),
        (("char", "sneaky", ""), "device node"),
        (("hard", "x", "/etc/shadow"), "not there"),
        (("hard", "x", "../../etc/shadow"), "out of the image"),
        (("file", "n" * 300, b"x"), "hold its name"),
        (("file", "/".join("d" * 250) + "/x", b"x"), "folders deep"),
        (("link", "x", "y" * 5000), "what it links to"),
    ],
)
def test_layers_hostile_member_is_refused(tmp_path: Path, entry: Entry, words: str) -> None:
    assert words in refused(layer(tmp_path, "1", entry))


def test_layers_symlinks_in_a_circle_are_refused(tmp_path: Path) -> None:
    found = layer(tmp_path, "1", ("link", "a", "b"), ("link", "b", "a"), ("file", "a/x", b"1"))
    assert "circle" in refused(found)


def test_layers_absolute_names_are_inside(tmp_path: Path) -> None:
    assert merged(layer(tmp_path, "1", ("file", "/etc/x", b"1"))) == {"etc": "dir", "etc/x": b"1"}


def test_layers_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers_module, "_FREE_BYTES", 1 << 20)
    bomb = layer(tmp_path, "1", ("file", "zeros", bytes(8 << 20)))
    assert "unpack to more" in refused(bomb, check="layer-bomb")


def test_layers_header_that_claims_gigabytes_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, 1 << 40
    path = tmp_path / "1"
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(4096))
    assert "claims" in refused(LayerFile(path), check="layer-damaged")


@pytest.mark.parametrize("cut", [100, 700, 1500])
def test_layers_cut_short_are_refused(tmp_path: Path, cut: int) -> None:
    whole = layer(tmp_path, "1", ("file", "a", b"x" * 2000), pack=False)
    whole.path.write_bytes(whole.path.read_bytes()[:cut])
    refused(LayerFile(whole.path), check="layer-damaged")


def test_layers_other_content_than_the_digest_is_refused(tmp_path: Path) -> None:
    found = layer(tmp_path, "1", ("file", "a", b"x"))
    why = refused(LayerFile(found.path, found.digest, "sha256:" + "0" * 64), check="layer-damaged")
    assert "the image records" in why
    refused(LayerFile(found.path, "sha256:" + "0" * 64, found.diff_id), check="layer-damaged")


def test_layers_single_files_are_read_through_symlinks(tmp_path: Path) -> None:
    one = layer(tmp_path, "1", ("link", "etc/os-release", "../usr/lib/os-release"))
    two = layer(tmp_path, "2", ("file", "usr/lib/os-release", b"ID=debian\n"))
    found = read_files(read_layers([one, two]), ["/etc/os-release", "no/such"])
    assert found == {"/etc/os-release": b"ID=debian\n"}


def test_layers_sorted_output_does_not_depend_on_order(tmp_path: Path) -> None:
    entries: list[Entry] = [("file", "b", b"2"), ("dir", "c", ""), ("file", "a", b"1")]
    outs = []
    for name, order in (("1", entries), ("2", entries[::-1])):
        out = io.BytesIO()
        found = read_layers([layer(tmp_path, name, *order, pack=False)])
        write_tar(found, out, epoch=5, in_order=True)
        outs.append(out.getvalue())
    assert outs[0] == outs[1]


NAMES = st.sampled_from(["a", "b", "c", ".wh.a", ".wh.b", ".wh..wh..opq", "..", ".", "dev"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
ENTRIES = st.tuples(
    st.sampled_from(["file", "dir", "link", "hard", "fifo", "char"]), PATHS, PATHS
).map(lambda e: (e[0], e[1], e[2].encode() if e[0] == "file" else e[2]))


@given(st.lists(st.lists(ENTRIES, max_size=8), min_size=1, max_size=3))
def test_layers_of_any_kind_are_refused_or_stay_inside(
    tmp_path: Path, stack: list[list[Entry]]
) -> None:
    files = [layer(tmp_path, str(n), *entries) for n, entries in enumerate(stack)]
    try:
        found = merged(*files)
    except FairleadError as exc:
        assert all(f.check.startswith("layer-") and f.remedy for f in exc.findings)
        return
    for name in found:
        assert not name.startswith("/")
        assert not {"..", ""} & set(name.split("/"))
        assert ".wh." not in name
        above = name.rpartition("/")[0]
        assert not above or found[above] == "dir"


@given(st.data())
def test_layers_with_flipped_bytes_are_refused_or_read(tmp_path: Path, data: st.DataObject) -> None:
    whole = layer(
        tmp_path,
        "w",
        ("dir", "d", ""),
        ("file", "d/f", b"x" * 700),
        ("link", "l", "d/f"),
        pack=False,
    )
    body = bytearray(whole.path.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    broken = tmp_path / "broken"
    broken.write_bytes(bytes(body))
    try:
        read_layers([LayerFile(broken)])
    except FairleadError as exc:
        assert all(f.check.startswith("layer-") for f in exc.findings)


@pytest.mark.parametrize(
    ("config", "offered"),
    [
        ({"architecture": "s390x"}, "linux/s390x"),
        ({"os": "windows"}, "windows/amd64"),
        ({"architecture": "x86_64"}, ""),
        ({"architecture": None, "os": ""}, ""),
    ],
)
def test_convert_image_of_another_system_is_refused_as_such(
    tmp_path: Path, config: dict[str, object], offered: str
) -> None:
    from fairlead_build.formats.convert import open_layout

    layout = tmp_path / "layout"
    write_layout(layout, layer(tmp_path, "1", ("file", "a", b"x")), edit=lambda c: c.update(config))
    if not offered:
        assert open_layout(layout)[0].architecture == "amd64"
        return
    with pytest.raises(FairleadError) as caught:
        open_layout(layout)
    (finding,) = caught.value.findings
    assert finding.check == "platform" and offered in finding.why


def write_layout(
    folder: Path, *files: LayerFile, edit: Callable[[dict[str, object]], None]
) -> None:
    """An OCI layout of these layers."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(body: bytes, kind: str) -> dict[str, object]:
        (blobs / hashlib.sha256(body).hexdigest()).write_bytes(body)
        return {"mediaType": kind, "digest": sha(body), "size": len(body)}

    config: dict[str, object] = {
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [f.diff_id for f in files]},
    }
    edit(config)
    output = [
        put(f.path.read_bytes(), "application/vnd.oci.image.layer.v1.tar+gzip") for f in files
    ]
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": put(json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json"),
        "layers": output,
    }
    item = put(json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [item]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


@pytest.mark.parametrize(
    "config",
    [
        {"rootfs": 7},
        {"rootfs": {"diff_ids": []}},
        {"config": {"Env": "PATH=/bin"}},
        {"config": {"Env": [7]}},
        {"config": {"Entrypoint": {"a": 1}}},
        {"config": {"Labels": {"a": 1}}},
        {"config": "x"},
        {"config": {"WorkingDir": ["/"]}},
    ],
)
def test_convert_unsound_configuration_is_reported(
    tmp_path: Path, config: dict[str, object]
) -> None:
    from fairlead_build.formats.convert import from_layout

    files = layer(tmp_path, "1", ("file", "a", b"x"))
    layout = tmp_path / "layout"
    write_layout(layout, files, edit=lambda c: c.update(config))
    with pytest.raises(FairleadError) as caught:
        from_layout(layout, tmp_path / "out.sif")
    assert caught.value.findings[0].check == "layout"
    assert not (tmp_path / "out.sif").exists()
