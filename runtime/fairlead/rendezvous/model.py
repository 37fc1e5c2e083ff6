"""A framework's declaration: the variables by which its processes find each other.

Each framework is a module with a :class:`Framework`; :mod:`fairlead.rendezvous.registry` finds them. The values are
facts of the launch, gathered by the shell around each rank (:mod:`~fairlead.rendezvous.script`) before the container
starts, so no image needs to know of launchers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MODES = ("auto", "none")  # of --rendezvous, besides the frameworks' names


@dataclass(frozen=True)
class Framework:
    """How the processes of a framework find each other.

    Attributes:
        name: for ``--rendezvous``.
        title: its product name.
        variables: what is set on each rank where it is unset: a word of the shell by name. The shell has ``$w_rank``,
            ``$w_size``, ``$w_local``, ``$w_locals`` (ranks on the node), ``$w_node``, ``$w_nodes``, ``$w_here`` and
            ``$w_first`` (addresses of this rank's node and of rank 0's), ``$w_interface``, ``$w_cores`` (of the rank),
            ``$w_ports`` (three free ports of rank 0, separated by spaces: ``$w_port0``, …) and ``$w_run`` (the run's id).
        why: who reads them.
        launchers: the variables are for the framework's own launcher, which starts the processes of a node itself:
            its programs, and modules for ``python -m``.
        members: it needs every rank's address: ``$w_members`` is the list of ``"ADDRESS:PORT"`` in JSON.
    """

    name: str
    title: str
    variables: Mapping[str, str]
    why: str
    launchers: tuple[str, ...] = ()
    members: bool = field(default=False)
