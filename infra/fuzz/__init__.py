"""Many random inputs for what reads bytes of others: no crash, no hang, no wrong number."""
