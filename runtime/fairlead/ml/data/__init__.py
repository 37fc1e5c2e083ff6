"""Data of the models: synthetic sets with a signal that must be learnt, files, and ways to read them.

:mod:`fairlead.ml.data.generate` writes, :mod:`fairlead.ml.data.shards` reads; docs/howto/data.md describes both.
"""
