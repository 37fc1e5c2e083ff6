"""Which of an image's Python packages are what people call frameworks."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Projects by their normalised name; what is installed under another name than it is known by.
_KNOWN = {
    "dask": "dask",
    "horovod": "horovod",
    "jax": "jax",
    "jupyterlab": "jupyterlab",
    "keras": "keras",
    "mpi4py": "mpi4py",
    "pyspark": "pyspark",
    "pytorch-lightning": "pytorch-lightning",
    "tensorflow": "tensorflow",
    "tensorflow-cpu": "tensorflow",
    "tensorflow-rocm": "tensorflow",
    "torch": "torch",
}


def frameworks(packages: Mapping[str, str]) -> dict[str, str]:
    """Versions of the frameworks among Python ``packages``, by the name they are known by.

    >>> frameworks({"numpy": "2.4.1", "tensorflow_cpu": "2.21.0"})
    {'tensorflow': '2.21.0'}
    """
    found = {}
    for name, version in packages.items():
        # PEP 503: runs of ``-``, ``_`` and ``.`` are one.
        if known := _KNOWN.get(re.sub(r"[-_.]+", "-", name).lower()):
            found[known] = version
    return dict(sorted(found.items()))
