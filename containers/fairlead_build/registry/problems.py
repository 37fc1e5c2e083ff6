"""What a registry's refusal or silence means: one error for each cause."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

import requests

from fairlead.base import bounded_json
from fairlead.base.errors import FairleadError, fail

_LONGEST = 300


def plain(text: str, secrets: tuple[str, ...] = ()) -> str:
    """Foreign text made fit for a terminal: one line, short, printable, without secrets."""
    for secret in secrets:
        text = text.replace(secret, "***")
    line = "".join(c if c.isprintable() else " " for c in text)
    line = " ".join(line.split())
    return line if len(line) <= _LONGEST else line[:_LONGEST] + "…"


def server_message(body: bytes, secrets: tuple[str, ...]) -> str:
    """The registry's message in an error's body; empty when there is none.

    Source: OCI distribution specification 1.1, "Error codes".
    """
    try:
        errors = bounded_json.loads(body)["errors"]
        words = [f"{item.get('code', '')}: {item.get('message', '')}" for item in errors[:3]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""
    return plain("; ".join(words), secrets)


def refused(
    status: int, words: str, *, host: str, where: str, doing: str, login: str
) -> FairleadError:
    """The error of an answer with ``status``, which is 4xx or 5xx.

    Args:
        words: the registry's own, "" for none.
        login: whose credentials were sent, "" for none.
    """
    detail = f" ({words})" if words else ""
    given: dict[str, Any] = {"host": host, "where": where, "detail": detail}
    if status == 401:
        return fail(
            "registry-login-does-not-accept-credentials" if login else "registry-login-requires",
            **given,
            doing=doing,
            login=login,
        )
    if status == 403:
        return fail("registry-denied", doing=doing, login=login, **given)
    if status == 404:
        pushing = doing == "push images"
        return fail("registry-missing-repository" if pushing else "registry-missing", **given)
    if status == 429:
        return fail("registry-busy", **given)
    if status >= 500:
        return fail("registry-failing", status=status, **given)
    return fail("registry-answer", **given, why=f"to {doing}, it answered {status}{detail}")


def no_connection(exc: Exception, host: str, where: str) -> FairleadError:
    """The error of a connection that could not be made."""
    chain = list(_causes(exc))
    names = {type(link).__name__ for link in chain}
    if refusal := _certificate_refused(exc):
        why = plain(refusal.verify_message or str(refusal))
        return fail("registry-certificate-not-trusted", host=host, where=where, why=why)
    if speaks_no_tls(exc):
        return fail("registry-plain-http", host=host, where=where)
    if "NameResolutionError" in names or "gaierror" in names:
        return fail("registry-name", host=host.rsplit(":", 1)[0], where=where)
    if isinstance(exc, requests.exceptions.ProxyError):
        return fail("registry-unreachable-proxy", host=host, where=where)
    if isinstance(exc, requests.exceptions.Timeout):
        return fail("registry-unreachable-timeout", host=host, where=where)
    if "ConnectionRefusedError" in names:
        return fail("registry-unreachable-refused", host=host, where=where)
    # The outer message holds the URL, and a signed URL is a secret.
    kind = type(chain[-1]).__name__
    return fail("registry-unreachable-connection-broke", host=host, where=where, type=kind)


def _certificate_refused(exc: Exception) -> ssl.SSLCertVerificationError | None:
    return next((e for e in _causes(exc) if isinstance(e, ssl.SSLCertVerificationError)), None)


def speaks_no_tls(exc: Exception) -> bool:
    """Whether a TLS connection failed because the other side spoke something else."""
    return not _certificate_refused(exc) and any(
        isinstance(link, ssl.SSLError)
        and (link.reason or "") in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
        for link in _causes(exc)
    )


def _causes(exc: BaseException) -> Iterator[BaseException]:
    """``exc`` and what stands behind it; requests and urllib3 wrap in several manners."""
    visited: set[int] = set()
    todo: list[BaseException] = [exc]
    while todo:
        link = todo.pop(0)
        if id(link) in visited:
            continue
        visited.add(id(link))
        yield link
        behind = [link.__cause__, link.__context__, getattr(link, "reason", None), *link.args]
        todo += [item for item in behind if isinstance(item, BaseException)]
