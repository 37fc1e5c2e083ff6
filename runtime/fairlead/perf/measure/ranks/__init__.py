"""Programs that every rank of a validation runs; :mod:`fairlead.perf.measure.program` starts them."""
