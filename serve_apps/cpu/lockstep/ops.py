"""NumPy forms of the interpreter's operations on arrays with a leading lane axis."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from serve_apps.cpu.mends.bfloat16 import narrow, widen

Array = npt.NDArray[Any]
Call = Callable[..., Any]


def full(value: Array, shape: tuple[int, ...]) -> Array:
    """Return the value with every logical dim at its true size, shape [lanes or 1, *shape]."""
    if value.shape[1:] == shape:
        return value
    return np.broadcast_to(value, (value.shape[0], *shape))


def probe(call: Call, dtypes: list[np.dtype[Any]]) -> np.dtype[Any]:
    """Return the dtype that an elementwise call gives for operands of these dtypes."""
    with np.errstate(all="ignore"):
        result: Array = call(*(np.ones(1, dtype) for dtype in dtypes))
    return result.dtype


def on_brain(call: Call, brain: list[bool]) -> Call:
    """Return an elementwise call on values instead of bfloat16 bit patterns."""

    def lifted(*operands: Array) -> Array:
        wide = [widen(x) if is_brain else x for x, is_brain in zip(operands, brain, strict=True)]
        result = call(*wide)
        return result if result.dtype == np.bool_ else narrow(result)

    return lifted


def on_one_bit(call: Call) -> Call:
    """Return an arithmetic call on booleans as one-bit integers that wrap around."""
    if call in (np.bitwise_and, np.bitwise_or, np.bitwise_xor):
        return call

    def wrapped(lhs: Array, rhs: Array) -> Array:
        return np.asarray(call(lhs.view(np.int8), rhs.view(np.int8)) & 1).astype(np.bool_)

    return wrapped


def cast_to(call: Call, dtype: np.dtype[Any]) -> Call:
    """Return the call followed by a conversion."""

    def converted(*operands: Array) -> Array:
        return np.asarray(call(*operands)).astype(dtype)

    return converted


def integer_divide(lhs: Array, rhs: Array) -> Array:
    """Return the quotient rounded towards zero, as hardware does."""
    return np.asarray((lhs - np.fmod(lhs, rhs)) // rhs)


def arithmetic_shift(lhs: Array, rhs: Array) -> Array:
    """Return `lhs >> rhs` with the sign carried, whatever the operand's signedness."""
    signed = np.dtype(f"i{lhs.dtype.itemsize}")
    shifted: Array = np.right_shift(
        lhs.astype(signed), rhs.astype(np.dtype(f"i{rhs.dtype.itemsize}"))
    )
    return shifted


def multiply_high(lhs: Array, rhs: Array) -> Array:
    """Return the high half of the unsigned product of integers of at most 32 bits."""
    width = lhs.dtype.itemsize
    unsigned, wide = np.dtype(f"u{width}"), np.dtype(f"u{2 * width}")
    product: Array = lhs.view(unsigned).astype(wide) * rhs.view(unsigned).astype(wide)
    high: Array = (product >> wide.type(8 * width)).astype(unsigned).view(lhs.dtype)
    return high


def reshaper(old: tuple[int, ...], new: tuple[int, ...]) -> Call:
    """Return a reshape of the logical dims."""
    return lambda x: full(x, old).reshape(x.shape[0], *new)


def splatter(rank: int) -> Call:
    """Return the scalar-to-block conversion; the block's dims stay 1 until someone needs them."""
    ones = (1,) * rank
    return lambda x: x.reshape(x.shape[0], *ones)


def maximum(axis: int, *, keep_dims: bool, dtype: np.dtype[Any]) -> Call:
    """Return the NaN-ignoring maximum along a logical axis."""
    return _extremum(np.fmax if dtype.kind == "f" else np.maximum, axis, keep_dims)


def minimum(axis: int, *, keep_dims: bool, dtype: np.dtype[Any]) -> Call:
    """Return the NaN-ignoring minimum along a logical axis."""
    return _extremum(np.fmin if dtype.kind == "f" else np.minimum, axis, keep_dims)


def _extremum(ufunc: np.ufunc, axis: int, keep_dims: bool) -> Call:
    return lambda x: ufunc.reduce(x, axis=axis + 1, keepdims=keep_dims)


def arg_extremum(axis: int, *, keep_dims: bool, dtype: np.dtype[Any], largest: bool) -> Call:
    """Return the index of the leftmost extremum, NaN ignored; 0 where all are NaN."""
    find, worst = (np.argmax, -np.inf) if largest else (np.argmin, np.inf)

    def found(x: Array) -> Array:
        if dtype.kind == "f" and np.isnan(x).any():
            x = np.where(np.isnan(x), dtype.type(worst), x)
        return np.asarray(find(x, axis=axis + 1, keepdims=keep_dims)).astype(np.int32)

    return found


def total(axis: int, *, keep_dims: bool, dtype: np.dtype[Any]) -> Call:
    """Return the sum along a logical axis in the dtype given."""

    def summed(x: Array) -> Array:
        result = np.asarray(np.sum(x, axis=axis + 1, keepdims=keep_dims))
        return result if result.dtype == dtype else result.astype(dtype)

    return summed


def scanner(axis: int, *, reverse: bool, dtype: np.dtype[Any], call: Call) -> Call:
    """Return a running sum or product along a logical axis."""

    def scanned(x: Array) -> Array:
        source = np.flip(x, axis=axis + 1) if reverse else x
        result = call(source, axis=axis + 1).astype(dtype)
        return np.flip(result, axis=axis + 1) if reverse else result

    return scanned
