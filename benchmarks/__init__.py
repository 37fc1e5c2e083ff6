"""Every bar that fairlead sets itself, measured: ``make bench``. Results are kept in ``results/``."""
