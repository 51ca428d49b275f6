"""vLLM's sampling and verification kernels, interpreted, against plain PyTorch from the papers.

Run by test_cpu_kernels.py in a process of its own: TRITON_INTERPRET=1 must be set before Triton
is imported, and mending the interpreter is for good. The reference is float32 on the CPU and
calls no kernel. It has its own random numbers (Philox and MurmurHash3, as published, in whole
numbers), so the tokens must be equal, not alike.
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


def murmur_uniform(seed: int, position: int, keys: torch.Tensor) -> torch.Tensor:
    """Return the uniforms of MurmurHash3 (x86, 32 bits) over four words: seed, position, key."""

    def rotated(x: np.ndarray, by: int) -> np.ndarray:
        return (x << by | x >> (32 - by)) & MASK32

    words = keys.numpy().astype(np.uint64)
    state = np.zeros(words.shape, np.uint64)
    for word in (seed & MASK32, seed >> 32 & MASK32, position & MASK32, words):
        key = np.asarray(word, np.uint64) * 0xCC9E2D51 & MASK32
        key = rotated(key, 15) * 0x1B873593 & MASK32
        state = (rotated(state ^ key, 13) * 5 + 0xE6546B64) & MASK32
    state = state ^ 16
    state = (state ^ state >> 16) * 0x85EBCA6B & MASK32
    state = (state ^ state >> 13) * 0xC2B2AE35 & MASK32
    state = state ^ state >> 16
    return torch.from_numpy((state.astype(np.float64) + 0.5) / 2.0**32).float()


def noised_argmax(
    logits: torch.Tensor, keys: torch.Tensor, *, seed: int, position: int, noisy: bool
) -> int:
    """Return the index that Gumbel-max sampling picks, or the plain argmax."""
    if not noisy:
        return int(torch.argmax(logits))
    # The kernels draw -log(-log(1 - u)).
    noise = -torch.log(-torch.log1p(-murmur_uniform(seed, position, keys)))
    return int(torch.argmax(logits + noise))


class Case:
    """Random inputs of one verification, with drafts that are accepted now and then."""

    def __init__(self, seed: int, shape: tuple[int, int, int], *, probabilistic: bool) -> None:
        vocab, self.num_requests, self.depth = shape
        rng = np.random.default_rng(seed)
        rows = self.num_requests * (self.depth + 1)
        slots = rng.permutation(self.num_requests + 2)[: self.num_requests]
        target = (2 * rng.standard_normal((rows, vocab))).astype(np.float32)
        near = target.reshape(self.num_requests, self.depth + 1, vocab)[:, :-1]
        draft = np.full((self.num_requests + 2, self.depth, vocab), -np.inf, np.float32)
        draft[slots] = near + 0.7 * rng.standard_normal(near.shape).astype(np.float32)
        temperature = rng.choice([0.0, 0.7, 1.0, 1.0], self.num_requests + 2).astype(np.float32)
        self.slots, self.temperature = torch.from_numpy(slots), torch.from_numpy(temperature)
        self.target, self.draft = torch.from_numpy(target), torch.from_numpy(draft)
        self.seeds = torch.from_numpy(rng.integers(0, 1 << 62, self.num_requests + 2))
        self.positions = torch.from_numpy(rng.integers(0, 5000, rows))
        self.tokens = torch.from_numpy(rng.integers(0, vocab, rows))
        for request, slot in enumerate(slots):
            for step in range(self.depth):
                row = request * (self.depth + 1) + step
                source = self.draft[slot, step] if probabilistic else self.target[row]
                heat = (float(temperature[slot]) or 0.3) if probabilistic else 0.15
                # In float64: NumPy insists that the probabilities add up to 1.
                chances = torch.softmax(source.double() / heat, dim=-1)
                self.tokens[row + 1] = int(rng.choice(vocab, p=chances.numpy()))
        if seed % 4 == 3:  # a placeholder, which no rule may accept
            self.tokens[1 + self.depth // 2] = -1
        self.probabilistic = probabilistic

    def kernels(self, *, block: bool) -> list[list[int]]:
        """Return each request's sampled tokens from the interpreted kernels."""
        width = self.depth + 1
        slots = self.slots.int()
        sampled, num_sampled = rejection_sample(
            self.target.clone(),
            self.draft.clone() if self.probabilistic else None,
            self.tokens,
            torch.arange(0, self.num_requests * width + 1, width, dtype=torch.int32),
            self.positions,
            slots,
            slots.repeat_interleave(width),
            torch.arange(width, dtype=torch.int32).repeat(self.num_requests),
            self.temperature,
            self.seeds,
            self.depth,
            use_block_verification=block,
        )
        counts = num_sampled.tolist()
        return [row[:count].tolist() for row, count in zip(sampled, counts, strict=True)]

    def reference(self, *, block: bool) -> list[list[int]]:
        """Return each request's sampled tokens by the definition of the rule."""
        return [self._one(request, block=block) for request in range(self.num_requests)]

    def _one(self, request: int, *, block: bool) -> list[int]:
        start, slot = request * (self.depth + 1), int(self.slots[request])
        temperature, seed = float(self.temperature[slot]), int(self.seeds[slot])
        target = self.target[start : start + self.depth + 1]
        positions = self.positions[start : start + self.depth + 1].tolist()
        drafts = self.tokens[start + 1 : start + 1 + self.depth].tolist()
        if temperature == 0.0:
            return verify_greedily(target, drafts)
        p = torch.softmax(target, dim=-1)  # the runner has divided these by the temperature
        if self.probabilistic:
            q = torch.softmax(self.draft[slot] / temperature, dim=-1)
        else:
            q = certain(drafts, vocab=target.shape[1])
        uniforms = [philox_uniform(seed, position) for position in positions[:-1]]
        rule = accept_block if block else accept_tokenwise
        accepted, scale = rule(p, q, drafts, uniforms)
        if accepted == self.depth or drafts[accepted] < 0:
            weights = p[accepted]  # the bonus token, or one in place of a placeholder
        else:
            weights = residual(scale, p[accepted], q[accepted])
        keys = torch.arange(target.shape[1])
        recovered = noised_argmax(
            torch.log(weights), keys, seed=seed, position=positions[accepted], noisy=True
        )
        return [*drafts[:accepted], recovered]


