"""Synthetic events with a signal that must be learnt, their files, and the baseline to beat."""
