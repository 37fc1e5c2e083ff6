"""``--check-nodes``: before a launch, the nodes of its job are held against each other, and those that fail are left out."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fairlead.base.errors import FairleadError, Finding, fail, warning
from fairlead.base.paths import cache_dir
from fairlead.base.progress import Progress
from fairlead.cli.screen import print_findings
from fairlead.schedulers.model import Allocation
from fairlead.session.model import Prepared

_NEEDED = ("numpy", "mpi4py")
_MOST_BROKEN = 4  # nodes on which a trial cannot run


def failing(
    prepared: Prepared,
    allocation: Allocation | None,
    progress: Progress,
    show: Callable[[Finding], None] = lambda finding: print_findings([finding]),
) -> dict[str, str]:
    """The nodes that cannot run ranks, or whose processor, disk or link is slower than the others', each with the reason.

    One rank a node, in the image. Takes seconds: a round of kernels, one of files, and O(log n) of messages.

    Args:
        show: called with each.
    Raises:
        FairleadError: exit code 2; the nodes have no names, or the image lacks what the ranks need; else as the launch.
    """
    from fairlead.ml.train.session_runner import runner
    from fairlead.perf.measure.program import run_program
    from fairlead.perf.measure.ranks import stragglers
    from fairlead.perf.measure.straggler_search import Kind

    hosts = prepared.plan.request.shape.hosts or (allocation.hosts if allocation else ())
    if len(hosts) < 2:
        raise fail("check-nodes-none")
    wheels = {name.lower() for name in prepared.image.packages.get("wheel", {})}
    if lacking := [name for name in _NEEDED if name not in wheels]:
        raise fail("check-nodes-image", image=prepared.image, lacking=" and ".join(lacking))
    failures: dict[str, str] = {}
    folder = Path(tempfile.mkdtemp(prefix="check-nodes-", dir=cache_dir()))
    # A link counts as slow at four times the usual time: with half of it a job is still better off.
    settings = stragglers.Settings(
        folder / "nodes.json", repeats=3, sample_s=0.1, limit_s=20, link_threshold=4.0,
        folders=(prepared.plan.site.storage.node_local,),
    )  # fmt: skip
    with progress.stage(f"check {len(hosts)} nodes") as stage:
        while True:
            left = tuple(host for host in hosts if host not in failures)
            if len(left) < 2 or len(failures) > _MOST_BROKEN:
                raise fail("check-nodes-broken", gone="; ".join(map(": ".join, failures.items())))
            try:
                run = runner(_on(prepared, left), folder / "ranks.log", lambda proof: None)
                document = run_program(stragglers.__name__, settings, run, len(left))
                break
            except FairleadError as exc:
                host = next((f.host for f in exc.findings if f.host in left), "")
                if not host:
                    raise
                failures[host] = exc.findings[0].what
        for straggler in stragglers.outcomes(document)["all"].culprits:
            # Of a pair, either may be at fault: without one of them it carries nothing.
            host = straggler.names[-1 if straggler.kind is Kind.PAIR else 0]
            failures.setdefault(
                host, f"{straggler.times_slower:.1f} times slower: {straggler.evidence}"
            )
        stage.result(f"{len(hosts) - len(failures)} of {len(hosts)} as they should be")
    for host, why in failures.items():
        show(warning("check-nodes", host=host, why=why))
    return failures


def _on(prepared: Prepared, hosts: tuple[str, ...]) -> Prepared:
    """The plan with one rank on each of the nodes."""
    plan = prepared.plan
    shape = replace(
        plan.request.shape, ranks=len(hosts), nodes=len(hosts), per_node=1, hosts=hosts, gpus=0
    )
    request = replace(plan.request, shape=shape, output_dir="", label=False)
    return replace(prepared, plan=replace(plan, request=request))
