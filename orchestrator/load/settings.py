"""What all blocks of a study have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestrator.core.sampling import Shaping

STALL_TIMEOUT_S = 120.0
"""Longest time without a byte where nothing else is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """How to ask and how long; which cell and which server are the ``LoadRequest``'s."""

    shaping: Shaping
    endpoint: Literal["chat", "completions"]
    max_tokens: int
    ignore_eos: bool
    block_s: float
    """Length of the window."""
    block_tokens: int | None = None
    """Output tokens after which the window closes before its time; None has no such budget. It
    closes at the first answer that is complete with the budget spent."""
    warmup_requests_per_stream: int
    warmup_max_tokens: int
    request_timeout_s: float
    stall_timeout_s: float = STALL_TIMEOUT_S
    """Longest time of a request without a byte."""
    block_silence_s: float = STALL_TIMEOUT_S
    """Longest time in which no stream gets a token although requests are open."""
    salt: bool = True
    """Whether prompts are made unique against prefix caches."""
    dialect: Literal["vllm", "openai"] = "vllm"
    """``openai`` leaves out what OpenAI's own API does not know."""
