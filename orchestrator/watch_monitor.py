"""The drift tests of one version, fed by intervals; its state is plain JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from orchestrator.core.cell_promises import CellPromises
from orchestrator.core.drift import OVER, LevelTest, Looks, MixTest
from orchestrator.core.edetector import CLOSED
from orchestrator.watch_evidence import Evidence, Ratio

Kind = Literal["acceptance", "step_time", "traffic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A drift that was found, or that has gone."""

    kind: Kind
    is_open: bool
    sentence: str


class Monitor:
    """What one version's production showed so far, against its verdict.

    Args:
        promises: Of the version.
        tolerance: Relative difference beyond an interval that is no drift yet.
    """

    def __init__(self, promises: CellPromises, *, tolerance: float) -> None:
        self._tolerance = tolerance
        self._cells = tuple(sorted(promises.weights))
        self._weights = np.array([promises.weights[cell] for cell in self._cells])
        self._levels, self._mix = self._begin()

    def _begin(self) -> tuple[dict[str, LevelTest], MixTest | None]:
        """Return tests without evidence."""
        levels = {
            kind: LevelTest(1, tolerance=self._tolerance) for kind in ("acceptance", "step_time")
        }
        return levels, MixTest(1, self._weights) if self._cells else None

    @property
    def shares(self) -> dict[tuple[int, float], float] | None:
        """Shares of the last whole day's output tokens by cell; None before it."""
        if self._mix is None or np.isnan(self._mix.shares).any():
            return None
        return dict(zip(self._cells, map(float, self._mix.shares[0]), strict=True))

    def update(self, evidence: Evidence, seconds: float) -> list[Change]:
        """Take what an interval showed; return what it changed.

        Args:
            evidence: Of the interval.
            seconds: Its length.
        """
        return [
            *self._level("acceptance", evidence.acceptance, seconds),
            *self._level("step_time", evidence.step_time, seconds),
            *self._traffic(evidence, seconds),
        ]

    def _level(
        self, kind: Literal["acceptance", "step_time"], ratio: Ratio | None, seconds: float
    ) -> Iterator[Change]:
        test = self._levels[kind]
        if ratio is None or not test.update(_looks(ratio, seconds))[0]:
            return
        level, allowance = float(test.level[0]), float(test.allowance[0])
        side = int(test.detector.open[0])
        noun = "acceptance length" if kind == "acceptance" else "step time"
        bounds = f"{1 / allowance - 1:+.1%} to {allowance - 1:+.1%}"
        if side == CLOSED:
            words = f"the {noun} is {level - 1:+.1%} from the verdict's, within {bounds} again"
        else:
            where = "above" if side == OVER else "below"
            words = (
                f"the {noun} is {level - 1:+.1%} from the verdict's, {where} its interval "
                f"({bounds} with policy.drift_tolerance)"
            )
        yield Change(kind=kind, is_open=side != CLOSED, sentence=words)

    def _traffic(self, evidence: Evidence, seconds: float) -> Iterator[Change]:
        if self._mix is None or evidence.tokens is None:
            return
        tokens = np.array([[evidence.tokens.get(cell, 0.0) for cell in self._cells]])
        requests = np.array([float(evidence.num_requests)])
        if not self._mix.update(tokens, requests, seconds)[0]:
            return
        distance = float(self._mix.distance[0])
        shares = ", ".join(
            f"c{streams}_t{temperature:g} {weight:.0%} -> {share:.0%}"
            for (streams, temperature), weight, share in zip(
                self._cells, self._weights, self._mix.shares[0], strict=True
            )
            if abs(share - weight) >= 0.01
        )
        is_open = int(self._mix.detector.open[0]) != CLOSED
        lead = "lie" if is_open else "no longer lie"
        yield Change(
            kind="traffic",
            is_open=is_open,
            sentence=(
                f"{distance:.0%} of a day's output tokens {lead} in other cells than the verdict's "
                f"weights say: {shares or 'each within 1 %'}"
            ),
        )

    def state(self) -> dict[str, Any]:
        """Return what it has seen as plain JSON."""
        return {
            "cells": [list(cell) for cell in self._cells],
            "mix": None if self._mix is None else self._mix.state(),
            **{kind: test.state() for kind, test in self._levels.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of the same version.

        Raises:
            ValueError: It is of other cells or garbled, as with KeyError and TypeError; nothing
                was taken from it.
        """
        if [tuple(cell) for cell in state["cells"]] != list(self._cells):
            raise ValueError("its cells are others")
        levels, mix = self._begin()
        for kind, test in levels.items():
            test.restore(state[kind])
        if mix is not None:
            mix.restore(state["mix"])
        self._levels, self._mix = levels, mix


def _looks(ratio: Ratio, seconds: float) -> Looks:
    numbers = (ratio.observed, ratio.promised, ratio.allowance, ratio.drafts)
    assert all(map(math.isfinite, numbers))
    observed, promised, allowance, drafts = (np.array([number]) for number in numbers)
    return Looks(
        observed=observed, promised=promised, allowance=allowance, drafts=drafts, seconds=seconds
    )
