"""Tracing: runs a kernel's source once per path and records what it does, executing as it goes."""

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from serve_apps.cpu.lockstep.tape import Frame, Node, Operation, Untraceable, compile_node
from serve_apps.cpu.lockstep.trim import MIN_WIDTH, CannotTrim, kept_width, uniform_end

Array = npt.NDArray[Any]


class Ref:
    """A symbolic tensor handle: a register, or a constant, with its logical shape.

    The array behind it has shape [lanes or 1, *dims], each dim the logical one or 1.
    """

    __slots__ = (
        "array_dtype", "constant", "dtype", "end", "register", "shape", "tracer", "uniform",
    )  # fmt: skip

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
        # Whether every block element is equal by construction (a scalar spread out).
        self.uniform = not shape
        # Of a trimmed block: the value beyond the kept elements, when asked for; None: varied.
        self.end: Callable[[], Ref | None] | None = None

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
        seen = Ref(
            self.tracer,
            self.register,
            self.shape if shape is None else shape,
            self.array_dtype,
            self.dtype if dtype is None else dtype,
            self.constant,
        )
        seen.uniform, seen.end = self.uniform, self.end
        return seen


class Program:
    """All that is known of one kernel under one specialisation: a tree of nodes."""

    def __init__(self, kernel: Callable[..., Any], *, num_inputs: int) -> None:
        self.kernel = kernel
        self.may_trim = True
        self.num_inputs = num_inputs
        self.constants: dict[int, Array] = {}
        self.num_registers = num_inputs
        self.root: Node | None = None

    def forget(self) -> None:
        """Drop every node, so that the kernel is traced afresh."""
        self.constants = {}
        self.num_registers = self.num_inputs
        self.root = None

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
        # Width of a block -> the width it is kept at on this path; see trim.py.
        self.kept_widths: dict[int, int] = {}
        self.narrowed: dict[int, Ref] = {}
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
        """Record a pure operation, or compute it now when every input is constant.

        Raises:
            CannotTrim: An input is a trimmed block, which only `elementwise` understands.
        """
        values = [ref.constant for ref in inputs]
        if all(value is not None for value in values):
            result = self.constant(call(*values), shape, dtype)
            result.uniform = all(ref.uniform for ref in inputs)
            self._notice_mask(result)
            return result
        if any(ref.end is not None or self.is_trimmed(ref) for ref in inputs):
            raise CannotTrim(f"a trimmed block of {inputs[0].shape}")
        if self.kept(shape, inputs) is not None:
            raise CannotTrim(f"a whole block of {shape} beside trimmed ones")
        return self.record_pure(call, inputs, shape, dtype, array_dtype)

    def record_pure(
        self,
        call: Callable[..., Any],
        inputs: tuple[Ref, ...],
        shape: tuple[int, ...],
        dtype: Any,
        array_dtype: np.dtype[Any],
    ) -> Ref:
        """Record a pure operation on the arrays as they are, trimmed or not."""
        values = [ref.constant for ref in inputs]
        if all(value is not None for value in values):
            return self.constant(call(*values), shape, dtype)
        register = self._register()
        self.record(Operation(call, tuple(ref.register for ref in inputs), register))
        return Ref(self, register, shape, array_dtype, dtype)

    def is_trimmed(self, ref: Ref) -> bool:
        """Return whether the array behind a handle is shorter than its block."""
        if ref.uniform or ref.constant is not None or len(ref.shape) != 1:
            return False
        return self.kept_widths.get(ref.shape[0], ref.shape[0]) < ref.shape[0]

    def effect(
        self, call: Callable[..., Any], inputs: tuple[Ref, ...], *, writes: bool = False
    ) -> int:
        """Record an operation that reads or writes memory; return its output register."""
        register = self._register()
        self.record(Operation(call, tuple(ref.register for ref in inputs), register, writes))
        return register

    # Trimmed blocks

    def _notice_mask(self, ref: Ref) -> None:
        if not self.program.may_trim or len(ref.shape) != 1 or ref.array_dtype != np.bool_:
            return
        width = ref.shape[0]
        value = ref.constant
        if width < MIN_WIDTH or width in self.kept_widths or value is None or ref.uniform:
            return
        kept = kept_width(value)
        if kept is not None:
            self.kept_widths[width] = kept

    def kept(self, shape: tuple[int, ...], refs: tuple[Ref, ...]) -> int | None:
        """Return the width at which a new block of this shape is kept, None for all of it.

        The first block that is not constant settles the width for the rest of the path.
        """
        if len(shape) != 1 or shape[0] < MIN_WIDTH or all(ref.uniform for ref in refs):
            return None
        width = shape[0]
        kept = self.kept_widths.setdefault(width, width)
        return kept if kept < width else None

    def narrow(self, ref: Ref, kept: int) -> Ref:
        """Return an operand of a trimmed operation: constants are cut, the rest already is."""
        value = ref.constant
        if ref.uniform or value is None:
            return ref
        known = self.narrowed.get(ref.register)
        if known is None:
            end = uniform_end(value, kept)
            known = self.constant(np.ascontiguousarray(value[:, :kept]), ref.shape, ref.dtype)
            if end is not None:
                fixed = self.constant(end, (1,), ref.dtype)
                fixed.uniform = True
                known.end = lambda: fixed
            self.narrowed[ref.register] = known
        return known

    def end(self, ref: Ref) -> Ref | None:
        """Return what lies beyond a narrowed operand's kept elements; None when it varies."""
        if ref.uniform:
            return ref
        return None if ref.end is None else ref.end()

    def elementwise(
        self,
        call: Callable[..., Any],
        inputs: tuple[Ref, ...],
        shape: tuple[int, ...],
        dtype: Any,
        array_dtype: np.dtype[Any],
        op: Any = None,
    ) -> Ref:
        """Record an operation on corresponding elements.

        Args:
            call: The NumPy form.
            inputs: Operands of one rank.
            shape: Logical shape of the result.
            dtype: Triton type of the result.
            array_dtype: Array dtype of the result.
            op: The plain ufunc behind `call`, whose rule for ends is known by identity.
        """
        constant = all(ref.constant is not None for ref in inputs)
        kept = None if constant else self.kept(shape, inputs)
        if kept is None:
            result = self.emit(call, inputs, shape, dtype, array_dtype)
            result.uniform = result.uniform or all(ref.uniform for ref in inputs)
            return result
        parts = tuple(self.narrow(ref, kept) for ref in inputs)
        result = self.record_pure(call, parts, shape, dtype, array_dtype)
        memo: list[Ref | None] = []

        def end() -> Ref | None:
            if not memo:
                memo.append(self._end_of(call, parts, dtype, array_dtype, op))
            return memo[0]

        result.end = end
        return result

    def _end_of(
        self,
        call: Callable[..., Any],
        parts: tuple[Ref, ...],
        dtype: Any,
        array_dtype: np.dtype[Any],
        op: Any,
    ) -> Ref | None:
        ends = [self.end(part) for part in parts]
        known = [None if end is None or end.constant is None else end.constant for end in ends]
        if op is np.where and known[0] is not None:
            return ends[1] if bool(known[0].all()) else ends[2] if not known[0].any() else None
        if op is np.bitwise_and and array_dtype == np.bool_:
            for end, value in zip(ends, known, strict=True):
                if value is not None and not value.any():
                    return end
        present = tuple(end for end in ends if end is not None)
        if len(present) != len(ends):
            return None
        result = self.record_pure(call, present, (1,), dtype, array_dtype)
        result.uniform = True
        return result

    def record(self, operation: Operation) -> None:
        """Append an operation to the node and execute it on the frame, unless retracing."""
        if not self.recording:
            return
        self.node.operations.append(operation)
        arguments: list[Any] = [self.value(register) for register in operation.inputs]
        if operation.writes:
            arguments.insert(0, self.frame.journal)
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
