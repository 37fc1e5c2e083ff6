"""What a function of the ranks returns, and the functions themselves as they are called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fairlead.base.errors import fail
from fairlead.base.suggest import suggest
from fairlead.bridge.client.matrix import Matrix
from fairlead.bridge.errors import BridgeError

if TYPE_CHECKING:
    from fairlead.bridge.client.session import Session


class Result:
    """The matrices that a function has made, as handles, and its numbers.

    Unpacks into the matrices, in the order in which the function returns them: ``u, s, v = mpi.linalg.svd(a, k=20)``.

    Attributes:
        scalars: by their names.
        timing: seconds of computing: ``mean`` over the ranks, ``slowest``, its ``rank``; and ``wall`` with everything.
    """

    def __init__(
        self,
        called: str,
        matrices: Mapping[str, Matrix],
        scalars: Mapping[str, Any],
        timing: Mapping[str, float],
    ):
        self.called, self.matrices = called, dict(matrices)
        self.scalars, self.timing = dict(scalars), dict(timing)

    def __iter__(self) -> Iterator[Matrix]:
        return iter(self.matrices.values())

    def __len__(self) -> int:
        return len(self.matrices)

    def __getattr__(self, name: str) -> Any:
        for values in (self.__dict__.get("matrices", {}), self.__dict__.get("scalars", {})):
            if name in values:
                return values[name]
        raise AttributeError(name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.matrices, *self.scalars]

    def __repr__(self) -> str:
        parts = [f"{name}={matrix!r}" for name, matrix in self.matrices.items()]
        parts += [f"{name}={value!r}"[:60] for name, value in self.scalars.items()]
        return f"{self.called} -> {', '.join(parts)}"


class Functions:
    """The functions of a library: ``mpi.linalg.svd``."""

    def __init__(self, session: Session, described: Mapping[str, Any]):
        self._session, self._name = session, described["name"]
        self._functions = {f["name"]: f for f in described["functions"]}

    def __dir__(self) -> list[str]:
        return list(self._functions)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._functions:
            hint = suggest(name, self._functions)
            error = fail("bridge-function", library=self._name, name=name,
                         functions=", ".join(self._functions), hint=hint)  # fmt: skip
            raise BridgeError(error)
        described, session, library = self._functions[name], self._session, self._name

        def call(*matrices: Matrix, **params: Any) -> Result:
            named = dict(zip(described["inputs"], matrices, strict=False))
            if len(matrices) > len(named):
                raise TypeError(f"{described['signature']} takes {len(named)} matrices")
            for key in [key for key, value in params.items() if isinstance(value, Matrix)]:
                named[key] = params.pop(key)
            return session.run(library, name, named, params)

        call.__name__, call.__doc__ = name, f"{described['signature']}\n\n{described['doc']}"
        return call
