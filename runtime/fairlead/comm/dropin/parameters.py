"""Horovod's parameters. Each of its fronts has an order of its own, and old scripts pass some by place.

Orders are those of Horovod 0.28.1; a test compares them with its source.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Any

# Results are the same with and without these: they are about devices, names in graphs, the order and number of messages.
WITHOUT_MEANING = frozenset(
    {
        "device", "device_dense", "device_sparse", "gradient_predivide_factor", "groups", "ignore_name_scope",
        "inplace", "legacy_opts", "model", "num_groups", "session", "sparse_as_dense", "use_locking",
    }
)  # fmt: skip


def takes(order: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function that takes the parameters of ``order``, by place or by name, and no others.

    What is given reaches the decorated function by name, without what is :data:`WITHOUT_MEANING` there.

    >>> takes("tensor name op")(lambda tensor, **how: how)(1, None, "Sum")
    {'name': None, 'op': 'Sum'}
    >>> takes("tensor name op")(lambda tensor, **how: how)(1, nam="a")
    Traceback (most recent call last):
    TypeError: <lambda>() got an unexpected keyword argument 'nam'
    """

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        known = signature(function).parameters
        every = Signature([_parameter(name, known) for name in order.split()])
        ignored = WITHOUT_MEANING - {*known}

        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            try:
                given = every.bind(*args, **named).arguments
            except TypeError as exc:
                name = getattr(function, "__name__", "call")
                raise TypeError(f"{name.strip('_')}() {exc}") from None
            return function(**{name: given[name] for name in given if name not in ignored})

        call.__signature__ = every  # type: ignore[attr-defined]
        return call

    return decorated


def _parameter(name: str, known: Any) -> Parameter:
    default = known[name].default if name in known else None
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default)
