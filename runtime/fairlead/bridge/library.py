"""Libraries of functions that the ranks run on matrices: what one declares, and how parameters are checked.

A library is one module::

    from fairlead.bridge.library import Block, Library, Rows, Whole

    LIBRARY = Library("mine", "A solver of ours")

    @LIBRARY.function
    def scaled(a: Block, *, by: float = 2.0) -> dict:
        \"\"\"The matrix times a number.\"\"\"
        return {"scaled": Rows(a.local * by)}

Parameters before the ``*`` are matrices, those after it values; their annotations are what callers are held to.
A matrix annotated as :class:`Tiles` comes in 2-D block-cyclic layout, one as ``Block | Tiles`` in either.
Other distributions name theirs in the entry-point group ``fairlead.bridge``.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal

from fairlead.base.errors import FairleadError, fail
from fairlead.base.registry import Registry
from fairlead.base.suggest import suggest
from fairlead.bridge.collectives import Collectives
from fairlead.bridge.layout import BlockCyclic

ROWS, CYCLIC = "rows", "block-cyclic"  # layouts of a matrix


@dataclass(frozen=True)
class Block:
    """A rank's rows of a matrix.

    Attributes:
        local: (rows of this rank, columns): a C-contiguous NumPy array, or a ``scipy.sparse`` CSR array.
        offset: number of the first of them in the matrix.
        shape: of the whole matrix.
        comm: the ranks that hold it.
    """

    local: Any
    offset: int
    shape: tuple[int, int]
    comm: Collectives

    @property
    def sparse(self) -> bool:
        return not hasattr(self.local, "__array_interface__")


@dataclass(frozen=True)
class Tiles:
    """A rank's part of a dense matrix in ScaLAPACK's 2-D block-cyclic layout.

    Attributes:
        local: this rank's part, (rows, columns), in Fortran order.
        comm: the ranks that hold it.
    """

    local: Any
    layout: BlockCyclic
    comm: Collectives

    @property
    def shape(self) -> tuple[int, int]:
        return self.layout.rows, self.layout.columns


@dataclass(frozen=True)
class Rows:
    """A result of which each rank has made its rows.

    Attributes:
        local: (own rows, columns), or (own rows,) for a vector.
    """

    local: Any


@dataclass(frozen=True)
class Whole:
    """A result that every rank has, all of it.

    Attributes:
        array: (rows, columns), or (rows,) for a vector.
    """

    array: Any


@dataclass(frozen=True)
class Parameter:
    """A value that a function takes.

    Attributes:
        kinds: the types that it may have; ``int`` also passes for ``float``.
        choices: the values that it may have; empty for any.
        optional: None may be given.
    """

    name: str
    kinds: tuple[type, ...]
    choices: tuple[Any, ...] = ()
    optional: bool = False
    required: bool = False
    default: Any = None

    @property
    def text(self) -> str:
        """As a user reads it, e.g. ``k: int`` or ``method: 'lanczos' | 'randomized' = 'randomized'``."""
        names = " | ".join(map(repr, self.choices)) or " | ".join(k.__name__ for k in self.kinds)
        none = " | None" if self.optional else ""
        return f"{self.name}: {names}{none}{'' if self.required else f' = {self.default!r}'}"

    def takes(self, value: Any) -> bool:
        if value is None:
            return self.optional
        if self.choices:
            return value in self.choices
        if isinstance(value, bool):
            return bool in self.kinds
        if isinstance(value, int) and float in self.kinds:
            return True
        return isinstance(value, self.kinds)


@dataclass(frozen=True)
class Function:
    """A function of a library.

    Attributes:
        inputs: the names of its matrices, and whether each may be left out.
        parameters: its values.
        layouts: those that each of its matrices may be in.
    """

    name: str
    call: Callable[..., Mapping[str, Any]]
    inputs: Mapping[str, bool]
    parameters: tuple[Parameter, ...]
    doc: str
    layouts: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def signature(self) -> str:
        words = [
            *self.inputs,
            *(["*", *(p.text for p in self.parameters)] if self.parameters else []),
        ]
        return f"{self.name}({', '.join(words)})"

    def checked(self, library: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a call, with defaults.

        Raises:
            FairleadError: one is missing, unknown, or of another type.
        """
        called = f"{library}.{self.name}"
        known = {parameter.name: parameter for parameter in self.parameters}
        for name in params:
            if name not in known:
                raise fail(
                    "bridge-parameter-unknown", called=called, name=name, signature=self.signature,
                    hint=suggest(name, known),
                )  # fmt: skip
        values = {}
        for name, parameter in known.items():
            if name not in params and parameter.required:
                raise fail(
                    "bridge-parameter-missing", called=called, name=name, signature=self.signature
                )
            value = params.get(name, parameter.default)
            if name in params and not parameter.takes(value):
                raise fail(
                    "bridge-parameter-type", called=called, text=parameter.text, value=repr(value)[:80],
                    signature=self.signature,
                )  # fmt: skip
            values[name] = (
                float(value) if parameter.kinds == (float,) and value is not None else value
            )
        return values


