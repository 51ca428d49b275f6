"""The seams: what the trial, the study and the promotion need from the world outside.

Each Protocol has a real adapter in ``adapters`` or ``load`` and a shipped fake in ``fakes``. The
tracker and the registry pass the same contract tests on both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator.core.failures import Failure
from orchestrator.core.node_state import NodeState
from orchestrator.core.requests import LoadResult, Moment
from orchestrator.core.types import Arm, Block, Boot, Cell, EngineFacts, ProofPart


class Clock(Protocol):
    """Time, so that tests need none."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    def utc_s(self) -> float:
        """Return seconds since 1970, which another process can read; it may jump."""
        ...


class Node(Protocol):
    """The machine under a trial."""

    def snapshot(self) -> NodeState:
        """Read the node's state; never raises for a value that the platform lacks."""
        ...

    def memory_available(self) -> int | None:
        """Return the bytes of available memory and read nothing else; None: not told."""
        ...


class Engine(Protocol):
    """One boot of one arm, from start to clean stop."""

    def start(self, arm: Arm, on_progress: Callable[[str], None]) -> EngineFacts:
        """Boot the arm and block until one real completion was answered.

        Raises:
            InfeasibleArm: The engine refused the arm, or the arm needs more memory than there is.
            TransientError: The boot died or took too long for a reason outside the arm. Where the
                reason is known both are the errors of ``core.failures``, which carry its kind.
        """
        ...

    def facts(self) -> EngineFacts:
        """Ask the running engine again; a changed ``boot_id`` means that it was restarted."""
        ...

    def metrics_text(self) -> str:
        """Return the engine's Prometheus exposition.

        Raises:
            TransientError: The engine does not answer.
        """
        ...

    def pids(self) -> frozenset[int]:
        """Return the processes of the boot on its node, whoever of them holds the GPU.

        Empty when they are gone.
        """
        ...

    def log_tail(self) -> str:
        """Return the last lines of the engine's log; empty when there is none."""
        ...

    def serve_message(self) -> str:
        """Return what Serve says of the engine's deployment; empty when it says nothing."""
        ...

    def probe(self) -> str | None:
        """Ask for one completion, whatever a health check says.

        Returns:
            None when it came in time, else what happened instead.
        """
        ...

    def post_mortem(self) -> Failure | None:
        """Return what ended the engine of a boot that had come up; None where nothing names it."""
        ...

    def kill(self) -> None:
        """End the boot's processes at once and without grace, from any thread and in mid-boot.

        What else there is of the boot stays until ``stop``.
        """
        ...

    def stop(self) -> None:
        """End the boot and wait until nothing of it is left; safe to call twice."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """One block of load to run against one engine."""

    base_url: str
    model: str
    cell: Cell
    seed: int
    """Chooses the prompt order and request seeds; the same for all arms, so that blocks pair."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with every request."""


Observe = Callable[[Moment], None]
"""Called by the load at each moment, off the hot path and in a thread of its own."""


class LoadClient(Protocol):
    """The load: closed loop or open loop, as the cell says."""

    def run(self, request: LoadRequest, observe: Observe) -> LoadResult:
        """Warm up at the cell's load, drain, ramp up, measure one window, drain.

        ``observe`` is called once for each moment in their order, DURING any number of times.
        Requests that fail are recorded, not raised.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one part of a proof came to."""

    record: dict[str, object]
    """Plain JSON: the part's own record, from which the gates read."""
    sentence: str


class Prover(Protocol):
    """What a proof boot looks at."""

    def prove(self, part: ProofPart, facts: EngineFacts) -> Finding:
        """Look at one part on the engine that is up.

        Raises:
            TransientError: The engine does not answer, or not as the part needs; the text says why.
        """
        ...

    def close(self) -> None:
        """Leave nothing behind, now that the engine has stopped; safe to call twice."""
        ...


