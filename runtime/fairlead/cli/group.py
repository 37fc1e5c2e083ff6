"""Verbs that have verbs."""

from __future__ import annotations

from typing import Any

import click


class Group(click.Group):
    """A click group that says which verbs it has when it does not have one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            raise click.UsageError(f"no verb `{args[0]}`. {self.hint(ctx, args[0])}", ctx) from None

    def hint(self, ctx: click.Context, name: str) -> str:
        """What the user may have meant by ``name``."""
        from fairlead.base.suggest import suggest

        return suggest(name, self.list_commands(ctx))
