"""Launching: binds a kernel's arguments, finds or traces its program, plays it on all lanes."""

# mypy: disable-error-code="import-untyped,import-not-found"

import inspect
import logging
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
from triton.runtime import interpreter as stock

from serve_apps.cpu.lockstep.builder import TraceBuilder
from serve_apps.cpu.lockstep.elementwise import array_dtype
from serve_apps.cpu.lockstep.tape import Frame, Node, Untraceable
from serve_apps.cpu.lockstep.tracer import Program, Ref, Tracer
from serve_apps.cpu.lockstep.trim import CannotTrim

_logger = logging.getLogger(__name__)
tl = stock.tl
Array = npt.NDArray[Any]

# A whole number seen with more distinct values than this varies from step to step: it becomes a
# register. Fewer (strides, vocabulary size) and it is a constant of the program, which folds.
_MAX_DISTINCT_VALUES = 4

_POINTER_TYPES: dict[torch.dtype, Any] = {}
_BUILDER = TraceBuilder()


def _pointer_type(tensor: Any) -> Any:
    known = _POINTER_TYPES.get(tensor.dtype)
    if known is None:
        known = tl.str_to_ty(triton.runtime.jit.mangle_type(tensor), None)
        _POINTER_TYPES[tensor.dtype] = known
    return known


def _integer_type(value: int) -> Any:
    return tl.str_to_ty(triton.runtime.jit.mangle_type(value), None)


class Argument:
    """One parameter of a kernel, and whether its value is part of the program's identity."""

    __slots__ = ("default", "is_constexpr", "name", "seen", "varies")

    def __init__(self, name: str, default: Any, *, is_constexpr: bool) -> None:
        self.name = name
        self.default = default
        self.is_constexpr = is_constexpr
        self.varies = False
        self.seen: set[Any] = set()

    def key(self, value: Any) -> Hashable:
        """Return what a launch's program depends on about this argument's value."""
        if self.is_constexpr or value is None:
            return (type(value), value if isinstance(value, Hashable) else repr(value))
        kind: type = type(value)
        if kind is int or kind is float:
            self.seen.add(value)
            self.varies = self.varies or len(self.seen) > _MAX_DISTINCT_VALUES
            if self.varies:
                self.seen.clear()
                return str(_integer_type(value).name) if kind is int else "fp32"
            return (kind, value)
        if kind is bool:
            return (kind, value)
        if hasattr(value, "data_ptr"):
            return (kind, value.dtype)
        raise Untraceable(f"an argument of type {kind.__name__}")


