"""Bundled models, one file each. They build Keras 3 networks and know their published counts."""
