"""Shipped stand-ins for every port: a whole study runs in memory, seeded, in virtual time."""
