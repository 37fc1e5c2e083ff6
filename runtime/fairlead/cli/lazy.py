"""Help and choices that are made of registries, when they are shown and not when a verb is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from fairlead.base.registry import Registry
from fairlead.base.suggest import suggest


class NameIn(click.ParamType):  # type: ignore[type-arg]
    """A name of a registry; unknown ones are refused with the nearest."""

    name = "name"

    def __init__(self, registry: Registry[Any]):
        self.registry = registry

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value not in self.registry:
            self.fail(
                f"{value!r} is not known. {suggest(value, self.registry.names())}", param, ctx
            )
        return value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        names = self.registry.names()
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class LazyOption(click.Option):
    """An option whose help is filled in when it is shown: ``help`` has ``{names}`` in it."""

    def __init__(self, *args: Any, names: Callable[[], tuple[str, ...]], **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._names = names

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        if record is None:
            return None
        return record[0], record[1].replace("{names}", ", ".join(self._names()))


class LazyCommand(click.Command):
    """A command whose epilog is filled in when it is shown: ``epilog`` has ``{listing}`` in it."""

    def __init__(self, *args: Any, listing: Callable[[], str], **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._listing = listing

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        template = self.epilog
        self.epilog = (template or "").replace("{listing}", self._listing())
        try:
            super().format_epilog(ctx, formatter)
        finally:
            self.epilog = template
