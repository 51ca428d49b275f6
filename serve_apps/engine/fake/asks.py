"""What a request asks of the stand-in, or why vLLM would refuse it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from serve_apps.engine.fake import scores
from serve_apps.engine.fake.chain import VOCABULARY
from serve_apps.engine.fake.knobs import Asked
from serve_apps.engine.fake.scholar import GARBAGE, KNOWN, answer_to, pieces
from serve_apps.engine.fake.simulator import Request
from serve_apps.engine.fake.words import encode

NO_REQUEST = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""What reading a body raises that is no request at all."""
_LEAST_TEMPERATURE = 0.01
"""Of those above 0."""


class RefusedError(Exception):
    """The request is answered with an HTTP error; status, message and vLLM's name of its kind."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError") -> None:
        super().__init__(status, message, kind)
        self.status = status
        self.message = message
        self.kind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request, as far as the stand-in understands it."""

    request: Request
    is_chat: bool = False
    is_streamed: bool = False
    with_usage: bool = False
    with_ids: bool = False
    num_logprobs: int | None = None
    """Of the sampled tokens; None for none."""
    names_ids: bool = False
    """Whether tokens are called ``token_id:N`` there."""
    num_prompt_logprobs: int | None = None
    deltas: tuple[Mapping[str, Any], ...] = ()
    """An answer that is known, one piece a token; empty for the chain's words."""


def parse_ask(
    body: Mapping[str, Any],
    asked: Asked,
    names: Sequence[str],
    *,
    is_chat: bool,
    says_garbage: bool = False,
) -> Ask:
    """Return what a request asks.

    Args:
        body: The request's JSON.
        asked: The engine's command line.
        names: Models that it serves.
        is_chat: Whether it came to the chat endpoint.
        says_garbage: Whether questions that it could answer are answered with garbage.

    Raises:
        RefusedError: vLLM would refuse it.
        NO_REQUEST: One of its members.
    """
    if body.get("model", names[0]) not in names:
        raise RefusedError(404, f"The model `{body['model']}` does not exist.", "NotFoundError")
    prompt = prompt_ids(body)
    _check_room(len(prompt), asked.max_model_len)
    said = answer_to(body, KNOWN) if is_chat and not body.get("ignore_eos") else None
    if said is not None and says_garbage:
        said = GARBAGE
    deltas = () if said is None else tuple(pieces(said))
    options = body.get("stream_options") or {}
    ask = Ask(
        request=Request(
            prompt=prompt,
            max_tokens=_max_tokens(body, asked.max_model_len if is_chat else 16),
            temperature=_temperature(body),
            ignore_eos=bool(body.get("ignore_eos")),
            seed=body.get("seed"),
            end=None if said is None else (len(deltas), said.finish),
        ),
        is_chat=is_chat,
        is_streamed=bool(body.get("stream")),
        with_usage=bool(options.get("include_usage")),
        deltas=deltas,
    )
    return ask if is_chat else _with_tokens(ask, body, asked.max_logprobs)


def prompt_ids(body: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the tokens of a request's prompt.

    Raises:
        RefusedError: It is empty, or names tokens that there are not.
        NO_REQUEST: One of its members: it is no prompt.
    """
    if "messages" in body:
        return encode("\n".join(f"{m['role']}: {m['content']}" for m in body["messages"]))
    prompt = body["prompt"]
    if isinstance(prompt, str):
        return encode(prompt)
    if any(type(item) is not int for item in prompt):
        return encode(" ".join(map(str, prompt)))
    if not prompt:
        raise RefusedError(400, "The prompt is empty (parameter=prompt)")
    for token in (min(prompt), max(prompt)):
        if not 0 <= token < VOCABULARY:
            raise RefusedError(400, f"Token id {token} is out of vocabulary (parameter=prompt)")
    return tuple(prompt)


def _check_room(num_prompt_tokens: int, max_model_len: int) -> None:
    """Refuse a prompt that leaves no room; of an answer that finds too little the end is cut."""
    if num_prompt_tokens + 1 > max_model_len:
        raise RefusedError(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
            f"contains {num_prompt_tokens} input tokens, which exceeds this limit even without any "
            "output tokens. Please reduce the length of the input prompt. "
            f"(parameter=input_tokens, value={num_prompt_tokens})",
        )


def _max_tokens(body: Mapping[str, Any], default: int) -> int:
    wanted = body.get("max_completion_tokens") or body.get("max_tokens")
    number = int(default if wanted is None else wanted)
    if number < 1:
        raise RefusedError(400, f"max_tokens must be at least 1, got {number}.")
    return number


def _temperature(body: Mapping[str, Any]) -> float:
    wanted = 1.0 if body.get("temperature") is None else float(body["temperature"])
    if not 0 <= wanted < math.inf:
        raise RefusedError(400, f"temperature must be non-negative and finite, got {wanted}.")
    # As vLLM: below it numbers are no longer told from infinite ones.
    return max(wanted, _LEAST_TEMPERATURE) if wanted > 0 else 0.0


def _with_tokens(ask: Ask, body: Mapping[str, Any], max_logprobs: int) -> Ask:
    """Return the ask with what only the completions endpoint says of tokens."""
    message = scores.refusal(body, vocabulary=VOCABULARY, max_logprobs=max_logprobs)
    if message is not None:
        raise RefusedError(400, message)
    return replace(
        ask,
        with_ids=bool(body.get("return_token_ids")),
        num_logprobs=body.get("logprobs"),
        names_ids=bool(body.get("return_tokens_as_token_ids")),
        num_prompt_logprobs=body.get("prompt_logprobs"),
    )
