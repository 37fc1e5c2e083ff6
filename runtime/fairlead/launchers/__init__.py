"""Launchers of ranks: which one, in what allocation, and the words that start a job with it."""
