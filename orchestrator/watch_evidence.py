"""What one interval between two looks shows: counters and requests against a verdict's promises.

    acceptance    drafts + accepted           against    drafts * length to be expected of the mix
    step time     steps that the time of all streams would have held as promised, against steps
    mix           output tokens by cell

The steps to be expected are the integral of streams / (step time at so many streams) over the
interval, by the requests' times; a stream drafts once a step. Time before the first token is in
it, as it is in a study's blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.core.cell_promises import CellPromises
from orchestrator.core.types import CounterSnapshot
from orchestrator.traffic import Profile, ProfileSettings, moments, profile
from orchestrator.traffic_log import Log, LoggedRequest
from orchestrator.watch_ports import RecordedRequest

_MOST_STREAMS = 1.5
"""Times the largest cell: of more at a time nothing is promised (``traffic`` warns from there)."""
_MOST_UNPROMISED = 0.1
"""Share of the streams' time, 0 to 1, that may lie beyond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A sum that was observed, and what was promised of it."""

    observed: float
    promised: float
    allowance: float
    """Log of the factor that the verdict's interval allows."""
    drafts: float
    """Steps behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What an interval shows; None where it shows nothing."""

    acceptance: Ratio | None = None
    step_time: Ratio | None = None
    tokens: dict[tuple[int, float], float] | None = None
    """Output tokens by streams and temperature."""
    num_requests: int = 0


def interval_evidence(
    promises: CellPromises,
    counters: CounterSnapshot,
    requests: Sequence[RecordedRequest],
    *,
    span: tuple[float, float],
    default_temperature: float | None,
) -> Evidence:
    """Return what the interval shows.

    Args:
        promises: Of the version that served all along.
        counters: Their difference over the interval.
        requests: Clients' requests; those outside the interval are left out.
        span: Its two ends, seconds since 1970.
        default_temperature: Of requests that state none; None leaves them out of the mix.
    """
    cut = _within(requests, span)
    if not cut:
        return Evidence()
    mix = _mix(promises, cut, default_temperature)
    return Evidence(
        acceptance=None if mix is None else _acceptance(promises, counters, mix),
        step_time=_step_time(promises, counters, cut),
        tokens=None if mix is None else _tokens(mix, cut),
        num_requests=sum(span[0] <= request.started_at < span[1] for request in requests),
    )


def logged(requests: Sequence[RecordedRequest]) -> Log:
    """Return the router's records as a log of which a traffic profile is made."""
    kept = [request for request in requests if request.ended_at > request.started_at]
    skipped = len(requests) - len(kept)
    return Log(
        requests=tuple(
            LoggedRequest(
                start_s=request.started_at,
                end_s=request.ended_at,
                temperature=request.temperature,
                output_tokens=request.output_tokens,
            )
            for request in kept
        ),
        num_lines=len(requests),
        skipped={"it ends before it starts": skipped} if skipped else {},
    )


def _within(
    requests: Sequence[RecordedRequest], span: tuple[float, float]
) -> tuple[LoggedRequest, ...]:
    """Return the parts of the requests within the interval, with their share of the tokens."""
    found: list[LoggedRequest] = []
    for request in logged(requests).requests:
        start_s, end_s = max(request.start_s, span[0]), min(request.end_s, span[1])
        if end_s > start_s:
            share = (end_s - start_s) / (request.end_s - request.start_s)
            tokens = request.output_tokens
            part = None if tokens is None else tokens * share
            found.append(replace(request, start_s=start_s, end_s=end_s, output_tokens=part))
    return tuple(found)


def _mix(
    promises: CellPromises, cut: tuple[LoggedRequest, ...], default_temperature: float | None
) -> Profile | None:
    cells = promises.weights
    if not cells or (
        default_temperature is None and all(request.temperature is None for request in cut)
    ):
        return None
    settings = ProfileSettings(
        streams=tuple(sorted({streams for streams, _ in cells})),
        temperatures=tuple(sorted({temperature for _, temperature in cells})),
        default_temperature=default_temperature,
    )
    return profile(Log(requests=cut, num_lines=len(cut), skipped={}), settings)


def _tokens(mix: Profile, cut: Sequence[LoggedRequest]) -> dict[tuple[int, float], float] | None:
    total = sum(request.output_tokens or 0.0 for request in cut)
    if not mix.by_tokens or total <= 0:
        return None
    return {key: share * total for key, share in mix.weights.items()}


def _acceptance(promises: CellPromises, counters: CounterSnapshot, mix: Profile) -> Ratio | None:
    expected = promises.length_of(mix.weights)
    drafts, accepted = counters.num_drafts, counters.num_accepted_tokens
    if expected is None or not drafts or accepted is None:
        return None
    return Ratio(
        observed=drafts + accepted,
        promised=drafts * expected.mean,
        allowance=math.log(expected.factor),
        drafts=drafts,
    )


def _step_time(
    promises: CellPromises, counters: CounterSnapshot, cut: Sequence[LoggedRequest]
) -> Ratio | None:
    most = promises.most_streams
    steps = counters.generation_tokens if promises.arm.is_baseline else counters.num_drafts
    if most is None or not steps:
        return None
    spans = [(span_s, count) for span_s, count in moments(cut) if count]
    levels = promises.step_time_at([count for _, count in spans])
    busy_s = sum(span_s * count for span_s, count in spans)
    beyond_s = sum(span_s * count for span_s, count in spans if count > _MOST_STREAMS * most)
    if levels is None or beyond_s > _MOST_UNPROMISED * busy_s:
        return None
    expected = allowed = 0.0
    for (span_s, count), level in zip(spans, levels, strict=True):
        expected += span_s * count / level.mean
        allowed += span_s * count / level.mean * math.log(level.factor)
    return Ratio(observed=expected, promised=steps, allowance=allowed / expected, drafts=steps)
