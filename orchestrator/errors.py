"""The errors of specpilot, named by what the caller must do.

    OrchestratorError
      ConfigError          fix the input; exit status 2; never retried
      InfeasibleArm        this arm cannot run here; told to the race, not retried
      TransientError       a process, node or service died; retried up to a limit
      MeasurementError     the window cannot be trusted; no score
      StudyStopped         somebody stopped the study before its race was over
      PromotionError       production was left as it was, or put back

All arguments are positional and reach ``super().__init__``, so that errors pickle through Ray.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class OrchestratorError(Exception):
    """Root of all errors that specpilot raises on purpose."""


class ConfigError(OrchestratorError, ValueError):
    """The input must be changed; nothing was started.

    Args:
        where: Dotted key or address at fault, for example ``search.num_speculative_tokens``.
        problem: What is wrong, with the value.
        remedy: What to change.
    """

    def __init__(self, where: str, problem: str, remedy: str) -> None:
        super().__init__(where, problem, remedy)
        self.where = where
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}; {self.remedy}"


@contextmanager
def reported_at(where: str) -> Iterator[None]:
    """Report faults of an input under the option that named it, not under a study's key.

    Raises:
        ConfigError: What is raised inside, with another place.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError(where, error.problem, error.remedy) from error


class InfeasibleArm(OrchestratorError):  # noqa: N818  named by what it says of the arm
    """The arm cannot run on this node or engine; the race is told, nobody retries."""


class TransientError(OrchestratorError):
    """Something died that may live again; a retry is sensible."""


class MeasurementError(OrchestratorError):
    """A measured window cannot be trusted; it gets no score."""


class EngineRestarted(MeasurementError):  # noqa: N818  named by what happened
    """The engine's counters show that another process answers than at the start."""


class PromotionError(OrchestratorError):
    """A promotion ended early, or the champion could not be brought back.

    After a promotion production serves what it served before, unless the error says otherwise: it
    could not be put back, or is left to another command.
    """


class StudyStopped(OrchestratorError):  # noqa: N818  named by what happened, as KeyboardInterrupt
    """The study was stopped before its race was over; there is no verdict."""
