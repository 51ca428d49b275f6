"""The shipped fake server under the name that older tests import."""

from __future__ import annotations

from orchestrator.fakes.openai import (
    DONE,
    Act,
    Script,
    SseServer,
    chat,
    event,
    free_port,
    good,
    serving,
    text,
    usage,
)

__all__ = [
    "DONE",
    "Act",
    "Script",
    "SseServer",
    "chat",
    "event",
    "free_port",
    "good",
    "serving",
    "text",
    "usage",
]
