"""The engine's Prometheus counters: read by exact name, subtracted with suspicion."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.core.exposition_lines import Sample, samples
from orchestrator.core.metric_names import PER_POSITION, PROCESS_START, SERIES, created_twin
from orchestrator.core.types import CounterSnapshot
from orchestrator.errors import EngineRestarted, MeasurementError

_COUNTERS = {s.field: s.name for s in SERIES if s.is_counter and s.name != PER_POSITION}
_GAUGES = tuple(dict.fromkeys(s.field for s in SERIES if not s.is_counter))
_SHARES = frozenset({"kv_cache_usage"})
"""Gauges whose mean over the engines is meant, as in vLLM's own log, and not their sum."""
_VALUES = frozenset(s.name for s in SERIES)
_CREATED = frozenset(created_twin(s.name) for s in SERIES if s.is_counter)
_OURS = _VALUES | _CREATED | {PROCESS_START}
MAX_NUMBER = 2.0**53
"""From here on a float does not hold every whole number, and a growth would be a wrong one."""
_MAX_CHARS = 64 * 2**20
"""Far above any engine's exposition, which has some 50,000 an engine."""

_Key = tuple[str, str, str]
"""Name, label ``engine``, label ``position``; "" for a label that is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCounters(Mapping[str, CounterSnapshot]):
    """The counters of one exposition, by their label ``engine`` ("" where there is none).

    Engines are kept apart, since the growth of one would hide the restart of another.

    Raises:
        MeasurementError: Engines do not publish the same series; a sum would lack something.
    """

    by_engine: Mapping[str, CounterSnapshot] = field(default_factory=dict)
    process_start_time_s: float | None = None
    """When the process that counts was started, Unix time; None where it is not published."""
    created_s: Mapping[str, float] = field(default_factory=dict)
    """By engine: when the newest of its counters was made, Unix time; only where published."""

    def __post_init__(self) -> None:
        """Compare the engines."""
        for name in (*_COUNTERS, *_GAUGES):
            having = [engine for engine in self if getattr(self[engine], name) is not None]
            lacking = [engine for engine in self if engine not in having]
            if having and lacking:
                raise MeasurementError(
                    f"{_COUNTERS.get(name, name)} is published by {_engine(having[0])} and not by "
                    f"{_engine(lacking[0])}: the text was cut off or is of different engines"
                )
        if len({_depth(each) for each in self.values()}) > 1:
            raise MeasurementError(f"{PER_POSITION} has other positions for other engines")

    def __getitem__(self, engine: str) -> CounterSnapshot:
        """Return the counters of one engine."""
        return self.by_engine[engine]

    def __iter__(self) -> Iterator[str]:
        """Yield the labels."""
        return iter(self.by_engine)

    def __len__(self) -> int:
        """Return how many engines there are."""
        return len(self.by_engine)

    @property
    def total(self) -> CounterSnapshot:
        """All engines together: sums, for ``kv_cache_usage`` the mean; None what none publishes."""
        return _total(tuple(self.values()))


def parse_counters(text: str) -> EngineCounters:
    """Return the engine's counters; a series that is absent is None.

    ``_created`` twins are never added to anything; they say when a counter was made.

    A text that was cut off between two lines cannot be told from an engine that publishes less:
    what is missing is None, and `delta` refuses to compare it with a whole one. The HTTP client
    notices the cut by the content length.

    Args:
        text: Prometheus text exposition, or nothing.

    Raises:
        MeasurementError: The text is no exposition or ends within a line, a value is negative, not
            finite or not below ``MAX_NUMBER``, a series stands twice, draft positions have gaps, or
            engines do not publish the same series.
    """
    if len(text) > _MAX_CHARS:
        raise MeasurementError(f"the engine's metrics have {len(text):,} characters: not of vLLM")
    if text and not text.endswith("\n"):
        raise MeasurementError("the engine's metrics end within a line: the text was cut off")
    values = _read(text)
    engines = sorted({engine for name, engine, _ in values if name in _VALUES})
    created: dict[str, float] = {}
    for (name, engine, _), value in values.items():
        if name in _CREATED:
            created[engine] = max(value, created.get(engine, value))
    return EngineCounters(
        by_engine={engine: _snapshot(values, engine) for engine in engines},
        process_start_time_s=values.get((PROCESS_START, "", "")),
        created_s=created,
    )


def delta(before: EngineCounters, after: EngineCounters) -> CounterSnapshot:
    """Return ``after - before``, summed over the engines; gauges are None in it.

    Raises:
        EngineRestarted: A counter fell, or process or counters were made anew in between, however
            far they have grown since.
        MeasurementError: A counter vanished or appeared, or engines or draft positions are others.
    """
    _check_process(before.process_start_time_s, after.process_start_time_s)
    if set(before) != set(after):
        raise MeasurementError(
            f"counters are of engines {sorted(before)} before the window and of {sorted(after)} "
            "after it"
        )
    grown = [_difference(engine, before[engine], after[engine]) for engine in after]
    for engine in after:
        _check_created(engine, before.created_s.get(engine), after.created_s.get(engine))
    return _total(grown)


def _read(text: str) -> dict[_Key, float]:
    found: dict[_Key, float] = {}
    try:
        for sample in samples(text):
            if sample.name in _OURS:
                key = _key(sample)
                if key in found:
                    raise MeasurementError(f"{sample.name} of {_engine(key[1])} stands twice")
                found[key] = _value(sample)
    except ValueError as error:
        raise MeasurementError(f"the engine's metrics cannot be read: {error}") from error
    return found


def _key(sample: Sample) -> _Key:
    return sample.name, sample.labels.get("engine", ""), sample.labels.get("position", "")


def _value(sample: Sample) -> float:
    if not 0 <= sample.value < MAX_NUMBER:
        raise MeasurementError(
            f"{sample.name} of {_engine(sample.labels.get('engine', ''))} is {sample.value:g}"
        )
    return sample.value


def _snapshot(values: Mapping[_Key, float], engine: str) -> CounterSnapshot:
    fields: dict[str, float | None] = dict.fromkeys((*_COUNTERS, *_GAUGES))
    for series in SERIES:
        if series.name != PER_POSITION and fields[series.field] is None:
            fields[series.field] = values.get((series.name, engine, ""))
    return CounterSnapshot(
        generation_tokens=fields.pop("generation_tokens"),
        prompt_tokens=fields.pop("prompt_tokens"),
        **fields,
        num_accepted_tokens_per_pos=_positions(values, engine),
    )


def _positions(values: Mapping[_Key, float], engine: str) -> tuple[float, ...] | None:
    found = {
        position: value
        for (name, label, position), value in values.items()
        if name == PER_POSITION and label == engine
    }
    if not found:
        return None
    expected = [str(index) for index in range(len(found))]
    if set(found) != set(expected):
        raise MeasurementError(
            f"{PER_POSITION} of {_engine(engine)} has the positions {sorted(found)}: "
            "not all from 0 up"
        )
    return tuple(found[position] for position in expected)


def _check_process(before: float | None, after: float | None) -> None:
    if before == after:
        return
    if before is None or after is None:
        raise MeasurementError(f"{PROCESS_START} {_came_or_went(before)} in the window")
    raise EngineRestarted(
        f"{PROCESS_START} went from {before:.2f} to {after:.2f}: the engine was restarted"
    )


def _check_created(engine: str, before: float | None, after: float | None) -> None:
    """Compare when the newest counter was made; an older one than before is a lost one."""
    if before == after:
        return
    if before is None or after is None or after < before:
        raise MeasurementError(f"_created twins of {_engine(engine)} are others within the window")
    raise EngineRestarted(
        f"counters of {_engine(engine)} were made anew within the window (_created went from "
        f"{before:.2f} to {after:.2f}): the engine was restarted"
    )


def _difference(engine: str, before: CounterSnapshot, after: CounterSnapshot) -> CounterSnapshot:
    fields = {
        field: _grown(name, engine, getattr(before, field), getattr(after, field))
        for field, name in _COUNTERS.items()
    }
    return CounterSnapshot(
        generation_tokens=fields.pop("generation_tokens"),
        prompt_tokens=fields.pop("prompt_tokens"),
        **fields,
        num_accepted_tokens_per_pos=_grown_positions(engine, before, after),
    )


def _grown(name: str, engine: str, before: float | None, after: float | None) -> float | None:
    if before is None and after is None:
        return None
    if before is None or after is None:
        raise MeasurementError(f"{name} of {_engine(engine)} {_came_or_went(before)} in the window")
    if after < before:
        raise EngineRestarted(
            f"{name} of {_engine(engine)} fell from {before:.0f} to {after:.0f} within the window: "
            "the engine was restarted"
        )
    return after - before


def _grown_positions(
    engine: str, before: CounterSnapshot, after: CounterSnapshot
) -> tuple[float, ...] | None:
    first, last = before.num_accepted_tokens_per_pos, after.num_accepted_tokens_per_pos
    if first is None and last is None:
        return None
    if first is None or last is None or len(first) != len(last):
        raise MeasurementError(
            f"{PER_POSITION} of {_engine(engine)} has {_depth(after)} positions after "
            f"{_depth(before)} within the window"
        )
    grown = [
        _grown(f'{PER_POSITION}{{position="{index}"}}', engine, *pair)
        for index, pair in enumerate(zip(first, last, strict=True))
    ]
    return tuple(value for value in grown if value is not None)


def _total(engines: Sequence[CounterSnapshot]) -> CounterSnapshot:
    """Add up engines that publish the same series."""
    fields: dict[str, float | None] = {}
    for name in (*_COUNTERS, *_GAUGES):
        known = [value for each in engines if (value := getattr(each, name)) is not None]
        share = len(known) if name in _SHARES else 1
        fields[name] = math.fsum(known) / share if known else None
    positions = [
        each.num_accepted_tokens_per_pos
        for each in engines
        if each.num_accepted_tokens_per_pos is not None
    ]
    return CounterSnapshot(
        generation_tokens=fields.pop("generation_tokens"),
        prompt_tokens=fields.pop("prompt_tokens"),
        **fields,
        num_accepted_tokens_per_pos=(
            tuple(map(math.fsum, zip(*positions, strict=True))) if positions else None
        ),
    )


def _depth(counters: CounterSnapshot) -> int:
    return len(counters.num_accepted_tokens_per_pos or ())


def _engine(label: str) -> str:
    return f"engine {label}" if label else "the engine"


def _came_or_went(before: float | None) -> str:
    return "appeared" if before is None else "vanished"
