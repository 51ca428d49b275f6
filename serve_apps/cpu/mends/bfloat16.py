"""bfloat16 by value: the interpreter keeps it as uint16 and computes on the bit patterns.

Negative numbers then sort after positive ones (a rank of 8,076 was seen in a vocabulary of
1,024), sums are nonsense, and narrowing from float32 truncates where hardware rounds to
nearest even. Here every operation widens to float32, computes, and rounds back.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

_QUIET_NAN = np.uint16(0x7FC0)


def widen(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Return the float32 values of bfloat16 bit patterns; exact."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrow(values: Any) -> npt.NDArray[np.uint16]:
    """Return the bfloat16 bit patterns nearest to the values, ties to even; NaN stays NaN."""
    single = np.ascontiguousarray(values, dtype=np.float32)
    bits = single.view(np.uint32)
    bias = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    with np.errstate(over="ignore"):
        rounded = ((bits + bias) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(single), _QUIET_NAN, rounded)


def apply(interpreter: Any) -> None:
    """Make binary, unary, fused and casting operations on bfloat16 work by value."""
    tl = interpreter.tl
    builder = interpreter.InterpreterBuilder
    handle_type = interpreter.TensorHandle

    def is_brain(handle: Any) -> bool:
        return bool(handle.dtype.scalar == tl.bfloat16 and handle.data.dtype == np.uint16)

    def lifted(handle: Any) -> Any:
        return widen(handle.data) if is_brain(handle) else handle.data

    def lowered(output: Any, dtype: Any) -> Any:
        return handle_type(output if output.dtype == np.bool_ else narrow(output), dtype)

    _wrap_arithmetic(builder, is_brain, lifted, lowered)
    _wrap_products(builder, is_brain, lifted, lowered)
    _wrap_casts(interpreter, builder, handle_type)


def _wrap_arithmetic(builder: Any, is_brain: Any, lifted: Any, lowered: Any) -> None:
    binary, unary, ternary = builder.binary_op, builder.unary_op, builder.ternary_op

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        if not is_brain(lhs) or not is_brain(rhs):
            return binary(self, lhs, rhs, op)
        return lowered(op(lifted(lhs), lifted(rhs)), lhs.dtype.scalar)

    def unary_op(self: Any, arg: Any, op: Any) -> Any:
        if not is_brain(arg):
            return unary(self, arg, op)
        return lowered(op(lifted(arg)), arg.dtype.scalar)

    def ternary_op(self: Any, lhs: Any, rhs: Any, other: Any, op: Any) -> Any:
        # np.where only moves bits; np.clip compares them.
        if op is not np.clip or not is_brain(other):
            return ternary(self, lhs, rhs, other, op)
        return lowered(op(lifted(lhs), lifted(rhs), lifted(other)), other.dtype.scalar)

    builder.binary_op = binary_op
    builder.unary_op = unary_op
    builder.ternary_op = ternary_op


def _wrap_products(builder: Any, is_brain: Any, lifted: Any, lowered: Any) -> None:
    fma, dot = builder.create_fma, builder.create_dot

    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        if not is_brain(z):
            return fma(self, x, y, z)
        # A product of two bfloat16 is exact in float64, so one rounding to float32 and one to
        # bfloat16 are left; hardware rounds once, which differs in exact ties only.
        wide = np.multiply(lifted(x), lifted(y), dtype=np.float64) + lifted(z)
        return lowered(wide, z.dtype.scalar)

    def create_dot(self: Any, a: Any, b: Any, d: Any, precision: Any, num_imprecise: Any) -> Any:
        if not is_brain(a) and not is_brain(b):
            return dot(self, a, b, d, precision, num_imprecise)
        product = np.matmul(lifted(a), lifted(b), dtype=np.float32)
        if is_brain(d):
            return lowered(product + lifted(d), d.dtype.scalar)
        return type(d)(product.astype(d.data.dtype) + d.data, d.dtype.scalar)

    builder.create_fma = create_fma
    builder.create_dot = create_dot


def _wrap_casts(interpreter: Any, builder: Any, handle_type: Any) -> None:
    tl = interpreter.tl
    cast, fp_to_fp = builder.cast_impl, builder.create_fp_to_fp

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        if source == target or tl.bfloat16 not in (source, target):
            return cast(self, src, dst_type)
        if source == tl.bfloat16 and src.data.dtype != np.uint16:
            # A comparison's result carries its operands' type and boolean data.
            return handle_type(src.data.astype(interpreter._get_np_dtype(target)), target)  # noqa: SLF001
        if source == tl.bfloat16:
            wide = widen(src.data)
            if target == tl.int1:
                return handle_type(wide != 0, target)
            return handle_type(wide.astype(interpreter._get_np_dtype(target)), target)  # noqa: SLF001
        return handle_type(narrow(src.data), target)

    def create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        pair = (src.dtype.scalar, dst_type.scalar)
        if tl.bfloat16 in pair and not any(dtype.is_fp8() for dtype in pair):
            return cast_impl(self, src, dst_type)
        return fp_to_fp(self, src, dst_type, rounding_mode)

    builder.cast_impl = cast_impl
    builder.create_fp_to_fp = create_fp_to_fp
