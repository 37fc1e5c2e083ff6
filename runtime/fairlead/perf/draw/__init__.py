"""Pages and pictures: of a run (``report.html``), of a validation, of a comparison, of a benchmark.

    from fairlead.perf.draw import Report, write_report

    html, json = write_report(folder, report)

:mod:`~fairlead.perf.draw.charts` draws everything, as SVG; :mod:`~fairlead.perf.draw.run_report` says what a run's report
holds, ``claims`` what it claims and on what evidence, ``run_page`` puts it on one page that loads nothing.
"""

from fairlead.perf.draw.pages import require_tools
from fairlead.perf.draw.run_page import write_report
from fairlead.perf.draw.run_report import Fact, PlanRow, ProofRow, Report

__all__ = ["Fact", "PlanRow", "ProofRow", "Report", "require_tools", "write_report"]
