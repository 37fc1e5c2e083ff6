"""fairlead: run an ML container on the host's own MPI, and prove that it really did.

Where to read next: :mod:`fairlead.swap.plan` (what replaces what, and why), ``prove.py`` (what each rank saw),
``comm/`` (data-parallel training), ``cli/`` (the one layer that prints).
"""

__version__ = "0.1.0"
