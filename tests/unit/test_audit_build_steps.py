"""The steps that drive a build: what an engine would pass, seen by a verifier written here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from serve_apps.audit.drive_markov import Chain, make_chain, probabilities
from serve_apps.audit.records import EMITTED_RANK, FIRST_ACCEPTED, KINDS

torch = pytest.importorskip("torch")
steps = pytest.importorskip("serve_apps.audit.drive_steps")

DEPTH, VOCABULARY, LENGTH, ROWS, COUNT = 3, 40, 10, 8, 60


@pytest.fixture(scope="module")
def chain() -> Iterator[Chain]:
    # Small tensors: more threads than one only wait for each other on a busy machine.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield make_chain(seed=1, vocabulary=VOCABULARY, depth=DEPTH, num_candidates=8)
    torch.set_num_threads(threads)


class Honest:
    """Token-wise verification with random numbers of its own; keeps what it was asked."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.batches: list[Any] = []
        self.temperatures: list[Any] = []

    def scaled(self, logits: Any, batch: Any, slots: Any) -> Any:
        return logits / slots.temperature[batch.row_slots.long()][:, None]

    def drawn(self, weights: Any) -> Any:
        return torch.from_numpy(
            np.array([self.rng.choice(len(w), p=w / w.sum()) for w in weights.double().numpy()])
        )

    def sample(self, logits: Any, batch: Any, slots: Any) -> Any:
        self.batches.append(batch)
        self.temperatures.append(slots.temperature.clone())
        return self.drawn(torch.softmax(logits, -1))

    def verify(
        self, logits: Any, draft_logits: Any, batch: Any, slots: Any, *, depth: int, block: bool
    ) -> tuple[Any, Any]:
        del draft_logits, block
        self.batches.append(batch)
        self.temperatures.append(slots.temperature.clone())
        p = torch.softmax(logits.double(), -1).numpy()
        tokens, starts = batch.tokens.numpy(), batch.starts.numpy()
        emitted = np.full((len(batch.slots), depth + 1), -1)
        counts = np.zeros(len(batch.slots), np.int32)
        for row, count in enumerate(batch.num_rows):
            for i in range(count):
                here = p[starts[row] + i].copy()
                if i < count - 1:
                    draft = tokens[starts[row] + i + 1]
                    if self.rng.random() < here[draft]:
                        emitted[row, i] = draft
                        continue
                    here[draft] = 0.0  # a greedy draft's residual
                emitted[row, i] = self.rng.choice(VOCABULARY, p=here / here.sum())
                counts[row] = i + 1
                break
        return torch.from_numpy(emitted), torch.from_numpy(counts)


class Greedy:
    """Drafts the likeliest token at each position; keeps the last sampled tokens it was given."""

    draft_logits = None

    def __init__(self, chain: Chain) -> None:
        self.best = chain.position_logits.argmax(-1)
        self.last: list[Any] = []

    def draft(self, batch: Any, num_sampled: Any, slots: Any) -> Any:
        assert len(num_sampled) == len(batch.slots)
        last = slots.last_sampled[batch.slots.long(), 0]
        self.last.append(last.clone())
        return torch.from_numpy(self.best[last.numpy()])


def ran(chain: Chain, rule: str, *, count: int = COUNT, seed: int = 0) -> tuple[Any, ...]:
    requests = steps.make_requests(count, text_length=LENGTH, vocabulary=VOCABULARY, seed=seed)
    sampling = Honest()
    drafter = None if rule == "none" else Greedy(chain)
    run = steps.Run(
        steps.RULES[rule], chain, requests, sampling=sampling, drafter=drafter, num_rows=ROWS
    )
    return run, requests, sampling, drafter, list(run.steps())


def test_run_every_text_is_written_to_its_end(chain: Chain) -> None:
    run, *_ = ran(chain, "greedy+standard")
    assert (run.texts >= 0).all()
    assert (run.texts < VOCABULARY).all()
    emitted = run.counts.accepted + run.counts.drafted_steps
    # Every other token was sampled without drafts: behind a prompt, or as the last of its text.
    assert COUNT <= run.texts.size - emitted <= 2 * COUNT


