"""The exceptions of ``horovod.common.exceptions``, which scripts catch; they are fairlead's own errors as well."""

from __future__ import annotations

from typing import Any

from fairlead.base.errors import ExitCode, FairleadError, Finding

__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
]


class HorovodInternalError(FairleadError, RuntimeError):
    """A collective has failed, on every rank that takes part in it. A script may raise it with a text of its own."""

    def __init__(self, findings: Any = "", code: ExitCode = ExitCode.FAILED):
        given = isinstance(findings, (Finding, list, tuple))
        super().__init__(findings if given else (), code)
        if not given:
            self.args = (findings,)


class UsageError(FairleadError, ValueError):
    """A call that cannot be right, whatever other ranks do."""

    def __init__(self, findings: Any = (), code: ExitCode = ExitCode.FAILED):
        super().__init__(findings, code)


class HostsUpdatedInterrupt(RuntimeError):
    """Other hosts take part from now on; for scripts that catch it. Nothing here raises it."""

    def __init__(self, skip_sync: bool = False):
        super().__init__()
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """For scripts that catch it. Nothing here raises it."""


def internal(exc: FairleadError) -> HorovodInternalError:
    return HorovodInternalError(exc.findings, exc.code)


def usage(exc: FairleadError) -> UsageError:
    return UsageError(exc.findings, exc.code)
