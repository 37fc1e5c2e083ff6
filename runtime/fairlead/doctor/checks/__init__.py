"""The checks, one file each: ``examine(world)`` yields findings. :mod:`fairlead.doctor.registry` lists them."""
