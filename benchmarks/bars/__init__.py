"""The benchmarks, a file for those that belong together."""
