"""Builders of shipped workloads whose text is made and not written by hand."""
