"""Numbers of a row that cannot be what their column says: wrong units, values out of bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.core.plausible import MAX_TTFT_S, STREAM_TOK_S
from orchestrator.core.sampling import MAX_TEMPERATURE
from orchestrator.core.types import Arm, Cell
from orchestrator.results.columns import step_of

STEP_S = (2e-4, 10.0)
"""Shortest and longest step that is believed. A GB10 takes 30 to 200 ms, a data centre's GPU some
ms, an interpreted engine on a CPU seconds; a value in ms or us for s lies outside."""
MAX_DEPTH = 1000
"""Deepest draft that is believed."""
SAME = 0.02
"""Largest relative distance between two statements of one quantity in a row."""
_ROUNDING = 5e-3
_MOST_ROUNDED = 0.1
"""Last digit of an acceptance length at most: that of 3.0 is lost, which is read as 3."""


def unit_faults(arm: Arm, cell: Cell, values: Mapping[str, object]) -> Iterator[str]:
    """Yield what cannot be so, with the value and a guess at the cause."""
    numbers = {name: value for name, value in values.items() if isinstance(value, float)}
    positions = values.get("accepted_per_pos")
    if isinstance(positions, tuple) and "drafts" in numbers:
        numbers.setdefault("accepted", sum(positions))
    yield from _premises(arm, cell, numbers)
    yield from _acceptance(arm, numbers)
    if isinstance(positions, tuple):
        yield from _positions(arm, positions, numbers)
    yield from _throughput(cell, numbers)
    yield from _times(arm, cell, numbers)


def _premises(arm: Arm, cell: Cell, numbers: Mapping[str, float]) -> Iterator[str]:
    if arm.num_speculative_tokens > MAX_DEPTH:
        yield f"num_speculative_tokens {float(arm.num_speculative_tokens):g} is not believed"
    if cell.temperature > MAX_TEMPERATURE:
        yield f"temperature {cell.temperature:g} is not believed: it is 0 to {MAX_TEMPERATURE:g}"
    requests, failed, runs = (numbers.get(name) for name in ("requests", "failed", "runs"))
    if requests is not None and failed is not None and failed > requests:
        yield f"{failed:g} of {requests:g} requests failed"
    if runs == 0:
        yield "runs is 0: an empty field is one run"


def _acceptance(arm: Arm, numbers: Mapping[str, float]) -> Iterator[str]:
    most = arm.num_speculative_tokens + 1
    rate, length = numbers.get("acceptance_rate"), numbers.get("acceptance_length")
    drafts, accepted = numbers.get("drafts"), numbers.get("accepted")
    if rate is not None and rate > 1:
        hint = f": in percent? {rate / 100:g}" if rate <= 100 else ""
        yield f"acceptance_rate {rate:g} is no share of 1{hint}"
    if length is not None and not 1 - _ROUNDING <= length <= most + _ROUNDING:
        yield (
            f"acceptance_length {length:g} lies outside 1 to {most}, the depth and the bonus "
            f"token{_length_hint(length, most)}"
        )
    if drafts is None and accepted:
        yield "accepted tokens are given without drafts"
    if arm.is_baseline:
        if drafts or rate:
            what = f"{drafts:g} drafts" if drafts else f"acceptance_rate {rate:g}"
            yield f"{what} of an arm that does not speculate"
        return
    if drafts == 0:
        yield "0 drafts of an arm that speculates: was it in force? A count not known is left empty"
    if drafts:
        yield from _counts(arm, numbers, drafts)
    drafted = numbers.get("draft_tokens")
    if (not drafts or accepted is None) and rate is not None and length is not None and rate <= 1:
        # A draft may be shorter than the depth; counts say it.
        depth = drafted / drafts if drafts and drafted else arm.num_speculative_tokens
        yield from _rate_and_length(rate, length, depth)


def _rate_and_length(rate: float, length: float, depth: float) -> Iterator[str]:
    """Compare two statements of acceptance without counts, as far as the digits of both go."""
    share = (length - 1) / depth
    digit = min(_MOST_ROUNDED, step_of(length)) / 2 / depth
    if abs(rate - share) > max(SAME * share, _ROUNDING) + digit:
        yield (
            f"acceptance_rate {rate:g} and acceptance_length {length:g} contradict each other: 1 + "
            f"rate * {depth:g} is {1 + rate * depth:.4g}"
        )


def _counts(arm: Arm, numbers: Mapping[str, float], drafts: float) -> Iterator[str]:
    depth, most = arm.num_speculative_tokens, arm.num_speculative_tokens + 1
    drafted, accepted = numbers.get("draft_tokens"), numbers.get("accepted")
    rate, length = numbers.get("acceptance_rate"), numbers.get("acceptance_length")
    if drafted is not None and drafted > drafts * depth:
        yield f"{drafted:g} drafted tokens in {drafts:g} drafts are more than {depth} each"
    if accepted is None:
        return
    if accepted > drafts * depth:
        per_draft = 1 + accepted / drafts
        yield (
            f"{accepted:g} accepted tokens in {drafts:g} drafts are {per_draft:.2f} tokens a step, "
            f"outside 1 to {most}: are drafts drafted tokens?"
        )
    elif drafted is not None and accepted > drafted:
        yield f"{accepted:g} accepted tokens are more than {drafted:g} drafted ones"
    counted = 1 + accepted / drafts
    if length is not None and abs(length - counted) > SAME * counted:
        yield f"acceptance_length {length:g} is not 1 + accepted / drafts, {counted:.3f}"
    share = accepted / (drafted or drafts * depth)
    if rate is not None and abs(rate - share) > max(SAME * share, _ROUNDING):
        yield f"acceptance_rate {rate:g} is not accepted / drafted tokens, {share:.3f}"


def _length_hint(length: float, most: int) -> str:
    if length < 1:
        return ": is it a rate, or without the bonus token?"
    return ": in percent?" if most < length <= 100 else ""


def _positions(
    arm: Arm, positions: tuple[float, ...], numbers: Mapping[str, float]
) -> Iterator[str]:
    drafts, accepted = numbers.get("drafts"), numbers.get("accepted")
    if drafts is None:
        yield "accepted drafts by position are given without drafts"
        return
    if len(positions) > max(arm.num_speculative_tokens, 0):
        yield f"{len(positions)} positions are more than the depth {arm.num_speculative_tokens}"
    if drafts > 1 and positions and max(positions) <= 1 and (accepted or 0) > len(positions):
        yield "the positions look like rates: counts of accepted drafts belong there"
    elif positions and max(positions) > drafts:
        yield f"{max(positions):g} accepted at one position are more than {drafts:g} drafts"
    elif accepted is not None and abs(sum(positions) - accepted) > SAME * max(accepted, 1.0):
        yield f"the positions sum to {sum(positions):g} and accepted is {accepted:g}"


def _throughput(cell: Cell, numbers: Mapping[str, float]) -> Iterator[str]:
    tokens, seconds, tok_s = (numbers.get(name) for name in ("tokens", "seconds", "tok_s"))
    if seconds == 0:
        yield "seconds is 0"
        return
    if tok_s is not None and tokens and seconds and abs(tokens / seconds - tok_s) > SAME * tok_s:
        ratio = tok_s / (tokens / seconds)
        hint = ": seconds in ms?" if abs(ratio / 1000 - 1) < SAME else ""
        per_stream = ": tok_s of one stream?" if abs(ratio * cell.streams - 1) < SAME else ""
        yield (
            f"tok_s {tok_s:g} is not tokens / seconds, {tokens / seconds:.4g}{hint or per_stream}"
        )
    elif tok_s is None and not (tokens and seconds):
        yield "neither tok_s nor tokens and seconds are given: no speed"
    if tok_s is None and tokens and seconds:
        tok_s = tokens / seconds
    if tok_s == 0:
        yield "tok_s is 0: no data is an empty field"
    elif tok_s is not None and not STREAM_TOK_S[0] <= tok_s / cell.streams <= STREAM_TOK_S[1]:
        hint = ": seconds in ms?" if tok_s / cell.streams < STREAM_TOK_S[0] and seconds else ""
        yield f"{tok_s / cell.streams:.3g} tokens / s of one stream are not believed{hint}"


def _times(arm: Arm, cell: Cell, numbers: Mapping[str, float]) -> Iterator[str]:
    seconds, drafts, ttft = (numbers.get(name) for name in ("seconds", "drafts", "ttft_s"))
    tpot = numbers.get("tpot_s")
    if seconds and drafts and not arm.is_baseline:
        step_s = seconds * cell.streams / drafts
        if not STEP_S[0] <= step_s <= STEP_S[1]:
            hint = ": seconds in ms?" if step_s > STEP_S[1] else ""
            yield f"seconds {seconds:g} and {drafts:g} drafts make a step of {step_s:.4g} s{hint}"
    if ttft is not None and ttft > MAX_TTFT_S:
        yield f"ttft_s {ttft:g} is not believed: in ms?"
    elif ttft is not None and seconds and ttft > seconds:
        yield f"ttft_s {ttft:g} is longer than the window of {seconds:g} s: in ms?"
    if tpot is not None and tpot * STREAM_TOK_S[0] > 1:
        yield f"tpot_s {tpot:g} is not believed: in ms?"
