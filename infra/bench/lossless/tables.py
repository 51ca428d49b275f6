"""The tables of the benchmark, line by line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from infra.bench.lossless.streams import (
    Source,
    audit_source,
    displaced_source,
    temperature_source,
    tokens_to_rejection,
)
from infra.bench.lossless.worlds import (
    AuditPool,
    Sampler,
    TextScorer,
    contexts,
    run_audit,
    sample_texts,
)
from orchestrator.core.lossless.judge import LosslessSettings, LosslessTest
from orchestrator.core.lossless.observations import Floats
from orchestrator.core.proportions import wilson_interval

SEED = 20
LEVELS = (0.001, 0.01, 0.05)
DISPLACEMENTS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
MARKS = tuple(round(10 ** (3 + step / 4)) for step in range(13))
"""Tokens at which a stream is looked at, 10^3 to 10^6."""
SHOWN = (1_000, 10_000, 100_000, 1_000_000)
TEMPERATURES = (0.8, 0.9, 0.95, 1.05, 1.1)
TEXT_LENGTH = 1000
AUDIT_STEPS = 400
TEXTS_AT_A_TIME = 500


def false_alarm_lines(num_streams: int) -> Iterator[str]:
    """Yield how often lossless texts and audits are rejected, at every level.

    Args:
        num_streams: Of each; every one is looked at all the way.
    """
    yield f"False alarms over {num_streams:,} lossless streams of each, looked at all the way"
    yield f"{'':38}" + "".join(f"{f'at {level:g}':>26}" for level in LEVELS)
    for name, p_values in (
        (f"texts of {TEXT_LENGTH:,} tokens", _text_p_values(num_streams)),
        (f"audits of {AUDIT_STEPS:,} steps", _audit_p_values(num_streams)),
    ):
        cells = (_rate(int((p_values <= level).sum()), num_streams) for level in LEVELS)
        yield f"{name:38}" + "".join(f"{cell:>26}" for cell in cells)


def power_lines(num_streams: int) -> Iterator[str]:
    """Yield how often a displacement is rejected by so many tokens.

    Args:
        num_streams: Of each displacement.
    """
    alpha = LosslessSettings().alpha
    pool = contexts(np.random.default_rng(SEED))
    steps = AuditPool(np.random.default_rng(SEED))
    worlds: tuple[tuple[str, Callable[[float], Source]], ...] = (
        ("text, rank 1 to ranks 2-4", partial(displaced_source, pool)),
        ("audit, recovered tokens out of the candidates", partial(audit_source, steps)),
    )
    for name, world in worlds:
        yield f"Rejected at {alpha:g}, of {num_streams} streams: {name}"
        yield (
            f"{'displaced':>10}"
            + "".join(f"{f'{mark:,}':>12}" for mark in SHOWN)
            + (f"{'half by':>12}{'95 % by':>12}")
        )
        for share in DISPLACEMENTS:
            found = _rejections(world(share), num_streams, MARKS, alpha=alpha)
            rates = "".join(f"{np.mean(found <= mark):>12.0%}" for mark in SHOWN)
            ends = "".join(f"{_by(found, level):>12}" for level in (0.5, 0.95))
            yield f"{share:>10.1%}{rates}{ends}"


def temperature_lines(num_streams: int) -> Iterator[str]:
    """Yield after how many tokens another temperature served as 1.0 is rejected.

    Args:
        num_streams: Of each temperature.
    """
    alpha = LosslessSettings().alpha
    pool = contexts(np.random.default_rng(SEED))
    marks = tuple(range(50, 10_001, 50))
    yield f"Tokens until a wrong temperature is rejected at {alpha:g}, {num_streams} texts each"
    yield f"{'served':>10}{'5 % by':>10}{'half by':>10}{'95 % by':>10}{'all by':>10}" + (
        f"{'by 2,000':>10}"
    )
    for temperature in TEMPERATURES:
        source = temperature_source(pool, temperature)
        found = _rejections(source, num_streams, marks, alpha=alpha)
        cells = "".join(f"{_by(found, level):>10}" for level in (0.05, 0.5, 0.95, 1.0))
        yield f"{temperature:>10g}{cells}{np.mean(found <= 2000):>10.1%}"


def budget_lines() -> Iterator[str]:
    """Yield how many tokens a study needs for a pass, by displacement that it is to exclude."""
    rng = np.random.default_rng(SEED)
    pool = contexts(rng)
    steps = AuditPool(rng)
    where = rng.integers(0, len(pool), 50_000)
    text = TextScorer(pool).observations(where, Sampler(pool).ranks(where, rng))
    audit = run_audit(steps, num_steps=20_000, rng=rng)
    yield "Tokens until a pass excludes a displacement, wherever it happens (95 % power, at 0.001)"
    yield f"{'excluded':>10}{'text':>14}{'audit':>14}"
    for share in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05):
        settings = LosslessSettings(displacement=share)
        cells = []
        for observations, num_tokens in (
            (text, len(where)),
            (audit.observations, audit.num_tokens),
        ):
            test = LosslessTest(settings)
            test.update(observations)
            needed = test.tokens_to_pass(num_tokens)
            cells.append("never" if needed is None else f"{needed:,}")
        yield f"{share:>10.1%}" + "".join(f"{cell:>14}" for cell in cells)


def speed_lines(num_tokens: int) -> Iterator[str]:
    """Yield the seconds that the statistics take."""
    rng = np.random.default_rng(SEED)
    pool = contexts(rng)
    steps = AuditPool(rng)
    where = rng.integers(0, len(pool), num_tokens)
    text = TextScorer(pool).observations(where, Sampler(pool).ranks(where, rng))
    audit = run_audit(steps, num_steps=round(num_tokens / steps.tokens_per_step), rng=rng)
    for name, observations in (("text", text), ("audit", audit.observations)):
        begun_s = time.perf_counter()
        test = LosslessTest()
        test.update(observations)
        test.result(num_tokens)
        spent_s = time.perf_counter() - begun_s
        count = sum(map(len, observations.values()))
        yield f"{name}: {num_tokens:,} tokens, {count:,} observations in {spent_s:.1f} s"


def _text_p_values(num_streams: int) -> Floats:
    rng = np.random.default_rng(SEED)
    pool = contexts(rng)
    scorer, sampler = TextScorer(pool), Sampler(pool)
    found: list[float] = []
    while len(found) < num_streams:
        texts = sample_texts(
            sampler,
            num_texts=min(TEXTS_AT_A_TIME, num_streams - len(found)),
            num_tokens=TEXT_LENGTH,
            rng=rng,
        )
        for where, ranks in zip(texts.where, texts.ranks, strict=True):
            test = LosslessTest()
            test.update(scorer.observations(where, ranks))
            found.append(test.p_value)
    return np.array(found)


def _audit_p_values(num_streams: int) -> Floats:
    rng = np.random.default_rng(SEED)
    pool = AuditPool(rng)
    found = []
    for _ in range(num_streams):
        test = LosslessTest()
        test.update(run_audit(pool, num_steps=AUDIT_STEPS, rng=rng).observations)
        found.append(test.p_value)
    return np.array(found)


def _rejections(source: Source, num_streams: int, marks: Sequence[int], *, alpha: float) -> Floats:
    """Return the tokens at which each stream was rejected; inf for those that were not."""
    found = (
        tokens_to_rejection(source, marks, alpha=alpha, rng=np.random.default_rng([SEED, stream]))
        for stream in range(num_streams)
    )
    return np.array([np.inf if mark is None else mark for mark in found])


def _by(found: Floats, level: float) -> str:
    """Return the tokens by which a share of the streams was rejected."""
    mark = float(np.sort(found)[max(0, int(np.ceil(level * len(found))) - 1)])
    return "later" if np.isinf(mark) else f"{mark:,.0f}"


def _rate(alarms: int, num_streams: int) -> str:
    interval = wilson_interval(alarms, num_streams, confidence=0.99)
    low, high = interval if interval else (0.0, 1.0)
    return f"{alarms / num_streams:.4f} ({low:.4f}-{high:.4f})"
