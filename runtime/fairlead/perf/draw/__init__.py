"""``report.html`` and ``report.json`` of a run: the verdict first, then what it rests on.

    from fairlead.perf.draw import Report, write_report

    html, json = write_report(folder, report)

:mod:`fairlead.perf.draw.run_report` says what a report holds, ``verdict`` what is claimed and on what
evidence, ``plots`` draws, ``write`` puts it on one page that needs nothing else.
"""

from fairlead.perf.draw.pages import require_tools
from fairlead.perf.draw.run_page import write_report
from fairlead.perf.draw.run_report import Fact, PlanRow, ProofRow, Report

__all__ = ["Fact", "PlanRow", "ProofRow", "Report", "require_tools", "write_report"]
