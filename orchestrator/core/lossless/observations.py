"""What a lossless test looks at: events with the exact probability that they had beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

RANK_BUCKETS = ("1", "2-4", "5-16", "17-64", "65+")
"""Ranks of a token among the target's probabilities; 1 is the most likely token."""

BUCKET_STARTS = (1, 2, 5, 17, 65)
"""First rank of each bucket."""

LOG_PROBABILITY = "log_probability"
LEAST_LOG = -12.0
"""Smallest log probability that counts; what is less likely counts like this."""
FIRST_ACCEPTED = "first_accepted"
RECOVERED_IN_CANDIDATES = "recovered_in_candidates"

SLACK = 1e-6
"""By how much an exact mean may be wrong through rounding alone, absolute.

Means are sums of float32 probabilities and are stored as float32: a sum near 1 is off by 1e-7, a
mass that is what others leave of 1 by several of these."""


def rank_kinds(prefix: str) -> tuple[str, ...]:
    """Return the kinds of one family of rank buckets, for example ``bonus_rank_2-4``."""
    return tuple(f"{prefix}_{bucket}" for bucket in RANK_BUCKETS)


FAMILIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "rank": rank_kinds("rank"),
        "emitted_rank": rank_kinds("emitted_rank"),
        "recovered_rank": rank_kinds("recovered_rank"),
        "bonus_rank": rank_kinds("bonus_rank"),
        FIRST_ACCEPTED: (FIRST_ACCEPTED,),
        RECOVERED_IN_CANDIDATES: (RECOVERED_IN_CANDIDATES,),
    }
)
"""Kinds that divide the same events among them: displaced events leave one and enter another.
``log_probability`` is in none: it is a number, whose mean says nothing of how many tokens moved."""

TEXT_KINDS = (*FAMILIES["rank"], LOG_PROBABILITY)

AUDIT_KINDS = (
    FIRST_ACCEPTED,
    RECOVERED_IN_CANDIDATES,
    *FAMILIES["recovered_rank"],
    *FAMILIES["emitted_rank"],
    *FAMILIES["bonus_rank"],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Observations of one kind, in the order in which they happened.

    Within a family of rank buckets every event has one observation in each bucket.
    """

    x: Floats
    """[num_observations], 0 to 1: what happened."""
    m: Floats
    """[num_observations], 0 to 1: its mean given everything before it, if the arm is lossless."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", _unit_interval(self.x, "x"))
        object.__setattr__(self, "m", _unit_interval(self.m, "m"))
        if self.x.shape != self.m.shape:
            raise ValueError(f"{self.x.size} observations have {self.m.size} means")

    def __len__(self) -> int:
        return int(self.x.size)


def kind_weights(kinds: Iterable[str]) -> dict[str, float]:
    """Return the share of the error that each kind of a test gets.

    It depends on which test this is, text or audit, and not on which kinds happen to have
    observations: weights must be fixed before the data are seen. The text's six kinds share
    equally. The audit's five families share equally, each among its kinds. Both together halve.

    Args:
        kinds: Names of the kinds at hand.

    Returns:
        Weight by kind of every kind that these tests have, summing to 1; empty without kinds.

    Raises:
        ValueError: A kind is unknown.
    """
    named = set(kinds)
    if unknown := named - set(TEXT_KINDS) - set(AUDIT_KINDS):
        raise ValueError(f"unknown kind of observation: {sorted(unknown)[0]!r}")
    tests = [weights for weights in (_text_weights(), _audit_weights()) if named & set(weights)]
    return {kind: weight / len(tests) for weights in tests for kind, weight in weights.items()}


def _text_weights() -> dict[str, float]:
    return dict.fromkeys(TEXT_KINDS, 1 / len(TEXT_KINDS))


def _audit_weights() -> dict[str, float]:
    families = [kinds for name, kinds in FAMILIES.items() if name != "rank"]
    return {kind: 1 / len(families) / len(kinds) for kinds in families for kind in kinds}


def _unit_interval(values: npt.ArrayLike, name: str) -> Floats:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1:
        raise ValueError(f"{name} has the shape {found.shape} and not one dimension")
    # NaN fails both comparisons, so that what is no number is refused as well.
    wrong = ~((found >= -SLACK) & (found <= 1 + SLACK))
    if wrong.any():
        where = int(np.argmax(wrong))
        raise ValueError(f"{name}[{where}] is {found[where]} and not between 0 and 1")
    return np.clip(found, 0.0, 1.0)
