"""Findings that a test makes up; those of fairlead itself come from its catalogues."""

from __future__ import annotations

from fairlead.base.errors import ExitCode, FairleadError, Finding, Severity
from fairlead.doctor.diagnosis import Diagnosis, Fix


def error(
    what: str, *, where: str = "", why: str = "", remedy: str = "", check: str = ""
) -> Finding:
    return Finding(Severity.ERROR, what, where, why, remedy, check)


def fail(
    what: str,
    *,
    where: str = "",
    why: str = "",
    remedy: str = "",
    check: str = "",
    code: ExitCode = ExitCode.FAILED,
) -> FairleadError:
    return FairleadError(error(what, where=where, why=why, remedy=remedy, check=check), code)


def note(check: str, what: str, *, where: str = "", why: str = "", remedy: str = "") -> Diagnosis:
    return Diagnosis(Finding(Severity.INFO, what, where, why, remedy, check))


def ill(
    check: str,
    what: str,
    *,
    where: str = "",
    why: str = "",
    remedy: str,
    fix: Fix | None = None,
    severity: Severity = Severity.ERROR,
) -> Diagnosis:
    return Diagnosis(Finding(severity, what, where, why, remedy, check), fix)
