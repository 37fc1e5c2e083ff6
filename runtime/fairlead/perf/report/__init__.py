"""``report.html`` and ``report.json`` of a run: the verdict first, then what it rests on.

    from fairlead.perf.report import Report, write_report

    html, json = write_report(folder, report)

:mod:`fairlead.perf.report.model` says what a report holds, ``verdict`` what is claimed and on what
evidence, ``plots`` draws, ``write`` puts it on one page that needs nothing else.
"""

from fairlead.perf.report.model import Fact, PlanRow, ProofRow, Report
from fairlead.perf.report.pages import require_tools
from fairlead.perf.report.write import write_report

__all__ = ["Fact", "PlanRow", "ProofRow", "Report", "require_tools", "write_report"]
