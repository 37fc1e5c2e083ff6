"""How an image is made: recipe and lock in, one deterministic squashfs out, wrapped as a SIF.

Runs on a login node or a laptop, never in a job. Start reading at ``build.py``, which walks the
stages; :mod:`fairlead_build.cli` is its command line.
"""

from fairlead.base.errors import CATALOGUES

CATALOGUES.append(f"{__path__[0]}/messages")
