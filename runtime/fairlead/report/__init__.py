"""``report.html`` and ``report.json`` of a run: the verdict first, then what it rests on.

    from fairlead.report import Report, write_report

    html, json = write_report(folder, report)

:mod:`fairlead.report.model` says what a report holds, ``verdict`` what is claimed and on what
evidence, ``plots`` draws, ``write`` puts it on one page that needs nothing else.
"""

from fairlead.report.model import Fact, PlanRow, ProofRow, Report
from fairlead.report.pages import require_tools
from fairlead.report.write import write_report

__all__ = ["Fact", "PlanRow", "ProofRow", "Report", "require_tools", "write_report"]
