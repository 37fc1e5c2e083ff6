"""Old scripts, unchanged: modules named ``ml_comm``, ``ml_comm_torch``, ``dl_comm`` and ``horovod``.

    $ fairlead run -n 2 IMAGE -- python3 -m fairlead.comm.dropin train.py --batch 32

or, as the first lines of a script::

    from fairlead.comm import dropin
    dropin.install()

Nothing is replaced unless one of the two is done. `docs/howto/old-scripts.md` describes what each call does.

* :mod:`~fairlead.comm.dropin.cray` is ``ml_comm`` and ``dl_comm``; :mod:`~fairlead.comm.dropin.teams`
  holds its state. :mod:`~fairlead.comm.dropin.hvd` is ``horovod``. ``cray_*.py`` and ``hvd_*.py`` are their
  parts for each framework.
* :mod:`~fairlead.comm.dropin.engine` carries out Horovod's collectives, which ranks ask for in any order
  (:mod:`~fairlead.comm.dropin.requests`), among all ranks or some (:mod:`~fairlead.comm.dropin.sets`).
* :mod:`~fairlead.comm.dropin.tensors` puts a collective over tensors of any kind, and
  :mod:`~fairlead.comm.dropin.session_hooks` has the hooks and the optimizers of TF 1.

Sources: the calls as public user code makes them (NERSC's HEP-CNN benchmark, CosmoFlow, cosmoGAN,
the CUG 2019 tutorial); Horovod's by its documentation, https://horovod.readthedocs.io/en/stable/api.html.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from fairlead.base.errors import fail
from fairlead.comm.dropin.absent import refuse
from fairlead.comm.dropin.which_keras import of_keras

__all__ = ["NAMES", "install"]

_HERE = "fairlead.comm.dropin"
NAMES = ("ml_comm", "ml_comm_torch", "dl_comm", "horovod")
# The modules that an old script imports, and those that it then gets. Frameworks are loaded with them,
# hence not before they are asked for.
_MODULES = {
    "ml_comm": f"{_HERE}.cray",
    "ml_comm_torch": f"{_HERE}.cray_torch_old",
    "dl_comm": f"{_HERE}.cray",
    "dl_comm.tensorflow": f"{_HERE}.cray_tensorflow",
    "dl_comm.keras": f"{_HERE}.cray_keras",
    "dl_comm.torch": f"{_HERE}.cray_torch",
    "horovod": f"{_HERE}.hvd",
    "horovod.common": f"{_HERE}.hvd",
    "horovod.common.elastic": f"{_HERE}.hvd_elastic",
    "horovod.common.exceptions": f"{_HERE}.failures",
    "horovod.common.process_sets": f"{_HERE}.sets",
    "horovod.common.util": f"{_HERE}.hvd_util",
    "horovod.tensorflow": f"{_HERE}.hvd_tensorflow",
    "horovod.tensorflow.compression": f"{_HERE}.hvd",
    "horovod.tensorflow.elastic": f"{_HERE}.hvd_tensorflow_elastic",
    "horovod.tensorflow.functions": f"{_HERE}.hvd_tensorflow",
    "horovod.tensorflow.mpi_ops": f"{_HERE}.hvd_tensorflow",
    "horovod.tensorflow.sync_batch_norm": f"{_HERE}.hvd_keras_sync",
    "horovod.tensorflow.util": f"{_HERE}.hvd_tensorflow_util",
    "horovod.keras": f"{_HERE}.hvd_keras",
    "horovod.keras.callbacks": f"{_HERE}.callbacks",
    "horovod.keras.elastic": f"{_HERE}.hvd_tensorflow_elastic",
    "horovod.tensorflow.keras": f"{_HERE}.hvd_keras",
    "horovod.tensorflow.keras.callbacks": f"{_HERE}.callbacks",
    "horovod.tensorflow.keras.elastic": f"{_HERE}.hvd_tensorflow_elastic",
    "horovod.torch": f"{_HERE}.hvd_torch",
    "horovod.torch.elastic": f"{_HERE}.hvd_torch_elastic",
    "horovod.torch.elastic.sampler": f"{_HERE}.hvd_torch_elastic",
    "horovod.torch.elastic.state": f"{_HERE}.hvd_torch_elastic",
    "horovod.torch.functions": f"{_HERE}.hvd_torch",
    "horovod.torch.mpi_ops": f"{_HERE}.hvd_torch",
    "horovod.torch.compression": f"{_HERE}.hvd",
    "horovod.torch.optimizer": f"{_HERE}.hvd_torch_optimizer",
    "horovod.torch.sync_batch_norm": f"{_HERE}.hvd_torch_sync",
}
_TORCH = "ml_comm_torch"  # which brings torch along
# Set by launchers in each process; before MPI has started there is nothing else to ask.
_RANK_VARIABLES = (
    "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PALS_RANKID", "FLUX_TASK_RANK", "JSM_NAMESPACE_RANK",
    "ALPS_APP_PE", "SLURM_PROCID",
)  # fmt: skip


class _StandIn(ModuleType):
    """A module under the old name that has what another one has, loaded or not."""

    def __init__(self, name: str, source: str):
        super().__init__(name, f"{name}, by {source} of fairlead")
        self.__path__: list[str] = []
        self.__fairlead__ = source

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if f"{self.__name__}.{name}" in _MODULES:
            return importlib.import_module(f"{self.__name__}.{name}")
        try:
            return getattr(importlib.import_module(self.__fairlead__), name)
        except AttributeError as exc:
            top = self.__name__.partition(".")[0]
            refuse(top, name)
            words = f"the stand-in for {top} has no attribute {name!r}"
            raise AttributeError(words) from exc

    def __dir__(self) -> list[str]:
        return sorted(importlib.import_module(self.__fairlead__).__all__)


class _Finder:
    """Finds the modules below the names that were installed; all others are none of its business."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        top, _, below = name.partition(".")
        if top not in self.names:
            return None
        if name not in _MODULES:
            refuse(top, below)
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name, of_keras(_MODULES[spec.name]))

    def exec_module(self, module: ModuleType) -> None:
        source = importlib.import_module(of_keras(_MODULES[module.__name__]))
        # What the source only has when it is asked for stays there: see _StandIn.
        vars(module).update({name: vars(source)[name] for name in source.__all__})
        vars(module)["__all__"] = list(source.__all__)


