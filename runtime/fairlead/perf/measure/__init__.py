"""Whether a machine trains as fast as it should, and if not, what is slow: `fairlead validate`.

:mod:`fairlead.perf.records.validation` has the values; everything else makes, judges or compares them.
"""
