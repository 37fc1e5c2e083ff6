"""The corpus: images that nobody made for fairlead, run on every kind of host MPI; see :mod:`.run`."""
