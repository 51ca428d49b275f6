"""Tracing: runs a kernel's source once per path and records what it does, executing as it goes."""

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from serve_apps.cpu.lockstep.tape import Frame, Node, Operation, Untraceable, compile_node

Array = npt.NDArray[Any]


class Ref:
    """A symbolic tensor handle: a register, or a constant, with its logical shape.

    The array behind it has shape [lanes or 1, *dims], each dim the logical one or 1.
    """

    __slots__ = ("array_dtype", "constant", "dtype", "register", "shape", "tracer")

    def __init__(
        self,
        tracer: "Tracer",
        register: int,
        shape: tuple[int, ...],
        array_dtype: np.dtype[Any],
        dtype: Any,
        constant: Array | None = None,
    ) -> None:
        self.tracer = tracer
        self.register = register
        self.shape = shape
        self.array_dtype = array_dtype
        self.dtype = dtype
        self.constant = constant

    @property
    def data(self) -> Any:
        """Refuse: a symbolic handle has no values yet."""
        raise Untraceable("the kernel looks at a tensor's values outside a branch")

    def get_element_ty(self) -> Any:
        """Return the innermost element type, through pointers."""
        dtype = self.dtype
        while hasattr(dtype, "element_ty"):
            dtype = dtype.element_ty
        return dtype

    def set_attr(self, name: str, value: Any) -> None:
        """Ignore hints about divisibility and contiguity."""

    def viewed(self, *, shape: tuple[int, ...] | None = None, dtype: Any = None) -> "Ref":
        """Return the same register under another logical shape or type."""
        return Ref(
            self.tracer,
            self.register,
            self.shape if shape is None else shape,
            self.array_dtype,
            self.dtype if dtype is None else dtype,
            self.constant,
        )


class Program:
    """All that is known of one kernel under one specialisation: a tree of nodes."""

    def __init__(self, kernel: Callable[..., Any]) -> None:
        self.kernel = kernel
        self.constants: dict[int, Array] = {}
        self.num_registers = 0
        self.root: Node | None = None

    def new_node(self, path: tuple[Hashable, ...]) -> Node:
        """Return an empty node whose registers follow all the others."""
        return Node(first_register=self.num_registers, path=path)


class Tracer:
    """Records one path: silent while it retraces known nodes, then recording and executing."""

    def __init__(self, program: Program, path: tuple[Hashable, ...], frame: Frame) -> None:
        self.program = program
        self.pending = list(path)
        self.frame = frame
        self.branches: list[tuple[Hashable, Frame, Node]] = []
        self.undo: list[Callable[[], None]] = []
        self.memo: dict[Any, Ref] = {}
        self.recording = False
        self.counter = 0
        self.path: tuple[Hashable, ...] = ()
        if program.root is None:
            program.root = program.new_node(())
            self.recording = True
        self.node: Node = program.root

    def _register(self) -> int:
        register = self.node.first_register + self.counter
        self.counter += 1
        if self.recording:
            self.node.num_registers = self.counter
            self.program.num_registers = register + 1
        return register

    def constant(self, value: Array, shape: tuple[int, ...], dtype: Any) -> Ref:
        """Return a handle of a value known at tracing, shape [1, *dims]."""
        register = self._register()
        if self.recording:
            self.program.constants[register] = value
        return Ref(self, register, shape, value.dtype, dtype, value)

    def emit(
        self,
        call: Callable[..., Any],
        inputs: tuple[Ref, ...],
        shape: tuple[int, ...],
        dtype: Any,
        array_dtype: np.dtype[Any],
    ) -> Ref:
        """Record a pure operation, or compute it now when every input is constant."""
        values = [ref.constant for ref in inputs]
        if all(value is not None for value in values):
            return self.constant(call(*values), shape, dtype)
        register = self._register()
        self.record(Operation(call, tuple(ref.register for ref in inputs), register))
        return Ref(self, register, shape, array_dtype, dtype)

    def effect(
        self, call: Callable[..., Any], inputs: tuple[Ref, ...], *, wants_lanes: bool = False
    ) -> int:
        """Record an operation that reads or writes memory; return its output register."""
        register = self._register()
        operation = Operation(call, tuple(ref.register for ref in inputs), register, wants_lanes)
        self.record(operation)
        return register

    def record(self, operation: Operation) -> None:
        """Append an operation to the node and execute it on the frame, unless retracing."""
        if not self.recording:
            return
        self.node.operations.append(operation)
        arguments: list[Any] = [self.value(register) for register in operation.inputs]
        if operation.wants_lanes:
            arguments.insert(0, self.frame.lanes)
        self.frame.registers[operation.output] = operation.call(*arguments)

    def value(self, register: int) -> Array:
        """Return a register's value on the frame while recording."""
        constant = self.program.constants.get(register)
        return self.frame.fetch(register) if constant is None else constant

    def decide(self, ref: Ref, *, truth: bool) -> Hashable:
        """Return a branch's outcome for this path; lanes that differ are queued."""
        if ref.constant is not None:
            value = ref.constant.reshape(-1)[0]
            return bool(value) if truth else int(value)
        if self.pending:
            return self._retrace(self.pending.pop(0))
        self.node.guard, self.node.guard_is_truth = ref.register, truth
        self.finish()
        parts = self.frame.part(ref.register, truth=truth)
        for outcome, frame in parts[1:]:
            self.branches.append((outcome, frame, self.node))
        outcome, self.frame = parts[0]
        return self._enter_new(outcome)

    def _retrace(self, outcome: Hashable) -> Hashable:
        self.path += (outcome,)
        if outcome in self.node.children:
            self.node = self.node.children[outcome]
            self.counter = 0
            return outcome
        return self._enter_new(outcome, extend=False)

    def _enter_new(self, outcome: Hashable, *, extend: bool = True) -> Hashable:
        if extend:
            self.path += (outcome,)
        node = self.program.new_node(self.path)
        self.node.children[outcome] = node
        self.node = node
        self.counter = 0
        self.recording = True
        return outcome

    def finish(self) -> None:
        """Close the node: no further operation is added to it."""
        self.node.play = compile_node(self.node, self.program.constants)
