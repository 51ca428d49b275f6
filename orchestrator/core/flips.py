"""What would turn a conclusion round, and what more boots would tell."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from orchestrator.core.boot_model import BootFit, half_width
from orchestrator.core.types import Arm, Cell

MAX_BOOTS_AHEAD = 50
"""More boots of each of two arms than anybody would run to tell them apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """One premise and the value at which two arms are equally fast."""

    kind: Literal["acceptance", "step_time", "traffic"]
    arm: Arm
    """The faster one now."""
    rival: Arm
    """The faster one beyond ``value``."""
    value: float
    """acceptance: share by which the arm's acceptance length would have to fall, 0 to 1.
    step_time: share by which its steps would have to be longer. traffic: share of ``what``."""
    now: float | None
    """traffic: the share now, 0 to 1; else None."""
    what: str
    """In words, for example ``16 streams``."""
    words: str
    """One sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextBoots:
    """What one more boot of each of two arms would do to the interval of their ratio."""

    arm: Arm
    rival: Arm
    half_width: float | None
    """Of the interval of the log ratio now; None when there is none."""
    expected_half_width: float | None
    """With one more boot of each, if boots go on to spread as they do."""
    boots_to_tell: int | None
    """More boots of each until the interval would exclude no difference, if the ratio stays what
    it is; 0 when it does already; None when MAX_BOOTS_AHEAD do not suffice or nothing is known."""
    words: str


def margin_flips(
    arm: Arm, rival: Arm, *, seconds: tuple[float, float], length: float | None
) -> Iterator[Flip]:
    """Yield by how much acceptance or step time of the faster arm may worsen.

    Args:
        arm: The faster arm.
        rival: The other.
        seconds: Objective of both, in seconds a token.
        length: Acceptance length of the arm, weighted as its objective is; None when unknown.
    """
    ours, theirs = seconds
    if ours >= theirs:
        return
    if not arm.is_baseline:
        fall = 1 - ours / theirs
        yield Flip(
            kind="acceptance",
            arm=arm,
            rival=rival,
            value=fall,
            now=None,
            what="acceptance length",
            words=_acceptance_words(arm, rival, fall, length),
        )
    rise = theirs / ours - 1
    yield Flip(
        kind="step_time",
        arm=arm,
        rival=rival,
        value=rise,
        now=None,
        what="step time",
        words=f"If the steps of {arm.label} took {rise:.1%} longer and those of {rival.label} did "
        f"not, {rival.label} would be as fast.",
    )


def traffic_flips(
    arm: Arm, scores: Mapping[Arm, Mapping[Cell, float]], weights: Mapping[Cell, float]
) -> Iterator[Flip]:
    """Yield by group of cells the share of the traffic at which another arm is as fast.

    Groups are the cells of one concurrency and those of one temperature. The shares within a
    group, and within the rest, keep their proportions. Of several rivals the one that needs the
    smallest change is named; a group that no share turns round yields nothing.

    Args:
        arm: The fastest arm.
        scores: Seconds per output token by arm and cell.
        weights: The traffic's share by cell, summing to 1.
    """
    cells = [cell for cell, weight in weights.items() if weight > 0]
    for what, group in _groups(cells):
        now = sum(weights[cell] for cell in group)
        candidates = [
            (abs(share - now), other, share)
            for other, theirs in scores.items()
            if other != arm and (share := _balance(scores[arm], theirs, weights, group)) is not None
        ]
        if not candidates or now >= 1:
            continue
        _, rival, share = min(candidates, key=lambda item: (item[0], item[1].key))
        side = "above" if share > now else "below"
        yield Flip(
            kind="traffic",
            arm=arm,
            rival=rival,
            value=share,
            now=now,
            what=what,
            words=f"With {side} {share:.0%} of the traffic at {what} (now {now:.0%}), "
            f"{rival.label} would be faster than {arm.label}.",
        )


def next_boots(
    fit: BootFit, arm: Arm, rival: Arm, *, confidence: float, fixed: Collection[Arm] = ()
) -> NextBoots:
    """Return what one more boot of each arm would buy.

    Formula: half width = t(df) * s * sqrt(1/n_a + 1/n_b), with n + 1 and df + 2 for the next
    boots; an arm whose score is known takes no part.
    """
    ratio = fit.means[arm] - fit.means[rival]
    raced = [item for item in (arm, rival) if item not in fixed]
    widths = [
        _half_width(fit, raced, more=more, confidence=confidence)
        for more in range(MAX_BOOTS_AHEAD + 1)
    ]
    enough = [more for more, width in enumerate(widths) if width is not None and width < abs(ratio)]
    to_tell = enough[0] if enough else None
    return NextBoots(
        arm=arm,
        rival=rival,
        half_width=widths[0],
        expected_half_width=widths[1],
        boots_to_tell=to_tell,
        words=_next_words((arm, rival), (widths[0], widths[1]), to_tell, ratio),
    )


def _half_width(
    fit: BootFit, raced: Collection[Arm], *, more: int, confidence: float
) -> float | None:
    parts = fit.parts_of(dict.fromkeys(raced, 1.0), more=more)
    if not parts or not any(part.value > 0 for part in parts):
        return None
    return half_width(parts, confidence)


def _next_words(
    arms: tuple[Arm, Arm],
    widths: tuple[float | None, float | None],
    to_tell: int | None,
    ratio: float,
) -> str:
    names = f"{arms[0].label} and {arms[1].label}"
    if widths[0] is None or widths[1] is None:
        return f"{names}: the spread between boots is unknown; a second boot of any arm shows it."
    text = (
        f"{names}: one more boot of each would narrow the interval from +-{widths[0]:.1%} to about "
        f"+-{widths[1]:.1%}"
    )
    if to_tell == 0:
        return f"{text}; they are told apart already."
    if to_tell is None:
        return (
            f"{text}; {MAX_BOOTS_AHEAD} more of each would not tell a difference of "
            f"{abs(ratio):.1%}, if it stays that."
        )
    boots = "one more boot" if to_tell == 1 else f"{to_tell} more boots"
    return f"{text}; {boots} of each would tell them apart if the ratio stays what it is."


def _acceptance_words(arm: Arm, rival: Arm, fall: float, length: float | None) -> str:
    if length is None:
        return (
            f"If the acceptance length of {arm.label} fell by {fall:.1%}, {rival.label} would be "
            "as fast."
        )
    lower = length * (1 - fall)
    if lower < 1:
        return (
            f"No fall of acceptance alone turns it: with nothing accepted {arm.label} would still "
            f"be faster than {rival.label} by these step times."
        )
    return (
        f"If the acceptance length of {arm.label} fell by {fall:.1%}, from {length:.2f} to "
        f"{lower:.2f} tokens a step, {rival.label} would be as fast."
    )


def _groups(cells: Collection[Cell]) -> Iterator[tuple[str, tuple[Cell, ...]]]:
    """Yield what cells have in common, where not all have it; of two halves the first."""
    names: dict[str, list[Cell]] = {}
    for cell in sorted(cells):
        load = f"{cell.request_rate:g} requests/s" if cell.is_open_loop else _streams(cell.streams)
        names.setdefault(load, []).append(cell)
        names.setdefault(f"temperature {cell.temperature:g}", []).append(cell)
    seen: list[set[Cell]] = []
    for what, group in names.items():
        if len(group) < len(cells) and set(cells) - set(group) not in seen:
            seen.append(set(group))
            yield what, tuple(group)


def _streams(count: int) -> str:
    return "1 stream" if count == 1 else f"{count} streams"


def _balance(
    ours: Mapping[Cell, float],
    theirs: Mapping[Cell, float],
    weights: Mapping[Cell, float],
    group: Collection[Cell],
) -> float | None:
    """Return the group's share at which both arms are equally fast; None without one in (0, 1)."""
    rest = [cell for cell, weight in weights.items() if weight > 0 and cell not in group]
    sides = []
    for cells in (group, rest):
        total = sum(weights[cell] for cell in cells)
        if not total or any(cell not in ours or cell not in theirs for cell in cells):
            return None
        sides.append(sum(weights[c] * (ours[c] - theirs[c]) for c in cells) / total)
    inside, outside = sides
    if inside == outside:
        return None
    share = outside / (outside - inside)
    return share if 0 < share < 1 else None
