"""SIGTERM, and a terminal that is closed, end a command as Ctrl-C does: in order, with one line.

Imports next to nothing: the first thing that the command line does is to enter it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """Take the signals that would end the process where it stands, and leave what nohup ignores."""
    taken = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _hear)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _hear(_number: int, _frame: FrameType | None) -> None:
    """Let whoever listens to Ctrl-C have it, such as an event loop; a shell's ``&`` ignores it.

    Raises:
        KeyboardInterrupt: Nobody listens.
    """
    if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, signal.SIG_DFL, None):
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)
