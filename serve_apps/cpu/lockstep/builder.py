"""The builder that Triton's semantic layer drives while a kernel is traced."""

# mypy: disable-error-code="import-untyped,import-not-found"
# Triton calls these methods by position: the arguments that mean nothing here have to stay.
# ruff: noqa: ARG001, ARG002

from typing import Any

import numpy as np
from triton.runtime import interpreter as stock

from serve_apps.cpu.lockstep import ops
from serve_apps.cpu.lockstep.elementwise import POINTER, ElementwiseBuilder, array_dtype
from serve_apps.cpu.lockstep.memory import accessor
from serve_apps.cpu.lockstep.tape import Untraceable
from serve_apps.cpu.lockstep.tracer import Ref
from serve_apps.cpu.lockstep.trim import CannotTrim

tl = stock.tl


def _spread(address: Any, lanes: int, shape: tuple[int, ...]) -> Any:
    if address.shape == (lanes, *shape):
        return address
    return np.broadcast_to(address, (lanes, *shape))


class TraceBuilder(ElementwiseBuilder):
    """Records on the current tracer; what has no lockstep form refuses."""

    # Pointers and memory

    def create_addptr(self, ptr: Ref, offset: Ref) -> Ref:
        """Record pointer arithmetic in elements."""
        width = max(1, ptr.get_element_ty().primitive_bitwidth // 8)
        scaled = offset
        if offset.array_dtype != POINTER or width != 1:
            # One call: NumPy converts small integers as it multiplies.
            call = lambda x: np.multiply(x, width, dtype=POINTER, casting="unsafe")  # noqa: E731
            scaled = self._tracer().elementwise(call, (offset,), offset.shape, tl.int64, POINTER)
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
        refs: tuple[Ref, ...] = (ptrs, mask) if other is None else (ptrs, mask, other)
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
        seen = arg.viewed(shape=tuple(int(dim) for dim in shape))
        seen.uniform = arg.uniform or arg.shape == (1,)
        return seen

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


def _constant(dtype: Any) -> Any:
    def get(self: TraceBuilder, value: Any) -> Ref:
        return self.scalar(value, array_dtype(dtype), dtype)

    return get


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
):  # fmt: skip
    setattr(TraceBuilder, _name, _refuse(_name))

# The interpreter's constants, all of one shape.
for _type in (
    tl.int1, tl.int8, tl.uint8, tl.int16, tl.uint16, tl.int32, tl.uint32, tl.int64, tl.uint64,
    tl.float16, tl.float32, tl.float64,
):  # fmt: skip
    setattr(TraceBuilder, f"get_{_type.name}", _constant(_type))
