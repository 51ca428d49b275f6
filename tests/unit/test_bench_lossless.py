"""The benchmark of the lossless test: its worlds are what they say, its tables come out."""

from __future__ import annotations

import numpy as np
import pytest

from infra.bench.lossless.__main__ import main
from infra.bench.lossless.streams import temperature_source, tokens_to_rejection
from infra.bench.lossless.worlds import (
    AuditPool,
    Sampler,
    at_temperature,
    contexts,
    displaced,
    run_audit,
    sample_texts,
)
from orchestrator.core.lossless.observations import AUDIT_KINDS, Floats
from orchestrator.core.lossless.ranks import bucket_masses


@pytest.fixture(scope="module")
def pool() -> Floats:
    return contexts(np.random.default_rng(0), num=64)


@pytest.fixture(scope="module")
def steps() -> AuditPool:
    return AuditPool(np.random.default_rng(0), num=64)


def test_displaced_mass_is_what_was_asked_for_and_moves_between_two_buckets(pool: Floats) -> None:
    moved = displaced(pool, 0.03, loser="2-4", gainer="17-64")

    change = bucket_masses(moved, is_whole=True) - bucket_masses(pool, is_whole=True)
    assert change.mean(axis=0) == pytest.approx([0, -0.03, 0, 0.03, 0], abs=1e-6)
    assert (moved >= 0).all()
    assert moved.sum(axis=1) == pytest.approx(np.ones(64))


def test_lower_temperature_raises_the_most_likely_token(pool: Floats) -> None:
    cold = at_temperature(pool, 0.9)

    assert (cold[:, 0] > pool[:, 0]).all()
    assert at_temperature(pool, 1.0) == pytest.approx(pool)


def test_sampler_follows_its_distributions(pool: Floats) -> None:
    where = np.repeat([5, 60], 20_000)

    ranks = Sampler(pool).ranks(where, np.random.default_rng(1)).reshape(2, -1)

    for row, context in enumerate((5, 60)):
        for rank in (1, 2, 5):
            p = pool[context, rank - 1]
            error = np.sqrt(p * (1 - p) / 20_000)
            assert np.mean(ranks[row] == rank) == pytest.approx(p, abs=4 * error)


def test_next_context_follows_from_what_was_sampled() -> None:
    ranked = contexts(np.random.default_rng(2))
    texts = sample_texts(Sampler(ranked), num_texts=20, num_tokens=50, rng=np.random.default_rng(3))

    pairs: dict[tuple[int, int], int] = {}
    for where, ranks in zip(texts.where, texts.ranks, strict=True):
        for now, rank, after in zip(where[:-1], ranks[:-1], where[1:], strict=True):
            assert pairs.setdefault((int(now), int(rank)), int(after)) == int(after)


def test_audit_has_the_tokens_and_kinds_of_its_steps(steps: AuditPool) -> None:
    audit = run_audit(steps, num_steps=20_000, rng=np.random.default_rng(4))

    found = audit.observations
    assert set(found) == set(AUDIT_KINDS)
    rejected = 20_000 - int(found["first_accepted"].x.sum())
    assert len(found["recovered_in_candidates"]) == rejected
    assert len(found["emitted_rank_1"]) == 20_000
    assert audit.num_tokens / 20_000 == pytest.approx(steps.tokens_per_step, rel=0.03)


def test_audit_displaces_the_share_that_was_asked_for(steps: AuditPool) -> None:
    audit = run_audit(steps, num_steps=50_000, rng=np.random.default_rng(5), displacement=0.02)

    inside = audit.observations["recovered_in_candidates"]
    assert float((inside.m - inside.x).sum()) / audit.num_tokens == pytest.approx(0.02, abs=0.003)


def test_stream_ends_where_it_is_rejected(pool: Floats) -> None:
    marks = (100, 1000, 5000)
    rng = np.random.default_rng(6)

    assert tokens_to_rejection(temperature_source(pool, 0.5), marks, alpha=0.001, rng=rng) == 100
    assert tokens_to_rejection(temperature_source(pool, 1.0), marks, alpha=0.001, rng=rng) is None


def test_tables_come_out(capsys: pytest.CaptureFixture[str]) -> None:
    main(["speed", "false-alarms", "--tokens", "2000", "--streams", "2"])

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("text: 2,000 tokens, 12,000 observations")
    assert any(line.startswith("texts of 1,000 tokens") for line in lines)
    assert any(line.startswith("audits of 400 steps") for line in lines)


def test_unknown_table_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["spead"])

    assert "no table 'spead': there are speed, budget" in capsys.readouterr().err
