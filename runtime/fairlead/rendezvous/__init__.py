"""What frameworks that never call MPI need to find each other: see :mod:`~fairlead.rendezvous.model`."""
