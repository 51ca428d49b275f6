"""Steps of an engine without an engine: draft, verify, go on, for a fixed set of requests.

Every request is a text of a fixed length, started in a free slot with a seed of its own. As in the
V2 runner, its first step samples the token behind the prompt without drafts, later ones verify the
drafts that the step before made; drafts beyond the text's end are trimmed; a step without any
draft takes the plain sampler.
"""

# mypy: disable-error-code="import-untyped,import-not-found"

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from serve_apps.audit.drive_build import Batch, Drafter, Sampling, Slots, Tensor
from serve_apps.audit.drive_markov import Chain
from serve_apps.audit.nulls import (
    BLOCK,
    STANDARD,
    Verification,
    observe_sampling,
    observe_verification,
)

NONE = "none"
TEMPERATURES = (1.0, 0.7)
LONGEST_PROMPT = 4096
SPARE_SLOTS = 3
"""Slots beyond the requests at a time, so that slots and rows do not coincide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Texts to be written, fixed before the first step: nothing about them depends on the draws."""

    prompt_lengths: NDArray[np.int64]
    """[num_requests]"""
    prompt_tokens: NDArray[np.int64]
    """[num_requests]: the prompt's last token."""
    temperatures: NDArray[np.float32]
    """[num_requests]"""
    seeds: NDArray[np.int64]
    """[num_requests], from the whole range, as the engine draws them."""
    text_length: int
    """Tokens of each text."""


