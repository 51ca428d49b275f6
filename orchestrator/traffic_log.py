"""A log of requests as it is read: when each ran, what it asked for, and what is believed. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from orchestrator.core.plausible import MAX_TTFT_S, STREAM_TOK_S
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
_MOST_UNTOLD_S = 3600.0
"""Longest time that is believed of a request whose tokens are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """When one request ran, and what it asked for; None where the log does not say."""

    start_s: float
    """Since the epoch."""
    end_s: float
    temperature: float | None
    """As it was asked for, also where an engine refuses it; NaN for what is no number."""
    output_tokens: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What of a log can be used."""

    requests: tuple[LoggedRequest, ...]
    num_lines: int
    skipped: Mapping[str, int]
    """Lines that cannot be used, by reason."""


def check_durations(log: Log) -> None:
    """Check that most requests took a time that is believed of them.

    Raises:
        ConfigError: More than half did not, so the log's times are in another unit.
    """
    doubted = implausible(log)
    if 2 * len(doubted) > len(log.requests):
        raise ConfigError(
            "traffic LOG",
            f"{len(doubted)} of {len(log.requests)} requests {not_believed(doubted[0])}",
            "name a duration by its unit, such as duration_ms",
        )


def implausible(log: Log) -> list[LoggedRequest]:
    """Return the requests that took longer, or shorter, than is believed for their tokens."""
    return [request for request in log.requests if _too_long(request) or _too_short(request)]


def _too_long(request: LoggedRequest) -> bool:
    tokens = request.output_tokens
    most_s = _MOST_UNTOLD_S if tokens is None else MAX_TTFT_S + tokens / STREAM_TOK_S[0]
    return request.end_s - request.start_s > most_s


def _too_short(request: LoggedRequest) -> bool:
    most = (request.end_s - request.start_s) * STREAM_TOK_S[1]
    return request.output_tokens is not None and request.output_tokens > most


def not_believed(example: LoggedRequest) -> str:
    """Return what to say of such requests, with one of them."""
    tokens, took_s = example.output_tokens, example.end_s - example.start_s
    what = "an answer" if tokens is None else f"{tokens:.0f} tokens"
    unit = "milliseconds" if _too_long(example) else "seconds"
    return f"took a time that is not believed, such as {took_s:.4g} s for {what}: is it in {unit}?"


def logged_request(raw: bytes) -> LoggedRequest | str:
    """Return the request of one line, or in words why the line cannot be used."""
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
        temperature=_stated_temperature(_deep(item, "temperature", ("body", "request"))),
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


def _stated_temperature(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan
