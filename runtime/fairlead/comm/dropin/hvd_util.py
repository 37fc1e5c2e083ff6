"""``horovod.common.util``: what scripts take from it."""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fairlead.comm.dropin.hvd import (
    ccl_built,
    ddl_built,
    gloo_built,
    mpi_built,
    nccl_built,
    num_rank_is_power_2,
)

__all__ = [
    "_cache",
    "ccl_built",
    "check_extension",
    "ddl_built",
    "env",
    "extension_available",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]
_NUMBERS = 3


def _cache(function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.cache(function)


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the framework is installed: fairlead has a front for it."""
    from importlib.util import find_spec

    return ext_base_name in ("tensorflow", "torch") and find_spec(ext_base_name) is not None


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: Any) -> None:
    """Accepts each framework that :func:`extension_available` knows.

    Raises:
        ImportError: another one.
    """
    if not extension_available(args[0] if args else ext_name):
        raise ImportError(f"fairlead has no front for {ext_name}, or it is not installed")


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """False: collectives are of tensors on CPUs."""
    return False


@contextmanager
def env(**variables: str | None) -> Iterator[None]:
    """Environment variables within a block; None removes one."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def split_list(given: Sequence[Any], count: int) -> list[Any]:
    """``count`` parts of as many elements, the first ones of one more.

    >>> split_list([1, 2, 3], 2)
    [[1, 2], [3]]
    """
    each, more = divmod(len(given), count)
    starts = [i * each + min(i, more) for i in range(count + 1)]
    return [given[start:end] for start, end in itertools.pairwise(starts)]


def is_iterable(given: Any) -> bool:
    try:
        iter(given)
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """
    Raises:
        ValueError: one is not a text, or ``target`` has not three numbers.

    >>> is_version_greater_equal_than("2.21.0", "2.6.0")
    True
    >>> is_version_greater_equal_than("2.6.0rc1", "2.6.0")
    False
    """
    if not isinstance(ver, str) or not isinstance(target, str):
        raise ValueError(f"versions are texts, not {ver!r} and {target!r}")
    if target.count(".") != _NUMBERS - 1:
        raise ValueError(f"{target!r} is not of the form major.minor.patch")
    return _version(ver) >= _version(target)


def _version(text: str) -> tuple[list[int], bool]:
    """Its numbers, and whether it is released: a release comes after what led to it."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    numbers = [int(number) for number in match[0].split(".")] if match else []
    led_to = re.match(
        r"[-_.]?(?:a|b|c|rc|alpha|beta|pre|preview|dev)", text[len(match[0]) if match else 0 :]
    )
    return [*numbers, 0, 0][:_NUMBERS], led_to is None