def make_requests(count: int, *, text_length: int, vocabulary: int, seed: int) -> Requests:
    """Return requests with random prompts and seeds; the same for the same arguments."""
    rng = np.random.default_rng(seed)
    whole = np.iinfo(np.int64)
    return Requests(
        prompt_lengths=rng.integers(1, LONGEST_PROMPT, count),
        prompt_tokens=rng.integers(0, vocabulary, count),
        temperatures=rng.permutation(np.resize(np.array(TEMPERATURES, np.float32), count)),
        seeds=rng.integers(whole.min, whole.max, count),
        text_length=text_length,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How drafts are made and verified."""

    draft: str
    """greedy or probabilistic; none without speculation."""
    rejection: str
    """standard or block; none without speculation."""

    @property
    def name(self) -> str:
        """The rule as one word."""
        return NONE if self.draft == NONE else f"{self.draft}+{self.rejection}"


RULES = {
    rule.name: rule
    for rule in (
        Rule(draft=NONE, rejection=NONE),
        Rule(draft="greedy", rejection=STANDARD),
        Rule(draft="probabilistic", rejection=STANDARD),
        Rule(draft="greedy", rejection=BLOCK),
        Rule(draft="probabilistic", rejection=BLOCK),
    )
}


@dataclass(slots=True, kw_only=True)
class Counts:
    """What a run did."""

    steps: int = 0
    drafted_steps: int = 0
    """Steps of one request that verified drafts."""
    accepted: int = 0
    """Draft tokens accepted."""
    rejections: int = 0
    """Steps of one request that rejected a draft."""


class Run:
    """One rule on one build, from the first request to the end of the last."""

    def __init__(
        self,
        rule: Rule,
        chain: Chain,
        requests: Requests,
        *,
        sampling: Sampling,
        drafter: Drafter | None,
        num_rows: int,
    ) -> None:
        """Begin; `drafter` is None for no drafts, `num_rows` requests go on at a time."""
        self.counts = Counts()
        count = len(requests.seeds)
        self.texts = np.zeros((count, requests.text_length), np.int64)
        """[num_requests, text_length]: what each request wrote so far."""
        self._rule, self._chain, self._requests = rule, chain, requests
        self._sampling, self._drafter = sampling, drafter
        self._target = torch.from_numpy(chain.target_logits)
        num_slots = num_slots_for(num_rows)
        self._slots = Slots(
            temperature=torch.zeros(num_slots),
            seeds=torch.zeros(num_slots, dtype=torch.int64),
            last_sampled=torch.zeros((num_slots, 1), dtype=torch.int64),
        )
        self._free = list(np.random.default_rng(0).permutation(num_slots))
        self._num_rows = num_rows
        self._next = 0
        # Requests under way, by row.
        self._going = np.zeros(0, np.int64)
        self._written = np.zeros(count, np.int64)
        self._slot = np.zeros(count, np.int32)
        self._drafts = np.zeros((count, chain.depth), np.int64)

    def steps(self) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int32]]]:
        """Run to the end; after every step return observations, as of `nulls`, and slots by row."""
        while True:
            self._admit()
            if not len(self._going):
                return
            yield self._step()

    def _admit(self) -> None:
        """Let ended requests go, and as many new ones in as there are rows."""
        ended = self._written[self._going] >= self._requests.text_length
        self._free.extend(self._slot[self._going[ended]])
        self._going = self._going[~ended]
        last = min(len(self._requests.seeds), self._next + self._num_rows - len(self._going))
        new = np.arange(self._next, last)
        self._next = last
        slots = np.array([self._free.pop(0) for _ in new], np.int64)
        self._slot[new] = slots
        self._slots.temperature[slots] = torch.from_numpy(self._requests.temperatures[new])
        self._slots.seeds[slots] = torch.from_numpy(self._requests.seeds[new])
        self._going = np.concatenate([self._going, new])

    def _step(self) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        batch = self._batch()
        logits = self._sampling.scaled(self._target[batch.tokens], batch, self._slots)
        observed, sampled, num_sampled = self._sampled(logits, batch)
        self._write(sampled.numpy(), num_sampled.numpy())
        self._count(batch, num_sampled.numpy())
        slots = self._slot[self._going]
        last = self._texts_at(self._written[self._going] - 1)
        self._slots.last_sampled[slots, 0] = torch.from_numpy(last)
        if self._drafter is not None:
            drafts = self._drafter.draft(batch, num_sampled, self._slots)
            self._drafts[self._going] = drafts.numpy()
        return observed.numpy(), slots

    def _batch(self) -> Batch:
        going, written = self._going, self._written[self._going]
        left = self._requests.text_length - written - 1
        can_draft = (written > 0) & (self._drafter is not None)
        num_drafts = np.where(can_draft, np.minimum(left, self._chain.depth), 0)
        last = np.where(
            written > 0, self._texts_at(written - 1), self._requests.prompt_tokens[going]
        )
        tokens = np.concatenate([last[:, None], self._drafts[going]], axis=1)
        place = self._requests.prompt_lengths[going] - 1 + written
        offsets = np.arange(1 + self._chain.depth)
        inside = offsets <= num_drafts[:, None]
        num_rows = (num_drafts + 1).astype(np.int32)
        return Batch(
            slots=torch.from_numpy(self._slot[going]),
            tokens=torch.from_numpy(tokens[inside]),
            positions=torch.from_numpy((place[:, None] + offsets)[inside]),
            starts=torch.from_numpy(np.concatenate([[0], np.cumsum(num_rows)]).astype(np.int32)),
            num_rows=num_rows,
        )

    def _sampled(self, logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return observations, emitted tokens [num_requests, ...] and how many of each."""
        if self._drafter is None or len(batch.tokens) == len(batch.slots):
            tokens = self._sampling.sample(logits, batch, self._slots)
            temperature = self._slots.temperature[batch.slots.long()]
            observed = observe_sampling(logits, tokens, temperature)
            return observed, tokens[:, None], torch.ones(len(tokens), dtype=torch.int32)
        draft_logits = self._drafter.draft_logits
        sampled, num_sampled = self._sampling.verify(
            logits,
            draft_logits,
            batch,
            self._slots,
            depth=self._chain.depth,
            block=self._rule.rejection == BLOCK,
        )
        given = Verification(
            target_logits=logits,
            draft_logits=draft_logits,
            draft_sampled=batch.tokens,
            cu_num_logits=batch.starts,
            idx_mapping=batch.slots,
            temperature=self._slots.temperature,
            sampled=sampled,
            num_sampled=num_sampled,
            rule=self._rule.rejection,
        )
        return observe_verification(given), sampled, num_sampled

    def _write(self, sampled: NDArray[Any], num_sampled: NDArray[Any]) -> None:
        written = self._written[self._going]
        for offset in range(sampled.shape[1]):
            more = num_sampled > offset
            self.texts[self._going[more], written[more] + offset] = sampled[more, offset]
        self._written[self._going] += num_sampled

    def _count(self, batch: Batch, num_sampled: NDArray[Any]) -> None:
        drafted = batch.num_rows > 1
        self.counts.steps += 1
        self.counts.drafted_steps += int(drafted.sum())
        self.counts.accepted += int((num_sampled - 1)[drafted].sum())
        self.counts.rejections += int((num_sampled < batch.num_rows)[drafted].sum())

    def _texts_at(self, place: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return a token of each request under way, any where it has none yet."""
        return np.asarray(self.texts[self._going, np.maximum(place, 0)])


def num_slots_for(num_rows: int) -> int:
    """Return how many slots `num_rows` requests at a time are spread over."""
    return num_rows + SPARE_SLOTS
