"""The machine's clock."""

from __future__ import annotations

import time


class SystemClock:
    """Real time; implements ``ports.Clock``."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait; a negative time is none."""
        time.sleep(max(0.0, seconds))

    def utc_s(self) -> float:
        """Return seconds since 1970."""
        return time.time()
