"""JupyterHub: a configuration by which servers are jobs of the site, and the kernel whose ranks run in such a job.

Source: batchspawner 1.3, batchspawner/batchspawner.py, README.md; jupyterhub 5, docs/source/reference/spawners.md.
"""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath

from fairlead import __version__
from fairlead.export.model import ExportFile, Facts, Target, check_name, need_image, unfit
from fairlead.schedulers.registry import SCHEDULERS

_HEAD = '''\
"""Servers of JupyterHub on @SITE@@WHAT@. Written by fairlead @VERSION@.

Load it at the end of jupyterhub_config.py: load_subconfig("/path/to/fairlead_hub.py")
"""

@IMPORTS@c = get_config()  # noqa: F821

c.Spawner.environment = {"JUPYTER_PATH": @KERNELS@}
c.Spawner.default_url = "/lab"
'''
_IMPORTS = """\
import re

import batchspawner  # noqa: F401 it registers a service of its own

"""
_JOBS = '''
c.JupyterHub.spawner_class = "batchspawner.@SPAWNER@"
c.Spawner.start_timeout = 3600  # in the queue
c.Spawner.http_timeout = 120
c.Spawner.cmd = @CMD@
c.@SPAWNER@.batchspawner_singleuser_cmd = @SINGLE@
@SETTINGS@c.@SPAWNER@.batch_script = """\\
#!/bin/bash
@LINES@export FAIRLEAD_NOTEBOOK_OPTIONS="-N {{nodes or 1}} --ranks-per-node {{ranks_per_node or 1}}"
{{prologue}}
{{cmd}}
"""

_FIELDS = {
    "nodes": ("Nodes", "1", r"[1-9][0-9]{0,5}"),
    "ranks_per_node": ("Ranks per node", "1", r"[1-9][0-9]{0,3}"),
    "runtime": ("Time limit", "1:00:00", r"[0-9]{1,3}(:[0-9]{2}){1,2}"),
    "account": ("Account", "", r"[A-Za-z0-9_.-]{0,64}"),
    "partition": ("Partition", "", r"[A-Za-z0-9_.-]{0,64}"),
}


def _form(spawner):
    rows = [f'<label>{t} <input name="{n}" value="{v}" class="form-control"></label>' for n, (t, v, _) in _FIELDS.items()]
    return "\\n".join(rows)


def _from_form(form):
    """What goes into the job script, and nothing else."""
    options = {}
    for name, (title, default, allowed) in _FIELDS.items():
        value = (form.get(name) or [default])[0].strip() or default
        if not re.fullmatch(allowed, value):
            raise ValueError(f"{title}: {value!r} is not allowed")
        options[name] = value
    return options


c.Spawner.options_form = _form
c.Spawner.options_from_form = _from_form
'''


def files(facts: Facts) -> tuple[ExportFile, ...]:
    """The configuration and ``kernels/NAME/kernel.json``."""
    image = need_image(facts, "jupyterhub")
    kind = facts.site.scheduler.kind
    scheduler = SCHEDULERS.get(kind) if kind != "none" else None
    if scheduler and not scheduler.spawner:
        known = ", ".join(candidate.title for candidate in SCHEDULERS if candidate.spawner)
        why = f"the job scripts of servers are known for {known}"
        raise unfit(f"the scheduler {kind}", kind, why, "batchspawner")
    own = re.sub(r"\.(sif|squashfs|sqsh|sandbox)$", "", PurePosixPath(image.name).name)
    name = facts.name or re.sub(r"[^a-z0-9._-]+", "-", f"fairlead-{own}-ranks".lower())
    check_name(
        name, r"[A-Za-z0-9._-]+", "a kernel's is of letters, digits, `.`, `_`, `-`", "Jupyter"
    )
    options = ["--with-kernel", *facts.options]
    spec = {
        "argv": [], "display_name": f"{own} on ranks (fairlead)", "language": "python", "interrupt_mode": "message",
        "metadata": {
            "debugger": False,
            "kernel_provisioner": {
                "provisioner_name": "fairlead", "config": {"image": image.path, "ranks": 0, "arguments": options},
            },
        },
    }  # fmt: skip
    values = {
        "IMPORTS": _IMPORTS if scheduler else "",
        "SITE": facts.site.name,
        "WHAT": ", as jobs" if scheduler else "",
        "VERSION": __version__,
        "KERNELS": json.dumps(facts.folder),
        "CMD": json.dumps([_beside(facts, "jupyterhub-singleuser")]),
        "SINGLE": json.dumps(_beside(facts, "batchspawner-singleuser")),
    }
    text = _HEAD
    if scheduler:
        text += _JOBS
        # What the user asks for comes after the site's options, and wins.
        sites = (f"{scheduler.sentinel}{line}" for line in facts.site.scheduler.directives)
        lines = (*sites, *scheduler.server_lines(facts.site.launcher.kinds[0]))
        settings = (f"c.@SPAWNER@.{k} = {v!r}\n" for k, v in scheduler.spawner_settings.items())
        text = text.replace("@SETTINGS@", "".join(settings))
        values |= {"SPAWNER": scheduler.spawner, "LINES": "".join(f"{line}\n" for line in lines)}
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    goes = "the end of jupyterhub_config.py: load_subconfig with its path; the administrator of the hub"
    below = "stays in this folder, which every node sees: JUPYTER_PATH names it"
    return (
        ExportFile("fairlead_hub.py", text, goes),
        ExportFile(f"kernels/{name}/kernel.json", json.dumps(spec, indent=1) + "\n", below),
    )


def _beside(facts: Facts, program: str) -> str:
    """A program next to fairlead, or its name."""
    first = PurePosixPath(facts.fairlead[0])
    return str(first.with_name(program)) if first.is_absolute() else program


EXPORT = Target("JupyterHub's servers as jobs, with kernels on ranks", files)
