"""What a kernel's source calls besides the builder: truth, indices, ranges, reductions, scans."""

# mypy: disable-error-code="import-untyped,import-not-found"

import builtins
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from triton.runtime import interpreter as stock

from serve_apps.cpu.lockstep import ops, trim
from serve_apps.cpu.lockstep.elementwise import array_dtype
from serve_apps.cpu.lockstep.tape import Untraceable
from serve_apps.cpu.lockstep.tracer import Ref
from serve_apps.cpu.lockstep.trim import CannotTrim

tl = stock.tl

# A reduction's form on whole blocks, and the one that wraps it for trimmed blocks.
_MAXIMUM = (ops.maximum, partial(trim.extremum, ufunc=np.fmax))
_MINIMUM = (ops.minimum, partial(trim.extremum, ufunc=np.fmin))


def _truth(original: Any) -> Any:
    def truth(self: Any) -> bool:
        handle = self.handle
        if not isinstance(handle, Ref):
            return bool(original(self))
        # As in the interpreter: only one element can be false, a block never is.
        if int(np.prod(handle.shape)) != 1:
            return True
        return bool(handle.tracer.decide(handle, truth=True))

    return truth


def _index(original: Any) -> Any:
    def index(self: Any) -> int:
        handle = self.handle
        if not isinstance(handle, Ref):
            return int(original(self))
        outcome = handle.tracer.decide(handle, truth=False)
        assert isinstance(outcome, int)
        return outcome

    return index


def _plain(value: Any) -> Any:
    value = value.value if isinstance(value, tl.constexpr) else value
    if isinstance(value, tl.tensor):
        handle = value.handle
        if not isinstance(handle, Ref):
            return int(value)
        if handle.constant is not None:
            return int(handle.constant.reshape(-1)[0])
    return value


def kernel_range(arg1: Any, arg2: Any = None, step: Any = None, **_: Any) -> Any:
    """Return the loop over a range whose bounds may differ between lanes.

    A bound that is known gives Python's own range. Otherwise every iteration asks anew whether
    the bound is reached, so that a path is told by its number of iterations, not by the bound.
    """
    start, stop = (0, arg1) if arg2 is None else (arg1, arg2)
    start, stop, step = _plain(start), _plain(stop), _plain(1 if step is None else step)
    if all(isinstance(value, int) for value in (start, stop, step)):
        return builtins.range(start, stop, step)
    if not isinstance(step, int) or step == 0:
        raise Untraceable("a range whose step is not known")
    return _steps(start, stop, step)


def _steps(start: Any, stop: Any, step: int) -> Iterator[Any]:
    position = start
    while (stop > position) if step > 0 else (stop < position):
        yield position
        position = position + step


def _as_tensor(ref: Ref, dtype: Any) -> Any:
    kind = tl.block_type(dtype, list(ref.shape)) if ref.shape else dtype
    return tl.core.tensor(ref, kind)


def _collapsed(tensor: Any, axis: int | None) -> tuple[Ref, int]:
    """Return a reduction's operand with its dims at true size, and the axis to reduce."""
    ref = tensor.handle
    if not ref.shape:
        raise Untraceable("a reduction of a scalar")
    if axis is None and len(ref.shape) > 1:
        size = (int(np.prod(ref.shape)),)
        call = ops.reshaper(ref.shape, size)
        return ref.tracer.emit(call, (ref,), size, ref.dtype, ref.array_dtype), 0
    axis = 0 if axis is None else int(_plain(axis)) % len(ref.shape)
    if ref.tracer.is_trimmed(ref):
        return ref, axis
    shape = ref.shape
    wide = ref.tracer.emit(lambda x: ops.full(x, shape), (ref,), shape, ref.dtype, ref.array_dtype)
    wide.uniform = False
    return wide, axis


