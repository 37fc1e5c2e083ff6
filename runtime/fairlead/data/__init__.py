"""Data of the bundled models: synthetic sets with a signal that must be learnt, files, and ways to read them.

:mod:`fairlead.data.generate` writes, :mod:`fairlead.data.shards` reads, and docs/data.md tells what and how.
"""

# Of the recipe in `hep`: a change of any number in it must change this one, and makes data anew. `cosmo` and
# `gratings` have their own.
VERSION = 1
