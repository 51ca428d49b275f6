"""The builder that Triton's semantic layer drives while a kernel is traced."""

from typing import Any

import numpy as np
from triton.runtime import interpreter as stock

from serve_apps.cpu.lockstep import ops
from serve_apps.cpu.lockstep.memory import accessor
from serve_apps.cpu.lockstep.tape import Untraceable
from serve_apps.cpu.lockstep.tracer import Ref, Tracer
from serve_apps.cpu.lockstep.trim import CannotTrim
from serve_apps.cpu.mends.bfloat16 import narrow, widen

tl = stock.tl
_POINTER = np.dtype(np.int64)


def array_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the array dtype of a Triton type; addresses are int64 so that they index."""
    if dtype.scalar.is_ptr():
        return _POINTER
    return np.dtype(stock._get_np_dtype(dtype))  # noqa: SLF001


def _spread(address: Any, lanes: int, shape: tuple[int, ...]) -> Any:
    if address.shape == (lanes, *shape):
        return address
    return np.broadcast_to(address, (lanes, *shape))


def _is_brain(ref: Ref) -> bool:
    return bool(ref.dtype.scalar == tl.bfloat16) and ref.array_dtype == np.uint16


class TraceBuilder(stock.InterpreterBuilder):  # type: ignore[misc]  # Triton has no types
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
            return self._elementwise(ops.on_brain(op, [_is_brain(ref) for ref in refs]), refs, dtype)
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
            addresses = np.ascontiguousarray(x).view(_POINTER)
            if (addresses & (width - 1)).any():
                raise ValueError(f"an address is not aligned to its {width}-byte elements")
            return addresses

        return self._tracer().elementwise(checked, (src,), src.shape, dst_type.scalar, _POINTER)

    # Pointers and memory

    def create_addptr(self, ptr: Ref, offset: Ref) -> Ref:
        """Record pointer arithmetic in elements."""
        width = max(1, ptr.get_element_ty().primitive_bitwidth // 8)
        scaled = offset
        if offset.array_dtype != _POINTER or width != 1:
            # One call: NumPy converts small integers as it multiplies.
            call = lambda x: np.multiply(x, width, dtype=_POINTER, casting="unsafe")  # noqa: E731
            scaled = self._tracer().elementwise(call, (offset,), offset.shape, tl.int64, _POINTER)
        moved = self._elementwise(np.add, (ptr, scaled), ptr.dtype)
        return moved.viewed(dtype=ptr.dtype)

    def create_load(self, ptr: Ref, cache_policy: Any, is_volatile: Any) -> Ref:
        """Record an unmasked gather."""
        if self._tracer().kept(ptr.shape, (ptr,)) is not None:
            raise CannotTrim("an unmasked load")
        return self._load((ptr,), ptr.shape)

    def _load(self, refs: tuple[Ref, ...], shape: tuple[int, ...]) -> Ref:
        dtype = refs[0].get_element_ty()
        out = array_dtype(dtype)
        memory, tracer = accessor(out), self._tracer()
        if len(refs) == 1:
            register = tracer.effect(memory.load, refs)
        elif len(refs) == 2:  # pointers and mask
            register = tracer.effect(lambda p, m: memory.load_masked(p, m, None), refs)
        else:
            register = tracer.effect(memory.load_masked, refs)
        loaded = Ref(tracer, register, shape, out, dtype)
        loaded.uniform = all(ref.uniform for ref in refs)
        return loaded

    def create_masked_load(
        self, ptrs: Ref, mask: Ref, other: Ref | None, cache_policy: Any, is_volatile: Any
    ) -> Ref:
        """Record a masked gather."""
        mask = self._boolean(mask)
        if other is not None:
            other = self.cast_impl(other, ptrs.get_element_ty())
        shape = np.broadcast_shapes(ptrs.shape, mask.shape)
        refs = (ptrs, mask) if other is None else (ptrs, mask, other)
        tracer = self._tracer()
        kept = tracer.kept(shape, refs)
        if kept is not None:
            refs = self._narrowed(refs, kept)
        if refs[1].constant is not None and refs[1].constant.all():
            loaded = self._load(refs[:1], shape)
        else:
            loaded = self._load(refs, shape)
        if kept is not None:
            loaded.end = self._end_after_load(refs)
        return loaded

    def _narrowed(self, refs: tuple[Ref, ...], kept: int) -> tuple[Ref, ...]:
        """Return the operands of an access to a trimmed block, whose mask ends with it."""
        tracer = self._tracer()
        narrow = tuple(tracer.narrow(ref, kept) for ref in refs)
        end = tracer.end(narrow[1])
        if end is None or end.constant is None or end.constant.any():
            raise CannotTrim("an access beyond the kept elements")
        return narrow

    def _end_after_load(self, refs: tuple[Ref, ...]) -> Any:
        tracer = self._tracer()
        if len(refs) == 3:
            return lambda: tracer.end(refs[2])
        dtype = refs[0].get_element_ty()
        zero = tracer.constant(np.zeros((1, 1), array_dtype(dtype)), (1,), dtype)
        zero.uniform = True
        return lambda: zero

    def _boolean(self, mask: Ref) -> Ref:
        if mask.array_dtype == np.bool_:
            return mask
        call = lambda x: x.astype(np.bool_)  # noqa: E731
        out = np.dtype(np.bool_)
        return self._tracer().elementwise(call, (mask,), mask.shape, tl.int1, out)

    def create_store(self, ptr: Ref, val: Ref, cache_policy: Any) -> None:
        """Record an unmasked scatter."""
        self._store((ptr, val))

    def create_masked_store(self, ptrs: Ref, value: Ref, mask: Ref, cache_policy: Any) -> None:
        """Record a masked scatter."""
        self._store((ptrs, self._boolean(mask), value))

    def _store(self, refs: tuple[Ref, ...]) -> None:
        memory, tracer = accessor(array_dtype(refs[0].get_element_ty())), self._tracer()
        shape = np.broadcast_shapes(*(ref.shape for ref in refs))
        kept = tracer.kept(shape, refs)
        if kept is not None:
            if len(refs) == 2:
                raise CannotTrim("an unmasked store")
            refs, shape = self._narrowed(refs, kept), (kept,)
        if len(refs) == 3 and refs[1].constant is not None and refs[1].constant.all():
            refs = (refs[0], refs[2])

        def store(journal: Any, address: Any, value: Any) -> None:
            lanes = max(address.shape[0], value.shape[0])
            memory.store(journal, _spread(address, lanes, shape), value)

        def store_masked(journal: Any, address: Any, mask: Any, value: Any) -> None:
            lanes = max(address.shape[0], value.shape[0], mask.shape[0])
            memory.store_masked(journal, _spread(address, lanes, shape), value, mask)

        tracer.effect(store if len(refs) == 2 else store_masked, refs, writes=True)

    # Shapes

    def create_splat(self, ret_ty: Any, arg: Ref) -> Ref:
        """Record a scalar spread over a block."""
        if arg.shape:
            raise Untraceable("splat of a block")
        shape = tuple(int(dim) for dim in ret_ty.shape)
        return self._splat(arg, len(shape)).viewed(shape=shape)

    def create_broadcast(self, arg: Ref, shape: Any) -> Ref:
        """Record dims of one seen as longer; nothing is copied."""
        return arg.viewed(shape=tuple(int(dim) for dim in shape))

    def create_expand_dims(self, arg: Ref, axis: int) -> Ref:
        """Record a new dim of one."""
        axis = axis % (len(arg.shape) + 1)
        shape = (*arg.shape[:axis], 1, *arg.shape[axis:])
        call = lambda x: np.expand_dims(x, axis + 1)  # noqa: E731
        return self._tracer().emit(call, (arg,), shape, arg.dtype, arg.array_dtype)

    def create_reshape(self, arg: Ref, shape: Any, allow_reorder: bool) -> Ref:
        """Record a reshape."""
        new = tuple(int(dim) for dim in shape)
        call = ops.reshaper(arg.shape, new)
        return self._tracer().emit(call, (arg,), new, arg.dtype, arg.array_dtype)

    def create_unsplat(self, arg: Ref) -> Ref:
        """Record a block of one element seen as a scalar."""
        call = ops.reshaper(arg.shape, ())
        return self._tracer().emit(call, (arg,), (), arg.dtype, arg.array_dtype)

    def create_trans(self, arg: Ref, perm: Any) -> Ref:
        """Record a permutation of dims."""
        axes = (0, *(int(dim) + 1 for dim in perm))
        shape = tuple(arg.shape[int(dim)] for dim in perm)
        call = lambda x: np.transpose(x, axes)  # noqa: E731
        return self._tracer().emit(call, (arg,), shape, arg.dtype, arg.array_dtype)

    def create_assert(self, condition: Ref, message: str) -> None:
        """Record a check."""

        def check(value: Any) -> None:
            assert value.all(), message

        self._tracer().effect(check, (self._boolean(condition),))

    def create_assume(self, condition: Ref) -> None:
        """Record an assumption as a check."""
        self.create_assert(condition, "Assume failed")


def _refuse(name: str) -> Any:
    def refused(self: TraceBuilder, *args: Any, **kwargs: Any) -> Any:
        raise Untraceable(f"the kernel uses {name}")

    return refused


# Everything that touches handle data in the stock builder and has no lockstep form above.
for _name in (
    "create_clampf", "create_dot", "create_dot_scaled", "create_histogram", "create_gather",
    "create_cat", "create_join", "create_split", "create_atomic_cas", "create_atomic_load",
    "create_atomic_store", "create_atomic_poll", "create_atomic_rmw", "create_print",
    "create_extern_elementwise", "create_inline_asm", "create_make_tensor_descriptor",
    "create_descriptor_load", "create_descriptor_store", "create_descriptor_gather",
    "create_descriptor_scatter",
):
    setattr(TraceBuilder, _name, _refuse(_name))

# The interpreter's constants, all of one shape.
for _name in ("int1", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
    def _constant(self: TraceBuilder, value: Any, _type: Any = getattr(tl, _name)) -> Ref:
        return self.scalar(value, array_dtype(_type), _type)

    setattr(TraceBuilder, f"get_{_name}", _constant)
for _name, _float in (("fp16", tl.float16), ("fp32", tl.float32), ("fp64", tl.float64)):
    def _constant_float(self: TraceBuilder, value: Any, _type: Any = _float) -> Ref:
        return self.scalar(value, array_dtype(_type), _type)

    setattr(TraceBuilder, f"get_{_name}", _constant_float)
