"""HTTP to one registry: TLS, logins, redirects, retries, and an error for every failure.

Rules that keep passwords where they belong: an ``Authorization`` header goes to the registry's own
origin only, never along a redirect; a token server is asked over HTTPS, or on this machine; netrc is
not read; URLs are not repeated in errors, since a signed one is a secret.

Source: RFC 9110; docs/spec/auth/token.md of github.com/distribution/distribution.
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
import re
import ssl
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlencode, urljoin, urlsplit
from urllib.request import parse_http_list

import requests

import fairlead
from fairlead.base import bounded_json
from fairlead.base.dates import seconds_of_date
from fairlead.base.errors import FairleadError, fail
from fairlead_build.base.pace import Paced, pieces
from fairlead_build.registry.auth import Credential, find_credential
from fairlead_build.registry.problems import (
    no_connection,
    plain,
    refused,
    server_message,
    speaks_no_tls,
)
from fairlead_build.registry.reference import Reference

TIMEOUT_S = (10.0, 60.0)  # to connect; between two pieces of an answer
PAUSES_S = (0.5, 1.0, 2.0, 4.0)
_LONGEST_PAUSE_S = 60.0
_MOST_REDIRECTS = 5
_MOST_WORDS = 64 << 10
_MOST_TOKEN = 1 << 20
_LONGEST_CHALLENGE = 8192
_WORD = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_CHALLENGE_PART = re.compile(rf'(?:({_WORD})(?:\s+|$))?(?:({_WORD})\s*=\s*(".*"|[^\s"]*))?')
_AGAIN = (408, 429, 500, 502, 503, 504)
_CUT = (
    requests.exceptions.ConnectionError,
    requests.exceptions.Timeout,
    requests.exceptions.ChunkedEncodingError,
)

Body = Callable[[], bytes | IO[bytes]]


@dataclass(frozen=True)
class Request:
    """One request to the registry.

    Attributes:
        place: a path below ``/v2/``, or a URL that the registry gave.
        doing: what for, as in "forbids to DOING".
        scope: what a token must allow, e.g. ``repository:ml/base:pull``.
        expect: the statuses that the caller handles.
        body: opened again for each try.
        once: it is not repeated when it fails.
    """

    method: str
    place: str
    doing: str
    scope: str
    expect: Collection[int] = (200,)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body | None = None
    once: bool = False


@dataclass
class Challenge:
    """One way to be known. ``scheme`` is in small letters; only ``bearer`` uses the rest."""

    scheme: str
    realm: str = ""
    service: str = ""


def read_challenges(header: str) -> list[Challenge]:
    """Every challenge of a ``WWW-Authenticate``, in its order; what cannot be read is left out.

    requests and the standard library know headers of a single challenge only.

    >>> read_challenges('Bearer realm="https://a/token",service="a", Basic realm="b"')[1].scheme
    'basic'
    """
    challenges: list[Challenge] = []
    for part in parse_http_list(header[:_LONGEST_CHALLENGE]):
        match = _CHALLENGE_PART.fullmatch(part)
        if match and match[1]:
            challenges.append(Challenge(match[1].lower()))
        name = (match[2] or "").lower() if match and challenges else ""
        if match and name in ("realm", "service") and not getattr(challenges[-1], name):
            setattr(challenges[-1], name, match[3].removeprefix('"').removesuffix('"'))
    return challenges


@dataclass(frozen=True)
class _Token:
    header: str
    until: float


class _Trusting(Paced):
    """An adapter that believes this machine's own CAs, and those of ``certs.d``."""

    def __init__(self, context: ssl.SSLContext):
        self.context = context
        super().__init__()

    def init_poolmanager(self, *words: Any, **more: Any) -> None:
        super().init_poolmanager(*words, ssl_context=self.context, **more)

    def proxy_manager_for(self, proxy: str, **more: Any) -> Any:
        return super().proxy_manager_for(proxy, ssl_context=self.context, **more)