class Kernel:
    """A kernel's parameters and the programs traced for it so far."""

    def __init__(self, fn: Callable[..., Any], rewritten: Callable[..., Any]) -> None:
        self.fn = rewritten
        annotations = inspect.get_annotations(fn)
        normalize = triton.runtime.jit._normalize_ty  # noqa: SLF001
        self.arguments = [
            Argument(
                name,
                parameter.default,
                is_constexpr=name in annotations and normalize(annotations[name]) == "constexpr",
            )
            for name, parameter in inspect.signature(fn).parameters.items()
        ]
        self.names = [argument.name for argument in self.arguments]
        self.programs: dict[Hashable, Program] = {}
        self.is_serial = False

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return one value per parameter, defaults filled in."""
        values = list(args)
        for argument in self.arguments[len(args) :]:
            value = kwargs.get(argument.name, argument.default)
            if value is inspect.Parameter.empty:
                raise TypeError(f"{self.fn.__name__}: missing argument {argument.name!r}")
            values.append(value)
        return values


def launch(kernel: Kernel, values: list[Any], grid: tuple[int, ...]) -> None:
    """Run every program instance of a launch in lockstep.

    Raises:
        Untraceable: The kernel has no lockstep form; memory is as it was before the launch.
    """
    full = grid + (1,) * (3 - len(grid))
    lanes = full[0] * full[1] * full[2]
    if lanes == 0:
        return
    parts = [a.key(v) for a, v in zip(kernel.arguments, values, strict=True)]
    key = (*parts, full[0] == 1, full[1] == 1, full[2] == 1)
    program = kernel.programs.get(key)
    if program is None:
        program = kernel.programs[key] = Program(kernel.fn, num_inputs=6 + len(values))
    inputs = _inputs(kernel, values, full)
    while True:
        frame = Frame(lanes)
        frame.registers.update(inputs)
        trace = partial(_trace, kernel, program, values, full)
        try:
            with np.errstate(all="ignore"):
                _play(program, frame, trace)
        except CannotTrim:
            frame.undo()
            program.may_trim = False
            program.forget()
        except BaseException:
            frame.undo()
            program.forget()
            raise
        else:
            return


def _inputs(kernel: Kernel, values: list[Any], grid: tuple[int, ...]) -> dict[int, Array]:
    """Return the registers set before a launch: ids 0-2, grid sizes 3-5, then the arguments."""
    registers: dict[int, Array] = {}
    lanes = np.arange(grid[0] * grid[1] * grid[2], dtype=np.int32)
    inner = grid[2]
    if grid[0] > 1:
        registers[0] = lanes // (grid[1] * inner)
    if grid[1] > 1:
        registers[1] = lanes // inner % grid[1]
    if inner > 1:
        registers[2] = lanes % inner
    for axis in range(3):
        registers[3 + axis] = np.array([grid[axis]], np.int32)
    for index, (argument, value) in enumerate(zip(kernel.arguments, values, strict=True)):
        if argument.is_constexpr or value is None:
            continue
        if argument.varies:
            if type(value) is int:
                registers[6 + index] = np.array([value], array_dtype(_integer_type(value)))
            else:
                registers[6 + index] = np.array([value], np.float32)
        elif hasattr(value, "data_ptr"):
            registers[6 + index] = np.array([value.data_ptr()], np.int64)
    return registers


def _play(
    program: Program, frame: Frame, trace: Callable[[tuple[Hashable, ...], Frame], Any]
) -> None:
    """Play the tree on a frame and on the groups that part from it."""
    waiting: list[tuple[Frame, Node | None, tuple[Hashable, ...]]] = [(frame, program.root, ())]
    while waiting:
        group, node, path = waiting.pop()
        while True:
            if node is None or node.play is None:
                branches = trace(path, group)
                for outcome, lanes, parent in reversed(branches):
                    waiting.append((lanes, parent.children.get(outcome), (*parent.path, outcome)))
                break
            node.play(group)
            if node.guard is None:
                break
            parts = group.part(node.guard, truth=node.guard_is_truth)
            for outcome, lanes in reversed(parts[1:]):
                waiting.append((lanes, node.children.get(outcome), (*node.path, outcome)))
            outcome, group = parts[0]
            path = (*node.path, outcome)
            node = node.children.get(outcome)


def _trace(
    kernel: Kernel,
    program: Program,
    values: list[Any],
    grid: tuple[int, ...],
    path: tuple[Hashable, ...],
    frame: Frame,
) -> list[tuple[Hashable, Frame, Node]]:
    """Run the kernel's source along a path, record what follows it, and execute that."""
    tracer = Tracer(program, path, frame)
    previous = stock.interpreter_semantic.builder
    _BUILDER.tracer = tracer
    _BUILDER.program_ids = [_grid_ref(tracer, axis, 0, grid) for axis in range(3)]
    _BUILDER.num_programs = [_grid_ref(tracer, axis, 3, grid) for axis in range(3)]
    stock.interpreter_semantic.builder = _BUILDER
    try:
        arguments = {
            argument.name: _symbol(tracer, argument, value, 6 + index)
            for index, (argument, value) in enumerate(zip(kernel.arguments, values, strict=True))
        }
        kernel.fn(**arguments)
    finally:
        stock.interpreter_semantic.builder = previous
        _BUILDER.tracer = None
    tracer.finish()
    return tracer.branches


def _grid_ref(tracer: Tracer, axis: int, first: int, grid: tuple[int, ...]) -> Ref:
    if grid[axis] == 1:
        value = np.array([1 if first else 0], np.int32)
        return tracer.constant(value, (), tl.int32)
    return Ref(tracer, first + axis, (), np.dtype(np.int32), tl.int32)


def _symbol(tracer: Tracer, argument: Argument, value: Any, register: int) -> Any:
    """Return what the kernel's source sees for an argument."""
    if argument.is_constexpr or value is None:
        return value
    if hasattr(value, "data_ptr"):
        dtype = _pointer_type(value)
        return tl.tensor(Ref(tracer, register, (), np.dtype(np.int64), dtype), dtype)
    if type(value) is bool:
        ref = tracer.constant(np.array([value]), (), tl.int1)
        return tl.tensor(ref, tl.int1)
    dtype = _integer_type(value) if type(value) is int else tl.float32
    if argument.varies:
        return tl.tensor(Ref(tracer, register, (), array_dtype(dtype), dtype), dtype)
    if type(value) is float:
        # The interpreter hands over a Python float, and so does this.
        return value
    return tl.tensor(tracer.constant(np.array([value], array_dtype(dtype)), (), dtype), dtype)


def report_serial(kernel: Kernel, reason: Untraceable) -> None:
    """Say once that a kernel is run one instance at a time from here on."""
    kernel.is_serial = True
    # A warning, since it costs time, and since vLLM sets up no other logger than its own.
    _logger.warning("kernel %s is interpreted serially: %s", kernel.fn.__name__, reason)
