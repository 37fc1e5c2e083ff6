"""One profile out of several files: its own, what that extends, and what a machine or user lays over it.

Where the files are, and which hides which, is :mod:`fairlead.site.choose`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from fairlead.base.errors import ExitCode, FairleadError, Finding, fail
from fairlead.base.suggest import suggest
from fairlead.base.toml import Document, Loc, Mistake, mistake_at, read
from fairlead.site import model
from fairlead.site.choose import files, usual_folders
from fairlead.site.model import Origin, Site, Status
from fairlead.site.profile import GUESS, SECTIONS, SiteProfile

_PROVENANCE = ("source", "sources")
# Tables whose entries are named after their sources.
_SOURCED = ("alternatives",)


def load(path: Path, environ: Mapping[str, str] = os.environ) -> Site:
    """The profile in ``path``, laid over what it extends.

    Raises:
        FairleadError: exit code 2; one finding for each mistake of any of its files.
    """
    documents: list[Document] = []
    findings: list[Finding] = []
    try:
        _read_chain(path, environ, documents)
    except FairleadError as exc:
        findings += exc.findings
    documents.reverse()
    for document in documents:
        _, mistakes = document.validate(SiteProfile)
        findings += mistakes
        # What has no sound shape can not be looked into further.
        if not mistakes:
            findings += map(document.finding, _unfounded(document.data))
            name, stem = document.data["site"]["name"], document.path.stem
            if name != stem:
                mistake = mistake_at(("site", "name"), "site-name", name=name, stem=stem)
                findings.append(document.finding(mistake))
    if findings:
        raise FairleadError(findings, ExitCode.USAGE)
    home = {folder.resolve() for folder in usual_folders(environ)}
    strange = any(document.path.resolve().parent not in home for document in documents)
    return replace(_merged(documents), strange=strange)


def _read_chain(path: Path, environ: Mapping[str, str], documents: list[Document]) -> None:
    """Reads the file and those below it into ``documents``, itself first.

    Raises:
        FairleadError: one cannot be read, or what it extends does not exist.
    """
    known = files(environ)
    visited: list[Path] = []
    while True:
        named = path.stem if path in known.get(path.stem, ()) else shlex.quote(str(path))
        document = read(path, f"fairlead site show {named}")
        visited.append(path)
        documents.append(document)
        about = document.data.get("site")
        base = about.get("extends") if isinstance(about, dict) else None
        if not isinstance(base, str):
            return
        own = known.get(base, ())
        # Its own name, or one that has already had a turn: what is below that.
        used = [own.index(p) for p in visited if p in own]
        below = own[: min(used)] if used else own
        if base == path.stem and path not in own:
            below = own
        if not below:
            raise FairleadError(document.finding(_no_base(base, known, visited)), ExitCode.USAGE)
        path = below[-1]


def _no_base(base: str, known: Mapping[str, tuple[Path, ...]], visited: list[Path]) -> Mistake:
    if base in known:
        names = " -> ".join(p.stem for p in visited)
        return mistake_at(("site", "extends"), "site-extends-cycle", base=base, names=names)
    return mistake_at(
        ("site", "extends"), "site-extends-unknown", base=base, suggestion=suggest(base, known)
    )


def _unfounded(data: Mapping[str, Any]) -> Iterator[Mistake]:
    """Values that do not say where they come from."""
    known = {*data.get("sources", {}), GUESS}
    for section in SECTIONS:
        values = data.get(section, {})
        own = values.get("sources", {})
        for at, name in _named(section, values):
            if name not in known:
                suggestion = suggest(name, known)
                yield mistake_at(at, "site-source-name", name=name, suggestion=suggestion)
        for key in own:
            if not _sets(values, key):
                others = ", ".join(k for k in values if k not in _PROVENANCE)
                at = (section, "sources", key)
                yield mistake_at(at, "site-source-unused", section=section, key=key, values=others)
        for key in values:
            if key not in (*_PROVENANCE, *own, *_SOURCED) and "source" not in values:
                yield mistake_at(
                    (section, key), "site-source-missing", section=section, key=key, guess=GUESS
                )
    for number, reference in enumerate(data.get("performance", ())):
        if reference["source"] not in known:
            source = reference["source"]
            yield mistake_at(
                ("performance", number, "source"),
                "site-source-reference",
                source=source,
                suggestion=suggest(source, known),
            )


def _named(section: str, values: Mapping[str, Any]) -> Iterator[tuple[Loc, str]]:
    """The sources that a section names, and where."""
    if "source" in values:
        yield (section, "source"), values["source"]
    for key, name in values.get("sources", {}).items():
        yield (section, "sources", key), name
    for key in _SOURCED:
        for name in values.get(key, ()):
            yield (section, key, name), name


def _sets(values: Mapping[str, Any], key: str) -> bool:
    """Whether a section has ``key``, or for ``TABLE.ENTRY`` that entry."""
    table, _, entry = key.partition(".")
    return table in values and (not entry or entry in values[table])


def _merged(documents: Sequence[Document]) -> Site:
    data: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    references: dict[tuple[str, str], model.Reference] = {}
    notes: list[str] = []
    for document in documents:
        about = document.data["site"]
        notes = [*about.get("notes", ()), *notes]
        # Dates and operator are a machine's own: kept by a file that amends it, not by one like it.
        below = data.get("site", {})
        kept = below if below.get("name") == about["name"] else {}
        data["site"] = {**kept, **about, "notes": list(dict.fromkeys(notes))}
        for section in SECTIONS:
            for key, value in document.data.get(section, {}).items():
                if key in _PROVENANCE:
                    continue
                for at, named in _sources_of(document.data[section], key, value):
                    origins[f"{section}.{at}"] = _from(document, named)
                if isinstance(value, dict):
                    value = {**data.get(section, {}).get(key, {}), **value}
                data.setdefault(section, {})[key] = value
        for raw in document.data.get("performance", ()):
            conditions = raw.get("conditions", "")
            references[raw["what"], conditions] = model.Reference(
                what=raw["what"],
                value=float(raw["value"]),
                unit=raw["unit"],
                higher_is_better=raw["better"] == "higher",
                conditions=conditions,
                origin=_from(document, raw["source"]),
            )
    profile, last = SiteProfile.model_validate(data), documents[-1]
    _require_sound(profile, last)
    return _site(profile, documents, origins, tuple(references.values()))


def _require_sound(profile: SiteProfile, last: Document) -> None:
    """Checks what only the layers together show.

    Raises:
        FairleadError: exit code 2; a key is missing, or two contradict each other.
    """
    if contradictions := [last.finding(m) for m in _networks(profile)]:
        raise FairleadError(contradictions, ExitCode.USAGE)
    if not profile.fabric.accepts:
        raise fail("missing-key-fabric-accepts", documents_path=last.path, remedy=last.remedy)
    if profile.comm.backend == "dl_comm" and not profile.comm.plugin:
        raise fail("missing-key-comm-plugin", documents_path=last.path, remedy=last.remedy)


def _sources_of(values: Mapping[str, Any], key: str, value: Any) -> Iterator[tuple[str, str]]:
    """For a key and each entry of its table, the source that it names."""
    own = values.get("sources", {})
    if key in _SOURCED:
        # The table has no source of its own: it is as well known as the first of its entries.
        yield from ((key, name) for name in list(value)[:1])
        yield from ((f"{key}.{name}", name) for name in value)
        return
    named = own.get(key) or values["source"]
    yield key, named
    for name in value if isinstance(value, dict) else ():
        yield f"{key}.{name}", own.get(f"{key}.{name}", named)


def _networks(profile: SiteProfile) -> Iterator[Mistake]:
    """Variables for NCCL that contradict what a run may end on, or that are the loader's."""
    nccl = profile.nccl
    for variable in nccl.env:
        if variable.startswith("LD_"):
            yield mistake_at(("nccl", "env", variable), "site-nccl-loader", variable=variable)
    for variable, key, accepted in (
        ("NCCL_NET", "networks", nccl.networks),
        ("FI_PROVIDER", "providers", nccl.providers),
    ):
        value = nccl.env.get(variable)
        known = {name.lower() for name in accepted}
        if value is not None and known and value.lower() not in known:
            yield mistake_at(
                ("nccl", "env", variable),
                "site-nccl-env",
                variable=variable,
                value=value,
                key=key,
                accepted=", ".join(accepted),
            )


