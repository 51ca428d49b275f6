"""Faults against a local cluster that runs: what production does while something dies."""