_finder = _Finder()


def install(names: Sequence[str] = NAMES, environ: Mapping[str, str] = os.environ) -> None:
    """Lets this process import ``names`` from fairlead. Rank 0 says what they stand in for.

    Args:
        names: of :data:`NAMES`. An installed module that is left out is used as usual.
    Raises:
        FairleadError: another name; or the real module of that name is imported already, so that the
            program would use two libraries at once.
    """
    for name in names:
        if name not in NAMES:
            raise fail("comm-dropin-name", name=name, names=", ".join(NAMES))
        known = sys.modules.get(name)
        if known is not None and not hasattr(known, "__fairlead__"):
            raise fail(
                "comm-dropin-loaded", name=name, getattr=getattr(known, "__file__", None) or name
            )
    fresh = [name for name in names if name not in _finder.names]
    real = {name: place for name in fresh if (place := _real(name))}
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    for name in fresh:
        _finder.names.add(name)
        if name != _TORCH:
            importlib.import_module(name)
    if fresh and _first(environ):
        notice = f"fairlead: {', '.join(fresh)}: imports of these names get fairlead.comm.dropin"
        for name, place in real.items():
            notice += f"; the real {name} ({place}) is installed and not used"
        sys.stderr.write(f"{notice}\n")


def _real(name: str) -> str:
    """Where the real module of this name is; empty where there is none."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return ""
    if spec is None:
        return ""
    return spec.origin or ", ".join(spec.submodule_search_locations or ()) or "built in"


def _first(environ: Mapping[str, str]) -> bool:
    given = [environ[variable] for variable in _RANK_VARIABLES if environ.get(variable)]
    return not given or given[0] == "0"
