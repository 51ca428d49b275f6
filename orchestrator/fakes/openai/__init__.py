"""A fake OpenAI-compatible server: scripted faults for tests, a known answer for benchmarks."""

from orchestrator.fakes.openai.engine import Engine, EngineSettings
from orchestrator.fakes.openai.events import DONE, KEEP_ALIVE, chat, event, text, tool_call, usage
from orchestrator.fakes.openai.replay import replaying
from orchestrator.fakes.openai.script import (
    Act,
    Behaviour,
    Chunk,
    Part,
    Script,
    failure,
    good,
    one_fault,
    refused,
    split_bytes,
)
from orchestrator.fakes.openai.server import (
    SseServer,
    Truth,
    engine_server,
    serving,
)

__all__ = [
    "DONE",
    "KEEP_ALIVE",
    "Act",
    "Behaviour",
    "Chunk",
    "Engine",
    "EngineSettings",
    "Part",
    "Script",
    "SseServer",
    "Truth",
    "chat",
    "engine_server",
    "event",
    "failure",
    "good",
    "one_fault",
    "refused",
    "replaying",
    "serving",
    "split_bytes",
    "text",
    "tool_call",
    "usage",
]