class Transport:
    """Requests to the registry of ``reference``, about its repository."""

    def __init__(
        self,
        reference: Reference,
        insecure: bool,
        environ: Mapping[str, str],
        pauses_s: Sequence[float],
    ):
        """
        Args:
            insecure: plain HTTP is good enough where the host speaks no TLS; on this machine itself
                it always is.
            pauses_s: before each further try of what may pass.
        """
        self.reference, self.where = reference, str(reference)
        self.pauses_s = pauses_s
        self.plain_allowed = insecure or _is_loopback(reference.host)
        self._environ = environ
        self._base = ""
        self._credential: Credential | None = None
        self._looked_up = False
        self._challenge: Challenge | None = None
        self._tokens: dict[str, _Token] = {}
        self._answered = False
        self._session = requests.Session()
        self._session.headers.update(
            {"User-Agent": f"fairlead/{fairlead.__version__}", "Accept-Encoding": "identity"}
        )
        self._session.mount("http://", Paced())
        self._session.mount("https://", _Trusting(_tls_context(reference.host, environ)))

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no message may hold."""
        tokens = tuple(token.header.partition(" ")[2] for token in self._tokens.values())
        return (*(self._credential.secrets if self._credential else ()), *tokens)

    @contextlib.contextmanager
    def request(self, request: Request) -> Iterator[requests.Response]:
        """One request, repeated while that may help; the answer's body is not read yet.

        Raises:
            FairleadError: it was not answered, or not with a status that the caller handles.
        """
        pauses = [] if request.once else list(self.pauses_s)
        while True:
            try:
                answer = self._once(request)
            except _CUT as exc:
                if not pauses or not self._answered or speaks_no_tls(exc):
                    raise no_connection(exc, self.reference.host, self.where) from None
                time.sleep(pauses.pop(0))
                continue
            self._answered = True
            with contextlib.closing(answer):
                if answer.status_code in request.expect:
                    yield answer
                    return
                wait = _asked_wait(answer)
                if answer.status_code in _AGAIN and pauses and wait <= _LONGEST_PAUSE_S:
                    pause = max(wait, pauses.pop(0))
                else:
                    raise self.problem(answer, request.doing)
            time.sleep(pause)

    def problem(self, answer: requests.Response, doing: str) -> FairleadError:
        """The error that ``answer`` stands for."""
        try:
            body = read_most(answer, _MOST_WORDS, self.where)
        except requests.exceptions.ChunkedEncodingError:
            body = b""  # the status says enough
        words = server_message(body, self.secrets)
        if answer.status_code == 400 and b"HTTP request to an HTTPS server" in body:
            words = "it speaks HTTPS; leave out --insecure"
        return self._refused(answer.status_code, doing, words)

    def _refused(self, status: int, doing: str, words: str = "") -> FairleadError:
        known, host = self._credential, self.reference.host
        login = f"{known.user} (from {known.source})" if known else ""
        return refused(status, words, host=host, doing=doing, where=self.where, login=login)

    def odd(self, why: str) -> FairleadError:
        """The error of an answer that no registry gives."""
        host, why = self.reference.host, plain(why, self.secrets)
        return fail("registry-answer", host=host, where=self.where, why=why)

    def _once(self, request: Request) -> requests.Response:
        """One request with its redirects; a 401 is answered once, with what the registry asks for."""
        base, scope = self._find_base(), request.scope
        url = request.place if "://" in request.place else f"{base}/v2/{request.place}"
        known = self._header(scope)
        answer = self._follow(request, url, known)
        # Only the registry itself may ask for a login, and not a host that it redirects to.
        if answer.status_code == 401 and _same_origin(answer.url, base):
            self._tokens.pop(scope, None)
            challenges = read_challenges(answer.headers.get("WWW-Authenticate", ""))
            self._challenge = next((c for c in challenges if c.scheme in ("bearer", "basic")), None)
            fresh = self._authorize(scope, request.doing)
            if fresh and fresh != known:
                answer.close()
                answer = self._follow(request, url, fresh)
        return answer

    def _follow(
        self, request: Request, url: str, authorization: Mapping[str, str]
    ) -> requests.Response:
        for _ in range(_MOST_REDIRECTS + 1):
            own = authorization if _same_origin(url, self._base) else {}
            data = request.body() if request.body else None
            answer = self._send(request.method, url, {**request.headers, **own}, data)
            again = answer.status_code in (307, 308) or (
                answer.status_code in (301, 302, 303) and request.method in ("GET", "HEAD")
            )
            if not again or "Location" not in answer.headers:
                return answer
            answer.close()
            target = urljoin(url, answer.headers["Location"])
            parts = urlsplit(target)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise self.odd("it redirects to something other than a web address")
            if parts.scheme == "http" and urlsplit(url).scheme == "https":
                raise fail(
                    "registry-redirect-to-plain-http",
                    reference_host=self.reference.host,
                    where=self.where,
                    parts_hostname=plain(parts.hostname),
                )
            url = target
        raise fail(
            "registry-redirect-loop",
            reference_host=self.reference.host,
            where=self.where,
            most_redirects=_MOST_REDIRECTS,
        )

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], data: Any
    ) -> requests.Response:
        try:
            return self._session.request(
                method,
                url,
                headers=dict(headers),
                data=data,
                auth=lambda request: request,  # or requests would look into ~/.netrc
                stream=True,
                allow_redirects=False,
                timeout=TIMEOUT_S,
            )
        except (ValueError, requests.exceptions.InvalidSchema) as exc:
            if isinstance(exc, _CUT):
                raise
            raise self.odd(f"its answer cannot be read: {type(exc).__name__}") from None

    def _find_base(self) -> str:
        """``https://HOST``; where that fails for want of TLS and plain HTTP is allowed, ``http://HOST``."""
        if not self._base:
            secure = f"https://{self.reference.server}"
            if self.plain_allowed:
                try:
                    self._send("GET", f"{secure}/v2/", {}, None).close()
                except _CUT as exc:
                    if not speaks_no_tls(exc):
                        raise no_connection(exc, self.reference.host, self.where) from None
                    secure = f"http://{self.reference.server}"
            self._base = secure
        return self._base

    def _header(self, scope: str) -> dict[str, str]:
        """What is known to be wanted, before it is asked for."""
        if self._challenge and self._challenge.scheme == "basic" and self._credential:
            return {"Authorization": self._credential.basic}
        token = self._tokens.get(scope)
        if token and token.until > time.monotonic():
            return {"Authorization": token.header}
        return {}

    def _authorize(self, scope: str, doing: str) -> dict[str, str]:
        if not self._looked_up:
            self._credential = find_credential(self.reference, self._environ)
            self._looked_up = True
        if self._challenge is None:
            return {}
        if self._challenge.scheme == "bearer":
            self._tokens[scope] = self._ask_token(self._challenge, scope, doing)
        return self._header(scope)

    def _ask_token(self, challenge: Challenge, scope: str, doing: str) -> _Token:
        parts = urlsplit(challenge.realm)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise self.odd("it names no web address as its token server")
        plain_http = self._base.startswith("http://") or _is_loopback(parts.netloc)
        if parts.scheme == "http" and not plain_http:
            raise self.odd("its token server speaks plain HTTP, which would show the password")
        query = {"service": challenge.service, "scope": scope}
        known = self._credential
        try:
            if known and known.identity_token:
                form = {**query, "grant_type": "refresh_token", "client_id": "fairlead",
                        "refresh_token": known.identity_token}  # fmt: skip
                kind = {"Content-Type": "application/x-www-form-urlencoded"}
                answer = self._send("POST", challenge.realm, kind, urlencode(form).encode())
            else:
                # A client may name several scopes, each in a parameter of its own.
                pairs = [("service", challenge.service), *(("scope", s) for s in scope.split())]
                mark = "&" if parts.query else "?"
                header = {"Authorization": known.basic} if known else {}
                url = f"{challenge.realm}{mark}{urlencode(pairs)}"
                answer = self._send("GET", url, header, None)
        except _CUT as exc:
            raise no_connection(exc, parts.netloc, f"the token server of {self.where}") from None
        with contextlib.closing(answer):
            if answer.status_code in (401, 403):
                raise self._refused(401, doing)
            if answer.status_code != 200:
                raise self.odd(f"its token server answered {answer.status_code}")
            return self._read_token(answer)

    def _read_token(self, answer: requests.Response) -> _Token:
        try:
            text = read_most(answer, _MOST_TOKEN, f"the token server of {self.where}")
            token, lifetime = token_of(text)
        except ValueError:
            raise self.odd("its token server's answer holds no token") from None
        # A token that is about to end would end on the way.
        return _Token(f"Bearer {token}", time.monotonic() + max(lifetime - 10, 1))


