"""A server whose tokens follow a known Markov chain, and who can be told to be wrong. Pure.

It samples, and it scores what others sampled, in the form of vLLM's completions: the other side of
the lossless test, whose right answer is known here.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from orchestrator.fakes.openai.engine import Engine, EngineSettings
from orchestrator.fakes.openai.script import Script, failure
from orchestrator.fakes.openai.server import SseServer

Floats = npt.NDArray[np.float64]

MODEL = "markov"
CLAMPED = -9999.0
"""What vLLM writes for minus infinity."""
DISPLACED_RANK = 8
"""Where displaced tokens go, from 1."""

Garble = Callable[[dict[str, Any]], object]
"""Changes a completion in place before it is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkovSettings:
    """The chain, and what is wrong with the server."""

    vocabulary: int = 128
    seed: int = 0
    """Of the chain: servers with the same one serve the same target."""
    exponent: float = 1.4
    """Probability of a rank is about rank ** -exponent."""
    max_model_len: int = 1024
    max_logprobs: int = -1
    """As vLLM's argument of this name; its own default is 20."""
    temperature_factor: float = 1.0
    """Served temperature / asked temperature."""
    displaced: float = 0.0
    """Share of the sampled tokens that are replaced by the one of rank ``DISPLACED_RANK``."""
    top_k: int = 0
    """Applied to every request without a word; 0 is no limit."""
    scorer_temperature: float = 1.0
    """Of the probabilities that it states; above 0."""
    scorer_offset: float = 0.0
    """Added to every log probability that it states."""
    num_banned: int = 0
    """How many tokens have probability 0 in what it states."""
    garble: Garble = lambda _body: None


