"""What a cell's answers come to. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from infra.bench.router.wire import Answer

RESAMPLES = 2000
_MARK = b"data: "
_STOP = b"\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The answers of both ways, one after the other, to the same prompts."""

    direct: tuple[Answer, ...]
    routed: tuple[Answer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """What became of the chunks of one way."""

    num_answers: int = 0
    num_chunks: int = 0
    merged: int = 0
    """Events that came in one HTTP chunk with the event before."""
    split: int = 0
    """HTTP chunks that are not whole events."""
    differing: int = 0
    """Answers whose sequence of chunks is not the engine's own for that prompt."""
    shared_reads: int = 0
    """Chunks that came in one read of the socket with the chunk before."""


def passage(answers: Sequence[Answer], known: Sequence[tuple[object, ...]]) -> Passage:
    """Count what was merged, split or changed on a way.

    Args:
        answers: Of the way.
        known: [num_answers] the engine's own sequences for the same prompts.
    """
    chunks = [chunk for answer in answers for chunk in answer.framed.chunks]
    differing = sum(
        sequence(answer.framed.chunks) != own for answer, own in zip(answers, known, strict=True)
    )
    return Passage(
        num_answers=len(answers),
        num_chunks=len(chunks),
        merged=sum(max(0, chunk.count(_STOP) - 1) for chunk in chunks),
        split=sum(not (chunk.startswith(_MARK) and chunk.endswith(_STOP)) for chunk in chunks),
        differing=differing,
        shared_reads=sum(answer.shared_reads for answer in answers),
    )


def sequence(chunks: Sequence[bytes]) -> tuple[object, ...]:
    """Return what stands in each chunk, without the ids and times that every answer has its own of.

    A chunk of several events gives a tuple of them, and a part of one its bytes, so that neither
    equals a whole event.
    """
    found: list[object] = []
    for chunk in chunks:
        events = [_said(event) for event in chunk.split(_STOP) if event]
        found.append(events[0] if len(events) == 1 and chunk.endswith(_STOP) else tuple(events))
    return tuple(found)


def _said(event: bytes) -> object:
    try:
        item = json.loads(event.removeprefix(_MARK))
        return [(c.get("text"), c["finish_reason"]) for c in item["choices"]], item.get("usage")
    except (ValueError, KeyError, TypeError):
        return event


def added(
    rounds: Sequence[Round], share: float, *, num_resamples: int = RESAMPLES
) -> tuple[float, float, float]:
    """Return how much longer the first chunk takes through the router, and a 95 % interval.

    Formula: quantile of all routed TTFT minus that of all direct ones; the interval is that of
    resampled rounds, since what disturbs a machine disturbs a whole round.

    Args:
        rounds: At least one.
        share: Of the quantile, 0 to 1.
        num_resamples: Of the interval; they are the same at every call.

    Returns:
        Difference and its ends, seconds.
    """
    source = np.random.default_rng(1)
    direct = [np.array([answer.ttft_s for answer in each.direct]) for each in rounds]
    routed = [np.array([answer.ttft_s for answer in each.routed]) for each in rounds]

    def difference(chosen: Sequence[int]) -> float:
        ways = (np.concatenate([way[index] for index in chosen]) for way in (routed, direct))
        first, second = (float(np.quantile(way, share)) for way in ways)
        return first - second

    draws = [
        difference(source.integers(len(rounds), size=len(rounds)).tolist())
        for _ in range(num_resamples)
    ]
    low, high = (float(value) for value in np.quantile(draws, (0.025, 0.975)))
    return difference(range(len(rounds))), low, high


def cell_lines(title: str, ways: Mapping[str, Sequence[Round]]) -> list[str]:
    """Return the figures of one cell as Markdown.

    Args:
        title: Of the cell.
        ways: At least one, by name; the direct answers of all of them are the same ones.
    """
    some = next(iter(ways.values()))
    known = [sequence(answer.framed.chunks) for each in some for answer in each.direct]
    lines = [
        f"**{title}**, {len(some)} rounds",
        "",
        "| way | answers | TTFT p50 ms | p95 ms | added p50 ms | added p95 ms | chunks | merged | "
        "split | answers that differ | chunks in one read with the last |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    direct = [answer for each in some for answer in each.direct]
    lines.append(_row("direct", direct, known, ("-", "-")))
    for name, rounds in ways.items():
        routed = [answer for each in rounds for answer in each.routed]
        lines.append(_row(name, routed, known, [_added(rounds, share) for share in (0.5, 0.95)]))
    return lines


def _added(rounds: Sequence[Round], share: float) -> str:
    value, low, high = (1000 * each for each in added(rounds, share))
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _row(
    name: str,
    answers: Sequence[Answer],
    known: Sequence[tuple[object, ...]],
    more: Sequence[str],
) -> str:
    p50, p95 = np.quantile([answer.ttft_s for answer in answers], (0.5, 0.95)) * 1000
    found = passage(answers, known)
    differing = "-" if name == "direct" else found.differing  # it is what is compared with
    return (
        f"| {name} | {found.num_answers} | {p50:.2f} | {p95:.2f} | {' | '.join(more)} | "
        f"{found.num_chunks} | {found.merged} | {found.split} | {differing} | "
        f"{found.shared_reads} |"
    )


def is_clean(rounds: Sequence[Round]) -> bool:
    """Return whether every routed answer came as the engine framed it."""
    known = [sequence(answer.framed.chunks) for each in rounds for answer in each.direct]
    found = passage([answer for each in rounds for answer in each.routed], known)
    return not (found.merged or found.split or found.differing)
