"""Training by fairlead next to training by other libraries: ``python -m benchmarks.peers``.

The command is ``__main__.py``. It launches the peers of :mod:`benchmarks.peers.catalogue` by
:mod:`benchmarks.peers.launches`; what each rank does is :mod:`benchmarks.peers.worker`.
"""
