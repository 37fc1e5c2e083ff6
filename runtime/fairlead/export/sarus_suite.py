"""Sarus Suite: a precreate hook for its Podman that injects libraries of the host, and EDFs that enable it.

``pc_injection_hook`` shows a ``--lib`` over each library of the container with the same SONAME, and other libraries in
/run/pc-injection, which it puts on LD_LIBRARY_PATH. It checks neither versions nor symbols; these files were checked before.
It mounts no device nodes: those are words for ``--device`` in the EDF. Images are references, never files.
Source: sarus-suite/performance-extensions 6ff5a50, crates/pc_injection_hook/README.md and src/main.rs; eth-cscs/cscs-docs
80abed1, container-engine/sarus-suite/user-guide.md; oci-hooks(5).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from fairlead import __version__
from fairlead.engines.ce import edf
from fairlead.export import ce
from fairlead.export.model import ExportFile, Facts, Target, check_name, check_path, unfit
from fairlead.export.plugin import carried
from fairlead.export.sarus import libraries
from fairlead.export.staged import stage_script, staged
from fairlead.nccl.selection import OWN_NAME

_PROGRAM = "/opt/hooks/pc_injection_hook"  # where its README has it
_INTO = "a folder of hooks_dir in containers.conf; its program is in {} there or change `path`"
_OPTIONS = "bind,ro,nosuid,nodev,private"
_SEARCH = "LD_LIBRARY_PATH"  # the hook's own


def files(facts: Facts) -> tuple[ExportFile, ...]:
    """The hook with the MPI, the EDF that enables it, and the staging script."""
    made = staged(facts, "sarus-suite", alone=True)
    name = facts.name or f"fairlead-{facts.label}"
    mpi, behind = libraries(made)
    env = {n: v for n, v in made.variables.items() if n != _SEARCH}
    words = [
        *(f"--lib={_path(p)}" for p in mpi),
        *(f"--dependency-lib={_path(p)}" for p in behind),
        *(f"--env={n}={_value(n, v)}" for n, v in sorted(env.items())),
        _mount(made.folder, made.place),
        *(_mount(p, p, "rbind,rw,nosuid,nodev,private") for p in facts.here.binds),
    ]
    return (
        *_enabled(facts, name, words, facts.here.devices),
        stage_script(facts, made, "the hook of Sarus Suite", "run it where the ranks run"),
    )


def nccl(facts: Facts) -> tuple[ExportFile, ...]:
    """The hook with NCCL's plugin, EDFs that enable it, and the staging script.

    Where the site has a hook of its own, an EDF with its annotations.
    """
    if facts.site.nccl.annotations:
        _image(facts)
        return ce.nccl(facts)
    made = carried(facts)
    name = facts.name or "fairlead-nccl"
    # Each name that begins with this one is a link to the plugin; the hook shows it under the link's name.
    links = sorted(n for n, _ in made.staging.aliases if n.endswith(f"-{OWN_NAME}.so"))
    isolated = any(f.rpath for f in made.staging.files)
    behind = [] if isolated else [f.target for f in made.staging.files if f.target != made.plugin]
    env = {n: v for n, v in made.env.items() if n != _SEARCH}
    words = [
        *(f"--dependency-lib={_path(made.folder)}/{n}" for n in (*links, *behind)),
        *(f"--env={n}={_value(n, v)}" for n, v in sorted(env.items())),
        _mount(made.folder, made.place),
    ]
    hook, base = _enabled(facts, name, words, made.devices)
    return (
        hook,
        *ce.edfs(name, "", base.text, made),
        stage_script(facts, made, "the hook of Sarus Suite", "run it where the ranks run"),
    )


def _enabled(
    facts: Facts, name: str, words: Sequence[str], devices: Sequence[str]
) -> tuple[ExportFile, ExportFile]:
    """The hook, and the EDF with the annotation that it waits for."""
    check_name(name, r"[A-Za-z0-9_.-]+", "it is a file's name", "an EDF")
    # A hook has no PATH to find it by.
    ldconfig = f"--ldconfig={_path(facts.tools.get('ldconfig', '/sbin/ldconfig'))}"
    annotation = f"com.hooks.{name.replace('.', '-')}.enabled"
    document = {
        "version": "1.0.0",
        "hook": {"path": _PROGRAM, "args": ["pc_injection_hook", ldconfig, *words]},
        "when": {"annotations": {f"^{annotation.replace('.', '[.]')}$": "^true$"}},
        "stages": ["precreate"],
    }
    listed = f"devices = {json.dumps(list(devices))}\n" if devices else ""
    head = f"# fairlead {__version__}, for {facts.site.name}: enables the hook 50-{name}.json.\n"
    text = listed + edf(_image(facts), (), {}, annotations={annotation: "true"})
    return (
        ExportFile(
            f"hooks.d/50-{name}.json", json.dumps(document, indent=2) + "\n", _INTO.format(_PROGRAM)
        ),
        ExportFile(f"{name}.toml", head + text, "~/.edf, or a folder of EDF_PATH"),
    )


def _image(facts: Facts) -> str:
    """The image as Sarus Suite names it; empty for an EDF to build others on.

    Raises:
        FairleadError: exit code 2; it is a file.
    """
    if facts.image is None:
        return ""
    if not facts.image.name.startswith("docker://"):
        why = "it opens images by their references in a registry: docker://HOST/REPOSITORY:TAG"
        raise unfit(f"the image {facts.image.name}", facts.image.path, why, "an EDF of Sarus Suite")
    return ce.image(facts.image.name, facts.image.path).replace("#", "/", 1)


def _mount(source: str, target: str, options: str = _OPTIONS) -> str:
    return f"--mount={_path(source)}:{_path(target)}:{options}"


def _path(path: str) -> str:
    check_path(path, "[:,]", "`:` and `,` separate the parts of --mount", "a hook of Sarus Suite")
    return path


def _value(name: str, value: str) -> str:
    if "\n" in value or "\0" in value:
        raise unfit(f"{name}={value}", value, "a variable is one line", "a hook of Sarus Suite")
    return value


EXPORT = Target("a precreate hook and EDFs of Sarus Suite's Podman", files, nccl)
