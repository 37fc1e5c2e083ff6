"""A recipe and its lock as a Containerfile and a Singularity.def, for people without fairlead.

Both texts do the same. A first stage downloads the locked files and checks their hashes; a second
installs them into a root that holds nothing else. So the package set is that of `fairlead build`,
whatever the base image was. ``tree/steps.py`` has the steps; here they get their form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from fairlead_build.recipe.load import LoadedRecipe, file_name
from fairlead_build.recipe.lock import Lock
from fairlead_build.tree import steps
from fairlead_build.tree.payload import environment

Form = Literal["Containerfile", "Singularity.def"]
FORMS: tuple[Form, ...] = ("Containerfile", "Singularity.def")

# Besides BASE. No text holds a host: empty means what the base image's own apt and pip know.
_ARGUMENTS = ("MIRROR", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
# Stands in every text, and shows that a file is one.
MARK = "Made by `fairlead recipe render"
_RUNSCRIPT = ("[ $# -gt 0 ] || set -- /bin/bash", 'exec "$@"')


def render(loaded: LoadedRecipe, lock: Lock | None, form: Form) -> str:
    """The text of one form; equal recipes and locks give equal texts.

    Args:
        lock: None only for a recipe on an image of a registry: then versions are not pinned, and
            the text says so.
    """
    if lock is not None and not loaded.sources:
        # What is for fairlead's own parts, which no text has: it is for people without fairlead.
        lock = lock.model_copy(update={"build_deb": ()})
    return _containerfile(loaded, lock) if form == "Containerfile" else _definition(loaded, lock)


# --- Containerfile ----------------------------------------------------------------------------


def _containerfile(loaded: LoadedRecipe, lock: Lock | None) -> str:
    name = file_name(loaded.name)
    lines = [
        *_head(loaded, lock, f"podman build -t {name} ."),
        f"ARG BASE={_base(loaded, lock)}",
        "",
        *_stages(loaded, lock),
        *(f"ENV {k}={_quoted(v)}" for k, v in environment(loaded.recipe).items()),
        *(f"LABEL {_quoted(k)}={_quoted(v)}" for k, v in _labels(loaded).items()),
        'CMD ["/bin/bash"]',
    ]
    return "\n".join(lines) + "\n"


def _stages(loaded: LoadedRecipe, lock: Lock | None) -> list[str]:
    """From the arguments to the finished root file system."""
    arguments = [f"ARG {name}=" for name in _ARGUMENTS]
    lay = [f"COPY files/ {steps.WORK}/lay/"] if loaded.files else []
    given = [f"COPY given/ {steps.WORK}/given/"] if _given(loaded) else []
    if lock is None:
        arguments = [a for a in arguments if a != "ARG MIRROR="]
        return ["FROM ${BASE}", *arguments, *lay, _run(_finish(loaded, steps.unpinned(loaded)))]
    fetched = ["FROM ${BASE} AS files", *arguments]
    installed = _run(_finish(loaded, _install(loaded, lock, built=bool(loaded.sources))))
    if lock.base is not None:
        begin, copy = "FROM ${BASE}", f"COPY --from=files {steps.WORK}/ {steps.WORK}/"
    else:
        begin, copy = "FROM scratch", f"COPY --from=files {steps.WORK}/root/ /"
    built = []
    if loaded.sources:
        work = [*_install(loaded, lock), *steps.build_sources(loaded, lock)]
        built = [f"{begin} AS build", copy, *given, _run(work), ""]
        lay.insert(0, f"COPY --from=build {steps.BUILT}/ {steps.WORK}{steps.BUILT}/")
    stages = [*fetched, _run(_fetch(loaded, lock)), "", *built]
    if lock.base is not None:
        return [*stages, begin, copy, *lay, installed]
    return [
        *stages,
        f"{begin} AS root",
        copy,
        *lay,
        installed,
        "",
        # Copied once more, so that no layer holds what was deleted.
        "FROM scratch",
        "COPY --from=root / /",
    ]


def _run(lines: Sequence[str]) -> str:
    return "RUN set -e; \\\n    " + "; \\\n    ".join(lines)


def _quoted(text: str) -> str:
    return '"' + re.sub(r'([\\"$])', r"\\\1", text) + '"'


# --- Singularity.def --------------------------------------------------------------------------


def _definition(loaded: LoadedRecipe, lock: Lock | None) -> str:
    name = file_name(loaded.name)
    host = [f"    files {steps.WORK}/lay", ""]
    first = lock is not None
    lines = [
        *_head(loaded, lock, f"apptainer build --fakeroot {name}.sif Singularity.def"),
        "Bootstrap: docker",
        "From: {{ BASE }}",
        f"Stage: {'files' if first else 'root'}",
        "",
        "%arguments",
        f"    BASE={_base(loaded, lock)}",
        *(f"    {name}=" for name in _ARGUMENTS if lock is not None or name != "MIRROR"),
        "",
    ]
    arguments = [
        *(['MIRROR="{{ MIRROR }}"'] if lock is not None else []),
        'export PIP_INDEX_URL="{{ PIP_INDEX_URL }}" PIP_EXTRA_INDEX_URL="{{ PIP_EXTRA_INDEX_URL }}"',
    ]
    if lock is None:
        lines += ["%files", *host] if loaded.files else []
        lines += _post([*arguments, *_finish(loaded, steps.unpinned(loaded))])
    else:
        lines += [*_post([*arguments, *_fetch(loaded, lock)]), ""]
        copied = []
        if loaded.sources:
            given = [f"    given {steps.WORK}/given", ""] if _given(loaded) else []
            lines += [*_later_stage(lock, "build"), *(["%files", *given] if given else [])]
            lines += _post([*_install(loaded, lock), *steps.build_sources(loaded, lock)])
            lines.append("")
            copied = ["%files from build", f"    {steps.BUILT}/ {steps.WORK}{steps.BUILT}/", ""]
        lines += [*_later_stage(lock, "root"), *copied]
        lines += ["%files", *host] if loaded.files else []
        lines += _post(_finish(loaded, _install(loaded, lock, built=bool(loaded.sources))))
    lines += ["", "%environment"]
    lines += [
        f"    export {k}={steps.shell_word(v)}" for k, v in environment(loaded.recipe).items()
    ]
    lines += ["", "%labels", *(f"    {k} {v}" for k, v in _labels(loaded).items())]
    lines += ["", "%runscript", *(f"    {line}" for line in _RUNSCRIPT)]
    return "\n".join(lines) + "\n"


def _later_stage(lock: Lock, name: str) -> list[str]:
    if lock.base is not None:
        head = ["Bootstrap: docker", "From: {{ BASE }}", f"Stage: {name}"]
        source = f"    {steps.WORK}/ {steps.WORK}/"
    else:
        head = ["Bootstrap: scratch", f"Stage: {name}"]
        # The closing slash makes Apptainer copy what is in the folder, its symlinks as they are.
        source = f"    {steps.WORK}/root/ /"
    return [*head, "", "%files from files", source, ""]


def _post(lines: Sequence[str]) -> list[str]:
    return ["%post", *(f"    {line}" for line in lines)]


# --- both -------------------------------------------------------------------------------------


def _head(loaded: LoadedRecipe, lock: Lock | None, command: str) -> list[str]:
    """What the text is, and the command that builds it."""
    text = [f"{loaded.name}: {loaded.recipe.recipe.summary}".rstrip(": ")]
    text.append(f"{MARK} {loaded.name}`; edit recipe.toml instead.")
    if lock is None:
        text.append("Versions are NOT pinned: this recipe has no lock yet.")
    if loaded.bundled:
        text.append("fairlead and its native core are not in it; `fairlead build` lays them in.")
    text += [
        "",
        "Build it in this folder:",
        f"    {command}",
        "Arguments, each with --build-arg NAME=VALUE:",
    ]
    if lock is not None and lock.base is None:
        text.append(
            f"    BASE                 an image with apt to download with, {lock.inputs.distribution}"
            f" {lock.inputs.suite}; none of its files stays"
        )
    else:
        text.append("    BASE                 the same image, in a registry of yours")
    if lock is not None:
        text.append(
            "    MIRROR               URLs of package mirrors; otherwise those that BASE knows"
        )
    text += [
        "    PIP_INDEX_URL        URL of a Python package index; otherwise PyPI",
        "    PIP_EXTRA_INDEX_URL  URLs of further ones" + _needed_indexes(lock),
    ]
    return [f"# {line}".rstrip() for line in text] + [""]


def _needed_indexes(lock: Lock | None) -> str:
    names = sorted({w.index for w in lock.wheel} - {"PyPI"}) if lock else []
    return f"; needed for {', '.join(names)}" if names else ""


def _base(loaded: LoadedRecipe, lock: Lock | None) -> str:
    """The default of BASE, without `docker://`."""
    base = loaded.recipe.base
    if lock is not None and lock.base is not None:
        # A digest says it all; some engines refuse a tag next to it.
        repository = re.sub(r"(@.*|:[^:/]*)$", "", lock.base.image.removeprefix("docker://"))
        return f"{repository}@{lock.base.digest}"
    if base.image is not None:
        return base.image.removeprefix("docker://")
    slim = "-slim" if base.distribution == "debian" else ""
    return f"docker.io/library/{base.distribution}:{base.suite}{slim}"


def _labels(loaded: LoadedRecipe) -> dict[str, str]:
    return {**dict(sorted(loaded.recipe.labels.items())), "org.fairlead.recipe": loaded.name}


def _given(loaded: LoadedRecipe) -> bool:
    """Whether a source needs files of the recipe's own folder."""
    return any(item.patches or item.tree for item in loaded.sources)


def _fetch(loaded: LoadedRecipe, lock: Lock) -> list[str]:
    """What the first stage does."""
    root = steps.unpack(lock) if lock.base is None else []
    return [*steps.download(loaded, lock), *root]


def _install(loaded: LoadedRecipe, lock: Lock, *, built: bool = False) -> list[str]:
    return [*steps.install_debs(lock), *steps.install_wheels(loaded, lock, built=built)]


def _finish(loaded: LoadedRecipe, installed: Sequence[str]) -> list[str]:
    return [*installed, *steps.lay_files(loaded.files), *steps.clean()]
