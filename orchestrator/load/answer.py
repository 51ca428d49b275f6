"""One answer while it arrives: events in, a record out. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.lines import folded
from orchestrator.core.requests import RequestFault, RequestRecord, TokenSource
from orchestrator.core.secrecy import hide_key, redact_text
from orchestrator.load.call import Call
from orchestrator.load.sse import DONE

MAX_ERROR_CHARS = 500
"""Longest error text kept in a record; engines answer with whole tracebacks."""

MAX_TEXT_CHARS = 64 << 20
"""Longest text kept of one answer; more than any model's context, and bounded."""

MAX_COUNT = 1 << 53
"""A larger count of tokens is none; JSON's numbers are not exact beyond it."""

BAD_ENDS = frozenset(("abort", "error"))
"""Finish reasons of vLLM and SGLang for answers that were given up."""

_decode = json.JSONDecoder().raw_decode


@dataclass(slots=True, kw_only=True)
class Answer:
    """What is known of one answer; moments are on the client's clock.

    Tokens are those of the answer's ``usage``, else those that the server states in another way:
    ``timings.predicted_n`` of llama.cpp, or the ``token_ids`` of vLLM's choices, counted.
    """

    started_s: float
    has_arrival: bool = False
    """Whether ``started_s`` is the moment of an arrival, which sending does not move."""
    key: str | None = None
    """The API key, which is never repeated."""
    chunk_moments_s: list[float] = field(default_factory=list)
    chunk_counts: list[int | None] = field(default_factory=list)
    """[num_chunks] output tokens up to each chunk; None where its event does not say."""
    texts: list[str] = field(default_factory=list)
    num_chars: int = 0
    tokens: int | None = None
    token_source: TokenSource = TokenSource.NONE
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    num_token_ids: int = 0
    finish_reason: str | None = None
    last_s: float | None = None
    is_done: bool = False
    fault: RequestFault | None = None
    error: str | None = None
    retry_after_s: float | None = None

    def send(self, now_s: float) -> None:
        """Note that the request is handed to the socket now, from which its times count."""
        if not self.has_arrival:
            self.started_s = now_s

    def fail(self, fault: RequestFault, error: str) -> None:
        """Note what went wrong."""
        self.fault = fault
        # The key first: of one that is cut in two, half would be left.
        self.error = shorten(folded(redact_text(fit_utf8(hide_key(error, self.key)))))
        self.is_done = True

    def take(self, events: list[str], now_s: float) -> None:
        """Read events that arrived together.

        Raises:
            ValueError: An event is no JSON object of the expected form.
        """
        for data in events:
            if data == DONE or data.strip() == DONE:
                self.is_done = True
                return
            self._take_event(parse(data), now_s)
            if self.fault is not None:
                return

    def close(self, content_type: str, head: str = "") -> None:
        """Judge an answer that is over: it is whole if it said why it ended, or ``[DONE]``.

        Args:
            content_type: The answer's.
            head: How it begins, for one without any event: often the reason as plain JSON.
        """
        if self.fault is not None:
            return
        if not self.is_done and self.finish_reason is None:
            if self.last_s is None:
                lines = [line for line in head.splitlines() if not line.startswith(":")]
                told = f": {error_message(body)}" if (body := "\n".join(lines).strip()) else ""
                self.fail(RequestFault.BROKEN, f"no event in an answer of {content_type}{told}")
            else:
                self.fail(RequestFault.BROKEN, "the stream ended before the answer did")
        elif self.finish_reason in BAD_ENDS:
            self.fail(RequestFault.BROKEN, f"the server ended the answer: {self.finish_reason}")
        elif self.tokens is None and not self.texts:
            self.fail(RequestFault.BROKEN, "the answer has neither text nor usage")

    def record(self, call: Call, *, origin_s: float, ended_s: float) -> RequestRecord:
        """Return what is known of the request now."""
        start_s = self.started_s
        times_s = tuple(moment - start_s for moment in self.chunk_moments_s)
        is_whole = self.fault is None and self.last_s is not None
        return RequestRecord(
            request_id=call.request_id,
            prompt_id=call.prompt_id,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.tokens,
            token_source=self.token_source,
            finish_reason=self.finish_reason,
            started_s=start_s - origin_s,
            ttft_s=times_s[0] if times_s else None,
            e2e_s=self.last_s - start_s if is_whole and self.last_s is not None else None,
            chunk_times_s=times_s,
            chunk_tokens=_running_total(self.chunk_counts),
            max_tokens=call.sampling.max_tokens,
            cached_tokens=self.cached_tokens,
            text=hide_key(fit_utf8("".join(self.texts)), self.key),
            fault=self.fault,
            error=self.error,
            retry_after_s=self.retry_after_s,
            ended_s=ended_s - start_s,
        )

    def _take_event(self, item: dict[str, Any], now_s: float) -> None:
        if item.get("error") is not None or item.get("object") == "error":
            self.fail(RequestFault.BROKEN, error_message(json.dumps(item)))
            return
        count = self._count_tokens(item)
        choices = item.get("choices")
        if choices or self.last_s is None:
            # The usage that follows the answer is not part of it.
            self.last_s = now_s
        text = ""
        if choices:
            if not isinstance(choices, list) or not isinstance(choices[0], dict):
                raise ValueError(f"choices that are no list of objects: {choices!r:.80}")
            text = text_of(choices[0])
            reason = choices[0].get("finish_reason")
            if reason:
                self.finish_reason = shorten(folded(fit_utf8(hide_key(str(reason), self.key))))
        if text:
            self._add_text(text)
            self.chunk_moments_s.append(now_s)
            self.chunk_counts.append(count)
        elif count is not None and self._has_more(count):
            # Tokens whose text a parser holds back, or that have none, such as the end token.
            self.chunk_moments_s.append(now_s)
            self.chunk_counts.append(count)

    def _has_more(self, count: int) -> bool:
        last = self.chunk_counts[-1] if self.chunk_counts else None
        return last is not None and count > last

    def _add_text(self, text: str) -> None:
        self.num_chars += len(text)
        if self.num_chars > MAX_TEXT_CHARS:
            raise ValueError(f"an answer of more than {MAX_TEXT_CHARS} characters")
        self.texts.append(text)

    def _count_tokens(self, item: Mapping[str, Any]) -> int | None:
        """Return the output tokens up to this event, or None when it does not say."""
        usage = item.get("usage")
        if isinstance(usage, dict):
            return self._take_usage(usage)
        timings = item.get("timings")
        if isinstance(timings, dict):
            return self._take_timings(timings)
        choices = item.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            ids = choices[0].get("token_ids")
            if isinstance(ids, list):
                self.num_token_ids += len(ids)
                return self._state(self.num_token_ids)
        return None

    def _take_usage(self, usage: Mapping[str, Any]) -> int | None:
        tokens = to_count(usage.get("completion_tokens"))
        if tokens is not None:
            # With continuous usage every chunk has one; the last is the whole answer's.
            self.tokens = tokens
            self.token_source = TokenSource.USAGE
        prompt = to_count(usage.get("prompt_tokens"))
        if prompt is not None:
            self.prompt_tokens = prompt
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            cached = to_count(details.get("cached_tokens"))
            self.cached_tokens = self.cached_tokens if cached is None else cached
        return tokens

    def _take_timings(self, timings: Mapping[str, Any]) -> int | None:
        prompt = to_count(timings.get("prompt_n"))
        cached = to_count(timings.get("cache_n"))
        if self.prompt_tokens is None and prompt is not None and cached is not None:
            self.prompt_tokens = prompt + cached
            self.cached_tokens = cached
        return self._state(to_count(timings.get("predicted_n")))

    def _state(self, tokens: int | None) -> int | None:
        """Take a statement that is no usage; usage, once it was seen, is the better one."""
        if tokens is not None and self.token_source is not TokenSource.USAGE:
            self.tokens = tokens
            self.token_source = TokenSource.SERVER
        return tokens


