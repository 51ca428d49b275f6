"""Mends of Triton's interpreter, one reason per module. Each has `apply(interpreter)`."""
