"""What the shell completes: names of images, recipes, models, sites and fabrics.

An argument or option is completed by what it is called (:data:`COMPLETED`). Nothing here may fail or print: the shell
would show it in the middle of a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

import click
from click.shell_completion import CompletionItem

Names = Callable[[], Iterable[str]]
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def images() -> Iterable[str]:
    """The images that were built here, and the references of those that were pulled."""
    from fairlead.base import bounded_json
    from fairlead.base.paths import cache_dir

    folder = cache_dir() / "images"
    yield from (path.stem for path in (folder / "by-name").glob("*.json"))
    for record in (folder / "pulled/by-reference").glob("*.json"):
        with suppress(OSError, ValueError, LookupError, TypeError):
            yield str(bounded_json.loads(record.read_bytes())["reference"])


def recipes() -> Iterable[str]:
    """The bundled recipes and their variants."""
    import tomllib

    from fairlead.base.paths import bundled

    for path in bundled("recipes").glob("*/recipe.toml"):
        yield path.parent.name
        for variant in tomllib.loads(path.read_text("utf-8")).get("variant", {}):
            yield f"{path.parent.name}:{variant}"


def models() -> Iterable[str]:
    """The models that can be trained."""
    from fairlead.ml import registry

    return registry.names()


def sites() -> Iterable[str]:
    """The site profiles, the user's own too."""
    from fairlead.site.choose import files

    return files()


def fabrics() -> Iterable[str]:
    """The networks that a projection knows."""
    from fairlead.perf.projection.fabrics import NETWORKS

    return NETWORKS


# By the name of an option, or what the usage calls an argument.
COMPLETED: dict[str, Names] = {
    "image": images,
    "recipe": recipes,
    "from": recipes,
    "model": models,
    "models": models,
    "site": sites,
    "extends": sites,
    "fabric": fabrics,
}


def completer(what: str) -> Completer | None:
    """What completes an argument or option called ``what``; None where nothing does.

    Words behind a comma are completed too, and a path where no name fits.
    """
    names = COMPLETED.get(what)
    if names is None:
        return None

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        before, comma, last = (
            incomplete.rpartition(",") if what == "models" else ("", "", incomplete)
        )
        try:
            known = sorted(names())
        except Exception:  # a package that is not installed, a folder that is not there
            known = []
        fitting = [CompletionItem(before + comma + n) for n in known if n.startswith(last)]
        return fitting or [CompletionItem(incomplete, type="file")]

    return complete