def certain(drafts: list[int], *, vocab: int) -> torch.Tensor:
    """Return q of drafts picked without chance: all on the draft token. [depth, vocab]."""
    q = torch.zeros(len(drafts), vocab)
    for step, token in enumerate(drafts):
        q[step, max(token, 0)] = 1.0  # a placeholder's row is never read
    return q


def residual(scale: torch.Tensor, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return max(scale * p - q, 0), unnormalised, over the vocabulary. [vocab]."""
    return torch.clamp(scale * p - q, min=0.0)


def verify_greedily(target: torch.Tensor, drafts: list[int]) -> list[int]:
    """Temperature 0: keep drafts while they are the target's argmax, then add its argmax."""
    kept: list[int] = []
    for logits, token in zip(target, drafts, strict=False):
        if token != int(torch.argmax(logits)):
            break
        kept.append(token)
    return [*kept, int(torch.argmax(target[len(kept)]))]


def accept_tokenwise(
    p: torch.Tensor, q: torch.Tensor, drafts: list[int], uniforms: list[float]
) -> tuple[int, torch.Tensor]:
    """Leviathan et al. 2023: accept x while u < p(x) / q(x). Returns the count and 1."""
    accepted = 0
    for step, x in enumerate(drafts):
        if x < 0 or not uniforms[step] * q[step, x] < p[step, x]:
            break
        accepted += 1
    return accepted, torch.tensor(1.0)


def accept_block(
    p: torch.Tensor, q: torch.Tensor, drafts: list[int], uniforms: list[float]
) -> tuple[int, torch.Tensor]:
    """Sun et al. 2024: the longest prefix whose own test passes. Returns its length and p_tau.

    With p_0 = 1 and p_i = min(p_(i-1) * p(x_i) / q(x_i), 1), prefix i passes while u_i <= h_i,
    h_i = mass / (mass + 1 - p_i), where mass is the residual's at the next place, scaled by p_i;
    for the last prefix h_i = p_i.
    """
    valid = next((i for i, x in enumerate(drafts) if x < 0), len(drafts))
    joint, tau = [torch.tensor(1.0)], 0
    for i, x in enumerate(drafts[:valid], start=1):
        joint.append(torch.clamp(joint[-1] * p[i - 1, x] / q[i - 1, x], max=1.0))
        if i < valid:
            mass = residual(joint[i], p[i], q[i]).sum()
            total = mass + 1.0 - joint[i]
            h = mass / total if total > 0.0 else torch.tensor(1.0)
        else:
            h = joint[i]
        if uniforms[i - 1] <= h:
            tau = i
    return tau, joint[tau]


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
        expected = case.reference(block=block)
        temperatures = case.temperature[case.slots].tolist()
        assert case.kernels(block=block) == expected, f"seed {seed}, temperatures {temperatures}"
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
                torch.from_numpy(row) / (heat or 1.0),
                torch.arange(vocab),
                seed=int(seeds[slot]),
                position=int(position) + DRAFT_SALT * is_drafting,
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
                row = torch.from_numpy(scores[request, step, previous])
                heat = float(temperature[slot]) if probabilistic else 0.0
                keys = torch.from_numpy(candidates[request, step])
                previous = noised_argmax(
                    row / (heat or 1.0),
                    keys,
                    seed=int(seeds[slot]),
                    position=int(positions[request, step]) - 1 + DRAFT_SALT,
                    noisy=heat != 0.0,
                )
                assert int(tokens[request, step]) == keys[previous], (turn, request, step)
                if probabilistic:
                    expected = torch.full((vocab,), -torch.inf)
                    expected[keys] = row
                    assert torch.equal(cache[slot, step], expected)


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
