"""Has a level left its bounds? A sequential test that may look for ever: the e-detector.

Each batch gives x, at least -1, whose mean given all before it is at most 0 while nothing has
drifted. A bettor who begins at any batch and stakes a share b of what he has multiplies it by
1 + b x, on average by at most 1. The sum over bettors who began at every batch so far,

    M = (M + 1) * (1 + b x)        M = 0 at first

grows by at most 1 a batch on average, so that the mean number of batches until M reaches A is at
least A, whatever the distribution of x and however x depends on the past: the Shiryaev-Roberts
e-detector (Shin, Ramdas and Rinaldo, New England Journal of Statistics in Data Science 2, 2024,
229, with the mean of several b as in their section 4; bets on bounded means: Waudby-Smith and
Ramdas, JRSS B 86, 2024, 1). A CUSUM with a run length computed for normal or independent batches
would promise more than batches of production's text keep.

All functions take many streams at a time, so that what a simulation counts is what a watcher runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

BETS: Floats = np.array([0.1, 0.25, 0.5, 0.75, 0.95])
"""Shares that are staked: small ones for a level just outside, large ones for one far outside."""
CLOSED = -1


class EDetector:
    """One e-detector a direction, for many streams; after an alarm it waits for the way back.

    While a stream's alarm is open, only the way back is tested, against "it is still outside" and
    with the same mean number of batches until it is believed wrongly. So one drift is one alarm.
    """

    def __init__(self, num: int, *, num_directions: int, threshold: float) -> None:
        """Begin without evidence.

        Args:
            num: Streams.
            num_directions: Ways in which a level can leave, each tested by itself.
            threshold: Mean number of batches to a false alarm of one direction, at least.
        """
        self._threshold = threshold
        self._sums = np.zeros((num, num_directions, len(BETS)))
        self.open = np.full(num, CLOSED)
        """[num] direction of the alarm that is open; CLOSED where there is none."""

    @property
    def evidence(self) -> Floats:
        """M, [num, num_directions]; that of the way back while an alarm is open."""
        return np.asarray(self._sums.mean(axis=2))

    def feed(self, x: Floats, has_batch: Flags) -> Flags:
        """Take one batch of each stream that has one.

        Args:
            x: [num, num_directions], from -1; how far outside each direction's bound the batch was.
            has_batch: [num]; the rest of the streams stay as they are.

        Returns:
            [num] where an alarm was opened or closed just now.
        """
        rows = np.arange(len(self.open))
        is_open = self.open != CLOSED
        # A stake of up to 0.95 on -x needs x within 1 above, too.
        x = np.where(is_open[:, None], np.maximum(-x, -1.0), x)
        grown = (self._sums + 1.0) * (1.0 + BETS * x[:, :, None])
        tested = np.where(is_open[:, None], self.open[:, None] == np.arange(x.shape[1]), True)
        keeps = has_batch[:, None] & tested
        self._sums = np.where(keeps[:, :, None], grown, self._sums)
        evidence = self.evidence
        crossed = has_batch & (evidence.max(axis=1) >= self._threshold)
        strongest = evidence.argmax(axis=1)
        after = np.where(is_open, CLOSED, strongest)
        self.open = np.where(crossed, after, self.open)
        self._sums[rows[crossed]] = 0.0
        return np.asarray(crossed)

    def state(self) -> dict[str, Any]:
        """Return what it has seen as plain JSON."""
        return {"open": self.open.tolist(), "sums": self._sums.tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

        Raises:
            ValueError: It is of other streams, directions or bets.
        """
        sums = kept_array(state, "sums", self._sums.shape)
        opened = kept_array(state, "open", self.open.shape)
        if not np.isin(opened, range(CLOSED, self._sums.shape[1])).all():
            raise ValueError(f"open is {opened.tolist()}, which are no directions")
        self._sums, self.open = sums, opened.astype(int)


def kept_array(state: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> Floats:
    """Return finite numbers of a state.

    Args:
        state: Plain JSON.
        name: Its key.
        shape: That they must have.

    Raises:
        ValueError: They are not there, or are others.
    """
    try:
        found = np.array(state[name], dtype=float)
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"{name} cannot be read: {error!r}") from error
    if found.shape != shape:
        raise ValueError(f"{name} of shape {found.shape} and not {shape}")
    if not np.isfinite(found).all():
        raise ValueError(f"{name} is not finite")
    return found
