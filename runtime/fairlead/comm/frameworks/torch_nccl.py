"""torch's tensors on GPUs: NCCL makes their means, through torch.distributed.

Within a node of GPUs nothing is faster than NCCL, so fairlead does not compete with it: tensors that are on
GPUs never go through the memory of the host. What is fairlead's here is what NCCL lacks: the ranks are
those of MPI, and before each call they agree on what is called, with which tensors; the ranks that differ
are named, and so are those that are late (by the core that carries the host's arrays).

Between nodes NCCL goes by its own transport, which is as fast as its plugin for the fabric:
``NCCL_DEBUG=INFO`` shows which it found. Not given: that NCCL's sums are the same bits on all ranks is so in
its algorithms, and promised nowhere; :func:`fairlead.comm.torch.check_state` compares.

Source: https://docs.pytorch.org/docs/stable/distributed.html.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from fairlead.base.comm_names import UNORDERED, is_ordered
from fairlead.base.errors import fail
from fairlead.comm.core import Comm, Signature
from fairlead.comm.frameworks import common

LIBRARY = "nccl"  # torch's name for it, and for AMD's RCCL
_BOTH = "cpu:gloo,cuda:nccl"
_SMALL = (torch.float16, torch.bfloat16)

_groups: dict[int, Group] = {}


def on_gpu(tensor: Any) -> bool:
    """Whether it is for :class:`Group`."""
    return bool(tensor.device.type != "cpu")


def group_of(ranks: Comm, tensors: Sequence[Any], names: Sequence[str]) -> Group:
    """The process group for tensors on GPUs, made at the first call. Collective.

    Raises:
        FairleadError: a tensor is on no GPU that NCCL knows, or on another than its rank's; this torch has
            no NCCL; another backend is forced; two ranks have the same GPU; torch.distributed was started
            with other ranks than MPI's.
    """
    for tensor, name in zip(tensors, names, strict=True):
        _check(tensor, name, tensors[0].device, ranks.forced)
    known = _groups.get(id(ranks))
    if known is None:
        if ranks.size > 1:
            _require_own(ranks, tensors[0].device)
        known = _groups[id(ranks)] = Group(ranks, LIBRARY)
        if ranks.rank == 0:
            sys.stderr.write(
                f"fairlead.comm: tensors on GPUs go by {known.name}; arrays of the host by"
                f" {ranks.backend}\n"
            )
    return known


class Group:
    """MPI's ranks as a process group of torch.distributed. Every method is collective.

    Attributes:
        name: library and version, for people.
    """

    def __init__(self, ranks: Comm, library: str):
        """
        Args:
            library: ``nccl``; or ``gloo``, which does the same for tensors of the host.
        Raises:
            FairleadError: torch.distributed was started with other ranks than MPI's, or cannot be.
        """
        from torch import distributed

        if not distributed.is_initialized():
            init_process_group(ranks, _BOTH if library == LIBRARY else library)
        rank, size, own = ranks.rank, ranks.size, distributed.get_rank()
        own_size = distributed.get_world_size()
        if (own, own_size) != (rank, size):
            raise fail("comm-device-other-ranks", rank=rank, size=size, own=own, own_size=own_size)
        self._ranks, self._distributed = ranks, distributed
        # Its own, so that its calls are in no order to those of the program.
        self._group = distributed.new_group(backend=library)
        self.name = f"{library} of torch {torch.__version__}"

    def aggregate(self, tensors: Sequence[Any], names: Sequence[str]) -> None:
        """Makes tensors of any float or complex dtype their means over ranks, in place.

        float16 and bfloat16 are added in float32.

        Raises:
            FairleadError: the ranks disagree on number, shape or dtype; the library failed.
        """
        with self._failing():
            self._start(tensors, names)[1](True)

    def start(self, tensors: Sequence[Any], names: Sequence[str]) -> Any:
        """:meth:`aggregate` in the background, of at least one tensor of one dtype.

        Returns:
            A ``torch.futures.Future`` of the first tensor.
        """

        with self._failing():
            works, finish = self._start(tensors, names)

            def then(_: Any) -> Any:
                finish(False)
                return tensors[0]

            return works[-1].get_future().then(then)

    def broadcast(self, tensors: Sequence[Any], names: Sequence[str], root: int) -> None:
        """Makes tensors of any dtype rank ``root``'s, bit for bit, in place."""

        with self._failing():
            self._agree(f"broadcast(root={root}) on GPUs", tensors, names)
            for tensor in tensors:
                # As bytes: what the library makes of a dtype does not matter.
                flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
                if flat.numel():
                    self._distributed.broadcast(flat, root, group=self._group)
                    tensor.detach().copy_(flat.view(tensor.dtype).reshape(tensor.shape))

    def _start(
        self, tensors: Sequence[Any], names: Sequence[str]
    ) -> tuple[list[Any], Callable[[bool], None]]:
        """Starts one reduction per dtype; returns the pending work, and a function that fills the tensors."""
        self._agree("aggregate on GPUs", tensors, names)
        fused: dict[Any, list[Any]] = {}
        for tensor in tensors:
            wide = torch.float32 if tensor.dtype in _SMALL else tensor.dtype
            fused.setdefault(wide, []).append(tensor.detach())
        moved = []
        for wide, those in fused.items():
            flat = torch.cat([tensor.reshape(-1).to(wide) for tensor in those])
            work = self._distributed.all_reduce(flat, group=self._group, async_op=True)
            moved.append((work, flat, those))

        def finish(wait: bool) -> None:
            for work, flat, those in moved:
                if wait:
                    work.wait()
                flat.div_(self._ranks.size)
                means = flat.split([tensor.numel() for tensor in those])
                for tensor, mean in zip(those, means, strict=True):
                    tensor.copy_(mean.view(tensor.shape))

        return [work for work, _, _ in moved], finish

    def _agree(self, call: str, tensors: Sequence[Any], names: Sequence[str]) -> None:
        signature: Signature = tuple(
            (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for t in tensors
        )
        with common.naming(names):
            self._ranks.agree(call, signature)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Errors of the library name it and this rank."""
        try:
            yield
        except RuntimeError as exc:
            rank, host, why = self._ranks.rank, socket.gethostname(), _reason(str(exc))
            raise fail("comm-carrier-nccl", name=self.name, rank=rank, host=host, exc=why) from exc


def _reason(words: str) -> str:
    """The line of torch's error that says most: what NCCL last complained of, behind what every error of its has.

    >>> _reason("NCCL error in: NCCLUtils.cpp:93, invalid usage\\nLast error:\\nDuplicate GPU detected")
    'Duplicate GPU detected'
    """
    first, *rest = words.strip().splitlines() or [""]
    marks = [i for i, line in enumerate(rest) if line.strip() == "Last error:"]
    last = [line.strip() for line in rest[marks[-1] + 1 :] if line.strip()] if marks else []
    return last[0] if last else first


def init_process_group(ranks: Comm, library: str) -> None:
    """torch.distributed's default group, of exactly the ranks of MPI. Collective.

    Rank 0 opens a store on a free port and broadcasts host and port, which ``MASTER_ADDR`` and
    ``MASTER_PORT`` then say; ``RANK`` and ``WORLD_SIZE`` are set as well.
    """
    from torch import distributed

    hosts = common.broadcast_object(ranks, ranks.gather(socket.gethostname()), 0)
    alone = len(set(hosts)) == 1
    host = "127.0.0.1" if alone else hosts[0]
    if alone:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = None
    if ranks.rank == 0:
        store = distributed.TCPStore(host, 0, ranks.size, True, wait_for_workers=False)
    port = common.broadcast_object(ranks, store.port if store else None, 0)
    if store is None:
        store = distributed.TCPStore(host, port, ranks.size, False)
    os.environ |= {
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "RANK": str(ranks.rank),
        "WORLD_SIZE": str(ranks.size),
    }
    report = sys.excepthook
    distributed.init_process_group(library, store=store, rank=ranks.rank, world_size=ranks.size)
    # torch's own hook keeps an exception's words back until ours has ended all ranks, and loses them
    sys.excepthook = report


def usual_library() -> str:
    """The libraries of a process group here: Gloo, and NCCL as well where torch sees GPUs."""
    from torch import distributed

    return _BOTH if torch.cuda.is_available() and distributed.is_nccl_available() else "gloo"


def _check(tensor: Any, name: str, device: Any, forced: str) -> None:
    from torch import distributed

    why = ""
    if forced not in ("", LIBRARY):
        why = f"FAIRLEAD_COMM_BACKEND={forced}, which moves the memory of the host"
    elif is_ordered(os.environ):
        why = UNORDERED
    elif tensor.device.type != "cuda":
        why = "NCCL knows NVIDIA's GPUs, RCCL AMD's, and this is neither"
    elif not distributed.is_nccl_available():
        why = f"torch {torch.__version__} was built without NCCL"
    elif tensor.device != device:
        why = f"other tensors of this rank are on {device}"
    if why:
        raise fail("comm-device-gpu-gradients", name=name, device=tensor.device, why=why)


def _require_own(ranks: Comm, device: Any) -> None:
    """Refuses two ranks on one GPU, which NCCL cannot serve and reports in its own terms."""
    properties = torch.cuda.get_device_properties(device)
    mine = (socket.gethostname(), str(getattr(properties, "uuid", device)))
    every = common.broadcast_object(ranks, ranks.gather(mine), 0)
    for odd, gpu in enumerate(every):
        if (index := every.index(gpu)) < odd:
            raise fail("comm-device-shared-gpu", index=index, odd=odd, every=", ".join(gpu))
