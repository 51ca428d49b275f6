"""Evidence of the texts: none where they follow the chain, its size where they do not."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestrator.audit_build_text import TextEvidence, Texts
from orchestrator.core.lossless.judge import judge
from serve_apps.audit.drive_markov import Chain, make_chain, probabilities

VOCABULARY, LENGTH = 96, 100


@pytest.fixture(scope="module")
def chain() -> Chain:
    return make_chain(seed=3, vocabulary=VOCABULARY, depth=2, num_candidates=8)


def written(
    chain: Chain, count: int, *, seed: int, moved: float = 0.0, scale: float = 1.0
) -> Texts:
    """Write texts by the chain; a share of tokens is replaced by the likeliest one."""
    rng = np.random.default_rng(seed)
    logits = chain.target_logits.astype(np.float64)
    temperatures = np.resize(np.array([1.0, 0.7]), count)
    tables = np.stack([probabilities(logits / (scale * t)) for t in (1.0, 0.7)]).cumsum(-1)
    prompt = rng.integers(0, VOCABULARY, count)
    tokens: NDArray[np.int64] = np.empty((count, LENGTH), np.int64)
    last = prompt
    for place in range(LENGTH):
        row = tables[np.arange(count) % 2, last]
        drawn = (row < rng.random((count, 1)) * row[:, -1:]).sum(-1)
        best = logits[last].argmax(-1)
        last = np.where(rng.random(count) < moved, best, drawn)
        tokens[:, place] = last
    return Texts(
        tokens=tokens, prompt_tokens=prompt, temperatures=temperatures, target_logits=logits
    )


def test_evidence_of_exact_texts_is_not_rejected_and_shows_nothing(chain: Chain) -> None:
    evidence = TextEvidence(written(chain, 1000, seed=1))
    found = evidence.displacement()
    assert found is not None
    assert found.low < 0 < found.high
    result = judge(evidence.observations(), num_tokens=1000 * LENGTH)
    assert result.kind != "rejected"


def test_displacement_of_exact_texts_is_0_on_average(chain: Chain) -> None:
    shares = []
    for seed in range(40):
        found = TextEvidence(written(chain, 40, seed=seed)).displacement()
        assert found is not None
        shares.append(found.share)
    spread = np.std(shares) / np.sqrt(len(shares))
    assert abs(np.mean(shares)) < 4 * spread


def test_displacement_of_moved_tokens_is_their_share(chain: Chain) -> None:
    moved = 0.05
    texts = written(chain, 2000, seed=5, moved=moved)
    evidence = TextEvidence(texts)
    found = evidence.displacement()
    assert found is not None
    # Of the moved tokens those that would have been the likeliest anyway stay where they are.
    best = [probabilities(texts.target_logits / t).max(-1) for t in (1.0, 0.7)]
    before = np.concatenate([texts.prompt_tokens[:, None], texts.tokens[:, :-1]], axis=1)
    stay = np.mean([best[i % 2][before[i]].mean() for i in range(len(before))])
    truth = moved * (1 - stay)
    assert found.low < truth < found.high
    assert judge(evidence.observations(), num_tokens=texts.tokens.size).kind == "rejected"


def test_evidence_of_another_temperature_is_rejected(chain: Chain) -> None:
    evidence = TextEvidence(written(chain, 60, seed=6, scale=0.9))
    assert judge(evidence.observations(), num_tokens=60 * LENGTH).kind == "rejected"


def test_displacement_of_one_text_is_unknown(chain: Chain) -> None:
    assert TextEvidence(written(chain, 1, seed=7)).displacement() is None


def test_observations_are_one_a_token_and_their_means_sum_to_1(chain: Chain) -> None:
    found = TextEvidence(written(chain, 10, seed=8)).observations()
    ranks = [found[kind] for kind in found if kind.startswith("rank_")]
    assert all(len(kind) == 10 * LENGTH for kind in found.values())
    assert np.allclose(sum(kind.m for kind in ranks), 1.0)
    assert np.array_equal(sum(kind.x for kind in ranks), np.ones(10 * LENGTH))