class MarkovModel:
    """Samples and scores.

    Args:
        settings: The chain, and what is wrong.
    """

    def __init__(self, settings: MarkovSettings | None = None) -> None:
        self.settings = settings or MarkovSettings()
        num = self.settings.vocabulary
        rng = np.random.default_rng(self.settings.seed)
        # Not all rows alike: some nearly certain, some nearly flat.
        exponents = self.settings.exponent * rng.uniform(0.5, 1.5, size=num)
        logits = -exponents[:, None] * np.log(np.arange(1, num + 1))
        logits += 0.1 * rng.standard_normal(logits.shape)
        self._logits = rng.permuted(logits, axis=1)

    def logprobs(self, previous: int) -> Floats:
        """Return the log probabilities of the next token, [vocabulary], of the target itself."""
        return _log_softmax(self._logits[previous])

    def answer(self, body: Mapping[str, Any]) -> Script:
        """Return the answer to a request of the completions endpoint, an HTTP error included."""
        settings = self.settings
        if body.get("model") != MODEL:
            message = f"The model `{body.get('model')}` does not exist."
            return failure(404, message, kind="NotFoundError")
        prompt = self._prompt(body.get("prompt"))
        if isinstance(prompt, Script):
            return prompt
        max_tokens = int(body.get("max_tokens") or 16)
        if len(prompt) + max_tokens > settings.max_model_len:
            return failure(
                400, f"This model's maximum context length is {settings.max_model_len} tokens. "
                f"However, you requested {max_tokens} output tokens and your prompt contains "
                f"{len(prompt)} input tokens.",
            )  # fmt: skip
        limit = settings.vocabulary if settings.max_logprobs < 0 else settings.max_logprobs
        for name, text in (("prompt_logprobs", "prompt"), ("logprobs", "sample")):
            wanted = body.get(name) or 0
            wanted = settings.vocabulary if wanted < 0 else wanted
            if wanted > limit:
                return failure(
                    400, f"Requested {text} logprobs of {wanted}, which is greater than max "
                    f"allowed: {limit} (parameter={name}, value={wanted})",
                )  # fmt: skip
        return self._completion(body, prompt, max_tokens)

    def _prompt(self, prompt: object) -> list[int] | Script:
        num = self.settings.vocabulary
        if isinstance(prompt, str):
            return [zlib.crc32(word.encode()) % num for word in prompt.split() or [""]]
        ids = [int(item) for item in prompt] if isinstance(prompt, list) else []
        for token in ids:
            if not 0 <= token < num:
                return failure(400, f"Token id {token} is out of vocabulary")
        return ids or failure(400, "the prompt is empty")

    def _completion(self, body: Mapping[str, Any], prompt: list[int], max_tokens: int) -> Script:
        tokens = self._sample(prompt[-1], body, max_tokens)
        choice: dict[str, Any] = {
            "index": 0,
            "text": "".join(f"<{token}>" for token in tokens),
            "finish_reason": "length",
            "logprobs": None,
            "prompt_logprobs": None,
        }
        if body.get("return_token_ids"):
            choice |= {"prompt_token_ids": prompt, "token_ids": tokens}
        if num_logprobs := body.get("logprobs"):
            rows = self._decoded(prompt[-1], tokens, num_logprobs)
            choice["logprobs"] = {"top_logprobs": rows}
        if num_top := body.get("prompt_logprobs"):
            choice["prompt_logprobs"] = self._scores(prompt, num_top)
        answer = {
            "id": "cmpl-1",
            "object": "text_completion",
            "model": MODEL,
            "choices": [choice],
            "system_fingerprint": "markov-1",
            "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)},
        }
        self.settings.garble(answer)
        data = json.dumps(answer).encode()
        return Script(parts=(data,), content_type="application/json", prompt_tokens=len(prompt))

    def _sample(self, previous: int, body: Mapping[str, Any], num_tokens: int) -> list[int]:
        temperature = float(body.get("temperature", 1.0)) * self.settings.temperature_factor
        # Seeds of requests differ in a bit or two; a generator's own mixing tells them apart.
        rng = np.random.default_rng([self.settings.seed, int(body.get("seed") or 0)])
        tokens = []
        for _ in range(num_tokens):
            previous = self._next(self._logits[previous], temperature, rng)
            tokens.append(previous)
        return tokens

    def _next(self, logits: Floats, temperature: float, rng: np.random.Generator) -> int:
        ranked = np.argsort(-logits)
        if rng.random() < self.settings.displaced:
            return int(ranked[DISPLACED_RANK - 1])
        if temperature == 0:
            return int(ranked[0])
        kept = ranked[: self.settings.top_k or len(ranked)]
        masses = np.cumsum(np.exp(_log_softmax(logits[kept] / temperature)))
        return int(kept[min(int(np.searchsorted(masses, rng.random())), len(kept) - 1)])

    def _scores(self, prompt: Sequence[int], num_top: int) -> list[dict[str, Any] | None]:
        rows: list[dict[str, Any] | None] = [None]
        for previous, token in pairwise(prompt):
            stated = self._stated(previous)
            ranked = np.argsort(-stated, kind="stable")
            rank = int(np.flatnonzero(ranked == token)[0]) + 1
            num = len(ranked) if num_top < 0 else num_top
            named = [(token, rank), *((int(t), r) for r, t in enumerate(ranked[:num], start=1))]
            rows.append(
                {
                    str(t): {"logprob": float(stated[t]), "rank": r, "decoded_token": f"<{t}>"}
                    for t, r in named
                }
            )
        return rows

    def _stated(self, previous: int) -> Floats:
        settings = self.settings
        stated = _log_softmax(self._logits[previous] / settings.scorer_temperature)
        stated[: settings.num_banned] = CLAMPED
        # As an engine, which computes and states them in single precision.
        return (stated + settings.scorer_offset).astype(np.float32).astype(np.float64)

    def _decoded(
        self, previous: int, tokens: Sequence[int], num_logprobs: int
    ) -> list[dict[str, float]]:
        rows = []
        for token in tokens:
            logprobs = self.logprobs(previous)
            named = [token, *np.argsort(-logprobs)[:num_logprobs].tolist()]
            rows.append({f"token_id:{t}": float(logprobs[t]) for t in named})
            previous = token
        return rows


def markov_server(settings: MarkovSettings | None = None) -> SseServer:
    """Return a server that answers as the chain does."""
    model = MarkovModel(settings)
    limit = model.settings.max_model_len
    engine = Engine(EngineSettings(models=(MODEL,), max_model_len=limit))
    server = SseServer(engine=engine, behaviour=lambda _number, body: model.answer(body))
    server.keeps_requests = False
    return server


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))
