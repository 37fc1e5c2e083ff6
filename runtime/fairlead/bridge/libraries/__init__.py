"""The libraries that are always there; one module each."""
