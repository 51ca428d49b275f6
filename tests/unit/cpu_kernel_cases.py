"""vLLM's sampling and verification kernels, interpreted, against NumPy written from the papers.

Run by test_cpu_kernels.py in a process of its own: TRITON_INTERPRET=1 must be set before Triton
is imported, and mending the interpreter is for good. The reference has its own random numbers
(Philox and MurmurHash3, as published), so the results must be equal, not alike.
"""

import numpy as np
import pytest
import torch

from serve_apps.cpu import plugin

plugin.mend()

from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample  # noqa: E402  # kernels after the mend
from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores  # noqa: E402
from vllm.v1.worker.gpu.spec_decode.dflash2.speculator import CandidateSampler  # noqa: E402
from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import (  # noqa: E402
    rejection_sample,
)

DRAFT_SALT = 1 << 30
MASK32 = 0xFFFFFFFF
RAND_SCALE = np.float32(4.6566127342e-10)


def philox_uniform(seed: int, offset: int) -> float:
    """Return `tl.rand(seed, offset)`: Philox 4x32-10, first word."""
    c = [offset & MASK32, offset >> 32 & MASK32, 0, 0]
    k0, k1 = seed & MASK32, seed >> 32 & MASK32
    for _ in range(10):
        low, high = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [
            high >> 32 ^ c[1] ^ k0,
            high & MASK32,
            low >> 32 ^ c[3] ^ k1,
            low & MASK32,
        ]
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    word = c[0] if c[0] < 1 << 31 else ~c[0] & MASK32
    return float(max(np.float32(word) * RAND_SCALE, RAND_SCALE))


def murmur_uniform(seed: int, position: int, keys: np.ndarray) -> np.ndarray:
    """Return the uniforms of MurmurHash3 (x86, 32 bits) over four words: seed, position, key."""

    def rotated(x: np.ndarray, by: int) -> np.ndarray:
        return (x << by | x >> (32 - by)) & MASK32

    state = np.zeros(keys.shape, np.uint64)
    for word in (seed & MASK32, seed >> 32 & MASK32, position & MASK32, keys.astype(np.uint64)):
        key = np.asarray(word, np.uint64) * 0xCC9E2D51 & MASK32
        key = rotated(key, 15) * 0x1B873593 & MASK32
        state = (rotated(state ^ key, 13) * 5 + 0xE6546B64) & MASK32
    state = state ^ 16
    state = (state ^ state >> 16) * 0x85EBCA6B & MASK32
    state = (state ^ state >> 13) * 0xC2B2AE35 & MASK32
    state = state ^ state >> 16
    return (state.astype(np.float64) + 0.5) / 2.0**32


def noised_argmax(
    logits: np.ndarray, keys: np.ndarray, seed: int, position: int, *, noisy: bool
) -> int:
    """Return the index that Gumbel-max sampling picks, or the plain argmax."""
    if not noisy:
        return int(np.argmax(logits))
    # The kernels draw -log(-log(1 - u)).
    noise = -np.log(-np.log1p(-murmur_uniform(seed, position, keys)))
    return int(np.argmax(logits + noise))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    top = wide.max(axis=-1, keepdims=True)
    return wide - top - np.log(np.exp(wide - top).sum(axis=-1, keepdims=True))


