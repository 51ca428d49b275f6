"""The canaries of one server, asked one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from orchestrator.canaries import long_context
from orchestrator.canaries.judge import judge
from orchestrator.canaries.questions import Ask, Canary, image_canary, text_canaries
from orchestrator.canaries.reply import Reply, parse_reply
from orchestrator.canaries.served import Served, ask_served
from orchestrator.canaries.wire import Server, post
from orchestrator.core.quality import CanaryResult
from orchestrator.errors import ConfigError, TransientError

Tell = Callable[[str], None]
"""Called with one line of progress."""

IMAGE = "image"
NAMES = (*(canary.name for canary in text_canaries()), IMAGE, long_context.NAME)
"""Every canary, in the order in which they are asked."""

ANSWER_SHARE = 4
"""An answer may take one part in so many of the context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanarySettings:
    """Which canaries are asked, and how."""

    names: tuple[str, ...] = NAMES
    max_tokens: int = 2048
    """Of an answer; a model that thinks needs a thousand and more before it answers."""
    max_model_len: int | None = None
    """Length that the long context is made for, at most the server's own; None is that. Given,
    arm and control are asked the same."""
    seed: int = 1

    def __post_init__(self) -> None:
        unknown = [name for name in self.names if name not in NAMES]
        if unknown or not self.names:
            given = unknown[0] if unknown else ""
            raise ConfigError(
                "canaries", f"there is no canary '{given}'", f"use {', '.join(NAMES)}"
            )
        if self.max_tokens < 1:
            raise ConfigError("max_tokens", f"{self.max_tokens} is below 1", "give 1 or more")


def run_canaries(
    server: Server,
    settings: CanarySettings | None = None,
    *,
    served: Served | None = None,
    tell: Tell = lambda _line: None,
) -> tuple[CanaryResult, ...]:
    """Return what each canary found; what goes wrong with a request is a result, not an error.

    Args:
        server: Where to ask.
        settings: Which canaries, and how long answers may be.
        served: What the server says of its model; None asks for it.
        tell: Hears of each result.
    """
    settings = settings or CanarySettings()
    served = served or ask_served(server)
    canaries = {canary.name: canary for canary in (*text_canaries(), image_canary())}
    results = []
    for name in settings.names:
        if name == long_context.NAME:
            result = _long_context(server, settings, served)
        elif name == IMAGE and served.takes_images is False:
            reason = f"the model takes no images, says {served.source}"
            result = CanaryResult(name=name, passed=None, reason=reason)
        else:
            result = _ask_all(server, canaries[name], settings, served)
        results.append(result)
        word = {True: "passed", False: "failed", None: "not applicable"}[result.passed]
        tell(f"{name}: {word}, {result.reason}")
    return tuple(results)


def _ask_all(
    server: Server, canary: Canary, settings: CanarySettings, served: Served
) -> CanaryResult:
    max_tokens = _max_tokens(settings, served.max_model_len)
    answers = []
    for ask in canary.asks:
        reply = _ask(server, ask, settings, max_tokens=max_tokens, is_streamed=canary.is_streamed)
        answers.append((reply, ask.check))
        if reply.problem is not None or reply.is_cut:
            break  # a refusal is the same for all, and a dead server would be waited for again
    return judge(canary.name, answers)


def _long_context(server: Server, settings: CanarySettings, served: Served) -> CanaryResult:
    name = long_context.NAME
    if served.max_model_len is None:
        reason = "the server does not say its max_model_len"
        return CanaryResult(name=name, passed=None, reason=reason)
    limit = min(served.max_model_len, settings.max_model_len or served.max_model_len)
    max_tokens = _max_tokens(settings, limit)
    num_lines, measured = long_context.FIRST_LINES, list[tuple[int, int]]()
    wanted = (long_context.SECOND_SHARE * limit, long_context.FILL_SHARE * limit - max_tokens)
    for tokens in wanted:
        ask = long_context.question(num_lines)
        reply = _ask(server, ask, settings, max_tokens=1)
        if reply.problem is not None:
            return judge(name, [(reply, ask.check)])
        if reply.prompt_tokens is None:
            reason = "the server does not say how many tokens a prompt has"
            return CanaryResult(name=name, passed=None, reason=reason)
        measured.append((num_lines, reply.prompt_tokens))
        num_lines = long_context.lines_for(int(tokens), *measured)
    ask = long_context.question(num_lines)
    reply = _ask(server, ask, settings, max_tokens=max_tokens)
    return _judge_long(reply, ask, limit=limit, max_tokens=max_tokens)


def _judge_long(reply: Reply, ask: Ask, *, limit: int, max_tokens: int) -> CanaryResult:
    result = judge(long_context.NAME, [(reply, ask.check)])
    if reply.problem is not None:
        return result
    filled = (reply.prompt_tokens or 0) + max_tokens
    if filled < long_context.NEAR_SHARE * limit:
        reason = f"no prompt near the limit was made: {filled:,} of {limit:,} tokens"
        return CanaryResult(name=long_context.NAME, passed=None, reason=reason)
    return replace(
        result, reason=f"{reply.prompt_tokens:,} prompt tokens of {limit:,}: {result.reason}"
    )


def _max_tokens(settings: CanarySettings, limit: int | None) -> int:
    if limit is None:
        return settings.max_tokens
    return max(1, min(settings.max_tokens, limit // ANSWER_SHARE))


def _ask(
    server: Server,
    ask: Ask,
    settings: CanarySettings,
    *,
    max_tokens: int,
    is_streamed: bool = False,
) -> Reply:
    body: dict[str, object] = {
        "model": server.model,
        "messages": [dict(message) for message in ask.messages],
        "temperature": 0.0,
        "top_p": 1.0,
        "seed": settings.seed,
        "max_tokens": max_tokens,
        "stream": is_streamed,
        **ask.extra,
    }
    if is_streamed:
        body["stream_options"] = {"include_usage": True}
    try:
        return parse_reply(post(server, "/v1/chat/completions", body))
    except TransientError as error:
        return Reply(status=503, problem=str(error))
