"""Who is measured: a row a way to train, with the image that it needs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.base.errors import ExitCode, FairleadError, Finding, Severity
from fairlead.base.suggest import suggest

# By the name of the bundled model.
MODELS = {"hepcnn": "hep", "cosmoflow": "cosmo", "resnet50": "resnet"}
SYNCHRONOUS = "each step is that of one process with all samples; all ranks hold the same weights"
ASYNCHRONOUS = (
    "one copy of the weights, on the servers; every update is applied, in any order, to weights that may have"
    " changed since its gradients were computed; no two runs are alike"
)
LATE = "as synchronous, each mean one step late; all ranks hold the same weights"


@dataclass(frozen=True)
class Peer:
    """One way to train.

    Attributes:
        framework: ``tensorflow`` or ``torch``.
        recipe: of the image.
        way: what :mod:`benchmarks.peers.worker` calls it.
        servers: parameter servers in addition to the workers.
        env: variables for the ranks.
        alone: one process, which does not communicate.
        ours: fairlead's peer that it is compared with, of the same framework.
        guarantee: what holds of the weights.
    """

    name: str
    title: str
    framework: str
    recipe: str
    way: str
    servers: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False
    ours: str = "fairlead"
    guarantee: str = SYNCHRONOUS


def _server(count: int) -> Peer:
    title = f"parameter server, {count} server{'s' if count > 1 else ''}"
    return Peer(
        f"ps-{count}", title, "tensorflow", "tensorflow", "ps", count, guarantee=ASYNCHRONOUS
    )


_ALONE = "nothing is communicated"
PEERS: tuple[Peer, ...] = (
    Peer("alone", "one process, TensorFlow", "tensorflow", "tensorflow", "none", alone=True, guarantee=_ALONE),
    Peer("fairlead", "fairlead", "tensorflow", "tensorflow", "fairlead"),
    Peer("fairlead-delayed", "fairlead, delayed", "tensorflow", "tensorflow", "delayed", guarantee=LATE),
    Peer("horovod", "Horovod, default", "tensorflow", "tensorflow-horovod", "horovod"),
    Peer(
        "horovod-tuned", "Horovod, grouped, cycle 50", "tensorflow", "tensorflow-horovod", "horovod-grouped",
        env={"HOROVOD_CYCLE_TIME": "50"},
    ),
    Peer("mirrored", "MultiWorkerMirrored, gRPC ring", "tensorflow", "tensorflow", "mirrored"),
    _server(1),
    _server(2),
    _server(4),
    Peer(
        "alone-torch", "one process, torch", "torch", "pytorch", "none", alone=True, ours="ddp-fairlead",
        guarantee=_ALONE,
    ),
    Peer("ddp", "torch DDP, Gloo", "torch", "pytorch", "gloo", ours="ddp-fairlead"),
    Peer("ddp-fairlead", "torch DDP, fairlead", "torch", "pytorch", "fairlead", ours="ddp-fairlead"),
)  # fmt: skip
NAMES = tuple(peer.name for peer in PEERS)


def find(name: str) -> Peer:
    """The peer of that name; ``ps-N`` with any number of servers.

    Raises:
        FairleadError: exit code 2; there is none.

    >>> find("ps-8").servers
    8
    """
    for peer in PEERS:
        if peer.name == name:
            return peer
    if re.fullmatch(r"ps-[1-9]\d{0,3}", name):
        return _server(int(name[3:]))
    raise FairleadError(
        Finding(
            Severity.ERROR,
            f"unknown peer `{name}`",
            "--peers",
            f"{suggest(name, NAMES)} ps-N, with N servers, is also a peer.",
            "python -m benchmarks.peers --peers fairlead,horovod,ps-2",
            "bench-peer",
        ),
        ExitCode.USAGE,
    )


def select(names: Sequence[str] | None) -> tuple[Peer, ...]:
    """The peers of these names, each once, and what each is compared with; None for all.

    Raises:
        FairleadError: as :func:`find`.
    """
    if names is None:
        return PEERS
    wanted = {find(name).name: find(name) for name in names}
    bases = {"tensorflow": "alone", "torch": "alone-torch"}
    for peer in list(wanted.values()):
        for needed in (bases[peer.framework], peer.ours):
            wanted.setdefault(needed, find(needed))
    order = {name: at for at, name in enumerate(NAMES)}
    return tuple(sorted(wanted.values(), key=lambda p: (order.get(p.name, len(order)), p.servers)))
