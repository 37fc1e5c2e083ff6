"""Keys that sign images, and trusted keys of others: ed25519, in OpenSSH's formats.

A private key is an OpenSSH file, encrypted with a passphrase that ``ssh-keygen -p`` changes. A
public key is one line, ``ssh-ed25519 BASE64``. Trusted keys are files in two folders, a file a key,
named by its identifier: the first 32 digits of the sha256 of its 32 bytes.

This is the only module that imports the library ``cryptography``, which has no reader of keys that rejects stray
characters or an excess of bcrypt rounds.
Read next: ``signature.py``, which says what is signed.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.base.errors import fail, os_error_as
from fairlead.base.exposure import exposed, open_to_others
from fairlead.base.paths import atomic_write, config_dir

SYSTEM_KEYS = Path("/etc/fairlead/keys")
SUFFIX = ".pub"
_KIND = "ssh-ed25519"
_BEFORE_POINT = b"\0\0\0\x0bssh-ed25519\0\0\0\x20"  # a public key's 32 bytes follow
_PRIVATE = ("-----BEGIN OPENSSH PRIVATE KEY-----", "-----END OPENSSH PRIVATE KEY-----")
_MAGIC = b"openssh-key-v1\0"
_MOST_BYTES = 16 << 10
_CIPHER = rb"aes(128|192|256)-(ctr|cbc|gcm@openssh\.com)"
# Rounds of bcrypt: what one guess at the passphrase costs, and what a damaged file may ask for.
_ROUNDS, _MOST_ROUNDS = 32, 1024


@dataclass(frozen=True)
class PublicKey:
    """A public key. ``raw`` is its 32 bytes, ``path`` the file it was read from."""

    raw: bytes
    path: str = ""

    @property
    def id(self) -> str:
        return hashlib.sha256(self.raw).hexdigest()[:32]

    @property
    def line(self) -> str:
        """The key as OpenSSH writes it."""
        return f"{_KIND} {base64.b64encode(_BEFORE_POINT + self.raw).decode()}\n"

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Whether ``signature`` was made over ``message`` with the private half of this key."""
        ed25519, _, exceptions = _library()
        try:
            ed25519.Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except (exceptions.InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True)
class PrivateKey:
    """A private key that was opened with its passphrase."""

    public: PublicKey
    secret: Any  # cryptography's Ed25519PrivateKey

    def sign(self, message: bytes) -> bytes:
        """64 bytes, the same for the same message (RFC 8032)."""
        return bytes(self.secret.sign(message))


def _library() -> tuple[Any, Any, Any]:
    """The library's ed25519, file formats and exceptions.

    Raises:
        FairleadError: it is not installed.
    """
    try:
        from cryptography import exceptions
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as exc:
        raise fail("sign-library", why=exc) from None
    return ed25519, serialization, exceptions


def _public(secret: Any, path: Path, formats: Any) -> PublicKey:
    raw = secret.public_key().public_bytes(formats.Encoding.Raw, formats.PublicFormat.Raw)
    return PublicKey(raw, str(path))


