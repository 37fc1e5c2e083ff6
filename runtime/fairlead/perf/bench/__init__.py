"""Benchmarks: messages by plain MPI and by ``fairlead.comm``, and training compared with other libraries.

``fairlead bench collectives`` is :mod:`fairlead.perf.bench.collectives`; ``fairlead bench peers`` begins in
:mod:`fairlead.perf.bench.launches`, and what each of its ranks does is :mod:`fairlead.perf.bench.worker`.
"""
