"""The checks, one file each: ``examine(world)`` yields findings. ``registry.py`` lists them."""
