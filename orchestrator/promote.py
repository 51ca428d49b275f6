"""Bring a registered version into production: always fully the old or fully the new."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from orchestrator.core.promotion import PromotionStep
from orchestrator.errors import ConfigError, OrchestratorError, PromotionError
from orchestrator.events import Emit
from orchestrator.ports import Clock, Production, ProductionState, Registry, Version

CHAMPION = "champion"
CHALLENGER = "challenger"
PREVIOUS = "previous"
STEP_TAG = "specpilot.promotion_step"
FAILED_STEP = "failed"
POLL_S = 1.0

_ALIASES = (CHAMPION, CHALLENGER, PREVIOUS)
_NOT_YET = frozenset(
    {
        PromotionStep.CHALLENGER,
        PromotionStep.BOOTED,
        PromotionStep.VERIFIED,
        PromotionStep.SHIFTED,
        FAILED_STEP,
    }
)
"""Last step of a version whose promotion was cut off, or undone in part, before its end."""
_NOT_ALONE = frozenset({PromotionStep.SHIFTED, PromotionStep.ALIASED})
"""Last step of a champion whose promotion was cut off before the old engine was ended."""
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
    """Runs one promotion; the last step that was done stands on the version."""

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
        before = {alias: registry.by_alias(name, alias) for alias in _ALIASES}
        champion = before[CHAMPION]
        if champion is not None and champion.version == version.version:
            raise PromotionError(f"version {version.version} of {name} is the champion already")
        try:
            throughput = self._take_over(version, champion, measure)
            if champion is not None:
                registry.set_alias(name, PREVIOUS, champion.version)
            registry.set_alias(name, CHAMPION, version.version)
        except BaseException as error:
            # Whatever ends it, an interrupt too: production goes back to what it was.
            left = self._undo(version, before)
            if not isinstance(error, Exception):
                raise
            raise PromotionError(f"version {version.version} of {name}: {error}{left}") from error
        self._retire(version)
        return Promoted(
            version=version.version,
            previous=None if champion is None else champion.version,
            verified_throughput=throughput,
        )

    def reapply(self, champion: Version) -> None:
        """Declare the champion and see that it answers, where Serve has lost it.

        Raises:
            PromotionError: It does not come up or does not answer.
        """
        app = app_name(self._settings.name, champion.version)
        self._emit(f"bringing version {champion.version} back")
        try:
            self._declare_alone(champion)
            self._wait_up(app)
            self._verify(None)
        except Exception as error:  # whatever it was, the champion does not serve
            raise PromotionError(
                f"version {champion.version} of {champion.model_name}: {error}"
            ) from error
        self._emit(f"version {champion.version} serves again")

    def settle(self, model_name: str, champion: Version | None) -> None:
        """Put production back to the champion alone after a promotion that was killed.

        What the killed one left is told by its recorded steps.

        Raises:
            ConfigError: Production serves what this registered model has never promoted.
            PromotionError: The engine that was left does not end.
        """
        own = set(self._engines(champion))
        others = set(self._production.state().engines) - own
        cut = [version for app in sorted(others) for version in self._cut_off(model_name, app)]
        is_alone = champion is None or champion.tags.get(STEP_TAG) not in _NOT_ALONE
        if not others:
            return
        if not cut and is_alone:
            raise ConfigError(
                "production.name",
                f"'{self._settings.name}' serves {', '.join(sorted(others))}, which is no version "
                f"that '{model_name}' has promoted",
                "name the registered_model that it belongs to, or another production.name and "
                "production.route",
            )
        self._emit(f"a promotion was cut off; ending {', '.join(sorted(others))}")
        engines = self._engines(champion)
        self._production.declare(engines, dict.fromkeys(engines, 1.0))
        deadline = self._clock.monotonic() + self._settings.deadline_s
        while left := set(self._production.state().engines) - own:
            if self._clock.monotonic() > deadline:
                raise PromotionError(
                    f"{', '.join(sorted(left))} did not end in {self._settings.deadline_s:g} s"
                )
            self._clock.sleep(POLL_S)
        for version in cut:
            self._registry.set_tag(model_name, version.version, STEP_TAG, FAILED_STEP)
        if champion is not None and not is_alone:
            self._registry.set_tag(
                model_name, champion.version, STEP_TAG, PromotionStep.RETIRED.value
            )

    def _cut_off(self, model_name: str, app: str) -> list[Version]:
        """Return the version of an application if its promotion was cut off."""
        number = app.removeprefix(app_name(self._settings.name, 0).removesuffix("0"))
        version = self._registry.by_number(model_name, int(number)) if number.isdigit() else None
        return [version] if version is not None and version.tags.get(STEP_TAG) in _NOT_YET else []

    def _take_over(
        self,
        version: Version,
        champion: Version | None,
        measure: Callable[[], float | None] | None,
    ) -> float | None:
        registry, name = self._registry, version.model_name
        old = self._engines(champion)
        app = app_name(self._settings.name, version.version)
        engines = {**old, app: version.config}
        registry.set_alias(name, CHALLENGER, version.version)
        self._done(version, PromotionStep.CHALLENGER, "booting it beside what serves now")
        self._production.declare(engines, dict.fromkeys(old, 1.0))
        self._wait_up(app)
        self._done(version, PromotionStep.BOOTED, "verifying it through the production path")
        self._verify(app)
        self._done(version, PromotionStep.VERIFIED, "shifting all traffic to it")
        self._production.declare(engines, {app: 1.0})
        self._wait_up(app)
        self._verify(None)
        self._done(version, PromotionStep.SHIFTED, "measuring it under load, as clients see it")
        return measure() if measure is not None else None

    def _engines(self, champion: Version | None) -> dict[str, Mapping[str, object]]:
        if champion is None:
            return {}
        return {app_name(self._settings.name, champion.version): champion.config}

    def _declare_alone(self, version: Version) -> None:
        app = app_name(self._settings.name, version.version)
        self._production.declare({app: version.config}, {app: 1.0})

    def _done(self, version: Version, step: PromotionStep, text: str) -> None:
        self._registry.set_tag(version.model_name, version.version, STEP_TAG, step.value)
        self._emit(f"promotion of version {version.version}: {text}")

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

    def _retire(self, version: Version) -> None:
        """End what served before; the version is the champion whatever comes of this."""
        try:
            self._registry.delete_alias(version.model_name, CHALLENGER)
            self._done(version, PromotionStep.ALIASED, "it is the champion")
            self._declare_alone(version)
            self._done(version, PromotionStep.RETIRED, "it serves alone")
        except OrchestratorError as error:
            self._emit(f"version {version.version} serves, but what was before it is left: {error}")

    def _undo(self, version: Version, before: Mapping[str, Version | None]) -> str:
        """Put production back, then the aliases; return in words what could not be put back."""
        self._emit(f"promotion of version {version.version} failed; putting production back")
        registry, name = self._registry, version.model_name
        old, left = self._engines(before[CHAMPION]), ""
        try:
            self._production.declare(old, dict.fromkeys(old, 1.0))
        except OrchestratorError as error:
            left = f"; production could not be put back: {error}"
        try:
            for alias, holder in before.items():
                if holder is None:
                    registry.delete_alias(name, alias)
                else:
                    registry.set_alias(name, alias, holder.version)
            registry.set_tag(name, version.version, STEP_TAG, FAILED_STEP)
        except OrchestratorError as error:
            left += f"; the registry could not be put back: {error}"
        if left:
            self._emit(left.removeprefix("; "))
        return left


def _reason(state: ProductionState, app: str) -> str:
    return state.messages.get(app, "Serve gives no reason").strip()[-1500:]
