"""What is fuzzed, and the loop that does it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

KEPT = 5
"""Faults of a kind that are kept with their input's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One thing that reads input of others.

    Args:
        name: For the table.
        make: Draws one input; all of its chance is the given source's.
        check: Reads an input and returns what was wrong with the answer, or None. What it raises
            is a crash: errors that the input earned are its business.
        cost: How many inputs of the plainest target one of this takes the time of.
        close: Ends what checks have started; a later check starts it again.
    """

    name: str
    make: Callable[[random.Random], Any]
    check: Callable[[Any], str | None]
    cost: int = 1
    close: Callable[[], None] = lambda: None


@dataclass(slots=True)
class Tally:
    """What came of a target's inputs."""

    name: str
    inputs: int = 0
    seconds: float = 0.0
    crashes: int = 0
    wrong: int = 0
    slowest_s: float = 0.0
    """Longest time that one input's check took."""
    kept: list[str] = field(default_factory=list)
    """The first faults, each with the number that makes its input again."""

    @property
    def row(self) -> str:
        """The table's row."""
        return (
            f"{self.name:<22}{self.inputs:>10,}{self.seconds:>10.0f}{self.crashes:>9}"
            f"{self.wrong:>8}{1000 * self.slowest_s:>15.1f}"
        )


HEADER = f"{'target':<22}{'inputs':>10}{'seconds':>10}{'crashes':>9}{'wrong':>8}{'slowest, ms':>15}"


def input_of(target: Target, seed: int, number: int) -> Any:
    """Return the input of that number, which is the same on every machine."""
    return target.make(random.Random(seed << 40 | number))


def fuzz(target: Target, inputs: int, seed: int) -> Tally:
    """Check so many inputs, the numbers 0 to ``inputs - 1`` of the seed, and close the target."""
    tally = Tally(target.name)
    clock = time.perf_counter
    started_s = clock()
    with closing(target):
        for number in range(inputs):
            given = input_of(target, seed, number)
            before_s = clock()
            try:
                wrong = target.check(given)
            except Exception as error:  # noqa: BLE001  whatever it is, it is what is looked for
                tally.crashes += 1
                fault = f"{type(error).__name__}: {error}"
            else:
                tally.wrong += wrong is not None
                fault = wrong or ""
            tally.slowest_s = max(tally.slowest_s, clock() - before_s)
            if fault and len(tally.kept) < KEPT:
                tally.kept.append(f"input {number} of seed {seed}: {fault}"[:500])
            tally.inputs += 1
        tally.seconds = clock() - started_s
    return tally
