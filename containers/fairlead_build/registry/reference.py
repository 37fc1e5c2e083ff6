"""References to images in registries: ``docker://HOST[:PORT]/REPOSITORY[:TAG][@sha256:…]``.

Source: OCI distribution specification 1.1, "Pulling manifests" (names and tags); the short names of
Docker Hub are those of github.com/distribution/reference.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace

from fairlead.base.errors import FairleadError, fail

SCHEMES = ("docker", "oras")
HUB = "docker.io"

_HOST = re.compile(
    r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*"
    r"|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?"
)
_NAME = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST_NAME = 255


@dataclass(frozen=True)
class Reference:
    """Where an image is.

    Attributes:
        scheme: ``docker``, or ``oras`` for a SIF that was pushed as such.
        host: as the user wrote it, with the port; ``docker.io`` when none was given.
        tag: empty when only a digest was given.
        digest: ``sha256:…``, or empty.
    """

    scheme: str
    host: str
    repository: str
    tag: str
    digest: str = ""

    @property
    def wanted(self) -> str:
        """What a registry is asked for: the digest if there is one, for a tag may have moved."""
        return self.digest or self.tag

    @property
    def server(self) -> str:
        """The host that serves it; only Docker Hub's has another name."""
        return "registry-1.docker.io" if self.host == HUB else self.host

    def at(self, digest: str) -> Reference:
        """The same repository's image of this digest."""
        return replace(self, tag="", digest=digest)

    def tagged(self, tag: str) -> Reference:
        return replace(self, tag=tag, digest="")

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.scheme}://{self.host}/{self.repository}{tag}{digest}"


def is_reference(text: str) -> bool:
    """Whether ``text`` begins as a reference does; it may still be a wrong one."""
    return text.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


def is_digest(text: object) -> bool:
    """Whether ``text`` is a digest that fairlead can check."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def parse_reference(text: str) -> Reference:
    """The parts of ``text``; without a tag and a digest, the tag is ``latest``.

    Raises:
        FairleadError: exit code 2; it is not a reference. A password in it is not repeated.

    >>> str(parse_reference("docker://alpine"))
    'docker://docker.io/library/alpine:latest'
    """
    scheme, mark, rest = text.partition("://")
    if not mark or scheme not in SCHEMES:
        raise _wrong(text, "it begins with neither docker:// nor oras://")
    if "@" in rest and not rest.rpartition("@")[2].startswith("sha"):
        raise fail("reference-with-login")
    rest, at, digest = rest.partition("@")
    if at and not is_digest(digest):
        raise _wrong(text, "what follows `@` is not sha256: and 64 hexadecimal digits")
    name, tag = rest, ""
    if ":" in rest.rsplit("/", 1)[-1]:
        name, _, tag = rest.rpartition(":")
        if not _TAG.fullmatch(tag):
            raise _wrong(text, "a tag has at most 128 letters, digits, `_`, `.` and `-`")
    first, slash, others = name.partition("/")
    host, repository = (first, others) if slash and _is_host(first) else (HUB, name)
    if host in ("index.docker.io", "registry-1.docker.io"):
        host = HUB
    if host == HUB and "/" not in repository:
        repository = f"library/{repository}"
    if not _HOST.fullmatch(host):
        raise _wrong(text, f"`{host}` is not a host name")
    parts = repository.split("/")
    if len(repository) > _LONGEST_NAME or not all(_NAME.fullmatch(part) for part in parts):
        raise _wrong(
            text,
            "a repository is of small letters and digits, `.`, `_` or `-` between them, "
            f"`/` between its parts, {_LONGEST_NAME} characters at most",
        )
    return Reference(scheme, host, repository, tag or ("" if digest else "latest"), digest)


def _is_host(first: str) -> bool:
    return first == "localhost" or "." in first or ":" in first


def _wrong(text: str, why: str) -> FairleadError:
    example = "registry.example.org/ml/mpi-base:1"
    host, slash, _ = text.partition("/")
    if slash and "://" not in text and _is_host(host) and _HOST.fullmatch(host):
        with suppress(FairleadError):  # it is only the scheme that was left out
            example = str(parse_reference(f"docker://{text}")).partition("://")[2]
    shown = text if text.isprintable() and len(text) < 300 else ascii(text[:60])
    return fail("reference-not-image-registry", shown=shown, why=why, example=example)
