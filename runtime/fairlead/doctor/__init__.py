"""Diagnoses this machine: checks, and fixes for what they find.

``registry.py`` lists the checks in order, one file each under ``checks/``; ``fix.py`` applies the
remedies. ``apptainer_install.py`` and ``hostmpi_install.py`` are the two that take some work.
"""
