"""Grids of runs: where they are computed, and the tables they become."""