def token_of(answer: bytes) -> tuple[str, float]:
    """The token in a token server's answer, and how long it holds, in seconds.

    Raises:
        ValueError: there is none.
    """
    answered = bounded_json.loads(answer)
    if not isinstance(answered, dict):
        raise ValueError("no JSON object")
    token = answered.get("token") or answered.get("access_token")
    if not isinstance(token, str) or not token or not token.isascii() or " " in token.strip():
        raise ValueError("no token")
    try:
        lifetime = float(answered.get("expires_in") or 60)
    except (TypeError, OverflowError) as exc:
        raise ValueError(str(exc)) from None
    if not math.isfinite(lifetime):
        raise ValueError(f"it expires in {lifetime}")
    return token.strip(), lifetime


def read_most(answer: requests.Response, most: int, where: str) -> bytes:
    """At most ``most + 1`` bytes of the body: one more shows that there is too much.

    Raises:
        FairleadError: it is sent below the pace of :mod:`fairlead_build.base.pace`.
        requests.exceptions.ChunkedEncodingError: the connection was cut.
    """
    body = bytearray()
    try:
        for piece in pieces(answer, where):
            body += piece
            if len(body) > most:
                break
    except requests.exceptions.ConnectionError as exc:
        raise requests.exceptions.ChunkedEncodingError(exc) from None
    return bytes(body[: most + 1])


