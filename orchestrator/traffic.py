"""The traffic profile of a request log: which share of the tokens falls into which cell. Pure.

The objective of a study is the traffic's mean seconds per output token. Of a log that is

    seconds of all requests / tokens of all
        = sum over cells of (tokens in the cell / tokens of all) * seconds per token in the cell

so a cell's weight is its share of the output tokens. A request's tokens are spread evenly over its
time; how many requests overlap at each moment says which concurrency they belong to. A few requests
without tokens, such as those that clients broke off, count for the concurrency only. Where more
lack them, shares of the requests' time stand in for tokens, which gives slow cells too much. So do
they for streams of which only the number of chunks is known: a chunk holds all tokens of a step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.core.sampling import MAX_TEMPERATURE, same_temperature
from orchestrator.errors import ConfigError
from orchestrator.traffic_log import (
    DURATION_KEYS,
    END_KEYS,
    START_KEYS,
    Log,
    LoggedRequest,
    implausible,
    logged_request,
    not_believed,
)

MIN_SHARE = 0.00005
"""Of all, 0 to 1; a smaller one is written as 0, which no study and no verdict takes."""
_MOST_TEMPERATURES = 8
_RANGE = f" of 0 to {MAX_TEMPERATURE:g}"
_MOST_UNTOLD = 0.1
"""Share of requests without tokens, 0 to 1, up to which the rest speaks for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSettings:
    """How a log becomes cells."""

    streams: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Concurrencies of the study; a moment counts for the nearest, by ratio."""
    default_temperature: float | None = None
    """Of requests that do not state one; None leaves them out."""
    temperatures: tuple[float, ...] | None = None
    """Temperatures of the study; a request counts for the nearest. None: those of the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The shares of the traffic, and what they rest on."""

    weights: Mapping[tuple[int, float], float]
    """By streams and temperature, summing to 1."""
    by_tokens: bool
    """Whether shares are of output tokens; else of the requests' time."""
    num_requests: int
    span_s: float
    """From the first start to the last end."""
    idle_share: float
    """Of the span, without any request."""
    mean_concurrency: float
    """Over the time in which any request ran."""
    most_at_once: int
    missing: tuple[str, ...]
    """What the log did not say, a sentence each."""


def read_log(lines: Iterable[bytes]) -> Log:
    """Return the requests of a JSONL log: those lines with a start and an end or a duration.

    A line is an object with the request's body under ``body`` or ``request`` or is the body itself,
    as ``workload import`` reads it, and beside it when the request ran.
    """
    found: list[LoggedRequest] = []
    skipped: Counter[str] = Counter()
    num_lines = 0
    for raw in lines:
        if not raw.strip():
            continue
        num_lines += 1
        request = logged_request(raw)
        if isinstance(request, str):
            skipped[request] += 1
        else:
            found.append(request)
    return Log(requests=tuple(found), num_lines=num_lines, skipped=dict(skipped))


