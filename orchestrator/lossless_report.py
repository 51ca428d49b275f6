"""A lossless test's outcome for people and for programs: a table, and a documented record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.codec import to_plain
from orchestrator.core.lossless.greedy import Agreement, GreedySettings
from orchestrator.core.secrecy import redact
from orchestrator.load.scoring import TokenServer
from orchestrator.load.token_answers import WHOLE
from orchestrator.lossless import TextOutcome
from orchestrator.lossless_answers import TextTest
from orchestrator.lossless_greedy import GreedyOutcome

SCHEMA = "specpilot.lossless/1"
"""Changes when a key of the record changes its meaning; see docs/lossless-command.md."""

MAX_REFUSED = 3
"""Prompts whose refusal is told in full."""

_MISSING = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The two servers of a test."""

    arm: TokenServer
    control: TokenServer


def outcome_record(
    outcome: TextOutcome | GreedyOutcome,
    sides: Sides,
    test: TextTest,
    *,
    greedy: GreedySettings | None = None,
) -> dict[str, object]:
    """Return the outcome and what it was asked of as plain JSON: the evidence of a verdict.

    Args:
        outcome: Of the test.
        sides: The servers.
        test: What was asked for.
        greedy: At temperature 0, how it was judged; None for the standard.
    """
    is_text = isinstance(outcome, TextOutcome)
    judging = test.judging if is_text else greedy or GreedySettings()
    return {
        "schema": SCHEMA,
        "rule": "text" if is_text else "greedy",
        "arm": _server(sides.arm, outcome.builds["arm"]),
        "control": _server(sides.control, outcome.builds["control"]),
        "workload": {
            "name": test.workload.name,
            "digest": test.workload.digest,
            "num_prompts": len(test.workload.prompts),
        },
        "sampling": {
            "temperature": test.temperature, "top_p": 1.0, "top_k": 0, "ignore_eos": True,
            "max_tokens": test.max_tokens, "seed": test.seed,
        },
        "token_budget": test.token_budget,
        "settings": to_plain(judging),
        "outcome": {k: v for k, v in to_plain(outcome).items() if k != "builds"},
    }  # fmt: skip


def format_text(outcome: TextOutcome, sides: Sides, test: TextTest) -> list[str]:
    """Return the text test's outcome as a table, one line a row; the verdict comes last."""
    result, check = outcome.result, outcome.control
    rows = [
        *_asked(outcome, sides, test),
        ("tokens", _tokens(outcome)),
        ("p-value", f"{result.p_value:.2g}, valid at any of the {len(outcome.looks)} looks"),
        ("displaced", f"{_share(result.displacement)} or more; chance {_share(result.chance)}"),
        ("would have seen", f"{_share(result.seen)}, {test.judging.power:.0%} of the time"),
        ("strongest", result.where),
    ]
    if check is not None:
        floor = _MISSING if check.floor is None else f"{check.floor:.2g} in log odds"
        drift = _MISSING if check.most_drift is None else f"{check.most_drift:.2g} of a bucket"
        rows += [
            ("numeric floor", f"{floor}; at most {drift} at one token"),
            ("the control", check.result.sentence),
        ]
    notes = [f"note: {text}" for text in (*_lost(outcome), *outcome.remarks)]
    return [*_table(rows), *notes, result.sentence]


def format_greedy(outcome: GreedyOutcome, sides: Sides, test: TextTest) -> list[str]:
    """Return the greedy rule's outcome as a table, one line a row; the verdict comes last."""
    result = outcome.result
    rows = [
        *_asked(outcome, sides, test),
        ("of the arm", _agreement(result.arm)),
        ("of the control", _agreement(result.control)),
    ]
    notes = [f"note: {text}" for text in _lost(outcome)]
    return [*_table(rows), *notes, result.sentence]


def _asked(
    outcome: TextOutcome | GreedyOutcome, sides: Sides, test: TextTest
) -> list[tuple[str, str]]:
    return [
        ("arm", _side(sides.arm, outcome.builds["arm"])),
        ("control", _side(sides.control, outcome.builds["control"])),
        ("workload", f"{test.workload.name} ({len(test.workload.prompts)} prompts)"),
        (
            "sampling",
            f"temperature {test.temperature:g}, top_p 1, top_k 0, ignore_eos True, max_tokens "
            f"{test.max_tokens}, seed {test.seed}",
        ),
    ]


def _tokens(outcome: TextOutcome) -> str:
    num = outcome.num_top
    scored = "the whole vocabulary" if num == WHOLE else f"{num} probabilities a token"
    return f"{outcome.result.num_tokens:,} of {outcome.num_requests:,} requests; {scored}"


def _agreement(found: Agreement) -> str:
    return (
        f"{found.num_tokens:,} tokens, {found.num_disagreements:,} beyond the margin, "
        f"{found.num_near_ties:,} near ties"
    )


def _lost(outcome: TextOutcome | GreedyOutcome) -> Iterator[str]:
    """Yield what was not tested, and why."""
    if outcome.refused:
        shown = list(outcome.refused.items())[:MAX_REFUSED]
        told = "; ".join(f"{prompt_id} ({reason})" for prompt_id, reason in shown)
        yield f"prompts that the server refuses, {len(outcome.refused)}: {told}"
    if outcome.num_cut:
        yield f"the ends of {outcome.num_cut} answers fill the control's context and are not scored"


def _server(server: TokenServer, builds: Sequence[str]) -> Mapping[str, object]:
    return {"url": redact(server.base_url), "model": server.model, "builds": list(builds)}


def _side(server: TokenServer, builds: Sequence[str]) -> str:
    said = f" ({', '.join(builds)})" if builds else ""
    return f"{redact(server.base_url)}, model {server.model}{said}"


def _share(value: float | None) -> str:
    return _MISSING if value is None else f"{value:.2%}"


def _table(rows: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{name:<18}{value}" for name, value in rows]
