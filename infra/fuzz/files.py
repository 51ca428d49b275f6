"""Result files, request logs, states and records that were damaged or never right."""

from __future__ import annotations

import json
import math
import random
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from infra.fuzz.target import Target
from orchestrator.adapters.kept_file import KeptFile
from orchestrator.decide_command import read_observations
from orchestrator.decide_report import answer_record, format_answers
from orchestrator.errors import ConfigError
from orchestrator.results.answer import answers
from orchestrator.results.doubts import sift
from orchestrator.results.files import ReadOptions
from orchestrator.results.question import Question
from orchestrator.traffic import ProfileSettings, profile, profile_lines, read_log
from orchestrator.version_tags import json_of
from serve_apps.audit.records import RecordError, attachment, read_records

_MOST_SHARE = 1.000001
_NUMBERS = (
    "0", "1", "-1", "0.5", "-0.0", "1e3", "1e308", "1e-320", "1e999", "NaN", "Infinity", "9" * 400,
    "9" * 5_000, "9007199254740993", "1_0", "0x10", "7.0", "65", "1.7e9", "1.7e12", "1.7e300",
)  # fmt: skip
_JSON = (
    *_NUMBERS, "null", "true", '""', '"x"', '"7"', '"2026-01-01T00:00:00"',
    '"0001-01-01T00:00:00+23:59"', '"9999-12-31T23:59:59-23:59"', '"\\ud800"', "[]", "[1]", "{}",
    '{"a":1}', "[" * 2_000, "[" * 50 + "]" * 50,
)  # fmt: skip
_HEADER = (
    "engine_build", "num_speculative_tokens", "draft_sample_method", "rejection_sample_method",
    "boot", "streams", "temperature", "workload", "tokens", "seconds", "drafts", "draft_tokens",
    "accepted",
)  # fmt: skip
_CELLS = (
    *_NUMBERS, "", " ", "x", "greedy", "gready", "block", "0.32.0", "0.28", "NA", "1,5", "\u0661",
    '"a', "7 ", "=1+1", "a\u2028b", "\x00", "c16", "no", "None", "synthetic",
)  # fmt: skip
_PLAIN_FILES = (
    b"", b"\n", b"{", b"[]", b"{}", b"3", b"null", b"NaN", b'"x"', b"\xff\xfe", b"\xef\xbb\xbf{}",
    b"[" * 5_000, b" " + b"[" * 5_000, b'{"a":' * 5_000, b"9" * 5_000, b'{"format":1}',
    b'{"attached":1}', b'{"attached":{}}', b'{"format":"specpilot audit","version":1}',
    b'{"rows":[]}', b"\x00" * 300, b"a,b\n1,2\n", b'{"a":1}{"a":2}',
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    content: bytes


def file_targets() -> tuple[Target, ...]:
    """Return what reads files that somebody else may have written."""
    return (
        Target(name="result files", make=_make_results, check=_check_results, cost=100),
        Target(name="request logs", make=_make_log, check=_check_log, cost=10),
        Target(name="states and records", make=_make_plain, check=_check_plain, cost=10),
    )


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="specpilot-fuzz-"))


def _stored(file: _File) -> Path:
    path = _folder() / file.name
    path.write_bytes(file.content)
    return path


def _make_results(source: random.Random) -> _File:
    rows = [_row(source, number) for number in range(source.randint(1, 8))]
    for row in rows:
        if source.random() < 0.3:
            row[source.choice(list(row))] = source.choice(_CELLS)
    name, text = "rows.csv", "\n".join(",".join(row.values()) for row in rows)
    if source.random() < 0.4:
        name, text = "rows.jsonl", "\n".join(_object(source, row) for row in rows)
    else:
        text = f"{','.join(_HEADER)}\n{text}\n"
    if source.random() < 0.1:
        text = _damaged(source, text)
    return _File(name, text.encode("utf-8", "surrogatepass"))


def _row(source: random.Random, number: int) -> dict[str, str]:
    depth = source.choice((0, 3, 7))
    drafts = source.randint(900, 1_100) if depth else 0
    rules = (source.choice(("greedy", "probabilistic")), source.choice(("standard", "block")))
    counts = (drafts, depth * drafts, 2 * drafts) if depth else ("", "", "")
    values = (
        "0.32.0", depth, *(rules if depth else ("", "")), f"b{source.randint(0, 3)}-{number}",
        source.choice((1, 4)), source.choice((0.0, 0.7)), "w", 3 * drafts or 3_000,
        round(source.uniform(80, 120), 3), *counts,
    )  # fmt: skip
    return dict(zip(_HEADER, map(str, values), strict=True))