@dataclass(frozen=True)
class Library:
    """Functions under a name.

    Attributes:
        title: what it does, in a few words.
        needs: modules that it imports, by which ``fairlead bridge libraries`` says whether the image has it.
        lacks: what else it needs and does not find.
    """

    name: str
    title: str
    needs: tuple[str, ...] = ()
    functions: dict[str, Function] = field(default_factory=dict)
    lacks: Callable[[], list[str]] = list

    def function(self, call: Callable[..., Mapping[str, Any]]) -> Callable[..., Mapping[str, Any]]:
        """Declares a function of the library; used as a decorator.

        Raises:
            TypeError: a parameter has no annotation that a caller could be held to.
        """
        made = declared(call)
        self.functions[made.name] = made
        return call

    def get(self, name: str) -> Function:
        """
        Raises:
            FairleadError: the library has no such function.
        """
        if name not in self.functions:
            raise fail(
                "bridge-function", library=self.name, name=name,
                functions=", ".join(sorted(self.functions)), hint=suggest(name, self.functions),
            )  # fmt: skip
        return self.functions[name]


def declared(call: Callable[..., Mapping[str, Any]]) -> Function:
    """The declaration that a function's signature makes."""
    hints = typing.get_type_hints(call)
    inputs, parameters, layouts = {}, [], {}
    for name, parameter in inspect.signature(call).parameters.items():
        required = parameter.default is parameter.empty
        if parameter.kind is parameter.KEYWORD_ONLY:
            kinds, choices, optional = _kinds(hints.get(name), f"{call.__qualname__}: {name}")
            default = None if required else parameter.default
            parameters.append(Parameter(name, kinds, choices, optional, required, default))
        else:
            inputs[name] = not required
            layouts[name] = _layouts(hints.get(name))
    doc = inspect.getdoc(call) or ""
    return Function(call.__name__, call, inputs, tuple(parameters), doc, layouts)


def _layouts(hint: Any) -> frozenset[str]:
    """The layouts that an annotation allows: ``Block``, ``Tiles``, or either."""
    kinds = typing.get_args(hint) or (hint,)
    return frozenset([CYCLIC] if Tiles in kinds else []) | frozenset(
        [ROWS] if Block in kinds or Tiles not in kinds else []
    )


def _kinds(hint: Any, where: str) -> tuple[tuple[type, ...], tuple[Any, ...], bool]:
    """Types, choices, and whether None is one of them."""
    if hint in (int, float, str, bool, list, dict):
        return (hint,), (), False
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        return tuple({type(choice) for choice in choices}), choices, False
    arguments = typing.get_args(hint)
    if type(None) in arguments and len(arguments) == 2:
        inner = next(a for a in arguments if a is not type(None))
        kinds, choices, _ = _kinds(inner, where)
        return kinds, choices, True
    raise TypeError(
        f"{where}: annotate it as int, float, str, bool, list, dict, a Literal, or one of these | None"
    )


LIBRARIES: Registry[Library] = Registry(
    "fairlead.bridge.libraries", "LIBRARY", entry_points="fairlead.bridge"
)


def find(name: str) -> Library:
    """The library of that name.

    Raises:
        FairleadError: nothing is installed under it, or it cannot be loaded.
    """
    try:
        return LIBRARIES.get(name)
    except KeyError:
        hint = suggest(name, LIBRARIES.names())
        raise fail("bridge-library", library=name, hint=hint) from None


def described() -> list[dict[str, Any]]:
    """Every library as a user sees it: its functions, and what it lacks here. One that cannot be loaded lacks that."""
    return [_described(name) for name in LIBRARIES.names()]


def _described(name: str) -> dict[str, Any]:
    try:
        library = find(name)
    except FairleadError as exc:
        return {"name": name, "title": "", "lacks": [exc.findings[0].why], "functions": []}
    lacking = [module for module in library.needs if find_spec(module) is None] + library.lacks()
    functions = [
        {
            "name": function.name,
            "signature": function.signature,
            "doc": function.doc.partition("\n")[0],
            "inputs": dict(function.inputs),
        }
        for _, function in sorted(library.functions.items())
    ]
    return {"name": library.name, "title": library.title, "lacks": lacking, "functions": functions}
