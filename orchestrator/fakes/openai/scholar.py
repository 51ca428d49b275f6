"""A served model that does what it is asked: tools, schemas, images, reasoning. Pure.

Its faults are made by others around it: a behaviour is a function, and one that spoils its answers
is another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.fakes.openai.engine import count_prompt
from orchestrator.fakes.openai.events import DONE, chat, event
from orchestrator.fakes.openai.script import Script, failure
from serve_apps.engine.fake.scholar import Said, answer_to, message, pieces, thought


@dataclass(frozen=True, slots=True, kw_only=True)
class Scholar:
    """A model and what its server was started with."""

    knows: Mapping[str, str] = field(default_factory=dict)
    """A part of a question to its answer, or to the arguments of the tool that it wants."""
    calls_tools: bool = True
    takes_images: bool = True
    thinks: bool = True
    max_model_len: int | None = None
    """Longest prompt and answer together, in words."""

    def answer(self, _number: int, body: Mapping[str, Any]) -> Script:
        """Return the answer to a request of the chat endpoint; a ``Behaviour``."""
        limit = self.max_model_len
        if limit is not None and count_prompt(body) + body["max_tokens"] > limit:
            return failure(400, f"This model's maximum context length is {limit} tokens.")
        if "tools" in body and not self.calls_tools:
            return failure(400, '"auto" tool choice requires --enable-auto-tool-choice')
        if isinstance(body["messages"][-1]["content"], list) and not self.takes_images:
            return failure(400, "the model is not a multimodal model")
        said = answer_to(body, self.knows)
        if said is None:
            said = Said(content="That is not known here.", reasoning=thought(body))
        return script_of(body, said if self.thinks else replace(said, reasoning=""))


def script_of(body: Mapping[str, Any], said: Said) -> Script:
    """Return what was said in the form that the request asks for: whole, or in small pieces."""
    usage = {"prompt_tokens": count_prompt(body), "completion_tokens": 1 + len(said.content) // 4}
    if body.get("stream") is True:
        deltas = [{"role": "assistant", "content": ""}, *pieces(said)]
        parts = (*map(chat, deltas), chat({}, said.finish))
        return Script(parts=(*parts, event({"choices": [], "usage": usage}), DONE))
    choice = {"index": 0, "message": message(pieces(said)), "finish_reason": said.finish}
    item = {"object": "chat.completion", "choices": [choice], "usage": usage}
    return Script(parts=(json.dumps(item).encode(),), content_type="application/json")
