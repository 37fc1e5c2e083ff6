"""What goes wrong with a store, as messages; texts of a store are shortened, and nothing that signs a request is in them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from fairlead.base.dates import seconds_of_date
from fairlead.base.errors import ExitCode, FairleadError, fail
from fairlead.objects.url import Url, hidden

_CODES = {
    "object-bucket-missing": ("NoSuchBucket",),
    "object-missing": ("NoSuchKey", "NoSuchVersion", "404", "NotFound"),
    "object-denied": ("AccessDenied", "AllAccessDisabled", "AccountProblem", "403", "Forbidden"),
    "object-credential-expired": (
        "ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired",
    ),
    "object-credential-wrong": (
        "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "AuthorizationHeaderMalformed",
        "InvalidSecurity", "401", "Unauthorized",
    ),
    "object-clock": ("RequestTimeTooSkewed",),
    "object-changed": ("PreconditionFailed", "412"),
    "object-unsupported": ("NotImplemented", "MethodNotAllowed", "405", "501"),
}  # fmt: skip
_BY_CODE = {code: message for message, codes in _CODES.items() for code in codes}
_PASSING = frozenset(
    {"SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "Throttling", "BadDigest",
     "ThrottlingException", "OperationAborted", "ConditionalRequestConflict", "500", "502", "503", "504", "429"}
)  # fmt: skip
_LOST = frozenset({"object-changed", "object-missing"})
_LONG = 200  # characters of a store's own text


class Passing(FairleadError):
    """A failure that another attempt may not meet: a cut connection, a busy store."""


def wait_s() -> float:
    """How long a store may be silent before a request counts as failed; seconds."""
    return float(os.environ.get("FAIRLEAD_OBJECT_WAIT", "60"))


def settings_of(url: Url) -> dict[str, Any]:
    """What the messages name: where credentials and the address of a store come from."""
    from fairlead.objects.registry import kind_of  # it knows the stores, which use this

    others = f"those that fsspec's package for {url.scheme}:// documents", "the host in the URL"
    kind = kind_of(url.scheme)
    credentials, endpoint = (kind.settings if kind else {}).get(url.scheme, others)
    return {"credentials": credentials, "endpoint": endpoint}


def of_code(code: str, text: str, where: Url, name: str = "", date: str = "") -> FairleadError:
    """The failure that a store's error code stands for.

    Args:
        text: what the store says about it.
        date: the ``Date`` of its answer.
    """
    place = hidden(str(where.below(name) if name else where))
    reason = f"{code}: {' '.join(text.split())[:_LONG]}".rstrip(": ")
    fields: dict[str, Any] = {
        "place": place,
        "bucket": where.bucket,
        "scheme": where.scheme,
        "reason": reason,
        **settings_of(where),
    }
    if code in _PASSING:
        return Passing(fail("object-failing", **fields).findings, ExitCode.LAUNCH_FAILED)
    message = _BY_CODE.get(code, "object-failed")
    if message == "object-clock":
        fields["difference"] = _difference(date)
    return fail(message, **fields)


def is_lost(exc: FairleadError) -> bool:
    """Whether a write was refused because its object is not the one any more that it should replace."""
    return exc.findings[0].check in _LOST


def passing(why: object, where: Url, name: str = "") -> Passing:
    """A connection that failed, or an answer that is not whole."""
    place = hidden(str(where.below(name) if name else where))
    reason = " ".join(hidden(str(why)).split())[:_LONG]
    findings = fail("object-failing", place=place, reason=reason, **settings_of(where)).findings
    return Passing(findings, ExitCode.LAUNCH_FAILED)


def no_credentials(why: str, where: Url) -> FairleadError:
    """There are none where the store's own tools look."""
    return fail("object-credential-none", place=where, reason=why, **settings_of(where))


def _difference(date: str) -> str:
    try:
        seconds = time.time() - seconds_of_date(date)
    except ValueError:
        return "by more than the store allows"
    side = "ahead of" if seconds > 0 else "behind"
    return f"{abs(seconds):.0f} s {side} the store's"


def header(headers: Mapping[str, str], name: str) -> str:
    """A header's value, whatever the case of its name; empty without one."""
    return next((value for key, value in headers.items() if key.lower() == name), "")
