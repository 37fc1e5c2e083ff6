"""Pages and pictures: of a run (``report.html``), of a validation, of a comparison.

    from fairlead.perf.draw.run_page import write_report

    html, json = write_report(folder, report)

:mod:`~fairlead.perf.draw.charts` draws everything, as SVG; ``compose`` makes a run's report, ``run_page`` says what it
claims and puts it on one page that loads nothing. Importing this package imports nothing, so that
:func:`~fairlead.perf.draw.pages.require_tools` can say what is not installed.
"""
