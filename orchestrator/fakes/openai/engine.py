"""The engine behind the fake server: what it answers, and counters that agree with it. Pure."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from orchestrator.fakes.openai.events import DONE
from orchestrator.fakes.openai.script import Chunk, Part, Script, failure, wants


def _split(names: str) -> tuple[str, ...]:
    return tuple(names.split())


DEFAULT_MAX_TOKENS = 16
"""What OpenAI's and vLLM's completions generate when a request does not say."""

FIRST_START_S = 1.7e9
RESTART_S = 60.0
"""When the engine started, Unix time, and how much later it does when it starts again."""

OPENAI_KEYS = _split(
    "model messages prompt stream stream_options temperature top_p seed max_tokens"
    " max_completion_tokens n stop presence_penalty frequency_penalty logit_bias logprobs"
    " top_logprobs user tools tool_choice parallel_tool_calls response_format metadata"
    " reasoning_effort service_tier store echo best_of suffix"
)
"""Parameters of OpenAI's own API; it refuses any other."""

WORDS = _split(
    "time year way day thing man world life hand part child eye woman place work week case point"
    " company number group problem fact house water room area money story month lot right study"
    " book word business issue side kind head service friend father power hour game line end"
    " member law car city community name president team minute idea kid body information back"
    " parent face others level office door health person art war history party result change"
    " morning reason research girl guy moment air teacher force education"
)
"""What answers are made of, one word a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What the engine is and which faults it has."""

    models: tuple[str, ...] = ()
    """Models that it serves; empty for any name."""
    max_model_len: int | None = None
    """Longest prompt and answer together, in tokens."""
    tokens_per_chunk: int = 1
    ttft_s: float = 0.0
    gap_s: float = 0.0
    """Between chunks; with a ``ttft_s`` of 0 too, chunks are sent as fast as they can be."""
    eos_after: int | None = None
    """Tokens after which an answer ends by itself, unless the request ignores ends."""
    num_speculative_tokens: int = 0
    """Draft depth; 0 publishes no ``spec_decode`` counters."""
    max_num_seqs: int | None = None
    """Requests at a time; others wait."""
    is_strict: bool = False
    """Refuses parameters that OpenAI's own API does not know."""
    has_continuous_usage: bool = True
    """Whether it knows ``continuous_usage_stats``; an engine that does not ignores it."""
    cached_share: float = 0.0
    """Share of each prompt that comes from the prefix cache, 0 to 1."""
    foreign_tokens: int = 0
    """Tokens that somebody else's traffic adds to the counters with each request."""


@dataclass(slots=True)
class Counters:
    """What the engine has done since it started."""

    generation_tokens: int = 0
    prompt_tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    accepted_per_pos: list[int] = field(default_factory=list)
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_preemptions: int = 0
    running: int = 0
    waiting: int = 0


