"""Diagnoses this machine: checks, and fixes for what they find.

``registry.py`` lists the checks in order, one file each under ``checks/``; ``fix.py`` applies the
remedies. :mod:`fairlead.doctor.install.apptainer` and :mod:`fairlead.doctor.install.host_mpi` are the two that take some work.
"""
