"""One request as it is to be made, and its JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.core.sampling import Shaping
from orchestrator.errors import ConfigError
from orchestrator.load.prompts import EXTRA_KEYS

VLLM_EXTRA_KEYS = ("chat_template_kwargs",)
"""Those that OpenAI's own API refuses."""

COMPLETIONS_EXTRA_KEYS = ("response_format",)
"""Those that mean something without messages; vLLM only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the engine is to sample; every value is written into the request.

    An engine fills in what a request leaves out from the model's generation_config, which would
    make the sampling depend on a file that is no part of the study.
    """

    temperature: float
    shaping: Shaping
    seed: int
    max_tokens: int
    ignore_eos: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request to make.

    Raises:
        ConfigError: The parts do not fit each other, the endpoint or the dialect.
    """

    request_id: str
    prompt_id: str
    prompt: str
    endpoint: Literal["chat", "completions"]
    model: str
    sampling: Sampling
    messages: tuple[Mapping[str, object], ...] = ()
    """The conversation, chat only; empty for one user message with the prompt."""
    extra: Mapping[str, object] = field(default_factory=dict)
    """Further parameters, of ``EXTRA_KEYS`` only, as ``prompts`` has checked them."""
    dialect: Literal["vllm", "openai"] = "vllm"
    """``openai`` sends only what OpenAI's own API knows, for servers that refuse the rest."""
    continuous_usage: bool = True
    """Asks for the count of tokens with each chunk; the ``vllm`` dialect only."""

    def __post_init__(self) -> None:
        if self.messages and self.endpoint != "chat":
            raise ConfigError("messages", "the completions endpoint has none", "use chat")
        if self.dialect == "openai":
            _check_openai(self.sampling)
        _check_extra(self)


def request_body(call: Call) -> dict[str, Any]:
    """Return the JSON body of the call, with its sampling written out in full."""
    sampling, shaping = call.sampling, call.sampling.shaping
    body: dict[str, Any] = {
        "model": call.model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": sampling.temperature,
        "top_p": shaping.top_p,
        "presence_penalty": shaping.presence_penalty,
        "frequency_penalty": shaping.frequency_penalty,
        "seed": sampling.seed,
        "max_tokens": sampling.max_tokens,
    }
    if call.dialect == "vllm":
        body |= {
            "top_k": shaping.top_k,
            "min_p": 0.0,
            "repetition_penalty": shaping.repetition_penalty,
            "ignore_eos": sampling.ignore_eos,
        }
        if call.continuous_usage:
            body["stream_options"]["continuous_usage_stats"] = True
    if call.endpoint == "completions":
        body["prompt"] = call.prompt
    elif call.messages:
        body["messages"] = [dict(message) for message in call.messages]
    else:
        body["messages"] = [{"role": "user", "content": call.prompt}]
    return body | dict(call.extra)


def _check_openai(sampling: Sampling) -> None:
    shaping = sampling.shaping
    if shaping.top_k != 0:
        raise ConfigError(
            "top_k", f"OpenAI's API has no top_k, but it is {shaping.top_k}", "set it to 0"
        )
    if sampling.ignore_eos:
        raise ConfigError("ignore_eos", "OpenAI's API cannot ignore ends", "set it to false")
    if shaping.repetition_penalty != 1.0:
        raise ConfigError("repetition_penalty", "OpenAI's API has none", "set it to 1.0")


def _check_extra(call: Call) -> None:
    for key in call.extra:
        where = f"extra.{key}"
        if key not in EXTRA_KEYS:
            allowed = ", ".join(EXTRA_KEYS)
            raise ConfigError(where, "a request may not add it", f"use only {allowed}")
        if call.dialect == "openai" and key in VLLM_EXTRA_KEYS:
            raise ConfigError(where, "OpenAI's API does not know it", "leave it out")
        is_bare = call.endpoint == "completions"
        if is_bare and (call.dialect == "openai" or key not in COMPLETIONS_EXTRA_KEYS):
            raise ConfigError(where, "the completions endpoint does not know it", "use chat")