def test_run_rows_hold_the_last_token_and_positions_go_on(chain: Chain) -> None:
    run, requests, sampling, drafter, _ = ran(chain, "greedy+standard", count=1)
    text, start = run.texts[0], int(requests.prompt_lengths[0]) - 1
    for batch in sampling.batches:
        done = int(batch.positions[0]) - start
        last = text[done - 1] if done else requests.prompt_tokens[0]
        assert int(batch.tokens[0]) == last
        assert batch.positions.tolist() == list(
            range(start + done, start + done + len(batch.tokens))
        )
        assert len(batch.tokens) - 1 == (min(DEPTH, LENGTH - done - 1) if done else 0)
    assert [int(last[0]) for last in drafter.last][-1] == text[-1]


def test_run_slots_are_never_shared_and_keep_their_request(chain: Chain) -> None:
    _, requests, sampling, _, observed = ran(chain, "greedy+standard")
    for batch, (_, slots) in zip(sampling.batches, observed, strict=True):
        assert len(set(slots.tolist())) == len(slots) <= ROWS
        assert batch.slots.tolist() == slots.tolist()
    first = sampling.temperatures[0][sampling.batches[0].slots.long()].numpy()
    assert np.array_equal(first, requests.temperatures[:ROWS])


def test_run_honest_verification_agrees_with_its_nulls(chain: Chain) -> None:
    *_, observed = ran(chain, "greedy+standard", count=400, seed=2)
    rows = np.concatenate([found for found, _ in observed])
    for kind in (FIRST_ACCEPTED, f"{EMITTED_RANK}1", f"{EMITTED_RANK}17-64"):
        x, m = rows[:, :, KINDS.index(kind)].T
        seen = ~np.isnan(x)
        assert seen.sum() > 1000
        spread = np.sqrt((m * (1 - m))[seen].sum())
        assert abs((x - m)[seen].sum()) < 4 * spread


def test_run_without_drafts_takes_one_token_a_step(chain: Chain) -> None:
    run, _, sampling, _, observed = ran(chain, "none")
    assert run.counts.drafted_steps == run.counts.rejections == 0
    assert sum(len(batch.slots) for batch in sampling.batches) == run.texts.size
    assert sum(len(slots) for _, slots in observed) == run.texts.size


def test_requests_are_fixed_by_their_seed() -> None:
    first, again, other = (
        steps.make_requests(50, text_length=5, vocabulary=9, seed=seed) for seed in (1, 1, 2)
    )
    assert np.array_equal(first.seeds, again.seeds)
    assert not np.array_equal(first.seeds, other.seeds)
    assert (first.seeds < 0).any()
    assert set(first.temperatures.tolist()) == set(np.float32([1.0, 0.7]).tolist())


def test_chain_candidates_are_the_likeliest_and_scored_by_the_one_before(chain: Chain) -> None:
    ahead = probabilities(chain.position_logits)
    for anchor in range(VOCABULARY):
        for place in range(DEPTH):
            held = chain.candidates[anchor, place]
            others = np.setdiff1d(np.arange(VOCABULARY), held)
            assert ahead[anchor, place, held].min() >= ahead[anchor, place, others].max()
    before, offered = chain.candidates[5, 0], chain.candidates[5, 1]
    # The same pair of tokens has the same score wherever it comes up.
    direct = {
        (int(a), int(b)): chain.scores[5, 1, i, j]
        for i, a in enumerate(before)
        for j, b in enumerate(offered)
    }
    for anchor in range(VOCABULARY):
        for j, token in enumerate(chain.candidates[anchor, 0]):
            if (anchor, int(token)) in direct:
                assert chain.scores[anchor, 0, 0, j] == direct[anchor, int(token)]


def test_chain_is_fixed_by_its_seed() -> None:
    sizes = {"vocabulary": 33, "depth": 2, "num_candidates": 4}
    first, again = make_chain(seed=4, **sizes), make_chain(seed=4, **sizes)
    assert np.array_equal(first.scores, again.scores)
    assert not np.array_equal(first.target_logits, make_chain(seed=5, **sizes).target_logits)
