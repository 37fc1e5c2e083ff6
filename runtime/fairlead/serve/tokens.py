"""The clients: each has a token, of which only the digest is kept."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from fairlead.base import bounded_json
from fairlead.base.errors import fail
from fairlead.base.paths import atomic_write, locked
from fairlead.base.serde import from_json, to_json

FILE = "tokens.json"
_PREFIX = "fairlead_"
_NAME = re.compile(r"[A-Za-z0-9][\w.@-]{0,63}")


@dataclass(frozen=True)
class Token:
    """A client.

    Attributes:
        name: by which its runs are known.
        sha256: of the token's text.
        submits: whether it may start and cancel runs.
        expires: seconds since 1970; 0 for never.
    """

    name: str
    sha256: str
    submits: bool
    created: float
    expires: float

    @property
    def valid(self) -> bool:
        """Whether it has not expired."""
        return not self.expires or time.time() < self.expires


def new(folder: Path, name: str, submits: bool, days: float) -> tuple[Token, str]:
    """A new client and its token, which cannot be shown again.

    Args:
        days: until it expires; 0 for never.
    Raises:
        FairleadError: exit code 2; the name is taken, or has other characters than a name may have.
    """
    if not _NAME.fullmatch(name):
        raise fail("serve-token-name", name=name)
    text = _PREFIX + secrets.token_urlsafe(32)
    now = time.time()
    token = Token(name, _digest(text), submits, now, now + days * 86400 if days else 0.0)
    with locked(folder / f".{FILE}.lock"):
        tokens = read(folder)
        if any(existing.name == name for existing in tokens):
            raise fail("serve-token-exists", name=name)
        _write(folder, [*tokens, token])
    return token, text


def remove(folder: Path, name: str) -> None:
    """Takes a client's token away, at once.

    Raises:
        FairleadError: exit code 2; there is none of that name.
    """
    with locked(folder / f".{FILE}.lock"):
        tokens = read(folder)
        left = [token for token in tokens if token.name != name]
        if len(left) == len(tokens):
            raise fail(
                "serve-token-none", name=name, names=", ".join(t.name for t in tokens) or "none"
            )
        _write(folder, left)


def read(folder: Path) -> list[Token]:
    """All clients.

    Raises:
        FairleadError: exit code 2; the file is damaged.
    """
    path = folder / FILE
    try:
        data = bounded_json.loads(path.read_bytes())
        return [from_json(Token, item) for item in data["tokens"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, LookupError, TypeError) as exc:
        raise fail("serve-tokens-damaged", path=path, reason=exc) from None


def find(folder: Path, text: str) -> Token | None:
    """The client whose token it is; None if it is nobody's, or has expired."""
    digest = _digest(text)
    return next(
        (t for t in read(folder) if secrets.compare_digest(t.sha256, digest) and t.valid), None
    )


def _digest(text: str) -> str:
    # A token has 256 random bits: a slow hash would protect it no better.
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _write(folder: Path, tokens: list[Token]) -> None:
    with atomic_write(folder / FILE, "w", permissions=0o600) as stream:
        json.dump({"tokens": to_json(tokens)}, stream, indent=1)
