"""Signatures over images and the keys that make them; a changed byte anywhere is found."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.signed import DOCUMENT, PASSPHRASE, kept_key, make_layout, make_sif

from fairlead.base.errors import FairleadError
from fairlead.image import keys, signature
from fairlead.image.keys import PrivateKey, PublicKey
from fairlead.image.sif import read_sif


@pytest.fixture(scope="module")
def key() -> PrivateKey:
    return keys.open_private(kept_key(), lambda: PASSPHRASE)


@pytest.fixture(scope="module")
def accepted(key: PrivateKey) -> Mapping[str, PublicKey]:
    return {key.public.id: key.public}


def refused(image: Path, accepted: Mapping[str, PublicKey]) -> str:
    """The name under which ``image`` is refused."""
    with pytest.raises(FairleadError) as caught:
        signature.verify(image, accepted)
    finding = caught.value.findings[0]
    assert finding.where and finding.why and finding.remedy
    return finding.check


def flipped(raw: bytes, position: int, change: int) -> bytes:
    position %= len(raw)
    return raw[:position] + bytes([raw[position] ^ change]) + raw[position + 1 :]


def test_key_file_is_encrypted_for_its_owner_and_opens(tmp_path: Path) -> None:
    path = tmp_path / "keys/my.key"
    before = os.umask(0o002)
    try:
        public = keys.new_key(path, PASSPHRASE)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert b"aes256-ctr" in base64.b64decode("".join(path.read_text().split("\n")[1:-2]))
    assert keys.read_public(tmp_path / "keys/my.key.pub").raw == public.raw
    opened = keys.open_private(path, lambda: PASSPHRASE)
    assert opened.public.id == public.id and len(public.id) == 32
    assert public.verifies(opened.sign(b"x"), b"x") and not public.verifies(opened.sign(b"x"), b"y")


def test_key_made_by_ssh_keygen_signs_too(tmp_path: Path) -> None:
    path = tmp_path / "id"
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", PASSPHRASE.decode(), "-f", path]
    try:
        subprocess.run(argv, check=True)
    except FileNotFoundError:
        pytest.skip("no ssh-keygen here")
    opened = keys.open_private(path, lambda: PASSPHRASE)
    public = keys.read_public(keys.public_file(path))
    assert public.raw == opened.public.raw and public.verifies(opened.sign(b"x"), b"x")


def test_key_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "my.key"
    path.with_name("my.key.pub").write_text("somebody's")
    with pytest.raises(FairleadError) as caught:
        keys.new_key(path, PASSPHRASE)
    assert caught.value.findings[0].check == "key-exists" and not path.exists()


@pytest.mark.parametrize(
    ("mode", "passphrase", "check"),
    [(0o640, PASSPHRASE, "key-exposed"), (0o600, b"another", "key-passphrase")],
)
def test_private_key_that_is_open_or_not_opened_is_refused(
    tmp_path: Path, mode: int, passphrase: bytes, check: str
) -> None:
    path = tmp_path / "my.key"
    path.write_bytes(kept_key().read_bytes())
    path.chmod(mode)
    with pytest.raises(FairleadError) as caught:
        keys.open_private(path, lambda: passphrase)
    assert caught.value.findings[0].check == check


@given(position=st.integers(0, 10_000), change=st.integers(1, 255))
def test_private_key_with_a_changed_byte_is_refused(
    tmp_path: Path, position: int, change: int
) -> None:
    path = tmp_path / "my.key"
    path.write_bytes(flipped(kept_key().read_bytes(), position, change))
    path.chmod(0o600)
    with pytest.raises(FairleadError) as caught:
        keys.open_private(path, lambda: PASSPHRASE)
    assert caught.value.findings[0].check in ("key-damaged", "key-passphrase")


def test_private_key_whose_secret_was_exchanged_is_refused(tmp_path: Path) -> None:
    """AES in counter mode: whoever flips a bit of the file flips that bit of the secret."""
    lines = kept_key().read_text().split("\n")
    data = bytearray(base64.b64decode("".join(lines[1:-2])))
    # The encrypted part ends with: point, secret and point, comment, padding. The secret's bytes
    # begin 2 * 4 + 64 + ... from the end; each of a stretch that surely meets it is tried.
    found = set()
    for back in range(80, 112, 8):
        changed = bytearray(data)
        changed[-back] ^= 1
        text = base64.b64encode(changed).decode()
        width = len(lines[1])
        body = [text[i : i + width] for i in range(0, len(text), width)]
        path = tmp_path / "my.key"
        path.write_text("\n".join([lines[0], *body, lines[-2], ""]))
        path.chmod(0o600)
        with pytest.raises(FairleadError) as caught:
            keys.open_private(path, lambda: PASSPHRASE)
        found.add(caught.value.findings[0].why)
    assert "its secret half does not match its public half" in found


def test_private_key_that_asks_for_endless_work_is_refused(tmp_path: Path) -> None:
    lines = kept_key().read_text().split("\n")
    data = base64.b64decode("".join(lines[1:-2]))
    salt = data.index(b"bcrypt") + 6 + 4 + 4  # lengths of the options and of the salt
    at = salt + 16
    assert int.from_bytes(data[at : at + 4], "big") <= 64
    changed = data[:at] + b"\x7f\xff\xff\xff" + data[at + 4 :]
    text, width = base64.b64encode(changed).decode(), len(lines[1])
    body = [text[i : i + width] for i in range(0, len(text), width)]
    path = tmp_path / "my.key"
    path.write_text("\n".join([lines[0], *body, lines[-2], ""]))
    path.chmod(0o600)
    with pytest.raises(FairleadError, match="damaged"):
        keys.open_private(path, lambda: PASSPHRASE)


def test_trusted_key_is_kept_listed_and_removed(tmp_path: Path, key: PrivateKey) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert key.public.id not in keys.trusted(environ)
    path = keys.trust(key.public, environ)
    assert keys.trusted(environ)[key.public.id].raw == key.public.raw
    assert keys.find_trusted(key.public.id[:6], environ) == path
    keys.distrust(path)
    with pytest.raises(FairleadError, match="no trusted key"):
        keys.find_trusted(key.public.id, environ)


def test_removed_key_ends_trust_at_once_for_every_image_it_signed(
    tmp_path: Path, key: PrivateKey
) -> None:
    """Keys do not expire, however old; nothing of an earlier check is kept."""
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    image = make_sif(tmp_path)
    signature.sign(image, key, now=lambda: 1.0)  # in 1970
    path = keys.trust(key.public, environ)
    assert signature.verify(image, keys.trusted(environ)).statement.created.startswith("1970")
    keys.distrust(path)
    assert refused(image, keys.trusted(environ)) == "signature-untrusted"
    keys.trust(key.public, environ)
    assert signature.verify(image, keys.trusted(environ))


@given(position=st.integers(0, 10_000), change=st.integers(1, 255))
def test_trusted_key_with_a_changed_byte_is_refused(
    tmp_path: Path, key: PrivateKey, position: int, change: int
) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    path = keys.trust(key.public, environ)
    path.write_bytes(flipped(path.read_bytes(), position, change))
    with pytest.raises(FairleadError) as caught:
        keys.trusted(environ)
    assert caught.value.findings[0].check == "key-damaged"


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_trusted_keys_where_others_may_write_are_refused(
    tmp_path: Path, key: PrivateKey, mode: int
) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    keys.trust(key.public, environ).parent.chmod(mode)
    with pytest.raises(FairleadError, match="other users can change"):
        keys.trusted(environ)


@pytest.mark.parametrize("part", [".", "behind", "keys"])
def test_trusted_keys_that_others_may_replace_by_a_folder_on_the_way_are_refused(
    tmp_path: Path, key: PrivateKey, part: str
) -> None:
    real, config = tmp_path / "behind/config", tmp_path / "home/config"
    real.mkdir(parents=True)
    config.parent.mkdir()
    config.symlink_to(real)
    environ = {"XDG_CONFIG_HOME": str(config)}
    file = keys.trust(key.public, environ)
    assert list(keys.trusted(environ)) == [key.public.id]
    exposed = tmp_path / part
    if part == "keys":  # a key's file is a link
        exposed.mkdir()
        file.rename(exposed / file.name)
        file.symlink_to(exposed / file.name)
    exposed.chmod(0o777)
    try:
        with pytest.raises(FairleadError) as caught:
            keys.trusted(environ)
    finally:
        exposed.chmod(0o700)
    [finding] = caught.value.findings
    assert finding.check == "key-exposed" and finding.where == str(exposed)


def test_signature_of_a_sif_holds_and_says_what_is_inside(
    tmp_path: Path, key: PrivateKey, accepted: Mapping[str, PublicKey]
) -> None:
    image = make_sif(tmp_path)
    output = signature.sign(image, key, now=lambda: 1_800_000_000.0)
    assert output.created == "2027-01-15T08:00:00Z" and output.format == "sif"
    assert output.squashfs_sha256 == json.loads(DOCUMENT)["squashfs_sha256"]
    assert output.tree_sha256 == json.loads(DOCUMENT)["tree_sha256"]
    verified = signature.verify(image, accepted)
    assert verified.statement == output and verified.key == key.public.id
    moved = image.rename(tmp_path / "moved.sif")
    signature.signature_file(image).rename(signature.signature_file(moved))
    assert signature.verify(moved, accepted).statement == output


def test_signature_of_an_image_that_contradicts_its_record_is_not_made(
    tmp_path: Path, key: PrivateKey
) -> None:
    image = make_sif(tmp_path)
    raw = bytearray(image.read_bytes())
    raw[read_sif(image).squashfs.offset] ^= 1
    image.write_bytes(raw)
    with pytest.raises(FairleadError, match="damaged"):
        signature.sign(image, key)
    assert not signature.signature_file(image).exists()


@given(position=st.integers(0, 1 << 20), change=st.integers(1, 255))
def test_image_with_a_changed_byte_is_refused(
    tmp_path: Path,
    key: PrivateKey,
    accepted: Mapping[str, PublicKey],
    position: int,
    change: int,
) -> None:
    image = make_sif(tmp_path)
    if not signature.signature_file(image).exists():
        signature.sign(image, key)
    image.write_bytes(flipped(image.read_bytes(), position, change))
    with pytest.raises(FairleadError) as caught:
        signature.verify(image, accepted)
    name = caught.value.findings[0].check
    assert name in ("signature-mismatch", "image-digest", "image-format") or name.startswith("sif-")


@given(position=st.integers(0, 10_000), change=st.integers(1, 255))
def test_signature_file_with_a_changed_byte_is_refused(
    tmp_path: Path,
    key: PrivateKey,
    accepted: Mapping[str, PublicKey],
    position: int,
    change: int,
) -> None:
    image = make_sif(tmp_path)
    signature.sign(image, key)
    file = signature.signature_file(image)
    file.write_bytes(flipped(file.read_bytes(), position, change))
    assert refused(image, accepted) in (
        "signature-damaged",
        "signature-bad",
        "signature-untrusted",
        "signature-mismatch",
    )


def test_image_without_signature_or_of_a_strange_key_is_refused(
    tmp_path: Path, key: PrivateKey, accepted: Mapping[str, PublicKey]
) -> None:
    image = make_sif(tmp_path)
    assert refused(image, accepted) == "signature-missing"
    signature.sign(image, key)
    assert refused(image, {}) == "signature-untrusted"
    impostor = replace(key.public, raw=bytes(32))
    assert refused(image, {key.public.id: impostor}) == "signature-bad"
    with image.open("ab") as out:
        out.write(b"\0")
    assert refused(image, accepted) == "signature-mismatch"


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[" * 100_000, b'{"schema": "fairlead/signature", "version": 2}', b"\xff\xfe"],
)
def test_signature_file_of_nonsense_is_called_damaged(
    tmp_path: Path, accepted: Mapping[str, PublicKey], text: bytes
) -> None:
    image = make_sif(tmp_path)
    signature.signature_file(image).write_bytes(text)
    assert refused(image, accepted) == "signature-damaged"


def test_signature_is_not_one_for_another_purpose(
    tmp_path: Path, key: PrivateKey, accepted: Mapping[str, PublicKey]
) -> None:
    image = make_sif(tmp_path)
    output = signature.sign(image, key)
    plain = output.message.partition(b"\0")[2]  # what is said, without what it is said as
    signature.signature_file(image).write_bytes(signature.render(output, key.sign(plain)))
    assert refused(image, accepted) == "signature-bad"


def test_shifter_pair_is_signed_as_a_pair(
    tmp_path: Path, key: PrivateKey, accepted: Mapping[str, PublicKey]
) -> None:
    image, meta = tmp_path / "1.0-id.squashfs", tmp_path / "1.0-id.meta"
    image.write_bytes(b"hsqs" + bytes(3000))
    assert signature.sign(image, key).format == "squashfs"
    meta.write_text("FORMAT: squashfs\nENV: A=1\n")
    assert refused(image, accepted) == "signature-mismatch"
    output = signature.sign(image, key)
    assert output.format == "shifter" and [f.name for f in output.files] == ["image", "meta"]
    assert signature.verify(image, accepted).statement == output
    meta.write_text("FORMAT: squashfs\nENV: A=2\n")
    assert refused(image, accepted) == "signature-mismatch"
    meta.unlink()
    assert refused(image, accepted) == "signature-mismatch"


def test_oci_layout_is_signed_with_every_blob(
    tmp_path: Path, key: PrivateKey, accepted: Mapping[str, PublicKey]
) -> None:
    folder = make_layout(tmp_path / "app.oci")
    output = signature.sign(folder, key)
    assert signature.signature_file(folder) == tmp_path / "app.oci.sig"
    assert {f.name.split("/")[0] for f in output.files} == {"blobs", "index.json", "oci-layout"}
    assert signature.verify(folder, accepted).statement == output
    blob = next(p for p in folder.glob("blobs/sha256/*") if p.stat().st_size > 100)
    raw = blob.read_bytes()
    blob.write_bytes(flipped(raw, 77, 4))
    assert refused(folder, accepted) == "image-digest"
    blob.write_bytes(raw)
    (folder / "extra").write_bytes(b"")
    assert refused(folder, accepted) == "signature-mismatch"
    (folder / "extra").unlink()
    (folder / "index.json").write_bytes(flipped((folder / "index.json").read_bytes(), 3, 1))
    assert refused(folder, accepted) == "signature-mismatch"


def test_oci_layout_with_a_link_is_refused(tmp_path: Path, key: PrivateKey) -> None:
    folder = make_layout(tmp_path / "app.oci")
    (folder / "blobs/sha256/link").symlink_to("/etc/passwd")
    with pytest.raises(FairleadError, match="not a valid OCI layout"):
        signature.sign(folder, key)


def test_sandbox_is_refused_with_its_reason(tmp_path: Path, key: PrivateKey) -> None:
    (tmp_path / "root/bin").mkdir(parents=True)
    with pytest.raises(FairleadError, match="is a folder") as caught:
        signature.sign(tmp_path / "root", key)
    assert "change while it runs" in caught.value.findings[0].why


def _rewrite(image: Path) -> None:
    image.write_bytes(image.read_bytes())


def _replace(image: Path) -> None:
    copy = image.with_name("copy")
    copy.write_bytes(image.read_bytes())
    copy.replace(image)


def _swap_and_swap_back(image: Path) -> None:
    kept = image.rename(image.with_name("kept"))
    image.write_bytes(b"other")
    kept.replace(image)


@pytest.mark.parametrize("change", [_rewrite, _replace, _swap_and_swap_back, Path.unlink])
def test_image_changed_after_its_check_is_reported(  # type: ignore[no-untyped-def]
    tmp_path: Path, key: PrivateKey, accepted: Mapping[str, PublicKey], change
) -> None:
    image = make_sif(tmp_path)
    signature.sign(image, key)
    verified = signature.verify(image, accepted)
    signature.unchanged(verified)
    change(image)
    with pytest.raises(FairleadError) as caught:
        signature.unchanged(verified)
    assert caught.value.findings[0].check == "signature-changed"


def test_image_that_others_may_replace_is_warned_of(
    tmp_path: Path, key: PrivateKey, accepted: Mapping[str, PublicKey]
) -> None:
    (tmp_path / "deep").mkdir()
    image = make_sif(tmp_path / "deep")
    signature.sign(image, key)
    verified = signature.verify(image, accepted)
    assert signature.exposed(verified) is None
    (tmp_path / "deep").chmod(0o775)
    output = signature.exposed(verified)
    assert (
        output is not None
        and output.severity == "warning"
        and output.where == str(tmp_path / "deep")
    )


def test_signature_goes_with_a_copy_and_a_stale_one_goes(tmp_path: Path, key: PrivateKey) -> None:
    image = make_sif(tmp_path)
    signature.sign(image, key)
    copy = tmp_path / "copy.sif"
    copy.write_bytes(image.read_bytes())
    signature.carry(image, copy)
    assert signature.verify(copy, {key.public.id: key.public})
    signature.signature_file(image).unlink()
    signature.carry(image, copy)
    assert not signature.signature_file(copy).exists()
