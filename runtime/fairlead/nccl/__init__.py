"""NCCL and RCCL: which network plugin of the host serves the image's library, and what ranks need to load it."""
