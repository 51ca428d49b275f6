"""What is to be expected of a study before anything is booted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRow:
    """What is to be expected on so many boards; means over the studies."""

    num_nodes: int
    boots: float
    hours: float
    hours_9_of_10: float
    """Hours within which nine of ten studies end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What simulated studies came to."""

    rows: tuple[ForecastRow, ...]
    num_studies: int
    """Over all rows."""
    best: float
    """Share of studies that chose the truly best arm, 0 to 1."""
    near: float
    """Share that chose it or an arm within the tolerance of it, 0 to 1."""
    loss: float | None
    """By how much the arm chosen is slower than the best on average, as a share; None where no
    study chose any."""
    tolerance: float
    cut_at_boots: int | None
    """Boots after which a simulated study ended although ``search.max_boots`` would let it go on;
    None where none would."""
    assumption: str
    """What the simulation takes for granted, in one sentence."""
