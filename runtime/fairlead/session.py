"""One run from facts to ranks: the steps that ``preflight``, ``explain``, ``run`` and ``train``
share, as plain functions that return data.

``prepare`` gathers facts, plans and checks; ``prove_it`` stages and probes. Launching is left to
``launch.py``.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead import __version__, capture, checks, keys, signature
from fairlead import plan as planning
from fairlead import site as sites
from fairlead import stage as staging
from fairlead.capture import Capture
from fairlead.engine import apptainer
from fairlead.findings import ExitCode, FairleadError, Finding, Severity, fail
from fairlead.hostmpi import HostMpi, Launcher, discover, from_prefix, identify_launcher
from fairlead.image import Image, open_image
from fairlead.layout import Line
from fairlead.paths import cache_dir
from fairlead.plan import Plan, Request
from fairlead.probe import probe
from fairlead.progress import Progress
from fairlead.proof import Proof


@dataclass(frozen=True)
class Prepared:
    """A plan with the findings about it."""

    image: Image
    plan: Plan
    findings: tuple[Finding, ...]
    site_reason: str
    verified: signature.Verified | None = None

    @property
    def refused(self) -> bool:
        return checks.refused(self.findings)


@dataclass(frozen=True)
class Choices:
    """What the command line leaves to be chosen, and what it fixes.

    Attributes:
        mpi: ``host``, ``container``, or the prefix of an MPI.
        site, launcher: None to detect.
        require_signature: refuse an image that no trusted key has signed.
    """

    mpi: str = "host"
    site: str | None = None
    launcher: str | None = None
    require_signature: bool = False


def prepare(
    image_name: str,
    choices: Choices,
    request: Request,
    environ: Mapping[str, str] = os.environ,
    progress: Progress | None = None,
    *,
    elsewhere: bool = False,
) -> Prepared:
    """Gathers facts, plans and checks; launches nothing.

    Args:
        elsewhere: the plan may be one for the machine of a capture.
    Raises:
        FairleadError: 2 for bad input, 121 when nothing can be planned or a signature that is
            required does not hold, 123 without an engine.
    """
    there = _capture(choices, elsewhere)
    if there:
        site, reason = there.site, f"captured on {there.node}, {there.taken}"
    else:
        site, reason = sites.resolve(choices.site, environ)
    verified = None
    if choices.require_signature or site.require_signature or _signatures_wanted(environ):
        verified = _verified(image_name, environ, progress)  # before anything reads what is inside
    image = open_image(image_name, environ, progress)
    engine = capture.engine_of(there) if there else apptainer.detect(environ)
    host, notes = _host(choices, image, environ, there, request)
    # What cannot be planned at all is told before a launcher is looked for in vain.
    planning.replaceable(image.path, image.facts, host, engine, request, notes)
    launcher = _launcher(choices, host, image, environ, there)
    result = planning.plan(
        image.path, image.facts, host, launcher, site, engine, request, cache_dir(environ), notes
    )
    findings = (*_versions(image), *checks.check(result))
    if verified:
        if verified.statement.format != "oci" and image.path != verified.path:
            raise signature.changed(verified, f"`{image_name}` is now {image.path}")
        signature.unchanged(verified)
        findings = (*findings, *filter(None, [signature.exposed(verified)]))
    return Prepared(image, result, findings, reason, verified)


def _signatures_wanted(environ: Mapping[str, str]) -> bool:
    return environ.get("FAIRLEAD_REQUIRE_SIGNATURE", "") not in ("", "0")


def _verified(
    image_name: str, environ: Mapping[str, str], progress: Progress | None
) -> signature.Verified:
    path = signature.located(image_name, environ, progress)
    try:
        return signature.verify(path, keys.trusted(environ), progress)
    except FairleadError as exc:
        raise FairleadError(exc.findings, ExitCode.PREFLIGHT_REFUSED) from None


def still_as_verified(prepared: Prepared) -> None:
    """Looks whether the image is still the file whose signature was checked, if it was.

    Raises:
        FairleadError: it was written to or replaced.
    """
    if prepared.verified:
        signature.unchanged(prepared.verified)


def _capture(choices: Choices, elsewhere: bool) -> Capture | None:
    """The capture that ``--site`` names, if it names one."""
    if choices.site is None or not capture.is_capture(choices.site):
        return None
    found = capture.read(Path(choices.site))
    if not elsewhere:
        raise fail(
            f"nothing can be launched on {found.node} from here",
            where="--site",
            why="a capture is enough to plan for a machine and to check the plan, not to be on it",
            remedy=f"fairlead preflight IMAGE --site {shlex.quote(choices.site)}",
            check="site-capture",
            code=ExitCode.USAGE,
        )
    return found


def _host(
    choices: Choices,
    image: Image,
    environ: Mapping[str, str],
    there: Capture | None,
    request: Request,
) -> tuple[HostMpi | None, tuple[Line, ...]]:
    if choices.mpi not in ("host", "container"):
        prefix = Path(choices.mpi)
        return capture.mpi_below(there, prefix) if there else from_prefix(prefix, environ), ()
    return planning.choose_host(image.facts, there.mpis if there else discover(environ), request)


def _launcher(
    choices: Choices,
    host: HostMpi | None,
    image: Image,
    environ: Mapping[str, str],
    there: Capture | None,
) -> Launcher:
    if choices.launcher and there:
        captured = {m.launcher.path: m.launcher for m in there.mpis if m.launcher}
        if choices.launcher not in captured:
            raise fail(
                f"no launcher {choices.launcher} was captured",
                where="--launcher",
                why=f"the capture of {there.node} has {', '.join(captured) or 'none'}",
                remedy="leave it out to use the mpiexec of the chosen MPI",
                check="launcher",
                code=ExitCode.USAGE,
            )
        return captured[choices.launcher]
    if choices.launcher:
        path = Path(choices.launcher)
        if not os.access(path, os.X_OK):
            raise fail(
                f"no launcher at {choices.launcher}",
                where="--launcher",
                why="there is no such program, or it may not be executed",
                remedy="leave it out to use the mpiexec of the chosen MPI",
                check="launcher",
                code=ExitCode.USAGE,
            )
        return identify_launcher(path.absolute())
    if host and host.launcher:
        return host.launcher
    wanted = planning.image_family(image.facts)
    for other in there.mpis if there else discover(environ):
        if other.launcher and other.launcher.family is wanted:
            return other.launcher
    raise fail(
        f"no launcher for the {wanted} family on {there.node if there else 'this host'}",
        where=host.prefix if host else "the MPIs of that machine" if there else "the MPIs here",
        why="no mpiexec was found beside an MPI of that family",
        remedy="fairlead doctor --fix host-mpi, or name one with `--launcher PATH`",
        check="launcher",
        code=ExitCode.PREFLIGHT_REFUSED,
    )


def _versions(image: Image) -> tuple[Finding, ...]:
    """Host and image hold the same fairlead, or the one may not understand the other."""
    inside = image.record.get("fairlead_version", "")
    if inside and inside != __version__:
        return (
            Finding(
                Severity.ERROR,
                f"the image holds fairlead {inside}, this is {__version__}",
                image.path,
                "the two halves of fairlead talk to each other and must be of one version",
                f"fairlead build {image.record.get('recipe', 'RECIPE')}",
                "version-skew",
            ),
        )
    return ()


def refuse(prepared: Prepared) -> FairleadError:
    """The error of a refused preflight: exit code 121."""
    errors = [f for f in prepared.findings if f.severity is Severity.ERROR]
    return FairleadError(errors, ExitCode.PREFLIGHT_REFUSED)


def prove_it(
    prepared: Prepared,
    ranks: int,
    limit_s: float | None = None,
    environ: Mapping[str, str] = os.environ,
    env: Mapping[str, str] | None = None,
) -> Proof:
    """Stages what the plan stages, and probes it with ``ranks`` ranks.

    Args:
        env: variables for the container, as the command will have them.
    Raises:
        FairleadError: as :func:`fairlead.probe.probe`; exit code 122 when the proof does not hold.
    """
    cache = cache_dir(environ)
    staging.ensure(prepared.plan, cache)
    still_as_verified(prepared)
    limit = limit_s or prepared.plan.site.start_s
    proof = probe(prepared.plan, ranks, cache, environ, limit, env)
    still_as_verified(prepared)
    if not proof.holds:
        errors = [f for f in proof.findings if f.severity is Severity.ERROR]
        raise FairleadError(errors, ExitCode.PROOF_FAILED)
    return proof
