"""Bring a registered version into production: always fully the old or fully the new."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from orchestrator.errors import ConfigError, PromotionError, TransientError
from orchestrator.events import Emit
from orchestrator.ports import Clock, Production, ProductionState, Registry, Version

CHAMPION = "champion"
CHALLENGER = "challenger"
PREVIOUS = "previous"
STEP_TAG = "specpilot.promotion_step"
POLL_S = 1.0

_FAILED_STATES = frozenset({"DEPLOY_FAILED", "UNHEALTHY"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionSettings:
    """How a promotion proceeds."""

    name: str
    """Prefix of the production applications."""
    deadline_s: float
    verify_requests: int
    verify_prompts: tuple[str, ...]
    verify_max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoted:
    """What a promotion did."""

    version: int
    previous: int | None
    verified_throughput: float | None
    """Output tokens per second of the verification, measured through the production route."""


def app_name(prefix: str, version: int) -> str:
    """Return the engine application of a version."""
    return f"{prefix}-v{version}"


class Promoter:
    """Runs one promotion, step by step, each recorded on the version."""

    def __init__(
        self,
        registry: Registry,
        production: Production,
        clock: Clock,
        settings: PromotionSettings,
        emit: Emit,
    ) -> None:
        self._registry = registry
        self._production = production
        self._clock = clock
        self._settings = settings
        self._emit = emit

    def promote(
        self, version: Version, measure: Callable[[], float | None] | None = None
    ) -> Promoted:
        """Make the version the champion, or leave everything as it was.

        Args:
            version: The registered challenger.
            measure: Measures output tokens per second through the production route once the
                version serves there alone; None measures nothing.

        Raises:
            PromotionError: The challenger did not serve or did not pass its verification.
        """
        registry, name = self._registry, version.model_name
        champion = registry.by_alias(name, CHAMPION)
        if champion is not None and champion.version == version.version:
            raise PromotionError(f"version {version.version} of {name} is the champion already")
        registry.set_alias(name, CHALLENGER, version.version)
        old = self._engines(champion)
        old_weights = dict.fromkeys(old, 1.0)
        new_app = app_name(self._settings.name, version.version)
        engines = {**old, new_app: version.config}
        try:
            self._step(version, "boot")
            self._production.declare(engines, old_weights)
            self._wait_up(new_app)
            self._step(version, "verify")
            self._verify(new_app)
            self._step(version, "shift")
            self._production.declare(engines, {new_app: 1.0})
            self._wait_up(new_app)
            self._verify(None)
            throughput = measure() if measure is not None else None
        except (TransientError, PromotionError, ConfigError) as error:
            self._undo(version, old, old_weights)
            raise PromotionError(f"version {version.version} of {name}: {error}") from error
        if champion is not None:
            registry.set_alias(name, PREVIOUS, champion.version)
        registry.set_alias(name, CHAMPION, version.version)
        registry.delete_alias(name, CHALLENGER)
        self._step(version, "retire")
        self._production.declare({new_app: version.config}, {new_app: 1.0})
        self._step(version, "done")
        return Promoted(
            version=version.version,
            previous=None if champion is None else champion.version,
            verified_throughput=throughput,
        )

    def _engines(self, champion: Version | None) -> dict[str, Mapping[str, object]]:
        if champion is None:
            return {}
        return {app_name(self._settings.name, champion.version): champion.config}

    def _step(self, version: Version, step: str) -> None:
        self._registry.set_tag(version.model_name, version.version, STEP_TAG, step)
        self._emit(f"promotion of version {version.version}: {_STEP_TEXT[step]}")

    def _wait_up(self, app: str) -> None:
        deadline = self._clock.monotonic() + self._settings.deadline_s
        while True:
            state = self._production.state()
            status = state.engines.get(app)
            if status in _FAILED_STATES:
                raise PromotionError(f"{app} did not start: {_reason(state, app)}")
            if status == "RUNNING" and state.router_status == "RUNNING":
                return
            if self._clock.monotonic() > deadline:
                raise PromotionError(
                    f"{app} is {status or 'not there'} after {self._settings.deadline_s:g} s "
                    f"(production.deadline_s): {_reason(state, app)}"
                )
            self._clock.sleep(POLL_S)

    def _verify(self, app: str | None) -> None:
        settings = self._settings
        for index in range(settings.verify_requests):
            prompt = settings.verify_prompts[index % len(settings.verify_prompts)]
            answer = self._production.complete(prompt, settings.verify_max_tokens, app)
            if not answer.get("text") or not answer.get("output_tokens"):
                raise PromotionError(f"answer {index + 1} of the verification was empty")

    def _undo(
        self,
        version: Version,
        engines: Mapping[str, Mapping[str, object]],
        weights: Mapping[str, float],
    ) -> None:
        self._emit(f"promotion of version {version.version} failed; putting production back")
        self._registry.delete_alias(version.model_name, CHALLENGER)
        self._registry.set_tag(version.model_name, version.version, STEP_TAG, "failed")
        self._production.declare(engines, weights)


_STEP_TEXT = {
    "boot": "booting it beside what serves now",
    "verify": "verifying it through the production path",
    "shift": "shifting all traffic to it",
    "retire": "stopping what served before",
    "done": "it serves alone",
}


def _reason(state: ProductionState, app: str) -> str:
    return state.messages.get(app, "Serve gives no reason").strip()[-1500:]
