"""The tape: straight runs of operations joined by guards, and how lanes play it."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Untraceable(Exception):  # noqa: N818  # a fact about a kernel, not a failure
    """A kernel uses something that lockstep has no form for."""


@dataclass(slots=True)
class Operation:
    """One NumPy call: `output = call(*inputs)`; one that writes gets the journal in front."""

    call: Callable[..., Any]
    inputs: tuple[int, ...]
    output: int
    writes: bool = False


@dataclass(slots=True)
class Node:
    """A run of operations that ends in a guard or in the kernel's return."""

    first_register: int
    path: tuple[Hashable, ...]
    operations: list[Operation] = field(default_factory=list)
    num_registers: int = 0
    guard: int | None = None
    guard_is_truth: bool = True
    children: dict[Hashable, "Node"] = field(default_factory=dict)
    play: Callable[["Frame"], None] | None = None


class Frame:
    """The registers of one group of lanes; what a parent group computed is sliced on demand."""

    __slots__ = ("journal", "lanes", "parent", "registers", "selection")

    def __init__(
        self, lanes: int, parent: "Frame | None" = None, selection: Array | None = None
    ) -> None:
        self.lanes = lanes
        self.parent = parent
        self.selection = selection
        # What stores overwrote, in order: (memory, index, old values), shared by all groups.
        self.journal: list[tuple[Array, Array, Array]] = [] if parent is None else parent.journal
        self.registers: dict[int, Array] = {}

    def fetch(self, register: int) -> Array:
        """Return a register's value for this group's lanes, shape [lanes or 1, ...]."""
        value = self.registers.get(register)
        if value is None:
            if self.parent is None:
                raise KeyError(register)
            value = self.parent.fetch(register)
            if value.shape[0] != 1:
                value = value[self.selection]
            self.registers[register] = value
        return value

    def undo(self) -> None:
        """Put back what the launch has stored so far."""
        for memory, index, old in reversed(self.journal):
            memory[index] = old

    def part(self, register: int, *, truth: bool) -> list[tuple[Hashable, "Frame"]]:
        """Return the guard's outcomes with the lanes that took each; one when they agree."""
        value = self.fetch(register).reshape(-1)
        if truth:
            num_true = int(np.count_nonzero(value))
            if num_true in (0, value.size):
                return [(num_true != 0, self)]
            holds = value.astype(np.bool_)
            return [
                (outcome, Frame(int(lanes.size), self, lanes))
                for outcome in (True, False)
                for lanes in (np.flatnonzero(holds == outcome),)
            ]
        outcomes = np.unique(value)
        if outcomes.size == 1:
            return [(int(outcomes[0]), self)]
        return [
            (int(outcome), Frame(int(lanes.size), self, lanes))
            for outcome in outcomes
            for lanes in (np.flatnonzero(value == outcome),)
        ]


def compile_node(node: Node, constants: dict[int, Array]) -> Callable[[Frame], None]:
    """Return a function that plays a node's operations on a frame.

    Python source is generated, so that a register is a local variable and a constant a global:
    a loop over `Operation` objects costs about as much as a small NumPy call itself.
    """
    names: dict[str, Any] = {}
    defined: set[int] = set()
    lines = ["def play(frame):", "    registers = frame.registers"]

    def operand(register: int) -> str:
        if register in constants:
            names[f"k{register}"] = constants[register]
            return f"k{register}"
        if register not in defined:
            defined.add(register)
            lines.append(f"    r{register} = frame.fetch({register})")
        return f"r{register}"

    for index, operation in enumerate(node.operations):
        arguments = [operand(register) for register in operation.inputs]
        if operation.writes:
            arguments.insert(0, "frame.journal")
        names[f"f{index}"] = operation.call
        out = operation.output
        defined.add(out)
        keep = f"registers[{out}] = " if node.guard is not None else ""
        lines.append(f"    r{out} = {keep}f{index}({', '.join(arguments)})")
    exec("\n".join(lines), names)  # generated above from register numbers only
    play: Callable[[Frame], None] = names["play"]
    return play