def profile(log: Log, settings: ProfileSettings) -> Profile:
    """Return the traffic profile.

    Raises:
        ConfigError: No line says when its request ran, none has a temperature, or all are shorter
            than their times can tell.
    """
    if not log.requests:
        reasons = ", ".join(f"{count} lines: {text}" for text, count in log.skipped.items())
        raise ConfigError(
            "traffic LOG",
            f"no line says when its request ran ({reasons or 'it is empty'})",
            f"a line needs one of {', '.join(START_KEYS[:4])} and one of "
            f"{', '.join((*END_KEYS[:2], *list(DURATION_KEYS)[:2], 'latency_ms'))}",
        )
    temperatures = [_temperature(request, settings) for request in log.requests]
    if all(value is None for value in temperatures):
        outside = _num_outside(log)
        raise ConfigError(
            "traffic LOG",
            f"no request states a temperature{_RANGE if outside else ''}",
            "correct those that the engine refuses"
            if outside == len(log.requests)
            else "give --default-temperature",
        )
    by_tokens = _counts_tokens(log, temperatures)
    times, running = _stretches(log.requests)
    spans = np.diff(times)
    levels = _levels(running, settings.streams)
    weights: dict[tuple[int, float], float] = {}
    parts = _parts(log.requests, times, levels, len(settings.streams))
    for request, temperature, part_s in zip(log.requests, temperatures, parts, strict=True):
        if temperature is None:
            continue
        for level in np.flatnonzero(part_s):
            key = (settings.streams[level], temperature)
            part = float(part_s[level])
            if by_tokens:
                part = part / (request.end_s - request.start_s) * (request.output_tokens or 0.0)
            weights[key] = weights.get(key, 0.0) + part
    all_of_it = math.fsum(weights.values())
    weights = {key: part for key, part in weights.items() if part >= MIN_SHARE * all_of_it}
    total = math.fsum(weights.values())
    if not total:
        problem = "its requests are too short beside the time between them for any share"
        raise ConfigError("traffic LOG", problem, "correct the times")
    is_busy = running > 0
    busy_s = float(spans[is_busy].sum())
    most = int(running.max())
    span_s = float(times[-1] - times[0])
    return Profile(
        weights={key: weights[key] / total for key in sorted(weights)},
        by_tokens=by_tokens,
        num_requests=len(log.requests),
        span_s=span_s,
        idle_share=float(spans[~is_busy].sum()) / span_s,
        mean_concurrency=float(spans @ running) / busy_s,
        most_at_once=most,
        missing=tuple(_missing(log, temperatures, settings, most, by_tokens=by_tokens)),
    )


def profile_lines(found: Profile) -> list[str]:
    """Return the profile as YAML for a study, with what it rests on as comments."""
    what = "output tokens" if found.by_tokens else "the requests' time"
    streams = sorted({key[0] for key in found.weights})
    temperatures = sorted({key[1] for key in found.weights})
    lines = [
        f"# {found.num_requests} requests in {found.span_s:.0f} s, idle {found.idle_share:.0%} of "
        "it;",
        f"# {found.mean_concurrency:.1f} at a time while any ran, {found.most_at_once} at most; "
        f"shares of {what}.",
        *(f"# missing: {text}" for text in found.missing),
        f"# load.streams needs {_numbers(streams)}, load.temperatures {_numbers(temperatures)}.",
        "objective:",
        "  weights:",
    ]
    lines += [f"    - {entry}" for entry in weight_entries(found.weights)]
    pairs = (f"c{c}_t{t:g}={weight:.4f}" for (c, t), weight in found.weights.items())
    return [*lines, f"# decide --weights {','.join(pairs)}"]


def weight_entries(weights: Mapping[tuple[int, float], float]) -> list[str]:
    """Return shares by streams and temperature as YAML entries of ``objective.weights``."""
    return [
        f"{{streams: {streams}, temperature: {temperature:g}, weight: {weight:.4f}}}"
        for (streams, temperature), weight in sorted(weights.items())
    ]


def profile_weights(found: Profile) -> list[dict[str, float]]:
    """Return the profile as the entries of a study's ``objective.weights``."""
    return [
        {"streams": streams, "temperature": temperature, "weight": round(weight, 4)}
        for (streams, temperature), weight in found.weights.items()
    ]


def _is_outside(temperature: float | None) -> bool:
    return temperature is not None and not 0 <= temperature <= MAX_TEMPERATURE


def _num_outside(log: Log) -> int:
    return sum(_is_outside(request.temperature) for request in log.requests)


def _temperature(request: LoggedRequest, settings: ProfileSettings) -> float | None:
    if _is_outside(request.temperature):
        return None
    value = request.temperature
    value = settings.default_temperature if value is None else same_temperature(value)
    if value is None or settings.temperatures is None:
        return value
    return min(settings.temperatures, key=lambda known: (abs(known - value), known))


def moments(requests: Sequence[LoggedRequest]) -> list[tuple[float, int]]:
    """Return how long each number of requests ran at once, in order of time: seconds and number."""
    times, running = _stretches(requests)
    return list(zip(np.diff(times).tolist(), running.tolist(), strict=True))