class Tracker(Protocol):
    """Experiment tracking: one parent run a study, one child run a boot.

    Every call may be made twice, also after one whose answer was lost: nothing is stored twice.
    """

    def open_study(self, study_id: str, name: str, params: Mapping[str, object]) -> str:
        """Return the id of the study's run, found by ``study_id`` or created."""
        ...

    def open_trial(self, study_run_id: str, trial_id: str, params: Mapping[str, object]) -> str:
        """Return the id of the trial's run, found by ``trial_id`` or created."""
        ...

    def log_block(self, run_id: str, block: Block) -> None:
        """Store one block; a second call with the same ``block_id`` changes nothing."""
        ...

    def close_trial(self, run_id: str, boot: Boot, artifacts: Mapping[str, str]) -> None:
        """Store the boot's facts and summary and end its run; artifacts are name -> text."""
        ...

    def block_counts(self, study_run_id: str) -> Mapping[str, int]:
        """Return how often each block is stored in the runs of a study's trials, by block id."""
        ...

    def drop_trials(self, study_run_id: str, kept: Collection[str]) -> None:
        """End as failed the runs of a study's trials, those with the ids ``kept`` excepted.

        Of boots that a driver did not live to know of, whether or not they had ended.
        """
        ...

    def close_study(
        self,
        run_id: str,
        *,
        succeeded: bool,
        tags: Mapping[str, str],
        metrics: Mapping[str, float],
        artifacts: Mapping[str, str],
    ) -> None:
        """Store the verdict and end the study's run, and those of trials that died in it."""
        ...

    def run_url(self, run_id: str) -> str:
        """Return the address of a run in the tracking UI."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One registered serving configuration."""

    model_name: str
    version: int
    config: Mapping[str, object]
    """What production needs to serve it: the engine spec as plain JSON."""
    tags: Mapping[str, str]
    run_id: str | None


class Registry(Protocol):
    """Registered serving configurations and their aliases champion, challenger, previous."""

    def create_version(
        self, model_name: str, run_id: str, config: Mapping[str, object], tags: Mapping[str, str]
    ) -> Version:
        """Register one configuration with its evidence."""
        ...

    def by_alias(self, model_name: str, alias: str) -> Version | None:
        """Return the version that the alias names, or None."""
        ...

    def by_number(self, model_name: str, version: int) -> Version | None:
        """Return one version, or None."""
        ...

    def find(self, model_name: str, tags: Mapping[str, str]) -> Version | None:
        """Return the newest version that has all these tags, or None."""
        ...

    def set_alias(self, model_name: str, alias: str, version: int) -> None:
        """Point the alias to a version, in one atomic call."""
        ...

    def delete_alias(self, model_name: str, alias: str) -> None:
        """Remove the alias; no error when it does not exist."""
        ...

    def set_tag(self, model_name: str, version: int, key: str, value: str) -> None:
        """Set one tag of a version."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductionState:
    """What production serves now."""

    weights: Mapping[str, float]
    """Share of the traffic by engine application; empty when nothing serves."""
    engines: Mapping[str, str]
    """Status by engine application, as Serve names it."""
    router_status: str | None
    """Status of the router application; None when there is none."""
    messages: Mapping[str, str]
    """Serve's message by application that is not healthy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What became of clients' completions at one engine application, since the router started.

    Health probes, lists of models, what is pinned and specpilot's own requests are none of these.
    """

    answered: int = 0
    failed: int = 0
    """Not taken, answered 500 or above or with an error of the engine, or broken off by it."""
    under_way: int = 0
    """Requests that it is answering now, all of them: the end of a drain waits for these."""


class Production(Protocol):
    """The declared Serve applications: a router in front of one engine application a version."""

    def state(self) -> ProductionState:
        """Read what is declared and how it is doing."""
        ...

    def declare(
        self, engines: Mapping[str, Mapping[str, object]], weights: Mapping[str, float]
    ) -> None:
        """Make exactly these engine applications and these weights the declared set.

        Args:
            engines: Engine spec as plain JSON by application name.
            weights: Share of the traffic by application name.

        Raises:
            TransientError: Serve does not answer.
            ConfigError: Serve refuses the declaration.
        """
        ...

    def complete(self, prompt: str, max_tokens: int, app: str | None) -> Mapping[str, object]:
        """Send one completion through the production route, pinned to ``app`` if given.

        Returns:
            At least ``text``, ``finish_reason`` and ``output_tokens``.

        Raises:
            TransientError: No answer, or one that is not a completion.
        """
        ...

    def pin(self, app: str) -> Mapping[str, str]:
        """Return the headers by which a request reaches this engine application and no other."""
        ...

    def served(self) -> Mapping[str, Served]:
        """Return what the router counts, by engine application; one without requests is absent.

        Raises:
            TransientError: The router does not answer.
        """
        ...

    def boot_id(self, app: str) -> str:
        """Return the identity of the engine's boot; another one means that it was restarted.

        Raises:
            TransientError: The engine does not answer.
        """
        ...

    def metrics_text(self, app: str) -> str:
        """Return the engine's Prometheus exposition.

        Raises:
            TransientError: The engine does not answer.
        """
        ...

    @property
    def url(self) -> str:
        """Public address of the production route."""
        ...
