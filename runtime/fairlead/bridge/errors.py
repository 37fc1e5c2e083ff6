"""Errors of the protocol as errors with a remedy."""

from __future__ import annotations

from typing import Any

from fairlead.base.errors import FairleadError, Finding, fail
from fairlead.bridge.wire import WireError

PARTS = ("check", "what", "where", "why", "remedy")


class BridgeError(FairleadError):
    """What went wrong in a session; its text holds the reason and the remedy."""

    def __init__(self, error: FairleadError):
        super().__init__(error.findings, error.code)

    def __reduce__(self) -> Any:
        return _again, (self.findings, self.code)

    def __str__(self) -> str:
        return "\n".join(_text(finding) for finding in self.findings)


def _again(findings: Any, code: Any) -> BridgeError:
    return BridgeError(FairleadError(findings, code))


def _text(finding: Finding) -> str:
    return "\n".join([finding.what, *(f"{label} {text}" for label, text in finding.details)])


def described(error: BaseException) -> dict[str, str]:
    """An error as it travels."""
    if isinstance(error, WireError) and error.check == "bridge-reported":
        return {part: str(error.fields.get(part, "")) for part in PARTS}
    if isinstance(error, WireError):
        error = translated(error)
    if isinstance(error, FairleadError):
        finding = error.findings[0]
        return {part: getattr(finding, part) for part in PARTS}
    return {
        "check": "bridge",
        "what": str(error) or type(error).__name__,
        "why": type(error).__name__,
    }


def translated(error: WireError) -> FairleadError:
    """An error of the protocol, or one that another side has reported, as an error with a remedy."""
    if error.check != "bridge-reported":
        return fail(error.check, **error.fields)
    values = {part: error.fields.get(part, "") for part in PARTS}
    return fail("bridge-reported", **{**values, "check": values["check"] or "bridge"})