def _asked_wait(answer: requests.Response) -> float:
    """Seconds of ``Retry-After``; 0 without one that can be read."""
    text = answer.headers.get("Retry-After", "")
    try:
        if text.isdigit():
            return float(text[:9])
        return max(seconds_of_date(text) - time.time(), 0.0)
    except ValueError:
        return 0.0


def _same_origin(url: str, other: str) -> bool:
    ports = {"http": 80, "https": 443}
    first, second = (
        (p.scheme, p.hostname, p.port or ports.get(p.scheme))
        for p in (urlsplit(url), urlsplit(other))
    )
    return first == second


def _is_loopback(host: str) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _tls_context(host: str, environ: Mapping[str, str]) -> ssl.SSLContext:
    """This machine's CAs (SSL_CERT_FILE, SSL_CERT_DIR count) and those of ``certs.d``.

    Source: containers-certs.d(5). What REQUESTS_CA_BUNDLE names is added by requests itself.
    """
    context = ssl.create_default_context()
    home = Path(environ.get("HOME") or "/")
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    containers, docker = Path("/etc/containers"), Path("/etc/docker")
    for folder in (config / "containers", containers, home / ".docker", docker):
        for file in sorted((folder / "certs.d" / host).glob("*")):
            try:
                if file.suffix == ".crt":
                    context.load_verify_locations(file)
                elif file.suffix == ".cert":
                    context.load_cert_chain(file, file.with_suffix(".key"))
            except (OSError, ssl.SSLError) as exc:
                why = plain(str(exc))
                raise fail("registry-certificate-cannot-used", file=file, exc=why) from None
    return context