def _reduced(
    tensor: Any, axis: int | None, keep_dims: bool, forms: tuple[Any, Any], dtype: Any
) -> Any:
    if axis is None and keep_dims:
        raise Untraceable("a reduction of every dim that keeps them")
    ref, axis = _collapsed(tensor, axis)
    make, make_trimmed = forms
    shape = (*ref.shape[:axis], *((1,) if keep_dims else ()), *ref.shape[axis + 1 :])
    call = make(axis, keep_dims=keep_dims, dtype=ref.array_dtype)
    out, tracer = array_dtype(dtype), ref.tracer
    if tracer.is_trimmed(ref):
        end = tracer.end(ref)
        if end is None:
            raise CannotTrim("a reduction over varied elements")
        call = make_trimmed(call, ref.shape[0])
        result = tracer.record_pure(call, (ref, end), shape, dtype.scalar, out)
    else:
        result = tracer.emit(call, (ref,), shape, dtype.scalar, out)
    return _as_tensor(result, dtype.scalar)


def _reduce(original: Any) -> Any:
    standard = tl.standard
    largest = (standard._argmax_combine_tie_break_left, standard._argmax_combine_tie_break_fast)  # noqa: SLF001
    smallest = (standard._argmin_combine_tie_break_left, standard._argmin_combine_tie_break_fast)  # noqa: SLF001
    plain = {
        standard._elementwise_max: _MAXIMUM,  # noqa: SLF001
        standard._elementwise_min: _MINIMUM,  # noqa: SLF001
        standard._sum_combine: (ops.total, trim.total),  # noqa: SLF001
    }

    def reduce(input: Any, axis: Any, combine_fn: Any, keep_dims: bool = False, **rest: Any) -> Any:  # noqa: A002
        first = input[0] if isinstance(input, tuple) else input
        if not isinstance(first.handle, Ref):
            return original(input, axis, combine_fn, keep_dims, **rest)
        keep = bool(_plain(keep_dims))
        dtype = first.dtype
        if dtype.scalar == tl.bfloat16:
            raise Untraceable("a reduction of bfloat16")
        if isinstance(input, tuple) and combine_fn in largest + smallest:
            is_largest = combine_fn in largest
            value = _MAXIMUM if is_largest else _MINIMUM
            find = (
                partial(ops.arg_extremum, largest=is_largest),
                partial(trim.arg_extremum, largest=is_largest),
            )
            return (
                _reduced(first, axis, keep, value, dtype),
                _reduced(first, axis, keep, find, tl.int32),
            )
        if isinstance(input, tuple) or combine_fn not in plain:
            raise Untraceable("a reduction with a function of its own")
        return _reduced(first, axis, keep, plain[combine_fn], dtype)

    return reduce


def _scan(original: Any) -> Any:
    calls: dict[Any, ops.Call] = {
        tl.standard._sum_combine: np.cumsum,  # noqa: SLF001
        tl.standard._prod_combine: np.cumprod,  # noqa: SLF001
    }

    def scan(input: Any, axis: Any, combine_fn: Any, reverse: bool = False, **rest: Any) -> Any:  # noqa: A002
        if isinstance(input, tuple) or not isinstance(input.handle, Ref):
            return original(input, axis, combine_fn, reverse, **rest)
        if combine_fn not in calls or input.dtype.scalar == tl.bfloat16:
            raise Untraceable("a scan with a function of its own")
        ref, where = _collapsed(input, int(_plain(axis)))
        out = array_dtype(input.dtype)
        call = ops.scanner(where, reverse=bool(_plain(reverse)), dtype=out, call=calls[combine_fn])
        scanned = ref.tracer.emit(call, (ref,), ref.shape, input.dtype.scalar, out)
        return _as_tensor(scanned, input.dtype.scalar)

    return scan


def apply() -> None:
    """Teach the patched language about symbolic handles; real ones keep their old meaning."""
    tensor = tl.tensor
    tensor.__bool__ = _truth(tensor.__bool__)
    tensor.__index__ = _index(tensor.__index__)
    reduce, scan = _reduce(tl.reduce), _scan(tl.associative_scan)
    for module in (tl, tl.core):
        module.reduce = reduce
        module.associative_scan = scan
        module.range = kernel_range
        module.static_range = kernel_range
