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

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from orchestrator.errors import ConfigError

START_KEYS = ("started_at", "start_time", "start", "timestamp", "ts", "time", "created_at")
END_KEYS = ("ended_at", "end_time", "end", "finished_at", "completed_at")
DURATION_KEYS = {
    **dict.fromkeys(("duration_s", "latency_s", "e2e_s", "elapsed_s", "total_s"), 1.0),
    **dict.fromkeys(
        ("duration_ms", "latency_ms", "e2e_ms", "elapsed_ms", "total_ms", "response_ms"), 1e-3
    ),
}
"""Seconds in one unit, by key. A key without a unit in its name is not guessed at."""
UNITLESS_KEYS = ("duration", "latency", "elapsed", "response_time")
_MILLISECONDS_FROM = 1e11
"""Numbers from here are ms since the epoch: as seconds they would be the year 5138."""
_FINER_UNITS = {"nanoseconds": 1e17, "microseconds": 1e14}
"""Numbers from which a time is in this unit: in milliseconds it would be beyond the year 5138."""
_MOST_NUMBER = 2**53
"""No time in milliseconds and no count of tokens is larger."""
_MOST_TEMPERATURES = 8
_MOST_UNTOLD = 0.1
"""Share of requests without tokens, 0 to 1, up to which the rest speaks for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """When one request ran, and what it asked for; None where the log does not say."""

    start_s: float
    """Since the epoch."""
    end_s: float
    temperature: float | None
    output_tokens: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What of a log can be used."""

    requests: tuple[LoggedRequest, ...]
    num_lines: int
    skipped: Mapping[str, int]
    """Lines that cannot be used, by reason."""


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
        request = _request(raw)
        if isinstance(request, str):
            skipped[request] += 1
        else:
            found.append(request)
    return Log(requests=tuple(found), num_lines=num_lines, skipped=dict(skipped))


def profile(log: Log, settings: ProfileSettings) -> Profile:
    """Return the traffic profile.

    Raises:
        ConfigError: No line says when its request ran, or none has a temperature.
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
        raise ConfigError(
            "traffic LOG", "no request states a temperature", "give --default-temperature"
        )
    by_tokens = _counts_tokens(log, temperatures)
    weights: dict[tuple[int, float], float] = {}
    busy_s = idle_s = request_s = 0.0
    most = 0
    for span_s, running in moments(log.requests):
        if not running:
            idle_s += span_s
            continue
        most = max(most, len(running))
        busy_s += span_s
        request_s += span_s * len(running)
        streams = _nearest(len(running), settings.streams)
        for index in running:
            temperature, request = temperatures[index], log.requests[index]
            if temperature is not None:
                share = span_s / (request.end_s - request.start_s)
                part = share * (request.output_tokens or 0.0) if by_tokens else span_s
                key = (streams, temperature)
                weights[key] = weights.get(key, 0.0) + part
    total = math.fsum(weights.values())
    first, last = min(r.start_s for r in log.requests), max(r.end_s for r in log.requests)
    return Profile(
        weights={key: weights[key] / total for key in sorted(weights)},
        by_tokens=by_tokens,
        num_requests=len(log.requests),
        span_s=last - first,
        idle_share=idle_s / (last - first),
        mean_concurrency=request_s / busy_s,
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


def _request(raw: bytes) -> LoggedRequest | str:
    try:
        item = json.loads(raw)
    except (ValueError, RecursionError):
        return "not JSON"
    if not isinstance(item, dict):
        return "no object"
    unit = _finer_unit(item)
    if unit is not None:
        return f"a time in {unit}, where seconds or milliseconds since the epoch belong"
    start_s, end_s = _seconds_of(item, START_KEYS), _seconds_of(item, END_KEYS)
    duration_s = _duration(item)
    if start_s is None and end_s is not None and duration_s is not None:
        start_s = end_s - duration_s
    if end_s is None and start_s is not None and duration_s is not None:
        end_s = start_s + duration_s
    if start_s is None:
        return "no start"
    if end_s is None:
        unitless = any(key in item for key in UNITLESS_KEYS)
        return "a duration without a unit in its key" if unitless else "no end and no duration"
    if end_s <= start_s:
        return "it ends before it starts"
    return LoggedRequest(
        start_s=start_s,
        end_s=end_s,
        temperature=_number(_deep(item, "temperature", ("body", "request"))),
        output_tokens=_tokens(item),
    )


def _finer_unit(item: Mapping[str, object]) -> str | None:
    firsts = [
        next((value for key in keys if isinstance(value := item.get(key), int | float | str)), None)
        for keys in (START_KEYS, END_KEYS)
    ]
    largest = max((t for t in firsts if isinstance(t, int | float)), default=0)
    return next((unit for unit, least in _FINER_UNITS.items() if largest >= least), None)


def _seconds_of(item: Mapping[str, object], keys: Sequence[str]) -> float | None:
    for key in keys:
        value = item.get(key)
        number = _number(value)
        if number is not None:
            return number / 1000 if number >= _MILLISECONDS_FROM else number
        if isinstance(value, str):
            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                continue
            # A log without a zone has one zone for all its lines; differences are all that count.
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return None


def _duration(item: Mapping[str, object]) -> float | None:
    for key, unit in DURATION_KEYS.items():
        number = _number(item.get(key))
        if number is not None:
            return number * unit
    return None


def _tokens(item: Mapping[str, object]) -> float | None:
    for holder in _holders(item, ("response", "body")):
        usage = holder.get("usage")
        if isinstance(usage, Mapping):
            found = _number(usage.get("completion_tokens", usage.get("output_tokens")))
            if found is not None:
                return found
    is_of_chunks = item.get("output_tokens_from") == "chunks"
    for key in ("completion_tokens", "output_tokens"):
        found = None if is_of_chunks else _number(item.get(key))
        if found is not None:
            return found
    return None


def _deep(item: Mapping[str, object], key: str, within: Sequence[str]) -> object:
    return next((h[key] for h in _holders(item, within) if h.get(key) is not None), None)


def _holders(item: Mapping[str, object], within: Sequence[str]) -> Iterator[Mapping[str, object]]:
    """Yield the object and those below it under the given keys, two levels deep."""
    yield item
    for key in within:
        inner = item.get(key)
        if isinstance(inner, Mapping):
            yield inner
            for again in within:
                innermost = inner.get(again)
                if isinstance(innermost, Mapping):
                    yield innermost


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _MOST_NUMBER else None


def _temperature(request: LoggedRequest, settings: ProfileSettings) -> float | None:
    value = request.temperature
    value = settings.default_temperature if value is None else value
    if value is None or settings.temperatures is None:
        return value
    return min(settings.temperatures, key=lambda known: (abs(known - value), known))


def moments(requests: Sequence[LoggedRequest]) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Yield stretches in which the same requests run, or none, with their length in seconds."""
    events = sorted(
        [(r.end_s, 0, index) for index, r in enumerate(requests)]
        + [(r.start_s, 1, index) for index, r in enumerate(requests)]
    )
    running: set[int] = set()
    before = events[0][0]
    for moment, is_start, index in events:
        if moment > before:
            yield moment - before, tuple(running)
        before = moment
        if is_start:
            running.add(index)
        else:
            running.discard(index)


def _nearest(count: int, streams: Sequence[int]) -> int:
    return min(streams, key=lambda known: (abs(math.log(count / known)), known))


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
