"""Synthetic events with a signal that must be learnt, their files, and the baseline to beat."""

# Of the recipe in `hep`: a change of any number in it must change this one, and makes data anew.
VERSION = 1
