"""Somebody's wish that a command ends: Ctrl-C, SIGTERM, `ray job stop`; and how long that takes.

A study is over within a minute of the first signal, or Ray kills it (RAY_JOB_STOP_WAIT_TIME_S).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from orchestrator.errors import TransientError
from orchestrator.ports import Clock

SIGNALS = (signal.SIGINT, signal.SIGTERM)
BLOCK_S = 30.0
"""Longest wait for the blocks under way. Tune then takes 11 s to end its trials."""
SWEEP_S = 8.0
"""Longest wait for the applications of trials to be gone; the reaper ends what is left."""
CLOSE_S = 5.0
"""Longest wait for the tracker, to take what it lacks and to close the study's run."""


class Stop:
    """Takes SIGINT and SIGTERM of this process while it is entered.

    A signal ends what is done by a KeyboardInterrupt, with two exceptions: in ``blocks_first`` the
    first one is a wish, and in ``ignored`` none does anything.

    Args:
        clock: Of the time that has passed since the wish.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked_s: float | None = None
        self._waits = False
        self._is_deaf = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        """Take the signals, whatever a shell or Ray has made of them; in the main thread only."""
        self._before = {number: signal.signal(number, self.hear) for number in SIGNALS}
        return self

    def __exit__(self, *_error: object) -> None:
        """Leave the signals to whoever had them."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def hear(self, _number: int, _frame: FrameType | None) -> None:
        """Take one signal.

        Raises:
            KeyboardInterrupt: Nothing is waited for.
        """
        if self._is_deaf:
            return
        if self._waits and self._asked_s is None:
            self._asked_s = self._clock.monotonic()
            return
        raise KeyboardInterrupt

    @property
    def is_asked(self) -> bool:
        """Whether somebody wants the study to end."""
        return self._asked_s is not None

    @property
    def is_late(self) -> bool:
        """Whether the blocks under way have had their time."""
        return self._asked_s is not None and self._clock.monotonic() - self._asked_s >= BLOCK_S

    @contextmanager
    def blocks_first(self) -> Iterator[None]:
        """Let the first signal wait for the blocks under way."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    @contextmanager
    def ignored(self) -> Iterator[None]:
        """Let no signal end what cleans up; it must have an end of its own."""
        self._is_deaf = True
        try:
            yield
        finally:
            self._is_deaf = False


def within(seconds: float, call: Callable[[], object]) -> None:
    """Make a call that may hang, and leave it behind when it does.

    Args:
        seconds: Longest wait for it.
        call: Made in a thread that does not keep the process alive.

    Raises:
        TransientError: It is not back in time.
        Exception: What it raised.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001  it is raised where it is waited for
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True, name="within")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TransientError(f"no answer within {seconds:g} s")
    if raised:
        raise raised[0]