class Engine:
    """Answers requests and counts what it generated.

    Args:
        settings: What it is and which faults it has.
    """

    def __init__(self, settings: EngineSettings | None = None) -> None:
        self.settings = settings or EngineSettings()
        self.counters = Counters(accepted_per_pos=[0] * self.settings.num_speculative_tokens)
        self.created_s = FIRST_START_S

    def restart(self) -> None:
        """Start all counters anew, as a process that died and lives again does."""
        self.counters = Counters(accepted_per_pos=[0] * self.settings.num_speculative_tokens)
        self.created_s += RESTART_S

    def answer(self, body: Mapping[str, Any]) -> Script:
        """Return the answer to a request, an HTTP error included."""
        settings = self.settings
        model = str(body.get("model", ""))
        if settings.models and model not in settings.models:
            return failure(404, f"The model `{model}` does not exist.", kind="NotFoundError")
        if settings.is_strict and (unknown := sorted(body.keys() - set(OPENAI_KEYS))):
            message = f"Unrecognized request argument supplied: {unknown[0]}"
            return failure(400, message, param=unknown[0])
        prompt_tokens = count_prompt(body)
        wanted = body.get("max_tokens") or body.get("max_completion_tokens") or DEFAULT_MAX_TOKENS
        limit = settings.max_model_len
        if limit is not None and prompt_tokens + wanted > limit:
            return failure(
                400,
                f"This model's maximum context length is {limit} tokens. However, you requested "
                f"{wanted} output tokens and your prompt contains {prompt_tokens} input tokens.",
            )
        end = settings.eos_after
        is_short = end is not None and end < wanted and body.get("ignore_eos") is not True
        ask = _Ask(
            model=model,
            is_chat="messages" in body,
            prompt_tokens=prompt_tokens,
            cached_tokens=int(prompt_tokens * settings.cached_share),
            output_tokens=end if is_short and end is not None else wanted,
            finish="stop" if is_short else "length",
            has_usage=wants(body, "include_usage"),
            is_continuous=settings.has_continuous_usage and wants(body, "continuous_usage_stats"),
            first_word=_first_word(body),
        )
        if body.get("stream") is not True:
            return _whole(ask)
        return _stream(ask, settings)

    def start(self, script: Script) -> None:
        """Count the prompt of an answer that starts."""
        self.counters.prompt_tokens += script.prompt_tokens
        self.counters.prefix_cache_queries += script.prompt_tokens
        self.counters.prefix_cache_hits += script.cached_tokens
        self.counters.generation_tokens += self.settings.foreign_tokens

    def generate(self, tokens: int, *, is_first: bool) -> None:
        """Count tokens that go out; those of the prefill, an answer's first, had no draft."""
        counters = self.counters
        counters.generation_tokens += tokens
        depth = self.settings.num_speculative_tokens
        left = 0 if is_first or not depth else tokens
        while left > 0:
            step = min(depth + 1, left)
            left -= step
            counters.num_drafts += 1
            counters.num_draft_tokens += depth
            for position in range(step - 1):
                counters.accepted_per_pos[position] += 1

    def models(self) -> dict[str, object]:
        """Return the list of models as JSON."""
        limit = self.settings.max_model_len
        names = self.settings.models or ("fake",)
        items = [{"id": name, "object": "model", "max_model_len": limit} for name in names]
        return {"object": "list", "data": items}

    def metrics(self) -> str:
        """Return the counters as vLLM publishes them."""
        counters = self.counters
        model = self.settings.models[0] if self.settings.models else "fake"
        labels = f'engine="0",model_name="{model}"'
        totals: dict[str, float] = {
            "generation_tokens": counters.generation_tokens,
            "prompt_tokens": counters.prompt_tokens,
            "prefix_cache_queries": counters.prefix_cache_queries,
            "prefix_cache_hits": counters.prefix_cache_hits,
            "num_preemptions": counters.num_preemptions,
        }
        if self.settings.num_speculative_tokens:
            totals |= {
                "spec_decode_num_drafts": counters.num_drafts,
                "spec_decode_num_draft_tokens": counters.num_draft_tokens,
                "spec_decode_num_accepted_tokens": sum(counters.accepted_per_pos),
            }
        start = "process_start_time_seconds"
        lines = [f"# TYPE {start} gauge", f"{start} {self.created_s}"]
        for total, value in totals.items():
            lines += _counter(f"vllm:{total}", labels, value, created_s=self.created_s)
        if self.settings.num_speculative_tokens:
            name = "vllm:spec_decode_num_accepted_tokens_per_pos"
            lines.append(f"# TYPE {name} counter")
            for position, count in enumerate(counters.accepted_per_pos):
                lines.append(f'{name}_total{{{labels},position="{position}"}} {float(count)}')
        gauges: dict[str, float] = {
            "num_requests_running": float(counters.running),
            "num_requests_waiting": float(counters.waiting),
            "kv_cache_usage_perc": 0.0,
        }
        for name, gauge in gauges.items():
            lines += [f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{labels}}} {gauge}"]
        return "\n".join(lines) + "\n"


def count_prompt(body: Mapping[str, Any]) -> int:
    """Return the tokens of a request's prompt: its words, 1 at least, or its token ids."""
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return max(1, len(prompt))
    return max(1, len(_prompt_text(body).split()))


