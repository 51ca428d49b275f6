"""Expositions whose numbers are known: written in any legal way, then damaged."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from infra.fuzz.target import Target
from orchestrator.core.exposition import EngineCounters, delta, parse_counters
from orchestrator.core.metric_names import PER_POSITION, PROCESS_START, SERIES, created_twin
from orchestrator.core.types import CounterSnapshot
from orchestrator.errors import MeasurementError

_FIELDS = {series.name: series.field for series in SERIES if series.versions}
_NAMES = [name for name in _FIELDS if name != PER_POSITION]
_SHARE = "vllm:kv_cache_usage_perc"

_Key = tuple[str, str, str]
"""Name, engine, position."""
_FOREIGN = (
    "# HELP vllm:prompt_tokens_total Tokens \\\\ of \\n prompts.",
    "# TYPE vllm:prompt_tokens_total counter",
    "# TYPE vllm:prompt_tokens counter",
    "# TYPE vllm:num_requests_running counter",
    "#",
    "# EOF",
    "",
    "  \t",
    "# vllm:prompt_tokens_total 7",
    'vllm:prompt_tokens_by_source_total{source="local"} 7',
    "vllm:generation_tokens 4",
    "vllm:generation_tokens_totals 4",
    'vllm:e2e_request_latency_seconds_bucket{engine="0",le="+Inf"} 1.0 # {trace_id="a b"} 0.5 1.7',
    "python_gc_seconds NaN",
    "go_gc_seconds +Inf 1700000000000",
    'up{job="vllm:prompt_tokens_total{engine=\\"0\\"} 9"} 1',
    '{"a.b","c.d"="e"} 3',
)
_MODELS = (
    "m",
    "a,b",
    "a}b",
    "{",
    'a\\"b',
    "a\\\\",
    "a\\nvllm:prompt_tokens_total 7",
    " # ",
    "\u00e9",
    "",
)
_CHARACTERS = '0123456789eE.+-_ \t{}",=\\#\nNaInf\u0661\u00a0x\r\x0b'


@dataclass(frozen=True, slots=True)
class _Exposition:
    text: str
    known: Mapping[_Key, float]
    """What was meant, without what the damage may have changed."""
    damaged: frozenset[_Key]
    before: str | None
    """The undamaged text of the same engines, some time earlier."""
    grown: Mapping[_Key, float]
    """What was meant to be the growth since."""


def counters_target() -> Target:
    """Return expositions, of which more than half are damaged in one place."""
    return Target(name="prometheus text", make=_make, check=_check)


def _make(source: random.Random) -> _Exposition:
    engines = source.choice((("",), ("0",), ("0",), ("0", "1"), ("0", "1", "10")))
    names = source.sample(_NAMES, source.choice((1, 1, 2, 2, 3, len(_NAMES))))
    depth = source.choice((0, 0, 0, 1, 3, 11))
    keys = [(name, engine, "") for name in names for engine in engines]
    keys += [(PER_POSITION, engine, str(at)) for at in range(depth) for engine in engines]
    first = {key: _value(source, key) for key in keys}
    if source.random() < 0.2:
        first[PROCESS_START, "", ""] = 1.7e9
        first.update({(created_twin(name), engines[0], ""): 1.7e9 for name in names[:1]})
    before, grown = None, dict[_Key, float]()
    values = first
    if source.random() < 0.3:
        before = "".join(f"{line}\n" for line, _ in _lines(source, first))
        steps = {key: source.randint(0, 9) for key in keys if key[0].endswith("_total")}
        values = {key: value + steps.get(key, 0) for key, value in first.items()}
        # As the numbers have it: of 1e-7 and 3 a float has no exact sum.
        grown = {key: values[key] - first[key] for key in steps}
    lines = _lines(source, values)
    damaged: set[_Key] = set()
    if source.random() < 0.65:
        text = _damaged(source, lines, damaged)
    else:
        text = "".join(f"{line}\n" for line, _ in lines)
    known = {key: value for key, value in values.items() if key not in damaged}
    return _Exposition(text, known, frozenset(damaged), before, grown)


def _value(source: random.Random, key: _Key) -> float:
    if key[0] == _SHARE:
        return source.random()
    return float(source.choice((0, 1, 7, 25.5, 10**6, 1_070_190, 2**40, 2**53 - 10, 1e-7)))


def _lines(source: random.Random, values: Mapping[_Key, float]) -> list[tuple[str, _Key | None]]:
    lines: list[tuple[str, _Key | None]] = [
        (_line(source, key, value), key) for key, value in values.items()
    ]
    lines += [(line, None) for line in source.choices(_FOREIGN, k=source.randint(0, 4))]
    source.shuffle(lines)
    return lines


def _line(source: random.Random, key: _Key, value: float) -> str:
    name, engine, position = key
    labels = [f'engine="{engine}"'] if engine else []
    labels += [f'position="{position}"'] if position else []
    # Series of one engine differ in no other label.
    labels += [f'model_name="{source.choice(_MODELS)}"'] if source.random() < 0.7 else []
    source.shuffle(labels)
    space = source.choice(("", "", "", " ", "\t"))
    head = name
    if source.random() < 0.05:
        labels.insert(0, f'"{name}"')
        head = ""
    if labels or source.random() < 0.2:
        comma = "," if labels and source.random() < 0.1 else ""
        inside = f"{space},{space}".join(labels)
        head += f"{space}{{{space}{inside}{space}{comma}}}"
    gap = source.choice((" ", " ", "  ", "\t"))
    return f"{space}{head}{gap}{_number(source, value)}{_tail(source)}"


def _number(source: random.Random, value: float) -> str:
    forms = [repr(value), f"{value:.17e}", f"{value:.17E}", f"+{value!r}"]
    if value == int(value):
        forms += [str(int(value)), f"{int(value)}.", f"00{int(value)}"]
    return source.choice(forms)


def _tail(source: random.Random) -> str:
    return source.choice(
        ("",) * 12
        + (" ", "\r", " 1700000000000", "\t1700000000000", ' # {id="7"} 1.0 1.7e9', " -1")
    )


def _damaged(
    source: random.Random, lines: list[tuple[str, _Key | None]], damaged: set[_Key]
) -> str:
    """Return the text with one damage, and note which series it may have changed."""
    at = source.choice([number for number, (_, key) in enumerate(lines) if key is not None])
    line, key = lines[at]
    assert key is not None
    kind = source.random()
    texts = [each for each, _ in lines]
    if kind < 0.1:  # the rest is lost, perhaps within a line
        damaged.update(each for _, each in lines[at:] if each is not None)
        return "".join(f"{each}\n" for each in texts[:at]) + line[: source.randint(0, len(line))]
    damaged.add(key)
    if kind < 0.2:
        del texts[at]
    elif kind < 0.3:
        texts.insert(source.randint(0, len(texts)), line)
    elif kind < 0.35 and at + 1 < len(texts):
        following = lines[at + 1][1]
        damaged.update([following] if following is not None else [])
        texts[at : at + 2] = [line + texts[at + 1]]
    elif kind < 0.5:
        texts[at] = line.rsplit(" ", 1)[0] + source.choice(
            (" NaN", " +Inf", " -1", " 1_0", " 0x1p4", " 1e999", " 1e400", " 5 x 7", " 1 2 3", " ",
             "", " \u0661", " 1e17", " 9007199254740993", " Infinity", " nan", " -0", " 1,5",
             " 5 # x")
        )  # fmt: skip
    else:
        characters = list(line)
        for _ in range(source.randint(1, 2)):
            place = source.randrange(len(characters) + 1)
            characters[place : place + source.randint(0, 2)] = source.choice(_CHARACTERS)
        texts[at] = "".join(characters)
    return "".join(f"{each}\n" for each in texts)


def _check(given: _Exposition) -> str | None:
    try:
        counters = parse_counters(given.text)
    except MeasurementError as error:
        return None if given.damaged else f"a sound text is refused: {error}"
    total = counters.total
    if given.text and not given.text.endswith("\n"):
        return "a text that ends within a line is read"
    read = _numbers(counters)
    wrong = [
        key for key, value in given.known.items() if key[0] in _FIELDS and read.get(key) != value
    ]
    if wrong:
        return f"{wrong[0]} was {given.known[wrong[0]]!r} and is {read.get(wrong[0])!r}"
    more = {key: value for key, value in read.items() if key not in given.known}
    if more:
        others = _by_other_reader(given.text)
        if any(others.get(_spaced(key)) != [value] for key, value in more.items()):
            return f"only we read {more!r:.200} in it"
    if not given.damaged:
        wrong_total = _wrong_total(total, given.known)
        if wrong_total is not None:
            return wrong_total
    return None if given.before is None else _wrong_growth(given, counters)


def _numbers(counters: EngineCounters) -> dict[_Key, float]:
    found: dict[_Key, float] = {}
    for engine, snapshot in counters.items():
        for name in _NAMES:
            value = getattr(snapshot, _FIELDS[name])
            if value is not None:
                found[name, engine, ""] = value
        for at, value in enumerate(snapshot.num_accepted_tokens_per_pos or ()):
            found[PER_POSITION, engine, str(at)] = value
    return found


def _by_other_reader(text: str) -> dict[_Key, list[float]]:
    """Return what prometheus_client makes of the samples, each with all its numbers."""
    # It takes no tab where a space stands too, and comments would rename samples.
    lines = text.replace("\t", " ").split("\n")
    kept = [line for line in lines if not line.strip().startswith("#")]
    found: dict[_Key, list[float]] = {}
    for family in text_string_to_metric_families("\n".join(kept)):
        for sample in family.samples:
            key = sample.name, sample.labels.get("engine", ""), sample.labels.get("position", "")
            found.setdefault(key, []).append(sample.value)
    return found


def _spaced(key: _Key) -> _Key:
    name, engine, position = key
    return name, engine.replace("\t", " "), position.replace("\t", " ")


def _wrong_total(total: CounterSnapshot, known: Mapping[_Key, float]) -> str | None:
    for name in _NAMES:
        values = [value for key, value in known.items() if key[0] == name]
        meant = math.fsum(values) / (len(values) if name == _SHARE else 1) if values else None
        if getattr(total, _FIELDS[name]) != meant:
            return f"all engines' {name} is {getattr(total, _FIELDS[name])}, not {meant}"
    return None


def _wrong_growth(given: _Exposition, after: EngineCounters) -> str | None:
    assert given.before is not None
    try:
        growth = delta(parse_counters(given.before), after)
    except MeasurementError as error:
        return None if given.damaged else f"two sound texts are not compared: {error}"
    for name in {key[0] for key in given.grown if key[0] != PER_POSITION}:
        keys = [key for key in given.grown if key[0] == name]
        if not given.damaged.intersection(keys):
            meant = math.fsum(given.grown[key] for key in keys)
            if getattr(growth, _FIELDS[name]) != meant:
                return f"{name} grew by {meant}, not by {getattr(growth, _FIELDS[name])}"
    return None
