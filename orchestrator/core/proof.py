"""What is shown of an arm besides its speed: losslessness and answers, in a boot of its own.

The race measures speed and nothing else. When it has chosen, one boot of the choice and one of the
baseline, the control, follow in which nothing is timed: there the output distribution is tested, by
its text and by the engine's own steps, and answers are looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from orchestrator.core.race_state import Choice
from orchestrator.core.types import Arm, Boot, BootStatus, ProofPart

MAX_ATTEMPTS = 2
"""Proof boots of one arm; the second only after the first failed."""

MAX_CHOICES = 3
"""Choices of a race that are proved, one after the other was set aside. A fault that all arms share
would otherwise cost the boots of each."""

Demand = Literal["required", "reported", "skipped"]
"""``required``: what is not shown keeps the arm out. ``reported``: only what is shown to be wrong
does. ``skipped``: not looked at."""


TOKENS_AT_ONE_PERCENT = 32_036
"""Output tokens after which the audit, which needs the fewest, excludes 1 % of displaced tokens
with 95 % power at an error of 0.001; measured by ``make bench-lossless``."""


def budget_note(*, displacement: float, max_tokens: int) -> str | None:
    """Return that a proof's budget is too small for what a pass must exclude; None where it is not.

    What a test sees goes with the square root of the tokens.

    Args:
        displacement: Share of displaced tokens that a pass excludes, 0 to 1.
        max_tokens: Output tokens of the arm, at least 1.
    """
    needed = round(TOKENS_AT_ONE_PERCENT * (0.01 / displacement) ** 2)
    if max_tokens >= needed:
        return None
    return (
        f"proof.max_tokens={max_tokens:,} is too few to show that less than {displacement:.2%} of "
        f"the tokens are displaced (proof.displacement): some {needed:,} are needed under the "
        "audit, and 2.6 times as many without it"
    )


def proof_arms(
    choice: Choice | None, arms: Sequence[Arm], reference: Arm | None
) -> tuple[Arm, ...]:
    """Return the arms that need a proof boot: the choice, and the control of its build.

    None are needed where the choice is what serves already, is the control itself, or nothing is
    chosen; and none would tell anything where the space has no control.
    """
    if choice is None or reference is None or choice.arm in (reference, *_baselines(arms)):
        return ()
    control = next(
        (a for a in arms if a.is_baseline and a.engine_build == choice.arm.engine_build), None
    )
    return () if control is None else (control, choice.arm)


def _baselines(arms: Sequence[Arm]) -> tuple[Arm, ...]:
    return tuple(arm for arm in arms if arm.is_baseline)


def next_proof(
    wanted: Sequence[Arm], *, ended: Sequence[Boot], lost: Sequence[Arm], running: Sequence[Arm]
) -> Arm | None:
    """Return the arm whose proof boot is to start now; None to wait for one, or when all are done.

    One after the other: what the control shows of numerics is the scale that the arm is judged by.

    Args:
        wanted: Of ``proof_arms``.
        ended: Proof boots that came back.
        lost: Arms of proof boots that were lost with their process, once for each.
        running: Arms of the proof boots under way.
    """
    for arm in wanted:
        boots = [boot for boot in ended if boot.arm == arm]
        tried = len(boots) + sum(item == arm for item in lost)
        is_proved = any(boot.status is BootStatus.OK for boot in boots)
        if arm in running:
            return None
        if not is_proved:
            # Without the control nothing can be concluded of the arm.
            return arm if tried < MAX_ATTEMPTS else None
    return None


def proof_of(arm: Arm, boots: Sequence[Boot]) -> Boot | None:
    """Return the arm's proof boot that ended well, else its last; None without any."""
    own = [boot for boot in boots if boot.arm == arm]
    good = [boot for boot in own if boot.status is BootStatus.OK]
    known = good or own
    return known[-1] if known else None


def finding(boot: Boot | None, part: ProofPart) -> Mapping[str, object] | None:
    """Return the record of one part of a proof boot that ended well; None without one."""
    if boot is None or boot.proof is None or boot.status is not BootStatus.OK:
        return None
    return boot.proof.findings.get(part)
