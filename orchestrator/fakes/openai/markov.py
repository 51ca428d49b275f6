"""A server whose tokens follow a known Markov chain, and who can be told to be wrong. Pure.

It samples, and it scores what others sampled, in the form of vLLM's completions: the other side of
the lossless test, whose right answer is known here.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.fakes.openai.engine import Engine, EngineSettings
from orchestrator.fakes.openai.script import Script, failure
from orchestrator.fakes.openai.server import SseServer
from serve_apps.engine.fake import scores
from serve_apps.engine.fake.chain import EXPONENT, TARGET_SEED, VOCABULARY, Chain, Floats

MODEL = "markov"

Garble = Callable[[dict[str, Any]], object]
"""Changes a completion in place before it is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkovSettings:
    """The chain, and what is wrong with the server."""

    vocabulary: int = VOCABULARY
    seed: int = TARGET_SEED
    """Of the chain: servers with the same one serve the same target."""
    exponent: float = EXPONENT
    """Of the chain."""
    max_model_len: int = 1024
    max_logprobs: int = -1
    """As vLLM's argument of this name; its own default is 20."""
    temperature_factor: float = 1.0
    """Served temperature / asked temperature."""
    displaced: float = 0.0
    """Share of the sampled tokens that are replaced by the one where displaced ones go."""
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
        self._chain = Chain(
            vocabulary=self.settings.vocabulary,
            seed=self.settings.seed,
            exponent=self.settings.exponent,
        )

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
        refusal = scores.refusal(
            body, vocabulary=settings.vocabulary, max_logprobs=settings.max_logprobs
        )
        if refusal is not None:
            return failure(400, refusal)
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
        tokens = self._sample(prompt, body, max_tokens)
        choice: dict[str, Any] = {
            "index": 0,
            "text": "".join(map(_name, tokens)),
            "finish_reason": "length",
            "logprobs": None,
            "prompt_logprobs": None,
        }
        if body.get("return_token_ids"):
            choice |= {"prompt_token_ids": prompt, "token_ids": tokens}
        if num_logprobs := body.get("logprobs"):
            choice["logprobs"] = scores.sample_logprobs(
                prompt, tokens, num_logprobs, stated=self._chain.logprobs, name=_id_name
            )
        if num_top := body.get("prompt_logprobs"):
            choice["prompt_logprobs"] = scores.prompt_logprobs(
                prompt, num_top, stated=self._stated, name=_name
            )
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

    def _sample(self, prompt: list[int], body: Mapping[str, Any], num_tokens: int) -> list[int]:
        settings = self.settings
        temperature = float(body.get("temperature", 1.0)) * settings.temperature_factor
        # Seeds of requests differ in a bit or two; a generator's own mixing tells them apart.
        rng = np.random.default_rng([settings.seed, int(body.get("seed") or 0)])
        tokens: list[int] = []
        previous = prompt[-1]
        for place in range(len(prompt), len(prompt) + num_tokens):
            if rng.random() < settings.displaced:
                previous = self._chain.displaced(previous, place)
            else:
                previous = self._chain.draw(
                    previous, place, temperature=temperature, chance=rng.random(),
                    top_k=settings.top_k,
                )  # fmt: skip
            tokens.append(previous)
        return tokens

    def _stated(self, previous: int, place: int) -> Floats:
        settings = self.settings
        stated = self._chain.logprobs(previous, place, settings.scorer_temperature)
        stated[: settings.num_banned] = -np.inf
        return scores.as_stated(stated + settings.scorer_offset)


def markov_server(settings: MarkovSettings | None = None) -> SseServer:
    """Return a server that answers as the chain does."""
    model = MarkovModel(settings)
    limit = model.settings.max_model_len
    engine = Engine(EngineSettings(models=(MODEL,), max_model_len=limit))
    server = SseServer(engine=engine, behaviour=lambda _number, body: model.answer(body))
    server.keeps_requests = False
    return server


def _name(token: int) -> str:
    return f"<{token}>"


def _id_name(token: int) -> str:
    return f"token_id:{token}"
