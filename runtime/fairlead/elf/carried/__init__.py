"""Libraries below an MPI of which the host's can take the place of the image's: one module with a ``LIBRARY`` for each."""
