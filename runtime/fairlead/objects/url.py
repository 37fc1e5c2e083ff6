"""URLs of object stores, as the command line takes them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from fairlead.base.errors import fail

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# What signs a link: anyone who has it can use it, and command lines are seen by all users of a machine.
_SIGNED = re.compile(r"[?&](X-Amz-Signature|Signature|sig|X-Goog-Signature)=", re.IGNORECASE)


@dataclass(frozen=True)
class Url:
    """A place in a store.

    Attributes:
        bucket: of S3 and Google; the container of Azure; host and port of HTTP.
        key: without a leading slash; a trailing one says that it is a prefix.
        profile: of ``~/.aws``, with endpoint and credentials of this store: ``s3://PROFILE@BUCKET/PREFIX``.
    """

    scheme: str
    bucket: str
    key: str
    profile: str = ""

    def __str__(self) -> str:
        profile = f"{self.profile}@" if self.profile else ""
        return f"{self.scheme}://{profile}{self.bucket}/{self.key}"

    @property
    def name(self) -> str:
        """The last part of the key; the bucket's name without one."""
        return self.key.rstrip("/").rpartition("/")[2] or self.bucket

    def below(self, name: str) -> Url:
        """``name`` below this prefix."""
        return replace(self, key="/".join(filter(None, (self.key.rstrip("/"), name))))


def is_url(text: str) -> bool:
    """Whether ``text`` is meant as a URL; paths with ``://`` in them are not expected."""
    return bool(_URL.match(text))


def parse(text: str) -> Url:
    """The place that ``text`` names.

    Raises:
        FairleadError: exit code 2; it is a path, the bucket is missing, or the URL has a secret in it.
    """
    match = _URL.match(text)
    if match is None:
        raise fail("object-url-path", path=text)
    scheme = match[1].lower()
    split = urlsplit(text)
    if split.password is not None or _SIGNED.search(text):
        raise fail("object-url-secret", url=hidden(text))
    bucket, _, key = text[len(scheme) + 3 :].partition("/")
    profile = ""
    if scheme == "s3" and "@" in bucket:
        profile, _, bucket = bucket.rpartition("@")
    if not bucket or "\0" in text:
        raise fail("object-url-bucket", url=hidden(text), scheme=scheme)
    return Url(scheme, bucket, key, profile)


def split_name(text: str) -> tuple[str, str]:
    """``URL:NAME`` as URL and NAME, which is empty without one. A colon before the first slash belongs to the host."""
    scheme, _, rest = text.partition("://")
    host, slash, key = rest.partition("/")
    key, colon, name = key.rpartition(":")
    if not colon:
        return text, ""
    return f"{scheme}://{host}{slash}{key}", name


def hidden(text: str) -> str:
    """A URL without what may be secret in it, for messages."""
    text = re.sub(r"://[^/@]*:[^/@]*@", "://…@", text)
    return re.sub(r"\?.*", "?…", text, flags=re.DOTALL)
