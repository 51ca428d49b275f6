"""Lockstep: a launch's program instances run together, one NumPy call per operation.

The stock interpreter runs a kernel's Python source once per program instance and pays Triton's
semantic layer at every operation. Here the source runs once per *path* through it, on symbolic
handles, and leaves a tape of NumPy operations; every launch then plays the tape with the
program instances as one more leading array axis ("lanes"). Where a branch depends on data and
lanes disagree, the lanes part and each group plays its own tape. Nothing is rewritten per
kernel: the operations are the interpreter's own, in program order within every lane.

A kernel that uses something that has no lockstep form (`Untraceable`) is run by the serial
interpreter instead, for good, with the memory it had touched put back first.
"""
