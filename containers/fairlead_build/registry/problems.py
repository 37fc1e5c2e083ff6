"""What a registry's refusal or silence means: one error for each cause."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator

import requests

from fairlead.base.errors import FairleadError, fail

_LONGEST = 300


def plain(text: str, secrets: tuple[str, ...] = ()) -> str:
    """Foreign text made fit for a terminal: one line, short, printable, without secrets."""
    for secret in secrets:
        text = text.replace(secret, "***")
    line = "".join(c if c.isprintable() else " " for c in text)
    line = " ".join(line.split())
    return line if len(line) <= _LONGEST else line[:_LONGEST] + "…"


def said(body: bytes, secrets: tuple[str, ...]) -> str:
    """The registry's message in an error's body; empty when there is none.

    Source: OCI distribution specification 1.1, "Error codes".
    """
    try:
        errors = json.loads(body)["errors"]
        words = [f"{item.get('code', '')}: {item.get('message', '')}" for item in errors[:3]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""
    return plain("; ".join(words), secrets)


def refused(
    status: int, words: str, doing: str, where: str, host: str, asked: str, login: str
) -> FairleadError:
    """The error of an answer with ``status``, which is 4xx or 5xx.

    Args:
        asked: what was asked for; a reference.
        login: whose credentials were sent, "" for none.
    """
    detail = f" ({words})" if words else ""
    if status == 401:
        return not_known(doing, where, host, login, detail)
    if status == 403:
        return fail(
            f"{host} forbids to {doing}",
            where=where,
            why=f"it knows {login or 'nobody'} and answered 403{detail}",
            remedy=f"ask its administrator for access, or log in as another user: podman login {host}",
            check="registry-denied",
        )
    if status == 404:
        return fail(
            f"{host} has no such image",
            where=asked,
            why=f"it answered 404{detail}",
            remedy="correct the name or the tag; a private image may need: podman login " + host,
            check="registry-missing",
        )
    if status == 429:
        return fail(
            f"{host} refuses more requests for now",
            where=where,
            why=f"it keeps answering 429{detail}",
            remedy=f"wait, then the same command; a login may raise the limit: podman login {host}",
            check="registry-busy",
        )
    if status >= 500:
        return fail(
            f"{host} fails",
            where=where,
            why=f"it keeps answering {status}{detail}",
            remedy="run the same command again later; what was transferred is kept",
            check="registry-failing",
        )
    return odd_answer(host, where, f"to {doing}, it answered {status}{detail}")


def not_known(doing: str, where: str, host: str, login: str, detail: str = "") -> FairleadError:
    """The registry, or its token server, wants a login or rejects ours."""
    return fail(
        f"{host} does not accept the credentials of {login}"
        if login
        else f"{host} requires a login",
        where=where,
        why=f"a login is needed to {doing}: 401{detail}",
        remedy=f"podman login {host} (or: docker login {host}, apptainer registry login docker://{host})",
        check="registry-login",
    )


def odd_answer(host: str, where: str, why: str) -> FairleadError:
    """An answer that no registry gives."""
    return fail(
        f"{host} does not answer like a registry",
        where=where,
        why=why,
        remedy="check the host name and the port; a proxy or a login page may stand between",
        check="registry-answer",
    )


def no_connection(exc: Exception, host: str, where: str) -> FairleadError:
    """The error of a connection that could not be made."""
    chain = list(_causes(exc))
    names = {type(link).__name__ for link in chain}
    if certificate_refused(exc):
        link = next(e for e in chain if isinstance(e, ssl.SSLCertVerificationError))
        return fail(
            f"the certificate of {host} is not trusted",
            where=where,
            why=plain(link.verify_message or str(link)),
            remedy="export SSL_CERT_FILE=the CA's file; or put it, as ca.crt, into "
            f"~/.config/containers/certs.d/{host}/",
            check="registry-certificate",
        )
    if speaks_no_tls(exc):
        return fail(
            f"{host} does not speak HTTPS",
            where=where,
            why="it does not answer with TLS, and fairlead speaks plain HTTP to this machine only",
            remedy="the same command with --insecure, if you trust the network",
            check="registry-plain-http",
        )
    if "NameResolutionError" in names or "gaierror" in names:
        return fail(
            f"no such host: {host.rsplit(':', 1)[0]}",
            where=where,
            why="the name cannot be resolved",
            remedy="correct the name, or check the network: getent hosts " + host.rsplit(":", 1)[0],
            check="registry-name",
        )
    if isinstance(exc, requests.exceptions.ProxyError):
        why = "the proxy of this machine (HTTPS_PROXY, HTTP_PROXY) does not let it through"
    elif isinstance(exc, requests.exceptions.Timeout):
        why = "it did not answer in time"
    elif "ConnectionRefusedError" in names:
        why = "nothing listens there: connection refused"
    else:
        # The outer message holds the URL, and a signed URL is a secret.
        why = f"the connection broke: {type(chain[-1]).__name__}"
    return fail(
        f"{host} cannot be reached",
        where=where,
        why=why,
        remedy="check the host and the network, then the same command; what was transferred is kept",
        check="registry-unreachable",
    )


def certificate_refused(exc: Exception) -> bool:
    return any(isinstance(link, ssl.SSLCertVerificationError) for link in _causes(exc))


def speaks_no_tls(exc: Exception) -> bool:
    """Whether a TLS connection failed because the other side spoke something else."""
    return not certificate_refused(exc) and any(
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
