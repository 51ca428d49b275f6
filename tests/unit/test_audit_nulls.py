"""Exact nulls: honest verification agrees with them, each kind of dishonest one does not."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from serve_apps.audit.records import EMITTED_RANK, KINDS, RANK_BUCKETS

torch = pytest.importorskip("torch")
nulls = pytest.importorskip("serve_apps.audit.nulls")

VOCABULARY, DEPTH = 90, 3
Floats = NDArray[np.float64]


class Scene:
    """Steps of many requests, each with its own p and q, verified by a rule written here."""

    def __init__(self, count: int, seed: int, *, greedy: bool = False, support: int = 12) -> None:
        self.rng = np.random.default_rng(seed)
        self.count = count
        shared = self.rng.normal(size=(count, DEPTH + 1, VOCABULARY))
        self.target = 2.0 * shared + self.rng.normal(size=shared.shape)
        draft = 2.0 * shared[:, :DEPTH] + self.rng.normal(size=(count, DEPTH, VOCABULARY))
        order = np.argsort(-draft, axis=-1)
        np.put_along_axis(draft, order[..., support:], -np.inf, axis=-1)
        self.draft = draft
        self.p, self.q = softmax(self.target), softmax(draft)
        if greedy:
            self.q = np.eye(VOCABULARY)[order[..., 0]]
        self.greedy = greedy
        self.drafts = self.draw(self.q)

    def draw(self, weights: Floats) -> NDArray[np.int64]:
        cumulative = np.cumsum(weights, axis=-1)
        point = self.rng.random(weights.shape[:-1])[..., None] * cumulative[..., -1:]
        drawn: NDArray[np.int64] = (cumulative <= point).sum(-1)
        return drawn

    def standard(self, *, recover_from_target: bool = False) -> NDArray[np.float32]:
        accepted = np.zeros(self.count, np.int64)
        going = np.ones(self.count, bool)
        for i in range(DEPTH):
            p, q = picked(self.p[:, i], self.drafts[:, i]), picked(self.q[:, i], self.drafts[:, i])
            going &= self.rng.random(self.count) * q < p
            accepted += going
        rows = np.arange(self.count)
        p = self.p[rows, accepted]
        q = np.concatenate([self.q, np.zeros_like(self.q[:, :1])], 1)[rows, accepted]
        residual = p if recover_from_target else np.maximum(p - q, 0.0)
        return self.observed(accepted, self.draw(residual), "standard")

    def block(self) -> NDArray[np.float32]:
        """Verify by blocks: Sun et al., arXiv 2403.10444, algorithm 2."""
        weight = np.ones((self.count, DEPTH + 1))
        for i in range(DEPTH):
            p, q = picked(self.p[:, i], self.drafts[:, i]), picked(self.q[:, i], self.drafts[:, i])
            weight[:, i + 1] = np.minimum(weight[:, i] * p / q, 1.0)
        accepted = np.zeros(self.count, np.int64)
        for i in range(1, DEPTH + 1):
            share = weight[:, i]
            if i < DEPTH:
                left = weight[:, i, None] * self.p[:, i] - self.q[:, i]
                mass = np.maximum(left, 0.0).sum(-1)
                share = mass / (mass + 1.0 - weight[:, i])
            accepted = np.where(self.rng.random(self.count) <= share, i, accepted)
        rows = np.arange(self.count)
        q = np.concatenate([self.q, np.zeros_like(self.q[:, :1])], 1)[rows, accepted]
        scale = np.where(accepted < DEPTH, weight[rows, accepted], 1.0)[:, None]
        residual = np.maximum(scale * self.p[rows, accepted] - q, 0.0)
        return self.observed(accepted, self.draw(residual), "block")

    def observed(
        self, accepted: NDArray[np.int64], last: NDArray[np.int64], rule: str
    ) -> NDArray[np.float32]:
        sampled = np.concatenate([self.drafts, np.zeros((self.count, 1), np.int64)], 1)
        sampled[np.arange(self.count), accepted] = last
        fed = np.concatenate([np.zeros((self.count, 1), np.int64), self.drafts], 1)
        given = nulls.Verification(
            target_logits=torch.tensor(self.target.reshape(-1, VOCABULARY), dtype=torch.float32),
            draft_logits=None if self.greedy else torch.tensor(self.draft, dtype=torch.float32),
            draft_sampled=torch.tensor(fed.reshape(-1)),
            cu_num_logits=torch.arange(self.count + 1) * (DEPTH + 1),
            idx_mapping=torch.arange(self.count),
            temperature=torch.ones(self.count),
            sampled=torch.tensor(sampled),
            num_sampled=torch.tensor(accepted + 1),
            rule=rule,
        )
        result: NDArray[np.float32] = nulls.observe_verification(given).numpy()
        return result


def softmax(logits: Floats) -> Floats:
    weights: Floats = np.exp(logits - logits.max(-1, keepdims=True))
    shares: Floats = weights / weights.sum(-1, keepdims=True)
    return shares


def picked(table: Floats, index: NDArray[np.int64]) -> Floats:
    taken: Floats = np.take_along_axis(table, index[:, None], 1)[:, 0]
    return taken


def scores(found: NDArray[np.float32]) -> dict[str, float]:
    """Return sum(x - m) in standard deviations, by kind."""
    result = {}
    for code, kind in enumerate(KINDS):
        x, m = found[:, :, code].astype(float).T
        seen = ~np.isnan(x)
        variance = (m[seen] * (1.0 - m[seen])).sum()
        if variance > 0:
            result[kind] = float((x[seen] - m[seen]).sum() / np.sqrt(variance))
    return result


@pytest.mark.parametrize("greedy", [False, True])
def test_honest_standard_verification_agrees_with_every_null(greedy: bool) -> None:
    found = scores(Scene(6000, 1, greedy=greedy).standard())
    # A recovered token never is the rejected greedy draft.
    assert set(found) == set(KINDS) - ({"recovered_in_candidates"} if greedy else set())
    assert max(abs(score) for score in found.values()) < 4.0


@pytest.mark.parametrize("greedy", [False, True])
def test_honest_block_verification_agrees_with_every_null(greedy: bool) -> None:
    found = scores(Scene(6000, 2, greedy=greedy).block())
    assert set(found) == set(KINDS) - ({"recovered_in_candidates"} if greedy else set())
    assert max(abs(score) for score in found.values()) < 4.0


def test_drafts_that_are_not_drawn_from_q_are_seen() -> None:
    scene = Scene(6000, 8)
    scene.drafts = scene.draw(scene.q**2)
    assert abs(scores(scene.block())["first_accepted"]) > 6.0


def test_rule_without_known_nulls_leaves_the_first_token_to_observe() -> None:
    scene = Scene(50, 9)
    found = scene.observed(np.ones(50, np.int64), scene.drafts[:, 1], "synthetic")
    kinds = {KINDS[code] for code in np.nonzero(~np.isnan(found[:, 0]))[1]}
    assert kinds == {f"{EMITTED_RANK}{bucket}" for bucket in RANK_BUCKETS}


def test_recovery_from_the_target_itself_is_seen() -> None:
    found = scores(Scene(6000, 3).standard(recover_from_target=True))
    assert abs(found["recovered_in_candidates"]) > 6.0
    assert max(abs(found[f"{EMITTED_RANK}{bucket}"]) for bucket in RANK_BUCKETS) > 6.0


@pytest.mark.parametrize("support", [12, VOCABULARY])
def test_buckets_share_out_one_token_and_all_mass(support: int) -> None:
    found = Scene(300, 4, support=support).standard()
    for prefix in ("emitted", "recovered", "bonus"):
        columns = [code for code, kind in enumerate(KINDS) if kind.startswith(f"{prefix}_rank")]
        seen = ~np.isnan(found[:, 0, columns[0]])
        assert seen.any()
        assert np.all(found[seen][:, 0, columns].sum(-1) == 1.0)
        np.testing.assert_allclose(found[seen][:, 1, columns].sum(-1), 1.0, atol=1e-5)


def test_rows_at_temperature_zero_are_not_observed() -> None:
    scene = Scene(2, 5)
    whole = nulls.observe_sampling(
        torch.tensor(scene.target[:, 0]), torch.tensor([3, 4]), torch.tensor([0.0, 1.0])
    ).numpy()
    assert np.isnan(whole[0]).all()
    assert (~np.isnan(whole[1])).sum() == 2 * len(RANK_BUCKETS)


def test_placeholder_draft_leaves_only_the_first_token_to_observe() -> None:
    scene = Scene(50, 6)
    scene.drafts[:] = -1
    found = scene.observed(np.zeros(50, np.int64), scene.draw(scene.p[:, 0]), "standard")
    kinds = {KINDS[code] for code in np.nonzero(~np.isnan(found[:, 0]))[1]}
    assert kinds == {f"{EMITTED_RANK}{bucket}" for bucket in RANK_BUCKETS}


def test_draft_of_a_smaller_vocabulary_counts_as_never_drafting_the_rest() -> None:
    scene = Scene(400, 7, support=12)
    wide = scene.standard()
    scene.draft[..., -10:] = -np.inf
    scene.q = softmax(scene.draft)
    scene.drafts = scene.draw(scene.q)
    padded = scene.standard()
    scene.rng, scene.draft = np.random.default_rng(0), scene.draft[..., :-10]
    narrow = scene.observed(np.zeros(400, np.int64), scene.drafts[:, 0], "standard")
    assert wide.shape == padded.shape == narrow.shape
    code = KINDS.index("first_accepted")
    np.testing.assert_allclose(narrow[:, 1, code], padded[:, 1, code], atol=1e-6)
