"""Trimming: a block's masked-off end is computed once per lane instead of once per element.

Kernels work on blocks of a fixed width (8,192 here) under a mask that ends at the vocabulary's
size (1,024 in a tiny model). Where that mask is known at tracing, blocks of that width are kept
up to the mask's end only, and what lies beyond is known by a rule: after a masked load it is the
load's `other`; an operation on uniform ends has a uniform end; anything else is "varied", which
no store and no reduction may see. Reductions take the end into account exactly. If a kernel
breaks a rule, `CannotTrim` is raised and the kernel is traced again with whole blocks.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Call = Callable[..., Any]

# Narrower blocks cost a NumPy call's fixed time whatever their width.
MIN_WIDTH = 1024
# NumPy sums pairwise by halves of 8 x 2^k: a power of two of at least this size keeps a trimmed
# sum bit-equal to the whole one, whose other halves are zero.
_MIN_KEPT = 128


class CannotTrim(Exception):  # noqa: N818  # a fact about a kernel, not a failure
    """The end of a trimmed block matters and is not uniform."""


def kept_width(mask: Array) -> int | None:
    """Return the width that a block under this constant mask is kept at; None for all of it.

    Args:
        mask: Boolean, shape [1, width].
    """
    width = mask.shape[1]
    true = int(np.count_nonzero(mask))
    if width < MIN_WIDTH or not 0 < true < width or not mask[0, :true].all():
        return None
    kept = max(_MIN_KEPT, 1 << (true - 1).bit_length())
    return kept if kept < width else None


def uniform_end(value: Array, kept: int) -> Array | None:
    """Return the value, shape [1, 1], that all elements from `kept` on share; None if they vary."""
    if value.shape[1] == 1:
        return value
    end = value[:, kept:]
    first = end[:, :1]
    same = end == first
    if value.dtype.kind == "f" and np.isnan(first).any():
        same = np.isnan(end)
    return first.copy() if bool(same.all()) else None


def restored(value: Array, end: Array, width: int) -> Array:
    """Return the whole block: the kept elements, then the end repeated."""
    lanes = max(value.shape[0], end.shape[0])
    kept = value.shape[1]
    whole = np.empty((lanes, width), value.dtype)
    whole[:, :kept] = value
    whole[:, kept:] = end
    return whole


def total(call: Call, width: int) -> Call:
    """Return the sum over a trimmed block: the end must be zero, or the block is restored."""

    def summed(value: Array, end: Array) -> Any:
        return call(restored(value, end, width) if end.any() else value)

    return summed


def extremum(call: Call, width: int, ufunc: np.ufunc) -> Call:  # noqa: ARG001  # one signature
    """Return the extremum over a trimmed block: the kept part's or the end's."""

    def found(value: Array, end: Array) -> Any:
        result = call(value)
        return ufunc(result, end.reshape(end.shape[0], *(1,) * (result.ndim - 1)))

    return found


def arg_extremum(call: Call, width: int, *, largest: bool) -> Call:
    """Return the leftmost extremum's index: the kept part wins ties, else restore the block."""

    def found(value: Array, end: Array) -> Any:
        best = value.max(axis=1) if largest else value.min(axis=1)
        last = end[:, 0]
        # A NaN on either side makes the comparison false and the block whole.
        safe = (last <= best) if largest else (last >= best)
        return call(value if bool(safe.all()) else restored(value, end, width))

    return found
