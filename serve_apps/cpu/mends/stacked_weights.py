"""Stacked norm weights: vLLM's CPU kernel takes the first row of weights for every input.

A DFlash draft normalises the context keys of all its layers in one call of `rms_norm`, with one
row of weights per layer (input [layers, tokens, heads, head_dim], weight [layers, head_dim]).
The CUDA kernel picks the row by the outermost index. The CPU kernel, of vLLM 0.28.0 and 0.32.0,
knows one row only and says nothing: every layer but the first then sees wrongly scaled keys, and
drafts are accepted less often. The output stays lossless, so nothing else shows it.
"""

from typing import Any


def apply(ops: Any) -> None:
    """Call the kernel once per row of weights where there are several.

    Args:
        ops: `vllm._custom_ops`, or anything with its `rms_norm`.
    """
    if getattr(ops, "specpilot_mended", False):
        return
    one_row = ops.rms_norm

    def rms_norm(out: Any, input: Any, weight: Any, epsilon: float) -> None:  # noqa: A002 (vLLM's)
        if weight is None or weight.dim() == 1:
            one_row(out, input, weight, epsilon)
            return
        for some_out, some_input, row in zip(out, input, weight, strict=True):
            one_row(some_out, some_input, row, epsilon)

    ops.rms_norm = rms_norm
    ops.specpilot_mended = True