class Case:
    """Random inputs of one verification, with drafts that are accepted now and then."""

    def __init__(self, seed: int, shape: tuple[int, int, int], *, probabilistic: bool) -> None:
        vocab, self.num_requests, self.depth = shape
        rng = np.random.default_rng(seed)
        rows = self.num_requests * (self.depth + 1)
        self.slots = rng.permutation(self.num_requests + 2)[: self.num_requests]
        self.target = (2 * rng.standard_normal((rows, vocab))).astype(np.float32)
        near = self.target.reshape(self.num_requests, self.depth + 1, vocab)[:, :-1]
        self.draft = np.full((self.num_requests + 2, self.depth, vocab), -np.inf, np.float32)
        self.draft[self.slots] = near + 0.7 * rng.standard_normal(near.shape).astype(np.float32)
        self.temperature = rng.choice([0.0, 0.7, 1.0, 1.0], self.num_requests + 2).astype(
            np.float32
        )
        self.seeds = rng.integers(0, 1 << 62, self.num_requests + 2)
        self.positions = rng.integers(0, 5000, rows)
        self.tokens = rng.integers(0, vocab, rows)
        for request in range(self.num_requests):
            for step in range(self.depth):
                row = request * (self.depth + 1) + step
                source = (
                    self.draft[self.slots[request], step] if probabilistic else self.target[row]
                )
                heat = float(self.temperature[self.slots[request]]) or 0.3
                self.tokens[row + 1] = rng.choice(
                    vocab, p=np.exp(log_softmax(source / (heat if probabilistic else 0.15)))
                )
        if seed % 4 == 3:  # a placeholder, which no rule may accept
            self.tokens[1 + self.depth // 2] = -1
        self.probabilistic = probabilistic

    def kernels(self, *, block: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return sampled tokens and their counts from the interpreted kernels."""
        width = self.depth + 1
        slots = torch.from_numpy(self.slots.astype(np.int32))
        sampled, num_sampled = rejection_sample(
            torch.from_numpy(self.target.copy()),
            torch.from_numpy(self.draft.copy()) if self.probabilistic else None,
            torch.from_numpy(self.tokens),
            torch.arange(0, self.num_requests * width + 1, width, dtype=torch.int32),
            torch.from_numpy(self.positions),
            slots,
            slots.repeat_interleave(width),
            torch.arange(width, dtype=torch.int32).repeat(self.num_requests),
            torch.from_numpy(self.temperature),
            torch.from_numpy(self.seeds),
            self.depth,
            use_block_verification=block,
        )
        return sampled.numpy(), num_sampled.numpy()

    def reference(self, *, block: bool) -> list[list[int]]:
        """Return each request's sampled tokens by the definition of the rule."""
        return [self._one(request, block=block) for request in range(self.num_requests)]

    def _one(self, request: int, *, block: bool) -> list[int]:
        start, slot = request * (self.depth + 1), int(self.slots[request])
        temperature, seed = float(self.temperature[slot]), int(self.seeds[slot])
        target = self.target[start : start + self.depth + 1]
        drafts = [int(token) for token in self.tokens[start + 1 : start + 1 + self.depth]]
        if temperature == 0.0:
            best = [int(row.argmax()) for row in target]
            accepted = next((i for i, x in enumerate(drafts) if x != best[i]), self.depth)
            return [*drafts[:accepted], best[accepted]]
        log_p = log_softmax(target)
        if self.probabilistic:
            heated = self.draft[slot] / np.float32(temperature)
            log_q = log_softmax(heated)
        else:
            log_q = np.full((self.depth, target.shape[1]), -np.inf)
            for step, token in enumerate(drafts):
                log_q[step, max(token, 0)] = 0.0
        uniforms = [
            philox_uniform(seed, int(self.positions[start + step])) for step in range(self.depth)
        ]
        rule = accept_block if block else accept_tokenwise
        accepted, scale = rule(log_p, log_q, drafts, uniforms)
        weights = np.exp(log_p[accepted])
        if accepted < self.depth and drafts[accepted] >= 0:
            if self.probabilistic:
                weights = np.maximum(scale * weights - np.exp(log_q[accepted]), 0.0)
            else:
                weights[drafts[accepted]] = 0.0
        with np.errstate(divide="ignore"):
            logits = np.log(weights)
        keys = np.arange(target.shape[1])
        position = int(self.positions[start + accepted])
        return [*drafts[:accepted], noised_argmax(logits, keys, seed, position, noisy=True)]


def accept_tokenwise(
    log_p: np.ndarray, log_q: np.ndarray, drafts: list[int], uniforms: list[float]
) -> tuple[int, float]:
    """Leviathan et al. 2023: accept while u < p / q. Returns the count and 1."""
    for step, token in enumerate(drafts):
        if token < 0 or not log_p[step, token] > np.log(uniforms[step]) + log_q[step, token]:
            return step, 1.0
    return len(drafts), 1.0


def accept_block(
    log_p: np.ndarray, log_q: np.ndarray, drafts: list[int], uniforms: list[float]
) -> tuple[int, float]:
    """Sun et al. 2024: the longest prefix whose own test passes. Returns its length and p_tau."""
    ratios, accepted = [1.0], 0
    valid = next((i for i, token in enumerate(drafts) if token < 0), len(drafts))
    for step, token in enumerate(drafts[:valid]):
        ratio = min(ratios[-1] * np.exp(log_p[step, token] - log_q[step, token]), 1.0)
        ratios.append(ratio)
        if step + 1 < valid:
            ahead = ratio * np.exp(log_p[step + 1]) - np.exp(log_q[step + 1])
            mass = float(np.maximum(ahead, 0.0).sum())
            if np.isneginf(log_q[step + 1]).sum() == log_q.shape[1] - 1:
                mass = ratio * (1.0 - float(np.exp(log_p[step + 1, drafts[step + 1]])))
            total = mass + 1.0 - ratio
            threshold = mass / total if total > 0 else 1.0
        else:
            threshold = ratio
        if uniforms[step] <= threshold:
            accepted = step + 1
    return accepted, ratios[accepted]


SHAPES = [(64, 3, 3), (1024, 4, 7), (1500, 2, 5), (9000, 2, 2)]


@pytest.mark.parametrize("block", [False, True], ids=["standard", "block"])
@pytest.mark.parametrize("probabilistic", [False, True], ids=["greedy", "probabilistic"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_verification_equals_reference(
    shape: tuple[int, int, int], probabilistic: bool, block: bool
) -> None:
    lengths = []
    for seed in range(12 if shape[0] < 5000 else 6):
        case = Case(seed, shape, probabilistic=probabilistic)
        sampled, counts = case.kernels(block=block)
        expected = case.reference(block=block)
        got = [row[:count].tolist() for row, count in zip(sampled, counts, strict=True)]
        assert got == expected, f"seed {seed}, temperatures {case.temperature[case.slots]}"
        lengths += [len(tokens) for tokens in expected]
    # The inputs must exercise rejection at once and acceptance, or equality says little.
    assert min(lengths) == 1
    assert max(lengths) >= 3


@pytest.mark.parametrize("is_drafting", [False, True])
@pytest.mark.parametrize("vocab", [50, 1024, 2500])
def test_gumbel_sample_equals_reference(vocab: int, is_drafting: bool) -> None:
    rng = np.random.default_rng(vocab)
    logits = rng.standard_normal((24, vocab)).astype(np.float32)
    temperature = rng.choice([0.0, 0.5, 1.0], 6).astype(np.float32)
    seeds, slots = rng.integers(0, 1 << 62, 6), rng.integers(0, 6, 24)
    positions = rng.integers(0, 9000, 24)
    got = gumbel_sample(
        torch.from_numpy(logits),
        torch.from_numpy(slots.astype(np.int32)),
        torch.from_numpy(temperature),
        torch.from_numpy(seeds),
        torch.from_numpy(positions),
        apply_temperature=True,
        is_drafting=is_drafting,
    )
    expected = []
    for row, slot, position in zip(logits, slots, positions, strict=True):
        heat = float(temperature[slot])
        expected.append(
            noised_argmax(
                row / (heat or 1.0),
                np.arange(vocab),
                int(seeds[slot]),
                int(position) + DRAFT_SALT * is_drafting,
                noisy=heat != 0.0,
            )
        )
    assert got.tolist() == expected


@pytest.mark.parametrize("probabilistic", [False, True])
def test_candidate_walk_equals_reference(probabilistic: bool) -> None:
    rng = np.random.default_rng(5)
    requests, depth, top_k, vocab = 4, 7, 16, 300
    sampler = CandidateSampler(6, depth, top_k, torch.device("cpu"))
    cache = torch.full((6, depth, vocab), -np.inf)
    for turn in range(4):
        candidates = np.stack(
            [rng.permutation(vocab)[:top_k] for _ in range(requests * depth)]
        ).reshape(requests, depth, top_k)
        scores = rng.standard_normal((requests, depth, top_k, top_k)).astype(np.float32)
        positions = rng.integers(1, 900, (requests, depth))
        slots = rng.permutation(6)[:requests]
        temperature = np.array([0.0, 1.0, 0.7, 1.0, 1.0, 0.5], np.float32)
        seeds = rng.integers(0, 1 << 62, 6)
        tokens = torch.zeros(requests, depth, dtype=torch.int64)
        sampler.sample(
            torch.from_numpy(candidates),
            torch.from_numpy(scores),
            requests,
            torch.from_numpy(positions.reshape(-1)),
            torch.from_numpy(np.repeat(slots, depth).astype(np.int32)),
            torch.from_numpy(temperature),
            torch.from_numpy(seeds),
            tokens,
            cache if probabilistic else None,
            use_fp64=False,
        )
        for request, slot in enumerate(slots):
            previous = 0
            for step in range(depth):
                row = scores[request, step, previous]
                heat = float(temperature[slot]) if probabilistic else 0.0
                keys = candidates[request, step]
                place = int(positions[request, step]) - 1 + DRAFT_SALT
                previous = noised_argmax(
                    row / (heat or 1.0), keys, int(seeds[slot]), place, noisy=heat != 0.0
                )
                assert int(tokens[request, step]) == keys[previous], (turn, request, step)
                if probabilistic:
                    expected = np.full(vocab, -np.inf, np.float32)
                    expected[keys] = row
                    np.testing.assert_array_equal(cache[slot, step].numpy(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_token_ranks_and_logprobs_equal_reference(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = (3 * torch.randn(9, 1024, generator=generator)).to(dtype)
    tokens = torch.randint(0, 1024, (9,), generator=generator)
    scores = compute_topk_scores(logits, 4, tokens)
    chosen = logits.gather(1, tokens[:, None])
    ranks = (logits >= chosen).sum(dim=1)
    assert scores.selected_token_ranks.tolist() == ranks.tolist()
    expected = torch.log_softmax(logits.float(), dim=1).gather(1, tokens[:, None])
    torch.testing.assert_close(scores.logprobs[:, :1], expected, rtol=1e-5, atol=1e-5)
