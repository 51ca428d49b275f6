"""The JSON of one answer, whole or as the events of a stream. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from serve_apps.engine.fake import scores
from serve_apps.engine.fake.asks import Ask
from serve_apps.engine.fake.chain import Chain, Floats
from serve_apps.engine.fake.scholar import message
from serve_apps.engine.fake.words import decode, word_of


class Reply:
    """One answer.

    Args:
        ask: What was asked.
        chain: What tokens were drawn from.
        model: The served name.
        build: What the engine says of its build.
    """

    def __init__(self, ask: Ask, chain: Chain, *, model: str, build: str) -> None:
        self._ask = ask
        self._chain = chain
        self._made: list[int] = []
        self._kind = "chat.completion" if ask.is_chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if ask.is_chat else 'cmpl'}-{time.monotonic_ns():x}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": build,
        }

    def whole(self, tokens: Sequence[int], reason: str | None) -> dict[str, Any]:
        """Return the answer in one piece."""
        ask = self._ask
        if ask.deltas:
            content: dict[str, Any] = {"message": message(ask.deltas[: len(tokens)])}
        elif ask.is_chat:
            content = {"message": {"role": "assistant", "content": decode(tokens)}}
        else:
            content = {"text": decode(tokens), **self._tokens(tokens)}
            if ask.num_prompt_logprobs is not None:
                content["prompt_logprobs"] = scores.prompt_logprobs(
                    ask.request.prompt, ask.num_prompt_logprobs, stated=self._stated, name=word_of
                )
        self._made += tokens
        choice = {"index": 0, "logprobs": None, **content, "finish_reason": reason}
        return {**self._head, "object": self._kind, "choices": [choice], "usage": self._usage()}

    def start(self) -> list[dict[str, Any]]:
        """Return the events before the first token."""
        if not self._ask.is_chat:
            return []
        return [self._event({"delta": {"role": "assistant", "content": ""}}, None)]

    def step(self, tokens: Sequence[int], reason: str | None) -> list[dict[str, Any]]:
        """Return the events of one step's tokens: one, or one for each piece of a known answer."""
        ask, first = self._ask, len(self._made)
        contents: list[dict[str, Any]]
        if ask.deltas:
            contents = [{"delta": delta} for delta in ask.deltas[first : first + len(tokens)]]
        elif ask.is_chat:
            contents = [{"delta": {"content": decode(tokens)}}]
        else:
            contents = [{"text": decode(tokens), **self._tokens(tokens)}]
        self._made += tokens
        *before, last = contents
        return [*(self._event(each, None) for each in before), self._event(last, reason)]

    def usage(self) -> dict[str, Any]:
        """Return the event of the counts."""
        return {**self._event_head(), "choices": [], "usage": self._usage()}

    def _usage(self) -> dict[str, int]:
        prompt, made = len(self._ask.request.prompt), len(self._made)
        return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}

    def _tokens(self, tokens: Sequence[int]) -> dict[str, Any]:
        """Return what a completion says of its next tokens besides their text."""
        ask, found = self._ask, dict[str, Any]()
        if ask.with_ids:
            found["token_ids"] = list(tokens)
            # With the first event of a stream only.
            found["prompt_token_ids"] = None if self._made else list(ask.request.prompt)
        if ask.num_logprobs is not None:
            found["logprobs"] = scores.sample_logprobs(
                [*ask.request.prompt, *self._made],
                tokens,
                ask.num_logprobs,
                stated=self._stated,
                name=_id_name if ask.names_ids else word_of,
                offset=len(decode(self._made)),
            )
        return found

    def _stated(self, previous: int, place: int) -> Floats:
        return scores.as_stated(self._chain.logprobs(previous, place))

    def _event(self, content: Mapping[str, Any], reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "logprobs": None, **content, "finish_reason": reason}
        return {**self._event_head(), "choices": [choice]}

    def _event_head(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._ask.is_chat else self._kind
        return {**self._head, "object": kind}


def _id_name(token: int) -> str:
    return f"token_id:{token}"
