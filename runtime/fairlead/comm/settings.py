"""The variables that :mod:`fairlead.comm` reads, and their defaults: its own here, a backend's in its declaration."""

from __future__ import annotations

import os
from collections.abc import Mapping

from fairlead.base.comm_backend import REGISTRY, Setting
from fairlead.base.comm_names import VARIABLE

_GENERAL = (
    Setting(
        "FAIRLEAD_COMM_SAME_CODE",
        "1",
        "0: ranks may run different programs; versions of libraries are compared all the same",
    ),
    Setting(
        "FAIRLEAD_COMM_TENSORFLOW_OP",
        "",
        "file of the operation for TensorFlow; `none`: numpy_function; unset: the one next to the core",
    ),
    Setting(
        "FAIRLEAD_COMM_COMPRESSION",
        "none",
        "how float32 gradients travel: `fp16`, `bf16` or `none`",
    ),
    Setting(
        "FAIRLEAD_COMM_DETERMINISTIC",
        "0",
        "1: what nodes send is added in the order of the nodes, whatever the MPI and the chunks",
    ),
    Setting(
        "FAIRLEAD_COMM_NONFINITE",
        "warn",
        "NaN or infinity in what a rank passes: it is reported once (`warn`), fails the call (`stop`) or is ignored (`ignore`)",
    ),
    Setting("FAIRLEAD_COMM_REPORT", "1", "0: no report at the end of how long the ranks waited"),
    Setting(
        "FAIRLEAD_COMM_TIMELINE",
        "",
        "a file for what every rank did, and when; `--timeline` sets it",
    ),
    Setting(
        "FAIRLEAD_COMM_TIMELINE_MB",
        "8",
        "room of each rank for its collectives; older ones give way to newer",
    ),
    Setting(
        "FAIRLEAD_COMM_TIMELINE_EVENTS",
        "100000",
        "events that Python records of each rank, such as steps; older ones give way to newer",
    ),
    Setting(
        "FAIRLEAD_COMM_DELAY_MOMENTUM",
        "",
        "momentum of an old script's optimizer; its late gradients are then made smaller",
    ),
)


def settings() -> tuple[Setting, ...]:
    """All of them, in the order in which they are listed."""
    backends = REGISTRY.every()
    names = ", ".join(f"`{backend.name}`" for backend in backends)
    choice = Setting(VARIABLE, "auto", f"{names}; `auto`: the core where it is found")
    return (choice, *_GENERAL, *(s for backend in backends for s in backend.settings))


def in_effect(environ: Mapping[str, str] = os.environ) -> tuple[tuple[Setting, str], ...]:
    """Each setting and its value."""
    return tuple((s, environ.get(s.name) or s.default) for s in settings())