def parse(data: str) -> dict[str, Any]:
    """Return the JSON object of one event.

    Raises:
        ValueError: It is no JSON object, or nested too deeply.
    """
    try:
        try:
            item, end = _decode(data)
        except json.JSONDecodeError:
            end = -1
        if end != len(data):
            # Unlike the decoder, it takes white space around.
            item = json.loads(data)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
    if not isinstance(item, dict):
        raise ValueError(f"an event that is no object: {data[:80]}")
    return item


def text_of(choice: Mapping[str, Any]) -> str:
    """Return the generated text of a choice, of whatever kind; empty when it has none."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return _as_text(choice.get("text"))
    # vLLM renamed the second to the first over time, and some versions send both.
    thought = delta.get("reasoning") or delta.get("reasoning_content")
    content = delta.get("content")
    if thought:
        return _as_text(thought) + _as_text(content)
    if content:
        return _as_text(content)
    # A tool call is generated text too; without it ttft would be that of the call's end.
    return _as_text(delta.get("tool_calls") or delta.get("function_call") or delta.get("refusal"))


def to_count(value: object) -> int | None:
    """Return a token count, or None for anything that cannot be one."""
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        return None
    return value


def error_message(body: str) -> str:
    """Return the message of an error body in any of the forms that engines and proxies use."""
    try:
        item = json.loads(body)
    except (ValueError, RecursionError):
        return " ".join(body.split()) or "no body"
    if isinstance(item, dict):
        inner = item.get("error") or item
        if isinstance(inner, dict):
            return str(inner.get("message") or inner.get("detail") or body)
        return str(inner)
    return body


def shorten(text: str, most: int = MAX_ERROR_CHARS) -> str:
    """Return the text, cut to so many characters."""
    return text if len(text) <= most else text[: most - 3] + "..."


def fit_utf8(text: str) -> str:
    """Return the text without lone surrogates.

    JSON may write a character as two escapes, and a server may part them over two chunks.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _running_total(told: Sequence[int | None]) -> tuple[int, ...] | None:
    """Return the counts if every chunk has one and they can be true, else None."""
    counts: list[int] = []
    for count in told:
        if count is None or count < (counts[-1] if counts else 1):
            return None
        counts.append(count)
    return tuple(counts) or None


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value) if value else ""
