"""A Triton backend named "cpu" that exists so that vLLM sees Triton, and never compiles.

Triton finds it through the entry-point group `triton.backends` and imports the submodules
`compiler` and `driver`. Kernels are run by Triton's own interpreter (TRITON_INTERPRET=1).
"""
