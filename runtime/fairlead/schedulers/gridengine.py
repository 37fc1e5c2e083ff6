"""Grid Engine: recognised, so that its ``qsub`` is not taken for that of PBS; its jobs are not driven."""

from __future__ import annotations

from fairlead.base.process import Ran
from fairlead.base.system import View
from fairlead.schedulers.model import Scheduler


class GridEngine(Scheduler):
    """Sun's Grid Engine and its descendants."""

    kind = "gridengine"
    title = "Grid Engine"
    programs = ("qconf",)
    variables = ("SGE_ROOT", "SGE_CELL")
    config_files = ("/var/lib/gridengine/default/common/act_qmaster", "/etc/default/gridengine")
    version_command = ("qconf", "-help")
    job_variable = "JOB_ID"
    host = "SGE_O_HOST"
    job_variable_is_own = False
    interactive = "qrsh {command}"

    def is_present(self, view: View, version_text: str, answered: Ran | None) -> bool:
        return view.which("qconf") is not None  # other programs set JOB_ID too


SCHEDULER = GridEngine()
