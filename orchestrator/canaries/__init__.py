"""Canaries and scored tasks: whether what a server answers is what was asked for."""
