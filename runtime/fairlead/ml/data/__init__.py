"""Data of the bundled models: synthetic sets with a signal that must be learnt, files, and ways to read them.

:mod:`fairlead.ml.data.generate` writes, :mod:`fairlead.ml.data.shards` reads, and docs/howto/data.md tells what and how.
"""

# Of the recipe of each set: a change of any number in it must change this one, and makes data anew.
VERSIONS = {"hep": 1, "cosmo": 1, "cosmo-mlperf": 1, "gratings": 1}
