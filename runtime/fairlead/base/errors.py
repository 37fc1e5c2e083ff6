"""Findings, errors and exit codes.

A :class:`Finding` is a fact with a remedy; a :class:`FairleadError` carries findings up to the one
layer that prints them. Code below the command line raises or returns these, and never prints.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any


class ExitCode(enum.IntEnum):
    """The exit codes of every verb. A number never changes its meaning."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    PREFLIGHT_REFUSED = 121
    PROOF_FAILED = 122
    LAUNCH_FAILED = 123
    WATCHDOG = 124
    BELOW_REFERENCE = 125
    INTERRUPTED = 130


class Severity(enum.StrEnum):
    """How serious a finding is. Only ``ERROR`` stops the work."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """One fact about the system, and what to do about it.

    Attributes:
        severity: whether it stops the work.
        what: the fact, one sentence without a full stop.
        where: file and line, node, library, or recipe key.
        why: the reason or the evidence.
        remedy: the next command to type, or the edit to make.
        check: stable identifier of the check that found it, e.g. ``abi-family``.
        host: name of the node that it is about; empty where it is about none, or about all.
    """

    severity: Severity
    what: str
    where: str = ""
    why: str = ""
    remedy: str = ""
    check: str = ""
    host: str = ""

    @property
    def sentence(self) -> str:
        """What, where and why on one line, for a place that has no room for more."""
        return "; ".join(filter(None, (self.what, self.where, self.why)))

    @property
    def details(self) -> list[tuple[str, str]]:
        """Where, why and next, each with its label padded to the same width; those that the finding has."""
        pairs = (("where:", self.where), ("why:  ", self.why), ("next: ", self.remedy))
        return [(label, text) for label, text in pairs if text]

    def to_json(self) -> dict[str, Any]:
        return {key: str(value) for key, value in asdict(self).items()}


# Folders of the message catalogues; see messages.py. A package with its own catalogue adds the folder
# when it is imported.
CATALOGUES = [__file__.removesuffix("base/errors.py") + "messages"]


def finding_of(message: str, /, *, severity: Severity | None = None, **fields: object) -> Finding:
    """The finding of a catalogue message.

    Args:
        message: its id.
        severity: overrides the catalogue's.
        fields: values for the fields in its texts.
    """
    made = _render(message, fields)[0]
    return made if severity is None else replace(made, severity=severity)


def error(message: str, /, **fields: object) -> Finding:
    """As :func:`finding_of`. Its names say the message's severity in the catalogue; a test compares."""
    return _render(message, fields)[0]


warning = info = error


def _render(message: str, fields: dict[str, object]) -> tuple[Finding, ExitCode]:
    from fairlead.base.messages import render  # nothing is loaded for it until something is wrong

    return render(message, fields)


class FairleadError(Exception):
    """One or more findings that stop the work, with an exit code."""

    def __init__(self, findings: Finding | Iterable[Finding], code: ExitCode = ExitCode.FAILED):
        self.findings = (findings,) if isinstance(findings, Finding) else tuple(findings)
        self.code = code
        super().__init__("; ".join(f.what for f in self.findings))

    def __reduce__(self) -> tuple[type[FairleadError], tuple[tuple[Finding, ...], ExitCode]]:
        # Ranks pickle exceptions; rebuild this one from its findings.
        return FairleadError, (self.findings, self.code)


def fail(message: str, /, *, code: ExitCode | None = None, **fields: object) -> FairleadError:
    """A :class:`FairleadError` with the finding of one message: ``raise fail("id", path=path)``.

    Args:
        message: its id in the catalogue.
        code: overrides the catalogue's exit code.
        fields: values for the fields in its texts.
    """
    made, usual = _render(message, fields)
    return FairleadError(made, usual if code is None else code)


@contextmanager
def os_error_as(message: str, /, **fields: object) -> Iterator[None]:
    """Turns an ``OSError`` of the block into :func:`fail` of ``message``, whose field ``reason`` is its text.

    Args:
        fields: of the message; the file that the error names takes the place of ``filename``, where that is one.
    """
    try:
        yield
    except OSError as exc:
        if "filename" in fields:
            fields["filename"] = exc.filename or fields["filename"]
        fields["reason"] = exc.strerror or str(exc)
        raise FairleadError(*_render(message, fields)) from None
