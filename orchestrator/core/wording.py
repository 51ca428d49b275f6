"""The sentences of a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.core.boot_model import Outlier
from orchestrator.core.estimate import Contrast
from orchestrator.core.promotion import Gate
from orchestrator.core.summary import ArmSummary
from orchestrator.core.types import Arm, BoardModel


def against(arm: Arm, incumbent: Arm | None) -> str:
    """Return how the reference stands in a sentence: ``with X, which serves now``."""
    words = "without speculation" if arm.is_baseline else f"with {arm.label}"
    return f"{words}, which serves now" if arm == incumbent else words


def speed_sentence(
    summary: ArmSummary, reference: ArmSummary, *, contrast: Contrast, incumbent: Arm | None
) -> str:
    """Return the comparison of an arm with the reference."""
    return (
        f"{summary.arm.label} emits a token in {_ms(summary.objective_s)} ms per stream against "
        f"{_ms(reference.objective_s)} ms {against(reference.arm, incumbent)}: {contrast.in_words}."
    )


def tie_sentence(other: Arm, contrast: Contrast, *, taken: Arm, why: str) -> str:
    """Return that ``other`` cannot be told apart from the arm taken, and why that one was."""
    return (
        f"{other.label} cannot be told apart from {taken.label}: {contrast.in_words}; "
        f"{taken.label} is taken because {why}."
    )


def spread_sentence(contrast: Contrast) -> tuple[str, ...]:
    """Return what an interval is made of and what would narrow it; nothing where it is not told."""
    share = contrast.boot_share
    if share is None:
        return ()
    if share == 0:
        return ("The interval holds acceptance alone: longer blocks or more of them narrow it.",)
    advice = "more boots" if share >= 0.5 else "longer blocks or more of them"
    return (
        f"{share:.0%} of the interval's variance is between boots and {1 - share:.0%} is of "
        f"acceptance: {advice} would narrow it most.",
    )


def outlier_sentences(outliers: Sequence[Outlier]) -> tuple[str, ...]:
    """Return which boots are far from their arm's others, with their numbers."""
    return tuple(
        f"Boot {item.boot} of {item.arm.label} is odd: {_ms(item.score)} ms a token against "
        f"{_ms(item.others)} ms of the arm's others (p = {item.p_value:.2g} over {item.num_boots} "
        "boots). It counts like any other; only fresh boots can tell luck from a fault."
        for item in outliers
    )


def model_sentences(
    board: BoardModel | None, *, arms: Sequence[Arm], streams: Sequence[int]
) -> tuple[str, ...]:
    """Return what is modelled, and which arms and loads lie outside the model's range."""
    if board is None:
        return ()
    sentences = [
        f"Step times are MODELLED ({board.name}: {board.source}); acceptance was measured on the "
        "real engine. The intervals hold how acceptance wavers and not the model's error; where "
        "they come from blocks they need no second boot."
    ]
    depths = sorted({arm.num_speculative_tokens for arm in arms})
    for name, values, (least, most) in (
        ("depth", depths, board.depths),
        ("streams", sorted(set(streams)), board.streams),
    ):
        outside = [str(value) for value in values if not least <= value <= most]
        if outside:
            sentences.append(
                f"The model was derived for {name} {least} to {most}; {name} "
                f"{', '.join(outside)} is extrapolated."
            )
    return tuple(sentences)


def gate_sentences(gates: Sequence[Gate]) -> tuple[str, ...]:
    """Return which gates keep the arm out, and which others are not shown."""
    blocking = [f"{gate.name} ({gate.reason})" for gate in gates if gate.blocks]
    unknown = [gate.name for gate in gates if gate.passed is None and not gate.blocks]
    sentences = []
    if blocking:
        sentences.append(f"Production stays as it is: {'; '.join(blocking)}.")
    if unknown:
        sentences.append(f"Not shown: {', '.join(unknown)}.")
    return tuple(sentences)


def set_aside_sentences(set_aside: Mapping[Arm, str], winner: Arm | None) -> tuple[str, ...]:
    """Return which arms cannot win by what is shown of their output; the winner's gates say it."""
    return tuple(
        f"{arm.label} is set aside: {reason.rstrip('.')}."
        for arm, reason in set_aside.items()
        if arm != winner
    )


def reference_sentences(reference: Arm | None, fault: str | None) -> tuple[str, ...]:
    """Return what the proofs show against the arm that all are compared with."""
    if reference is None or fault is None:
        return ()
    return (f"{reference.label} itself is not shown to be right: {fault.rstrip('.')}.",)


def boot_sentences(summaries: Sequence[ArmSummary], copies: Mapping[Arm, int]) -> tuple[str, ...]:
    """Return which arms have no score and why, and which boots were copies.

    Args:
        summaries: One an arm.
        copies: Boots by arm that repeat an earlier one's counters to the token.
    """
    unscored = [
        f"{item.arm.label} ({item.status}{': ' if item.reason else ''}{item.reason})"
        for item in summaries
        if not item.num_scored
    ]
    sentences = [f"Without a score: {'; '.join(unscored)}."] if unscored else []
    sentences += [
        f"{count} of the boots of {arm.label} "
        + (
            "repeats another's counters: it does"
            if count == 1
            else "repeat others' counters: they do"
        )
        + " not count."
        for arm, count in copies.items()
        if count
    ]
    return tuple(sentences)


def _ms(seconds: float | None) -> str:
    return "?" if seconds is None else f"{1000 * seconds:.1f}"