def _stretches(requests: Sequence[LoggedRequest]) -> tuple[np.ndarray, np.ndarray]:
    """Return when requests start or end, [n + 1], and how many run from one to the next, [n]."""
    starts = np.sort([request.start_s for request in requests])
    ends = np.sort([request.end_s for request in requests])
    times = np.unique(np.concatenate((starts, ends)))
    begun = np.searchsorted(starts, times[:-1], side="right")
    return times, begun - np.searchsorted(ends, times[:-1], side="right")


def _levels(running: np.ndarray, streams: Sequence[int]) -> np.ndarray:
    """Return the place of the nearest concurrency, by ratio, of each number that runs; -1 of 0."""
    numbers, places = np.unique(running, return_inverse=True)
    nearest = [
        min(range(len(streams)), key=lambda i: (abs(math.log(number / streams[i])), streams[i]))
        if number
        else -1
        for number in numbers.tolist()
    ]
    return np.array(nearest)[places]


def _parts(
    requests: Sequence[LoggedRequest], times: np.ndarray, levels: np.ndarray, num_levels: int
) -> np.ndarray:
    """Return the seconds of each request at each concurrency, [num_requests, num_levels].

    The time of each concurrency up to a moment, at the request's end less at its start: so the
    effort grows with the requests and not with the pairs that overlap.
    """
    first = np.searchsorted(times, [request.start_s for request in requests])
    last = np.searchsorted(times, [request.end_s for request in requests])
    found = np.zeros((len(requests), num_levels))
    for level in range(num_levels):
        until = np.concatenate(([0.0], np.cumsum(np.where(levels == level, np.diff(times), 0.0))))
        found[:, level] = until[last] - until[first]
    return found


def _missing(
    log: Log,
    temperatures: Sequence[float | None],
    settings: ProfileSettings,
    most: int,
    *,
    by_tokens: bool,
) -> Iterator[str]:
    for reason, count in log.skipped.items():
        yield f"{count} of {log.num_lines} lines are left out: {reason}"
    num_requests = len(log.requests)
    unstated = sum(request.temperature is None for request in log.requests)
    if unstated and settings.default_temperature is not None:
        yield (
            f"{unstated} of {num_requests} requests state no temperature; they count at "
            f"{settings.default_temperature:g}"
        )
    elif unstated:
        yield (
            f"{unstated} of {num_requests} requests state no temperature and have no cell "
            "(--default-temperature); they count for the concurrency"
        )
    outside = _num_outside(log)
    if outside:
        yield (
            f"{outside} of {num_requests} requests state a temperature that is none{_RANGE}, which "
            "the engine refuses; they have no cell and count for the concurrency"
        )
    doubted = implausible(log)
    if doubted:
        yield f"{len(doubted)} of {num_requests} requests {not_believed(doubted[0])}"
    untold = _num_untold(log)
    if untold and by_tokens:
        yield (
            f"{untold} of {num_requests} requests say no output tokens; they count for the "
            "concurrency"
        )
    elif untold:
        yield (
            f"{untold} of {num_requests} requests say no output tokens, so shares are of the "
            "requests' time, which gives slow cells too much"
        )
    if most > 1.5 * max(settings.streams):
        yield f"up to {most} ran at once, and the largest concurrency is {max(settings.streams)}"
    distinct = len({value for value in temperatures if value is not None})
    if distinct > _MOST_TEMPERATURES:
        yield f"{distinct} temperatures make as many cells a concurrency (--temperatures)"


def _counts_tokens(log: Log, temperatures: Sequence[float | None]) -> bool:
    """Return whether shares can be of tokens: few requests lack them, and not all with a cell."""
    told = [
        request
        for request, temperature in zip(log.requests, temperatures, strict=True)
        if temperature is not None and request.output_tokens
    ]
    return bool(told) and _num_untold(log) <= _MOST_UNTOLD * len(log.requests)


def _num_untold(log: Log) -> int:
    return sum(not request.output_tokens for request in log.requests)


def _numbers(values: Sequence[float]) -> str:
    return f"[{', '.join(f'{value:g}' for value in values)}]"