def _prompt_text(body: Mapping[str, Any]) -> str:
    if "messages" in body:
        contents = [message.get("content") or "" for message in body["messages"]]
        return " ".join(c if isinstance(c, str) else json.dumps(c) for c in contents)
    return str(body.get("prompt", ""))


def _first_word(body: Mapping[str, Any]) -> int:
    """Return where in WORDS the answer starts: by prompt and seed, so that both repeat it."""
    return (zlib.crc32(_prompt_text(body).encode()) + 7 * (body.get("seed") or 0)) % len(WORDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    """All that an answer depends on."""

    model: str
    is_chat: bool
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    finish: str
    has_usage: bool
    is_continuous: bool
    first_word: int

    def words(self, start: int, end: int) -> str:
        stride = 1 + self.first_word % 7
        return "".join(
            WORDS[(self.first_word + stride * index + index // len(WORDS)) % len(WORDS)] + " "
            for index in range(start, end)
        )

    def usage(self, tokens: int) -> dict[str, object]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + tokens,
            "completion_tokens": tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    def item(self, *, is_stream: bool) -> dict[str, object]:
        kind = "text_completion"
        if self.is_chat:
            kind = "chat.completion.chunk" if is_stream else "chat.completion"
        return {"id": "cmpl-0", "object": kind, "created": 0, "model": self.model}


@lru_cache(maxsize=512)
def _stream(ask: _Ask, settings: EngineSettings) -> Script:
    """Return a streamed answer, encoded once for all requests like it."""
    is_paced = settings.ttft_s > 0 or settings.gap_s > 0
    parts: list[Part] = []
    at_s: float | None = settings.ttft_s if is_paced else None
    if ask.is_chat:
        parts.append(Chunk(data=_chunk(ask, {"role": "assistant", "content": ""}, 0), at_s=at_s))
    for start in range(0, ask.output_tokens, settings.tokens_per_chunk):
        end = min(start + settings.tokens_per_chunk, ask.output_tokens)
        finish = ask.finish if end == ask.output_tokens else None
        words = ask.words(start, end)
        value = {"content": words} if ask.is_chat else words
        data = _chunk(ask, value, end, finish)
        parts.append(Chunk(data=data, tokens=end - start, at_s=at_s))
        if at_s is not None:
            at_s += settings.gap_s
    last = DONE
    if ask.has_usage:
        counts = {"choices": [], "usage": ask.usage(ask.output_tokens)}
        last = _compact(ask.item(is_stream=True) | counts) + DONE
    return Script(
        parts=(*parts, Chunk(data=last)),
        prompt_tokens=ask.prompt_tokens,
        cached_tokens=ask.cached_tokens,
    )


def _chunk(ask: _Ask, value: object, tokens: int, finish: str | None = None) -> bytes:
    key = "delta" if ask.is_chat else "text"
    choice = {"index": 0, key: value, "logprobs": None, "finish_reason": finish}
    item = ask.item(is_stream=True) | {"choices": [choice]}
    if ask.is_continuous:
        item["usage"] = ask.usage(tokens)
    return _compact(item)


def _compact(item: object) -> bytes:
    return b"data: " + json.dumps(item, separators=(",", ":")).encode() + b"\n\n"


def _whole(ask: _Ask) -> Script:
    """Return an answer that is not streamed."""
    words = ask.words(0, ask.output_tokens)
    value = {"role": "assistant", "content": words} if ask.is_chat else words
    choice = {"index": 0, "message" if ask.is_chat else "text": value, "finish_reason": ask.finish}
    item = ask.item(is_stream=False) | {"choices": [choice], "usage": ask.usage(ask.output_tokens)}
    return Script(
        parts=(Chunk(data=json.dumps(item).encode(), tokens=ask.output_tokens),),
        content_type="application/json",
        prompt_tokens=ask.prompt_tokens,
        cached_tokens=ask.cached_tokens,
    )


def _counter(name: str, labels: str, value: float, *, created_s: float) -> list[str]:
    return [
        f"# TYPE {name} counter",
        f"{name}_total{{{labels}}} {float(value)}",
        f"# TYPE {name}_created gauge",
        f"{name}_created{{{labels}}} {created_s}",
    ]
