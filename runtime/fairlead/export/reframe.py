"""ReFrame: the site as a system, and a test that an image runs on the host's MPI, proved.

``fairlead run`` starts the ranks itself, so ReFrame's launcher is ``local``; its scheduler gives the nodes.
Source: reframe-hpc/reframe, docs/config_reference.rst, reframe/schemas/config.json.
"""

from __future__ import annotations

import fnmatch
import pprint
import re
from typing import Any

from fairlead import __version__
from fairlead.export.model import ExportFile, Facts, Target, need_image
from fairlead.schedulers.registry import SCHEDULERS

_TEST = '''\
"""The MPI of the host in a container, proved. Written by fairlead @VERSION@ for @SITE@.

    reframe -C config.py -c swap_test.py -r
"""

import shlex

import reframe as rfm
import reframe.utility.sanity as sn


@rfm.simple_test
class FairleadSwap(rfm.RunOnlyRegressionTest):
    """Every rank maps the host's MPI and messages between them arrive: the proof of the launch says so."""

    valid_systems = [@SYSTEMS@]
    valid_prog_environs = ["builtin"]
    image = variable(str, value=@IMAGE@)
    ranks = variable(int, value=2)
    executable = @FAIRLEAD@
    time_limit = "10m"

    @run_before("run")
    def words(self):
        self.num_tasks = self.ranks
        words = [
            *@MORE@, "run", "-v", "-n", str(self.ranks), *@OPTIONS@, self.image, "--",
            "python3", "-m", "mpi4py.bench", "helloworld",
        ]
        self.executable_opts = [shlex.quote(word) for word in words]  # a shell reads them

    @sanity_function
    def proved(self):
        said = sn.findall(r"Hello, World! I am process (\\d+) of", self.stdout)
        return sn.all([
            sn.assert_found(rf"fairlead: proved on {self.ranks} ranks?,", self.stderr),
            sn.assert_found(@SWAPPED@, self.stderr),
            sn.assert_eq(sn.count(said), self.ranks),
        ])

    @performance_function("s")
    def until_proved(self):
        return sn.extractsingle(r"proved on .* \\((?P<s>[\\d.]+) s\\)", self.stderr, "s", float)
'''


def files(facts: Facts) -> tuple[ExportFile, ...]:
    """``config.py`` and ``swap_test.py``."""
    image = need_image(facts, "reframe")
    system = re.sub(r"[^A-Za-z0-9_-]", "-", facts.site.name)
    kind = facts.site.scheduler.kind
    partition: dict[str, Any] = {
        "name": "default",
        "descr": facts.site.summary,
        "scheduler": (SCHEDULERS.get(kind).reframe if kind != "none" else "") or "local",
        "launcher": "local",
        "access": list(facts.site.scheduler.directives),
        "environs": ["builtin"],
        "max_jobs": 1,
    }
    if facts.site.node.cores:
        partition["processor"] = {"num_cpus": facts.site.node.cores}
    names = [fnmatch.translate(p) for p in facts.site.detect.hostnames] or [".*"]
    configuration = {
        "systems": [
            {
                "name": system,
                "descr": facts.site.summary,
                "hostnames": names,
                "modules_system": "nomod" if not facts.site.engine.modules else "lmod",
                "partitions": [partition],
            }
        ],
        "environments": [{"name": "builtin", "cc": "cc", "cxx": "", "ftn": ""}],
    }
    config = (
        f'"""{facts.site.name} for ReFrame, written by fairlead {__version__}."""\n\n'
        f"site_configuration = {pprint.pformat(configuration, sort_dicts=False, width=96)}\n"
    )
    title = facts.host.library.title if facts.host else ""
    swapped = re.escape(title) + " of the host" if title else "of the host"
    values = {
        "VERSION": __version__,
        "SITE": facts.site.name,
        "SYSTEMS": repr(system),
        "IMAGE": repr(image.path),
        "FAIRLEAD": repr(facts.fairlead[0]),
        "MORE": repr(list(facts.fairlead[1:])),
        "OPTIONS": repr(facts.options),
        "SWAPPED": repr(swapped),
    }
    test = re.sub(r"@([A-Z]+)@", lambda match: values[match[1]], _TEST)
    return (
        ExportFile("config.py", config, "reframe -C config.py, or RFM_CONFIG_FILES"),
        ExportFile("swap_test.py", test, "reframe -c swap_test.py -r"),
    )


EXPORT = Target("a site and a test for ReFrame", files)