def default_key(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the user's own private key is."""
    return config_dir(environ) / "signing.key"


def public_file(private: Path) -> Path:
    """The path of the public half, next to the private key ``private``."""
    return private.with_name(private.name + SUFFIX)


def new_key(path: Path, passphrase: bytes) -> PublicKey:
    """Creates a key: the private half in ``path``, readable only by its owner, the public half next to it.

    Raises:
        FairleadError: one is there already, or it cannot be written.
    """
    ed25519, formats, exceptions = _library()
    check_new(path)
    secret = ed25519.Ed25519PrivateKey.generate()
    how = formats.PrivateFormat.OpenSSH.encryption_builder().kdf_rounds(_ROUNDS)
    try:
        text = secret.private_bytes(
            formats.Encoding.PEM, formats.PrivateFormat.OpenSSH, how.build(passphrase)
        )
    except exceptions.UnsupportedAlgorithm as exc:  # bcrypt is a separate package
        raise fail("sign-library", why=exc) from None
    public = _public(secret, public_file(path), formats)
    try:
        with atomic_write(path, permissions=0o600) as out:
            out.write(text)
        with atomic_write(public_file(path), "w") as out:
            out.write(public.line)
    except OSError as exc:
        for half in (path, public_file(path)):
            half.unlink(missing_ok=True)
        raise fail("key-unwritable-new", path=path, reason=exc.strerror or str(exc)) from None
    return public


def check_new(path: Path) -> None:
    """Raises: FairleadError, exit code 2: there is a key already, which is not replaced."""
    for file in (path, public_file(path)):
        if os.path.lexists(file):
            raise fail("key-exists", file=file)


def open_private(path: Path, passphrase: Callable[[], bytes]) -> PrivateKey:
    """The private key in ``path``.

    Args:
        passphrase: asked for once the file was found sound.
    Raises:
        FairleadError: it is missing, damaged, open to others, without a passphrase, or the
            passphrase is not its own.
    """
    raw = _content(path, "fairlead key new")
    if path.stat().st_mode & 0o077:
        raise fail("key-exposed-private", path=path, s_imode=stat.S_IMODE(path.stat().st_mode))
    encrypted, stored = _header(path, raw)
    if not encrypted:
        raise fail("key-passphrase-missing", path=path)
    _, formats, exceptions = _library()
    try:
        secret = formats.load_ssh_private_key(raw, passphrase())
        public = _public(secret, path, formats)
    except (ValueError, TypeError) as exc:
        raise fail("key-passphrase-wrong", path=path, reason=exc) from None
    except exceptions.UnsupportedAlgorithm as exc:
        raise fail("sign-library", why=exc) from None
    # The format has no checksum over the secret itself: what it gives must fit the public half.
    if public.raw != stored:
        raise fail("key-damaged-halves", path=path)
    return PrivateKey(public, secret)


def _header(path: Path, raw: bytes) -> tuple[bool, bytes]:
    """Whether an OpenSSH private key is encrypted, and its public half.

    The library says neither without the passphrase, and ignores stray characters: the file must have its one
    canonical form. Source: OpenSSH, PROTOCOL.key.
    """
    try:
        first, *body, last, end = raw.decode("ascii").split("\n")
        data = base64.b64decode("".join(body), validate=True)
        width = len(body[0])
        if (first, last, end) != (*_PRIVATE, "") or any(len(line) != width for line in body[:-1]):
            raise ValueError("it does not begin, end or break its lines as an OpenSSH key does")
        if not 0 < len(body[-1]) <= width or base64.b64encode(data).decode() != "".join(body):
            raise ValueError("its text is not as OpenSSH writes it")
        if not data.startswith(_MAGIC):
            raise ValueError("it is not of OpenSSH's format")
        cipher, rest = _string(data[len(_MAGIC) :])
        kdf, rest = _string(rest)
        options, rest = _string(rest)
        if (count := int.from_bytes(rest[:4])) != 1:
            raise ValueError(f"it holds {count} keys")
        point = _point(_string(rest[4:])[0])
        if kdf == b"none" and cipher == b"none":
            return False, point
        if kdf != b"bcrypt" or not re.fullmatch(_CIPHER, cipher):
            raise ValueError("it is encrypted in a way that OpenSSH does not use")
        _, rest = _string(options)
        if not 0 < (rounds := int.from_bytes(rest[:4])) <= _MOST_ROUNDS:
            raise ValueError(f"it asks for {rounds} rounds of bcrypt")
    except (ValueError, IndexError) as exc:
        raise fail("key-damaged-private", path=path, reason=exc) from None
    return True, point


def _string(data: bytes) -> tuple[bytes, bytes]:
    """The string that ``data`` begins with, behind its length (RFC 4251, section 5), and the rest."""
    end = 4 + int.from_bytes(data[:4])
    if len(data) < max(end, 4):
        raise ValueError("it is cut short")
    return data[4:end], data[end:]


def _point(blob: bytes) -> bytes:
    """The 32 bytes of a public key (RFC 8709, section 4)."""
    if not blob.startswith(_BEFORE_POINT) or len(blob) != len(_BEFORE_POINT) + 32:
        raise ValueError("it is not an ed25519 key")
    return blob[len(_BEFORE_POINT) :]


def read_public(path: Path) -> PublicKey:
    """The public key in ``path``: one line of OpenSSH's; a comment behind the key is allowed.

    Raises:
        FairleadError: exit code 2; it cannot be read, or is not an ed25519 public key.
    """
    raw = _content(path, "fairlead key list")
    try:
        kind, text, *_ = raw.decode("utf-8").split()
        data = base64.b64decode(text, validate=True)
        point = _point(data)
        if kind != _KIND:
            raise ValueError("it is not an ed25519 key")
        if base64.b64encode(data).decode() != text:
            raise ValueError("its text is not as OpenSSH writes it")
    except ValueError as exc:
        file = path.name.removesuffix(SUFFIX) + SUFFIX
        if raw.startswith(b"-----BEGIN"):
            raise fail("key-damaged-private-given", path=path, file=file) from None
        raise fail("key-damaged-public", path=path, file=file, reason=exc) from None
    return PublicKey(point, str(path))


def read_most(path: Path, most_bytes: int) -> bytes:
    """A regular file, or its first ``most_bytes`` + 1 bytes.

    Raises:
        OSError: it is missing, of another kind, or cannot be read.
    """
    if not path.is_file():
        raise FileNotFoundError(2, "there is no such file")
    with path.open("rb") as stream:
        return stream.read(most_bytes + 1)


def _content(path: Path, remedy: str) -> bytes:
    with os_error_as("key-unreadable", path=path, remedy=remedy):
        raw = read_most(path, _MOST_BYTES)
    if len(raw) > _MOST_BYTES:
        raise fail("key-damaged-too-large", path=path, most_bytes=_MOST_BYTES)
    return raw


def key_folders(environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Where trusted keys are: the user's own, the system's."""
    return config_dir(environ) / "keys", SYSTEM_KEYS


def trusted(environ: Mapping[str, str] = os.environ) -> dict[str, PublicKey]:
    """Every trusted key, by identifier.

    Raises:
        FairleadError: a key is damaged, or another user could have put it there.
    """
    keys: dict[str, PublicKey] = {}
    for folder in reversed(key_folders(environ)):
        for path in sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else ():
            for part, why in _exposed(path):
                raise fail("key-exposed-trusted-folder", part=part, why=why)
            key = read_public(path)
            if path.name != f"{key.id}{SUFFIX}" or path.read_bytes() != key.line.encode():
                raise fail("key-damaged-other-id", path=path, key_id=key.id)
            keys[key.id] = key
    return keys


def _exposed(path: Path) -> list[tuple[Path, str]]:
    """What others can write to of a key's file, its folder, and all through which they are found; and why."""
    with os_error_as("key-unreadable", path=path, remedy="fairlead key list"):
        own = [(part, why) for part in (path.parent, path) if (why := open_to_others(part))]
        return own + list(exposed(path, path.parent))


def trust(key: PublicKey, environ: Mapping[str, str] = os.environ) -> Path:
    """Adds ``key`` to the user's trusted ones.

    Raises:
        FairleadError: the folder cannot be written to.
    """
    path = key_folders(environ)[0] / f"{key.id}{SUFFIX}"
    with os_error_as("key-unwritable-trust", path=path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with atomic_write(path, "w", permissions=0o644) as out:
            out.write(key.line)
    return path


def find_trusted(beginning: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The file of the one trusted key whose identifier begins so.

    Files are not read, so a damaged key can be found, and removed, too.

    Raises:
        FairleadError: exit code 2; there is none, or there are several.
    """
    files = [p for f in key_folders(environ) if f.is_dir() for p in sorted(f.glob(f"*{SUFFIX}"))]
    matching = [p for p in files if beginning and p.name.startswith(beginning)]
    if (count := len(matching)) != 1:
        given: dict[str, Any] = {
            "beginning": beginning,
            "files_count": len(files),
            "found_count": count,
        }
        raise fail("key-unknown", no=count, s="s" if count else "", **given)
    return matching[0]


def distrust(path: Path) -> None:
    """Removes one file that :func:`find_trusted` found.

    Raises:
        FairleadError: it cannot be removed.
    """
    with os_error_as("key-unwritable-remove", path=path):
        path.unlink()