def _object(source: random.Random, row: dict[str, str]) -> str:
    items = {key: value if _is_number(value) else json.dumps(value) for key, value in row.items()}
    if source.random() < 0.2:
        items[source.choice(list(items))] = source.choice(_JSON)
    return "{" + ",".join(f'"{key}":{value}' for key, value in items.items()) + "}"


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        return text.isascii() and isinstance(json.loads(text), int | float)
    return False


def _damaged(source: random.Random, text: str) -> str:
    at = source.randrange(len(text) + 1)
    return (
        text[:at]
        + source.choice(('"', ",", "\n", "\x00", "{", "", ";"))
        + text[at + source.randint(0, 3) :]
    )


def _check_results(file: _File) -> str | None:
    path = _stored(file)
    try:
        observations, notes = read_observations([path], ReadOptions())
        sifted = sift(observations)
        if not sifted.observations:
            return None
        found = answers(sifted.observations, Question())
    except ConfigError:
        return None
    finally:
        path.unlink()
    doubts = (*notes, *sifted.doubts)
    lines = format_answers(found, doubts=doubts, num_rows=1, with_findings=True)
    strange = [line for line in lines if not line.isprintable()]
    if strange:
        return f"prints {strange[0]!r:.200}"
    for answer in found:
        json.dumps(answer_record(answer), allow_nan=False)
    return None


def _make_log(source: random.Random) -> _File:
    lines = [_logged(source) for _ in range(source.randint(1, 12))]
    return _File("log.jsonl", "\n".join(lines).encode("utf-8", "surrogatepass"))


def _logged(source: random.Random) -> str:
    start = 1_700_000_000 + source.randint(0, 60)
    items = {
        "started_at": str(start),
        "duration_s": str(source.randint(1, 30)),
        "temperature": "0.7",
    }
    if source.random() < 0.7:
        items["completion_tokens"] = str(source.randint(0, 500))
    for _ in range(source.choice((0, 0, 1, 2))):
        names = (
            *items,
            "ended_at",
            "usage",
            "body",
            "response",
            "timestamp",
            "latency_ms",
            "model",
        )
        items[source.choice(names)] = source.choice(_JSON)
    if source.random() < 0.3:
        del items[source.choice(list(items))]
    line = "{" + ",".join(f'"{key}":{value}' for key, value in items.items()) + "}"
    return _damaged(source, line) if source.random() < 0.05 else line


def _check_log(file: _File) -> str | None:
    lines = file.content.split(b"\n")
    try:
        found = profile(read_log(lines), ProfileSettings())
    except ConfigError:
        return None
    shares = list(found.weights.values())
    numbers = (*shares, found.span_s, found.idle_share, found.mean_concurrency)
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        return f"{found!r:.300}"
    if not 1 / _MOST_SHARE <= sum(shares) <= _MOST_SHARE:
        return f"the shares are {sum(shares)} together"
    turned = profile(read_log(lines[::-1]), ProfileSettings())
    # Sums of floats differ in their last digits, and texts have four.
    if profile_lines(turned)[0] != profile_lines(found)[0] or list(turned.weights) != list(
        found.weights
    ):
        return "in another order another profile"
    return None


def _make_plain(source: random.Random) -> _File:
    name = source.choice(("state.json", "audit-1.rows", "audit-1.json", "tag"))
    content = source.choice(_PLAIN_FILES)
    if source.random() < 0.5:
        names = (
            "format",
            "sha256",
            "version",
            "kinds",
            "attached",
            "why",
            "truncated",
            "rejection",
        )
        items = {key: source.choice(_JSON) for key in source.sample(names, source.randint(0, 4))}
        if source.random() < 0.5:
            items.update({"format": '"specpilot audit"', "version": "1"})
        head = "{" + ",".join(f'"{key}":{value}' for key, value in items.items()) + "}"
        content = head.encode("utf-8", "surrogatepass") + b"\n" + content
    if name.endswith(".rows") and source.random() < 0.7:
        content = content[:1_000].ljust(source.choice((0, 512, 1_024, 1_100)), b" ")
    return _File(name, content)


def _check_plain(file: _File) -> str | None:
    path = _stored(file)
    readers: dict[str, Callable[[], object]] = {
        "state.json": KeptFile(path, "form/1").read,
        "audit-1.rows": lambda: read_records(path).by_kind(),
        "audit-1.json": lambda: attachment(path.parent),
        "tag": lambda: json_of(file.content.decode(errors="replace")),
    }
    try:
        readers[file.name]()
    except ValueError as error:
        if file.name.startswith("audit") and not isinstance(error, RecordError):
            raise
    finally:
        path.unlink()
    return None
