"""Reports the world that a framework's processes form, from within them; see :mod:`fairlead.rendezvous.worlds`.

PYTHONPATH leads here, so every Python of a rank loads this file at its start, in whatever image. It imports nothing of
fairlead, runs on Python 3.6, and patches a module only once a program has imported it. What it cannot do, it leaves.

A file ``joining.FRAMEWORK.RANK.PID.ROUND`` in the run's folder says what a process is about to join, ``joined.…`` what it has
joined, ``parted.…`` that this is over, and ``alone.…`` that it trains without having joined anything.
"""

import atexit
import importlib.machinery
import importlib.util
import os
import sys
from _thread import _local

FOLDER = "/opt/fairlead/run"
HERE = os.path.dirname(os.path.abspath(__file__))
RANK = os.environ.get("FAIRLEAD_RANK", "")
try:
    SIZE = int(os.environ.get("FAIRLEAD_WORLD", "") or 0)
except ValueError:
    SIZE = 0
# With these, ranks train together without the framework's own world.
OTHERS = ("mpi4py.MPI", "horovod", "fairlead.comm")
LIGHTNING = {"lightning", "lightning_fabric", "pytorch_lightning"}


ROUNDS = {}  # how often this process has begun to join a world, by framework
PLACES = {}  # where it was to meet the others last, by framework
JOINED = {}  # the process that has joined one, by framework


def report(kind, framework, **values):
    """Writes a file, whole or not at all."""
    if values.get("size") == 1 and "fairlead.comm.auto" in sys.modules:
        return  # what --auto trains together is one process to its framework
    import json  # most Pythons never come here
    import socket

    if kind == "joining":
        ROUNDS[framework] = ROUNDS.get(framework, 0) + 1
        PLACES[framework] = values.get("address", "")
    if kind == "joined":
        JOINED[framework] = os.getpid()
    values.setdefault("address", PLACES.get(framework, ""))
    name = "%s.%s.%s.%s.%s" % (kind, framework, RANK, os.getpid(), ROUNDS.get(framework, 0))
    values.update(framework=framework, launched=RANK, pid=os.getpid(), host=socket.gethostname())
    values["round"] = ROUNDS.get(framework, 0)
    values["restart"] = number(os.environ.get("TORCHELASTIC_RESTART_COUNT", "")) or 0
    values["agent"] = "TORCHELASTIC_RUN_ID" in os.environ
    path = os.path.join(FOLDER, name)
    try:
        with open(os.path.join(FOLDER, "." + name), "w", encoding="utf-8") as out:
            json.dump(values, out)
        os.rename(os.path.join(FOLDER, "." + name), path)
    except (OSError, ValueError, TypeError):
        pass


def parted():
    """What this process had joined is over."""
    for framework, process in JOINED.items():
        if process == os.getpid():
            report("parted", framework)


