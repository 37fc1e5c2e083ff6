"""One recipe out of several files: what it extends, its own keys, its architecture's, its variant's.

Works on raw TOML, in which anything may be of any type, so that every mistake of every file is
reported at once; ``model.py`` defines what is valid.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fairlead.base.errors import FairleadError, Finding, error
from fairlead.base.paths import bundled
from fairlead.base.suggest import suggest
from fairlead.base.toml import Document, Loc, Mistake, mistake_at, read
from fairlead_build.recipe.model import Written

# These say one thing together, so a part of them alone is never inherited.
_WHOLE = ("base", "mpi", "python", "image")
_BY_KEY = ("files", "env", "labels")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


@dataclass(frozen=True)
class Layer:
    """A part of a file that is laid over what came before.

    Attributes:
        prefix: where it stands in its file: ``()``, or e.g. ``("variant", "openmpi")``.
    """

    document: Document
    prefix: Loc

    @property
    def data(self) -> dict[str, Any]:
        value = self.document.data
        for part in self.prefix:
            value = table(value.get(str(part)))
        return value

    @property
    def folder(self) -> Path:
        return self.document.path.parent

    def finding(self, mistake: Mistake) -> Finding:
        """A mistake of this part, whose place is given relative to it."""
        return self.document.finding(replace(mistake, loc=(*self.prefix, *mistake.loc)))


@dataclass
class Merged:
    """The recipe that several layers make together, still raw, and where each part stands.

    Attributes:
        source_at: for each item of ``data["source"]``, its layer and its number in it.
    """

    layers: tuple[Layer, ...]
    data: dict[str, Any] = field(default_factory=dict)
    source_at: list[tuple[Layer, int]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def finding(self, mistake: Mistake) -> Finding:
        """A mistake of the whole, with the file and line that it comes from."""
        layer, loc = self.place(mistake.loc)
        return layer.finding(replace(mistake, loc=loc))

    def place(self, loc: Loc) -> tuple[Layer, Loc]:
        """The layer that says what stands at ``loc``, and where it stands in that."""
        if len(loc) > 1 and loc[0] == "source" and isinstance(loc[1], int):
            layer, number = self.source_at[loc[1]]
            return layer, ("source", number, *loc[2:])
        for end in range(len(loc), 0, -1):
            for layer in reversed(self.layers):
                if _has(layer.data, loc[:end]):
                    return layer, loc
        return next(layer for layer in reversed(self.layers) if not layer.prefix), loc


def _has(data: Any, loc: Loc) -> bool:
    for part in loc:
        if not isinstance(data, dict) or part not in data:
            return False
        data = data[part]
    return True


def merge(folder: Path, variant: str, architecture: str, remedy: str) -> Merged:
    """The recipe in ``folder``, with all that it extends; its findings say what is wrong so far.

    Args:
        variant: its name; empty for none.
        remedy: the command to run once the files are corrected.
    """
    findings: list[Finding] = []
    layers = tuple(_chain(folder, variant, architecture, remedy, [], findings))
    merged = Merged(layers, findings=findings)
    for layer in layers:
        _lay(merged, layer)
    head: dict[str, Any] = {}
    for layer in layers:
        if not layer.prefix:  # a name is never inherited, nor is what it stands for
            head = layer.data.get("recipe", {})
        elif layer.prefix[0] == "variant" and isinstance(head, dict):
            head = head | {k: v for k, v in layer.data.items() if k in ("summary", "accelerator")}
    merged.data["recipe"] = head
    return merged


def _chain(
    folder: Path,
    variant: str,
    architecture: str,
    remedy: str,
    before: list[tuple[Path, str]],
    findings: list[Finding],
) -> Iterator[Layer]:
    """The layers of a recipe, lowest priority first."""
    try:
        document = read(folder / "recipe.toml", remedy)
    except FairleadError as exc:
        findings += exc.findings
        return
    findings += document.validate(Written)[1]
    variants = table(document.data.get("variant"))
    for name in ("amd64", "arm64"):
        if name in variants:
            loc = ("variant", name)
            mistake = mistake_at(loc, "contradiction-variant-name", name=name)
            findings.append(document.finding(mistake))
    own = Layer(document, ())
    chain = [*before, (folder, variant)]
    parent = document.data.get("extends")
    if isinstance(parent, str):
        parent_place = _parent(parent, own, chain)
        if isinstance(parent_place, Mistake):
            findings.append(document.finding(parent_place))
        else:
            yield from _chain(*parent_place, architecture, remedy, chain, findings)
    yield own
    yield Layer(document, ("architecture", architecture))
    if variant in variants:
        yield Layer(document, ("variant", variant))
    elif variant:
        findings.append(_no_variant(variant, sorted(variants), document, inherited=bool(before)))


def _parent(given: str, own: Layer, chain: list[tuple[Path, str]]) -> tuple[Path, str] | Mistake:
    """The folder and the variant that ``extends`` means."""
    text, variant = split_variant(given)
    if "/" in text or text.startswith("."):
        folder = own.folder / text
        why = f"{folder} holds no recipe.toml"
    else:
        folder = bundled("recipes") / text
        why = "no bundled recipe has that name. " + suggest(text, bundled_names())
        if text and _is_recipe(own.folder.parent / text):
            why += f' A folder next to this one has that name: write "../{text}"'
    if not text or not _is_recipe(folder):
        return mistake_at(("extends",), "recipe-extends-missing", given=given, why=why)
    folder = folder.resolve()
    if (folder, variant) in chain:
        names = [f"{place.name}:{name}" if name else place.name for place, name in chain]
        last = f"{folder.name}:{variant}" if variant else folder.name
        return mistake_at(
            ("extends",),
            "recipe-extends-itself",
            why=" extends ".join([*names[chain.index((folder, variant)) :], last]),
        )
    return folder, variant


def _no_variant(
    variant: str, known: Sequence[str], document: Document, *, inherited: bool
) -> Finding:
    name = document.path.parent.name
    why = suggest(variant, known) if known else f"{document.path} has no [variant] table"
    if not inherited and isinstance(parent := document.data.get("extends"), str):
        why += f"; variants are not inherited: `extends` may name one, {parent}:NAME"
    given: dict[str, Any] = {"name": name, "variant": variant, "document": document, "why": why}
    return error("recipe-variant-unknown" if known else "recipe-variant-none", **given)


def split_variant(given: str) -> tuple[str, str]:
    """``mpi-base:openmpi`` -> ``("mpi-base", "openmpi")``; the variant is empty when there is none."""
    head, colon, tail = given.rpartition(":")
    return (head, tail) if colon and head and _NAME.fullmatch(tail) else (given, "")


def bundled_names() -> list[str]:
    """The bundled recipes."""
    return sorted(p.parent.name for p in bundled("recipes").glob("*/recipe.toml"))


def _is_recipe(folder: Path) -> bool:
    try:
        return (folder / "recipe.toml").is_file()
    except (OSError, ValueError):
        return False


# --- laying one over the other ----------------------------------------------------------------


def _lay(merged: Merged, layer: Layer) -> None:
    data, added = merged.data, layer.data
    for key in _WHOLE:
        if key in added:
            data[key] = added[key]
    for key in _BY_KEY:
        if isinstance(added.get(key), dict):
            data[key] = {**data.get(key, {}), **added[key]}
    if isinstance(added.get("packages"), dict):
        data["packages"] = _packages(merged, layer, added["packages"])
    if isinstance(added.get("source"), list):
        _sources(merged, layer, added["source"])


def _packages(merged: Merged, layer: Layer, added: dict[str, Any]) -> dict[str, Any]:
    old = merged.data.get("packages", {})
    apt, pip = _texts(old.get("apt")), _texts(old.get("pip"))
    for number, name in enumerate(_texts(added.get("without"))):
        sources = [_project_of(item) for item in merged.data.get("source", [])]
        known = {*apt, *(project(text) for text in pip), *filter(None, sources)}
        if name not in known and project(name) not in known:
            loc, near = ("packages", "without", number), suggest(name, known)
            merged.findings.append(
                layer.finding(mistake_at(loc, "packages-without", name=name, suggestion=near))
            )
        apt = [text for text in apt if text != name]
        pip = [text for text in pip if project(text) != project(name)]
        if project(name) in sources:
            at = sources.index(project(name))
            merged.data["source"] = [*merged.data["source"][:at], *merged.data["source"][at + 1 :]]
            del merged.source_at[at]
    own = _texts(added.get("pip"))
    replaced = {project(text) for text in own}
    pip = [text for text in pip if project(text) not in replaced]
    index = {k: v for part in (old, added) for k, v in table(part.get("index")).items()}
    apt += [text for text in _texts(added.get("apt")) if text not in apt]
    return {"apt": apt, "pip": [*pip, *dict.fromkeys(own)], "index": index}


def _sources(merged: Merged, layer: Layer, added: list[Any]) -> None:
    items = list(zip(merged.data.get("source", []), merged.source_at, strict=True))
    for number, item in enumerate(added):
        if not isinstance(item, dict):
            continue  # reported by the model
        name = _project_of(item)
        place = (layer, number)
        at = next((i for i, (old, _) in enumerate(items) if _project_of(old) == name), None)
        if at is None or name is None:
            items.append((item, place))
        else:
            if items[at][1][0] is layer:
                loc = ("source", number, "name")
                twice = mistake_at(loc, "contradiction-source-twice", name=item["name"])
                merged.findings.append(layer.finding(twice))
            items[at] = (item, place)
    merged.data["source"] = [item for item, _ in items]
    merged.source_at = [place for _, place in items]


def _project_of(item: dict[str, Any]) -> str | None:
    return project(item["name"]) if isinstance(item.get("name"), str) else None


def project(requirement: str) -> str:
    """The project that a requirement is for, in the one spelling that PEP 503 gives it."""
    name = re.match(r"\s*([A-Za-z0-9._-]*)", requirement)
    return re.sub(r"[-_.]+", "-", name[1] if name else "").lower()


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def table(value: Any) -> dict[str, Any]:
    """``value`` where it is a table; else an empty one, and the model reports it."""
    return value if isinstance(value, dict) else {}
