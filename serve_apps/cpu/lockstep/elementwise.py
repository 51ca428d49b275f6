"""The elementwise half of the tracing builder: constants, arithmetic, casts."""

# mypy: disable-error-code="import-untyped,import-not-found"

# Triton calls these methods by position: the arguments that mean nothing here have to stay.
# ruff: noqa: ARG002

from typing import Any

import numpy as np
from triton.runtime import interpreter as stock

from serve_apps.cpu.lockstep import ops
from serve_apps.cpu.lockstep.tape import Untraceable
from serve_apps.cpu.lockstep.tracer import Ref, Tracer
from serve_apps.cpu.mends.bfloat16 import narrow, widen

tl = stock.tl
POINTER = np.dtype(np.int64)


def array_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the array dtype of a Triton type; addresses are int64 so that they index."""
    if dtype.scalar.is_ptr():
        return POINTER
    known: np.dtype[Any] = stock._get_np_dtype(dtype)  # noqa: SLF001
    return known


def _is_brain(ref: Ref) -> bool:
    return bool(ref.dtype.scalar == tl.bfloat16) and ref.array_dtype == np.uint16


class ElementwiseBuilder(stock.InterpreterBuilder):  # type: ignore[misc]  # Triton has no types
    """Records on the current tracer; every other method of the interpreter's builder refuses."""

    def __init__(self) -> None:
        super().__init__()
        # The checks would only feed a device_assert, which is off without debug.
        self.options = stock.InterpreterOptions(sanitize_overflow=False)
        self.tracer: Tracer | None = None
        self.program_ids: list[Ref] = []
        self.num_programs: list[Ref] = []

    def _tracer(self) -> Tracer:
        if self.tracer is None:
            raise Untraceable("no launch is being traced")
        return self.tracer

    # Constants

    def get_null_value(self, type: Any) -> Ref:  # noqa: A002  # the name that Triton calls
        """Return zero of a type."""
        return self.scalar(0, array_dtype(type), type)

    def scalar(self, value: Any, dtype: np.dtype[Any], triton_dtype: Any) -> Ref:
        """Return a constant scalar, one register per value and type on a path."""
        tracer = self._tracer()
        return tracer.constant(np.array([value]).astype(dtype), (), triton_dtype)

    def get_all_ones_value(self, type: Any) -> Ref:  # noqa: A002
        """Return the value with every bit set."""
        dtype = array_dtype(type)
        value = True if dtype == np.bool_ else np.array([-1]).astype(dtype)[0]
        return self.scalar(value, dtype, type.scalar)

    def get_bf16(self, value: float) -> Ref:
        """Return a bfloat16 constant, rounded to nearest even."""
        return self._tracer().constant(narrow(np.array([value])), (), tl.bfloat16)

    def create_get_program_id(self, axis: int) -> Ref:
        """Return the lanes' program ids along an axis."""
        return self.program_ids[axis]

    def create_get_num_programs(self, axis: int) -> Ref:
        """Return the grid's size along an axis."""
        return self.num_programs[axis]

    def create_make_range(self, ret_ty: Any, start: int, stop: int) -> Ref:
        """Return the constant block start..stop-1."""
        values = np.arange(start, stop, dtype=np.int32)[None]
        return self._tracer().constant(values, (stop - start,), tl.int32)

    # Elementwise operations

    def _elementwise(self, call: Any, refs: tuple[Ref, ...], dtype: Any, op: Any = None) -> Ref:
        shapes = {ref.shape for ref in refs if ref.shape}
        shape = max(shapes, key=len) if shapes else ()
        if any(ref.shape and len(ref.shape) != len(shape) for ref in refs):
            raise Untraceable("operands of different rank")
        refs = tuple(self._splat(ref, len(shape)) if not ref.shape else ref for ref in refs)
        shape = np.broadcast_shapes(*(ref.shape for ref in refs))
        out = ops.probe(call, [ref.array_dtype for ref in refs])
        kind = tl.int1 if out == np.bool_ else dtype
        return self._tracer().elementwise(call, refs, shape, kind, out, op)

    def _splat(self, ref: Ref, rank: int) -> Ref:
        if not rank:
            return ref
        ones = (1,) * rank
        call = ops.splatter(rank)
        spread = self._tracer().emit(call, (ref,), ones, ref.dtype, ref.array_dtype)
        spread.uniform = True
        return spread

    def _fitting(self, call: Any, refs: tuple[Ref, ...], dtype: Any) -> Any:
        out = ops.probe(call, [ref.array_dtype for ref in refs])
        width = 64 if dtype.is_ptr() else max(8, dtype.primitive_bitwidth)
        return call if out.itemsize * 8 <= width else ops.cast_to(call, array_dtype(dtype))

    def binary_op(self, lhs: Ref, rhs: Ref, op: Any) -> Ref:
        """Record a two-operand operation under the interpreter's type rules."""
        dtype, refs = lhs.dtype.scalar, (lhs, rhs)
        if _is_brain(lhs) and _is_brain(rhs):
            return self._elementwise(ops.on_brain(op, [True, True]), refs, dtype)
        if lhs.array_dtype == np.bool_ and rhs.array_dtype == np.bool_:
            return self._elementwise(ops.on_one_bit(op), refs, tl.int1, op)
        return self._elementwise(self._fitting(op, refs, dtype), refs, dtype, op)

    def unary_op(self, arg: Ref, op: Any) -> Ref:
        """Record a one-operand operation."""
        call = ops.on_brain(op, [True]) if _is_brain(arg) else op
        return self._elementwise(call, (arg,), arg.dtype.scalar)

    def ternary_op(self, lhs: Ref, rhs: Ref, other: Ref, op: Any) -> Ref:
        """Record a three-operand operation; its type is that of the last."""
        dtype, refs = other.dtype.scalar, (lhs, rhs, other)
        if op is np.clip and _is_brain(other):
            return self._elementwise(
                ops.on_brain(op, [_is_brain(ref) for ref in refs]), refs, dtype
            )
        return self._elementwise(self._fitting(op, refs, dtype), refs, dtype, op)

    def create_idiv(self, lhs: Ref, rhs: Ref) -> Ref:
        """Record an integer division that rounds towards zero."""
        return self._elementwise(ops.integer_divide, (lhs, rhs), lhs.dtype.scalar)

    def create_ashr(self, lhs: Ref, rhs: Ref) -> Ref:
        """Record a shift that carries the sign."""
        return self._elementwise(ops.arithmetic_shift, (lhs, rhs), lhs.dtype.scalar)

    def create_umulhi(self, lhs: Ref, rhs: Ref) -> Ref:
        """Record the high half of a product."""
        call = stock.np_umulhi_u64 if lhs.array_dtype.itemsize == 8 else ops.multiply_high
        return self._elementwise(call, (lhs, rhs), lhs.dtype.scalar)

    def create_fabs(self, arg: Ref) -> Ref:
        """Record an absolute value."""
        return self.unary_op(arg, np.abs)

    def create_rsqrt(self, arg: Ref) -> Ref:
        """Record a reciprocal square root."""
        return self.unary_op(arg, lambda x: 1 / np.sqrt(x))

    def create_erf(self, arg: Ref) -> Ref:
        """Record an error function."""
        single = arg.array_dtype == np.float32
        return self.unary_op(arg, stock.np_erf_fp32 if single else stock.np_erf_fp64)

    def create_fma(self, x: Ref, y: Ref, z: Ref) -> Ref:
        """Record a multiplication and addition that round once."""
        exact = {
            np.dtype(np.float32): stock._interpreter.fma_fp32,  # noqa: SLF001
            np.dtype(np.float64): stock._interpreter.fma_fp64,  # noqa: SLF001
        }.get(z.array_dtype)
        if exact is None:
            raise Untraceable(f"fma on {z.dtype}")
        call = lambda *parts: exact(*np.broadcast_arrays(*parts))  # noqa: E731
        return self._elementwise(call, (x, y, z), z.dtype.scalar)

    # Casts

    def cast_impl(self, src: Ref, dst_type: Any) -> Ref:
        """Record a conversion by value."""
        source, target = src.dtype.scalar, dst_type.scalar
        if any(dtype.is_floating() and dtype.primitive_bitwidth == 8 for dtype in (source, target)):
            raise Untraceable("eight-bit floats")
        out = array_dtype(target)
        brain = target == tl.bfloat16
        if _is_brain(src):
            call = (lambda x: x) if brain else (lambda x: widen(x).astype(out))
        elif brain:
            call = narrow
        elif src.array_dtype == out:
            return src.viewed(dtype=target)
        else:
            call = lambda x: x.astype(out)  # noqa: E731
        return self._tracer().elementwise(call, (src,), src.shape, target, out)

    def create_fp_to_fp(self, src: Ref, dst_type: Any, rounding_mode: Any) -> Ref:
        """Record a conversion between float types."""
        if rounding_mode not in (None, stock._ir.ROUNDING_MODE.RTNE):  # noqa: SLF001
            raise Untraceable(f"rounding mode {rounding_mode}")
        return self.cast_impl(src, dst_type)

    def create_bitcast(self, src: Ref, dst_type: Any) -> Ref:
        """Record a reinterpretation of bits."""
        out = array_dtype(dst_type)
        if dst_type.scalar.is_ptr():
            return self._pointer(src, dst_type)
        if src.array_dtype == out:
            return src.viewed(dtype=dst_type.scalar)
        call = lambda x: np.ascontiguousarray(x).view(out)  # noqa: E731
        return self._tracer().elementwise(call, (src,), src.shape, dst_type.scalar, out)

    create_int_to_ptr = create_bitcast
    create_ptr_to_int = create_bitcast

    def _pointer(self, src: Ref, dst_type: Any) -> Ref:
        """Record integers seen as addresses, which have to fit their elements."""
        width = array_dtype(dst_type.scalar.element_ty).itemsize

        def checked(x: Any) -> Any:
            addresses = np.ascontiguousarray(x).view(POINTER)
            if (addresses & (width - 1)).any():
                raise ValueError(f"an address is not aligned to its {width}-byte elements")
            return addresses

        return self._tracer().elementwise(checked, (src,), src.shape, dst_type.scalar, POINTER)
