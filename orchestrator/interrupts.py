"""SIGTERM, and a terminal that is closed, end a command as Ctrl-C does: in order, with one line.

Imports next to nothing: the first thing that the command line does is to enter it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

HANG_UPS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command as Ctrl-C does."""


@contextmanager
def ended_like_ctrl_c(*, in_background: bool = False) -> Iterator[None]:
    """Take the signals that would end the process where it stands, and leave what nohup ignores.

    Args:
        in_background: Ctrl-C ends it too where a shell's ``&`` has it ignored.
    """
    handlers: dict[int, Any] = {
        number: _hear for number in HANG_UPS if signal.getsignal(number) is signal.SIG_DFL
    }
    if in_background:
        handlers[signal.SIGINT] = signal.default_int_handler
    with _handled(handlers):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leave an end alone: a second Ctrl-C would keep what the first began to end."""
    with _handled(dict.fromkeys((signal.SIGINT, *HANG_UPS), signal.SIG_IGN)):
        yield


@contextmanager
def _handled(handlers: Mapping[int, Any]) -> Iterator[None]:
    """Handle signals so for a while; then as before."""
    before = {number: signal.getsignal(number) for number in handlers}
    try:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _hear(_number: int, _frame: FrameType | None) -> None:
    """Let whoever listens to Ctrl-C have it, such as an event loop; a shell's ``&`` ignores it.

    Raises:
        KeyboardInterrupt: Nobody listens.
    """
    if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, signal.SIG_DFL, None):
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)