def guarded(function):
    """``function`` that never fails: a program must not notice that it is watched."""

    def call(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except Exception:
            return None

    return call


def number(value):
    """An int, or None."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


@guarded
def unreachable(address, port, first):
    """Why an address cannot be that of rank 0; empty where it can."""
    import socket

    try:
        addresses = socket.getaddrinfo(address, port or 1, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as exc:
        return "it does not resolve in the container: %s" % exc
    if not first or not port:
        return ""
    family, kind, proto, _, where = addresses[0]
    with socket.socket(family, kind, proto) as probe:
        try:
            probe.bind((where[0], 0) + tuple(where[2:]))
        except OSError:
            return "it is not an address of %s, where rank 0 runs" % socket.gethostname()
    with socket.socket(family, kind, proto) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((where[0], port) + tuple(where[2:]))
        except OSError as exc:
            return "port %s is not free there: %s" % (port, exc.strerror)
    return ""


def asked_of_torch(method, world_size, rank, store):
    """Rank, size, address and port that ``init_process_group`` will use, as far as they can be known."""
    address, port = "", None
    if store is None and method.startswith("env://"):
        address, port = os.environ.get("MASTER_ADDR", ""), number(os.environ.get("MASTER_PORT", ""))
        given = {"rank": os.environ.get("RANK"), "world_size": os.environ.get("WORLD_SIZE")}
    else:
        given = {}
    given.update(pair.partition("=")[::2] for pair in method.partition("?")[2].split("&") if pair)
    rank = rank if rank is not None and rank >= 0 else number(given.get("rank"))
    size = world_size if world_size and world_size > 0 else number(given.get("world_size"))
    return rank, size, address, port


def around_torch(module):
    """torch.distributed: what ``init_process_group`` is given, what it came to, and the end of it."""
    own, own_end = module.init_process_group, module.destroy_process_group

    @guarded
    def before(
        backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None, *_, **__
    ):
        method = init_method or "env://"
        rank, size, address, port = asked_of_torch(method, world_size, rank, store)
        agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        why = unreachable(address, port, rank == 0 and not agents) if address else ""
        place = "%s:%s" % (address, port) if address else method.partition("?")[0]
        report("joining", "torch", rank=rank, size=size, address=place, why=why or "")

    @guarded
    def after():
        backend = str(module.get_backend())
        by = "" if backend == "undefined" else backend
        report("joined", "torch", rank=module.get_rank(), size=module.get_world_size(), by=by)

    def init_process_group(*args, **kwargs):
        before(*args, **kwargs)
        result = own(*args, **kwargs)
        after()
        return result

    def destroy_process_group(group=None):
        result = own_end(group)
        if group is None:
            guarded(report)("parted", "torch")
        return result

    for made, first in ((init_process_group, own), (destroy_process_group, own_end)):
        made.__doc__ = first.__doc__
        made.__wrapped__ = first
        setattr(module, made.__name__, made)


def around_agents(module):
    """torchrun: where its agents are to meet."""
    own = module.create_backend

    def create_backend(params, *args, **kwargs):
        place = str(getattr(params, "endpoint", ""))
        host, _, port = place.rpartition(":")
        host = host or place
        why = unreachable(host.strip("[]"), number(port), False) if host else ""
        guarded(report)("joining", "torchrun", rank=None, size=None, address=place, why=why or "")
        result = own(params, *args, **kwargs)
        guarded(report)("joined", "torchrun", rank=None, size=None, by="")
        return result

    create_backend.__doc__ = own.__doc__
    create_backend.__wrapped__ = own
    module.create_backend = create_backend


def around_optimizer(module):
    """torch.optim: a step of a process that belongs to no world."""
    add = getattr(module, "register_optimizer_step_pre_hook", None)
    if add is None or SIZE < 2:
        return

    @guarded
    def before(*_):
        handle.remove()
        distributed = sys.modules.get("torch.distributed")
        joined = (
            distributed is not None and distributed.is_available() and distributed.is_initialized()
        )
        if not joined:
            alone("torch")

    handle = add(before)


def alone(framework):
    """Reports that this process works by itself, unless something else connects it with the others."""
    # Lightning loads mpi4py to look whether it is started by mpiexec.
    names = [
        n
        for n in OTHERS
        if n in sys.modules and not (n == "mpi4py.MPI" and LIGHTNING & set(sys.modules))
    ]
    if framework not in JOINED and not names:
        report("alone", framework)


def around_fit(module):
    """Keras on TensorFlow: a fit of a process that belongs to no world."""
    own = module.TensorFlowTrainer.fit

    def fit(self, *args, **kwargs):
        guarded(alone)("tf")
        return own(self, *args, **kwargs)

    fit.__doc__ = own.__doc__
    fit.__wrapped__ = own
    if SIZE > 1:
        module.TensorFlowTrainer.fit = fit


def around_lightning(module):
    """Lightning: the world in which a Trainer runs, which is one process where it is not asked for more."""
    own = module.Trainer._run

    def _run(self, *args, **kwargs):
        if not getattr(self, "fast_dev_run", False):
            of_lightning(self)
        return own(self, *args, **kwargs)

    _run.__doc__ = own.__doc__
    _run.__wrapped__ = own
    module.Trainer._run = _run


def around_fabric(module):
    """Lightning's Fabric: the world for which it sets a model up."""
    for name in ("setup", "setup_module"):
        own = getattr(module.Fabric, name)

        def setup(self, *args, _own=own, **kwargs):
            of_lightning(self)
            return _own(self, *args, **kwargs)

        setup.__doc__ = own.__doc__
        setup.__wrapped__ = own
        setup.__name__ = name
        setattr(module.Fabric, name, setup)


@guarded
def of_lightning(made):
    """Reports the world of a Trainer or a Fabric."""
    strategy = getattr(made, "strategy", None)
    by = type(strategy).__name__
    report("joined", "lightning", rank=made.global_rank, size=made.world_size, by=by)


def lightning_address(module):
    """Lightning over mpi4py meets at rank 0's host name, which need not resolve; the launch has an address."""
    own = module.MPIEnvironment.main_address
    module.MPIEnvironment.main_address = property(
        lambda self: os.environ.get("MASTER_ADDR") or own.fget(self)
    )


def jax_interface(module):
    """JAX has Gloo listen where the host name leads, and knows no variable for another interface."""
    own = module._jax.make_gloo_tcp_collectives

    def make_gloo_tcp_collectives(*args, **kwargs):
        interface = os.environ.get("GLOO_SOCKET_IFNAME")
        if interface and len(args) < 2 and not {"hostname", "interface"}.intersection(kwargs):
            kwargs["interface"] = interface
        return own(*args, **kwargs)

    module._jax.make_gloo_tcp_collectives = make_gloo_tcp_collectives
    if SIZE > 1:
        guarded(around_backends)(module)


def around_backends(module):
    """JAX: devices that are made before the ranks have joined stay those of one process."""
    own = module._get_backend_uncached

    def _get_backend_uncached(*args, **kwargs):
        guarded(alone)("jax")
        return own(*args, **kwargs)

    _get_backend_uncached.__wrapped__ = own
    module._get_backend_uncached = _get_backend_uncached


def around_jax(module):
    """jax.distributed: what ``initialize`` came to."""
    own = module.State.initialize

    def initialize(self, *args, **kwargs):
        address = (args[0] if args else kwargs.get("coordinator_address")) or os.environ.get(
            "JAX_COORDINATOR_ADDRESS", ""
        )
        size = args[1] if len(args) > 1 else kwargs.get("num_processes")
        rank = args[2] if len(args) > 2 else kwargs.get("process_id")
        if rank is None and size is None:  # those of the launch: see jax_cluster
            rank, size = (os.environ.get(n) for n in ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES"))
        if rank is not None and size is not None:
            report(
                "joining",
                "jax",
                rank=number(rank),
                size=number(size),
                address=str(address),
                why=_jax(address, number(rank)) or "",
            )
        result = own(self, *args, **kwargs)
        guarded(
            lambda: report(
                "joined",
                "jax",
                rank=self.process_id,
                size=self.num_processes,
                by=str(self.coordinator_address or ""),
            )
        )()
        return result

    initialize.__doc__ = own.__doc__
    initialize.__wrapped__ = own
    module.State.initialize = initialize


@guarded
def _jax(address, rank):
    host, _, port = str(address).rpartition(":")
    return unreachable(host.strip("[]"), number(port), rank == 0) if host else ""


def jax_cluster(module):
    """A cluster for ``jax.distributed.initialize()`` that reads what the launch has set."""

    class Fairlead(module.ClusterEnv):
        """The launch that this process is a rank of."""

        name = "fairlead"

        @classmethod
        def is_env_present(cls):
            return "JAX_PROCESS_ID" in os.environ and "JAX_NUM_PROCESSES" in os.environ

        @classmethod
        def get_coordinator_address(cls, *_, **__):
            return os.environ["JAX_COORDINATOR_ADDRESS"]

        @classmethod
        def get_process_count(cls):
            return int(os.environ["JAX_NUM_PROCESSES"])

        @classmethod
        def get_process_id(cls):
            return int(os.environ["JAX_PROCESS_ID"])

        @classmethod
        def get_local_process_id(cls):
            # A number of a device, of those that this process sees; None: all of them.
            local = os.environ.get(
                "CUDA_VISIBLE_DEVICES", os.environ.get("ROCR_VISIBLE_DEVICES", "")
            )
            if "," not in local or "LOCAL_RANK" not in os.environ:
                return None
            return int(os.environ["LOCAL_RANK"])

    kinds = module.ClusterEnv._cluster_types
    if Fairlead in kinds:
        kinds.remove(Fairlead)
    kinds.insert(0, Fairlead)


def around_strategy(module):
    """TensorFlow: the cluster of a strategy for several workers, which is one process without TF_CONFIG."""
    extended = module.CollectiveAllReduceExtended

    def reporting(own, several):
        def initialise(self, cluster_resolver, *args, **kwargs):
            if several:
                before(cluster_resolver)
            result = own(self, cluster_resolver, *args, **kwargs)
            if not several or cluster_resolver.task_type in ("chief", "worker"):
                rank = getattr(self, "_id_in_cluster", 0) if several else 0
                size = getattr(self, "_num_workers", 1) if several else 1
                report("joined", "tf", rank=number(rank), size=number(size), by="")
            return result

        initialise.__doc__ = own.__doc__
        initialise.__wrapped__ = own
        return initialise

    @guarded
    def before(resolver):
        cluster = resolver.cluster_spec().as_dict()
        if resolver.task_type not in ("chief", "worker"):
            return
        members = list(cluster.get("chief", [])) + list(cluster.get("worker", []))
        rank = resolver.task_id
        rank += len(cluster.get("chief", [])) if resolver.task_type == "worker" else 0
        host, _, port = members[rank].rpartition(":")
        why = unreachable(host.strip("[]"), number(port), True)
        report("joining", "tf", rank=rank, size=len(members), address=members[0], why=why or "")

    extended._initialize_multi_worker = reporting(extended._initialize_multi_worker, True)
    extended._initialize_local = reporting(extended._initialize_local, False)


def around_ray(module):
    """Ray: a cluster that a rank has started for itself."""
    own = module.init

    def init(*args, **kwargs):
        result = own(*args, **kwargs)
        of_ray(module)
        return result

    init.__doc__ = own.__doc__
    init.__wrapped__ = own
    if SIZE > 1:
        module.init = init


@guarded
def of_ray(module):
    node = module._global_node
    if node is not None and node.is_head():
        report("joined", "ray", rank=0, size=1, by="")


PATCHES = {
    "torch.distributed.distributed_c10d": around_torch,
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend": around_agents,
    "torch.optim.optimizer": around_optimizer,
    "lightning.pytorch.trainer.trainer": around_lightning,
    "pytorch_lightning.trainer.trainer": around_lightning,
    "lightning.fabric.fabric": around_fabric,
    "lightning_fabric.fabric": around_fabric,
    "lightning.fabric.plugins.environments.mpi": lightning_address,
    "lightning_fabric.plugins.environments.mpi": lightning_address,
    "jax._src.distributed": around_jax,
    "jax._src.xla_bridge": jax_interface,
    "jax._src.clusters.cluster": jax_cluster,
    "tensorflow.python.distribute.collective_all_reduce_strategy": around_strategy,
    "keras.src.backend.tensorflow.trainer": around_fit,
    "ray._private.worker": around_ray,
}


class Loader:
    """A module's own loader, and then its patch."""

    def __init__(self, own, patch):
        self.own, self.patch = own, patch

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.own, name)

    def create_module(self, spec):
        return self.own.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.own
        self.own.exec_module(module)
        guarded(self.patch)(module)


class Finder:
    """The first finder of all, which asks the others for the modules that have a patch."""

    def __init__(self):
        self.thread = _local()

    def find_spec(self, name, path=None, target=None):
        if name not in PATCHES or getattr(self.thread, "asking", "") == name:
            return None
        spec, self.thread.asking = None, name
        try:
            for finder in list(sys.meta_path):
                spec = (
                    finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
                )
                if spec is not None:
                    break
        finally:
            self.thread.asking = ""
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = Loader(spec.loader, PATCHES[name])
        return spec


def chain():
    """Runs the sitecustomize that this one stands before, if there is one."""
    others = [path for path in sys.path if os.path.abspath(path or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        sys.modules[__name__] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if RANK and SIZE:
    atexit.register(guarded(parted))
    sys.meta_path.insert(0, Finder())
chain()