def _from(document: Document, source: str) -> Origin:
    name = document.data["site"]["name"]
    entry = document.data.get("sources", {}).get(source)
    if entry is None:
        return Origin(Status.GUESS, model.UNSOURCED, "", name)
    return Origin(Status(entry["status"]), entry["text"], str(entry.get("read", "")), name)


def _site(
    profile: SiteProfile,
    documents: Sequence[Document],
    origins: Mapping[str, Origin],
    references: tuple[model.Reference, ...],
) -> Site:
    about = profile.site
    sections: dict[str, Any] = {}
    for part in fields(Site):
        if is_dataclass(part.default_factory):
            kind: Any = part.default_factory
            values = getattr(profile, part.name).model_dump(exclude=set(_PROVENANCE))
            sections[part.name] = kind(**values)
    return Site(
        name=about.name,
        summary=about.summary,
        accepts=profile.fabric.accepts,
        start_s=float(profile.watchdog.start_s),
        require_signature=profile.images.require_signature,
        lineage=tuple(dict.fromkeys(d.data["site"]["name"] for d in reversed(documents))),
        is_family=about.family,
        operator=about.operator,
        since=str(about.since or ""),
        until=str(about.until or ""),
        notes=about.notes,
        binds=profile.binds.paths,
        devices=profile.devices.paths,
        performance=references,
        origins=origins,
        **sections,
    )
