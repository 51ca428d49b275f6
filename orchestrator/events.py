"""What a study tells while it runs: events, and the one printer that turns them into lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from orchestrator.core.lines import one_line
from orchestrator.core.secrecy import redact_forms, redact_text
from orchestrator.ports import Clock

Emit = Callable[[str], None]
"""Takes one finished sentence about what is happening."""


def format_duration(seconds: float) -> str:
    """Return minutes and seconds, for example ``3:07``; hours when there are any."""
    whole = max(0, round(seconds))
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"


@dataclass(slots=True)
class Pace:
    """How long is left, from the boots done so far.

    Until the first boot is back the estimate is ``guess_boot_s`` a boot; after that the mean of
    the boots that ended.
    """

    num_expected: int
    num_parallel: int
    guess_boot_s: float
    fixed_s: float
    """Time after the last boot: verdict and promotion."""
    durations_s: list[float] = field(default_factory=list)
    race_ended_s: float | None = None
    """When the last boot was back, on the clock that ``left_s`` is asked with."""

    def boot_s(self) -> float:
        """Return the expected duration of one boot with its blocks."""
        if not self.durations_s:
            return self.guess_boot_s
        return sum(self.durations_s) / len(self.durations_s)

    def left_s(self, now_s: float, num_running: int, running_s: float) -> float:
        """Return the expected time to the end.

        Args:
            now_s: The time now.
            num_running: Boots under way.
            running_s: Time that they have run so far, summed.
        """
        if self.race_ended_s is not None:
            return max(0.0, self.fixed_s - (now_s - self.race_ended_s))
        num_left = max(self.num_expected - len(self.durations_s), num_running)
        work_s = max(0.0, num_left * self.boot_s() - running_s)
        return work_s / self.num_parallel + self.fixed_s


@dataclass(slots=True)
class Printer:
    """Writes events as lines with the time passed and the time left."""

    sink: TextIO
    clock: Clock
    started_s: float
    left_s: Callable[[], float] | None = None

    def say(self, text: str) -> None:
        """Write one event."""
        passed = format_duration(self.clock.monotonic() - self.started_s)
        left = f" | ~{format_duration(self.left_s())} left" if self.left_s is not None else ""
        # In one write: a thread may say something, too.
        line = f"[{passed}{left}] {one_line(redact_text(text))}\n"
        print(line, end="", file=self.sink, flush=True)

    def lines(self, lines: Sequence[str]) -> None:
        """Write a report as it is, but for what is a secret by its form."""
        for line in lines:
            print(one_line(redact_forms(line)), file=self.sink, flush=True)
