"""What a promotion does to production and waits for there, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from orchestrator.core.takeover import Share, canary_fault
from orchestrator.errors import PromotionError, TransientError
from orchestrator.events import Emit
from orchestrator.load.sanity import garbage_reason
from orchestrator.ports import Clock, Production, ProductionState, Served, Version

POLL_S = 1.0
PROBE_S = 5.0
"""Between two completions of our own in a canary: where few clients ask, these notice first."""
PROBE_TOKENS = 8
"""Of a completion of our own that is to come at all: in a canary, or of an engine that Serve calls
DEPLOYING or UNHEALTHY."""
_TRIES = 3
"""Of a call to Serve's API, which may miss one while its controller is busy."""
_LONG = 1500
"""Characters of a reason that is kept whole."""
_FAILED_STATES = frozenset({"DEPLOY_FAILED", "UNHEALTHY"})
_NOTHING = Served()

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionSettings:
    """How a promotion proceeds."""

    name: str
    """Prefix of the production applications."""
    deadline_s: float
    verify_requests: int
    verify_prompts: tuple[str, ...]
    verify_max_tokens: int
    canary_share: float = 0.0
    """Of clients' requests, 0 to 1, that the challenger gets at first; 0 shifts all at once."""
    canary_s: float = 0.0
    canary_requests: int | None = None
    """Clients' requests to the challenger at which the canary ends earlier; None does not."""
    drain_s: float = 60.0
    """Longest wait for the old version's last answers."""
    measure_s: float = 0.0
    """Expected duration of a measurement through the production path."""


def app_name(prefix: str, version: int) -> str:
    """Return the engine application of a version."""
    return f"{prefix}-v{version}"


class Stage:
    """Production as a promotion handles it: versions in, applications out."""

    def __init__(
        self, production: Production, clock: Clock, settings: PromotionSettings, emit: Emit
    ) -> None:
        self._production = production
        self._clock = clock
        self._settings = settings
        self._emit = emit

    def app(self, number: int) -> str:
        """Return the application of a version."""
        return app_name(self._settings.name, number)

    def number(self, app: str) -> int | None:
        """Return the version of an application; None where its name tells none."""
        text = app.removeprefix(app_name(self._settings.name, 0).removesuffix("0"))
        return int(text) if text != app and text.isascii() and text.isdigit() else None

    def apps(self) -> set[str]:
        """Return the engine applications that production holds."""
        return set(self._state().engines)

    def serves(self, version: Version) -> bool:
        """Return whether clients' requests reach the version now."""
        state, app = self._state(), self.app(version.version)
        return (
            state.router_status == "RUNNING"
            and state.engines.get(app) == "RUNNING"
            and state.weights.get(app, 0.0) > 0
        )

    def answers(self, version: Version) -> bool:
        """Return whether clients' requests reach the version: by Serve's word, else by an answer.

        While its controller recovers, or after a late health check, Serve calls an engine DEPLOYING
        or UNHEALTHY that answers all the same.
        """
        if self.serves(version):
            return True
        app = self.app(version.version)
        if not self._state().weights.get(app, 0.0) > 0:
            return False
        try:
            return self._tried(lambda: self._has_answer(app))
        except TransientError:
            return False

    def declare(
        self, versions: Iterable[Version | None], weights: Mapping[int, float] | None = None
    ) -> None:
        """Make exactly these engines the declared ones.

        Args:
            versions: Those that are None are left out.
            weights: Share of the traffic by version; without any, clients are answered 503.
        """
        engines = {self.app(item.version): item.config for item in versions if item is not None}
        shares = {self.app(number): share for number, share in (weights or {}).items()}
        self._tried(lambda: self._production.declare(engines, shares))

    def declare_alone(self, version: Version | None) -> None:
        """Make this version the only one, with all the traffic; None declares no engine."""
        self.declare([version], {} if version is None else {version.version: 1.0})

    def wait_up(self, version: Version) -> None:
        """Wait until the version's engine and the router run.

        Raises:
            PromotionError: The engine failed, or does not run by the deadline.
        """
        app, deadline = self.app(version.version), self._deadline()
        while True:
            state = self._state()
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

    def wait_gone(self, kept: Version | None) -> None:
        """Wait until production holds no engine but this version's.

        Raises:
            PromotionError: Another one does not end by the deadline.
        """
        own = set() if kept is None else {self.app(kept.version)}
        deadline = self._deadline()
        while left := self.apps() - own:
            if self._clock.monotonic() > deadline:
                raise PromotionError(
                    f"{', '.join(sorted(left))} did not end in {self._settings.deadline_s:g} s"
                )
            self._clock.sleep(POLL_S)

    def verify(self, version: Version | None) -> None:
        """See that completions come through the route; None asks as a client, without a pin.

        Raises:
            PromotionError: An answer is empty, or the answers are no text.
            TransientError: There is no answer.
        """
        settings, texts = self._settings, list[str]()
        app = None if version is None else self.app(version.version)
        for index in range(settings.verify_requests):
            prompt = settings.verify_prompts[index % len(settings.verify_prompts)]
            answer = self._production.complete(prompt, settings.verify_max_tokens, app)
            if not answer.get("text") or not answer.get("output_tokens"):
                raise PromotionError(f"answer {index + 1} of the verification was empty")
            texts.append(str(answer["text"]))
        reason = garbage_reason(texts)
        if reason is not None:
            raise PromotionError(f"in the verification {reason}")

    def canary(self, old: Version, new: Version) -> Share:
        """Give the new version its share of the traffic for a while, and watch what comes of it.

        Returns:
            What became of clients' requests at the new version.

        Raises:
            PromotionError: It died, was restarted, or failed clients that the old one does not.
        """
        share = self._settings.canary_share
        boot_id = self._tried(lambda: self._production.boot_id(self.app(new.version)))
        begun = self._tried(self._production.served)
        self.declare([old, new], {old.version: 1.0 - share, new.version: share})
        started_s = probed_s = self._clock.monotonic()
        while True:
            self._clock.sleep(POLL_S)
            self._require_same(new, boot_id)
            if self._clock.monotonic() - probed_s >= PROBE_S:
                probed_s = self._clock.monotonic()
                self._probe(new)
            served = self._tried(self._production.served)
            shares = [_since(begun, served, self.app(v.version)) for v in (old, new)]
            fault = canary_fault(*shares)
            if fault is not None:
                raise PromotionError(fault)
            enough, seen = self._settings.canary_requests, shares[1].answered
            is_over = self._clock.monotonic() - started_s >= self._settings.canary_s
            if is_over or (enough is not None and seen >= enough):
                self._probe(new)
                return shares[1]

    def drain(self, old: Version) -> None:
        """Wait until the old version answers nobody any more; past the limit Serve ends it."""
        app, limit = self.app(old.version), self._settings.drain_s
        deadline, quiet = self._clock.monotonic() + limit, 0
        while quiet < 2:  # between two parts of one answer a request may be counted nowhere
            under_way = self._tried(self._production.served).get(app, _NOTHING).under_way
            quiet = quiet + 1 if under_way == 0 else 0
            if self._clock.monotonic() > deadline:
                self._emit(f"{app} still answers {under_way} requests after {limit:g} s")
                return
            self._clock.sleep(POLL_S)

    def _require_same(self, new: Version, boot_id: str) -> None:
        app, state = self.app(new.version), self._state()
        status = state.engines.get(app)
        if status != "RUNNING":
            raise PromotionError(
                f"{app} is {status or 'not there'} in the canary: {_reason(state, app)}"
            )
        if self._tried(lambda: self._production.boot_id(app)) != boot_id:
            raise PromotionError(f"{app} was restarted in the canary")

    def _probe(self, new: Version) -> None:
        app = self.app(new.version)
        if not self._has_answer(app):
            raise PromotionError(f"an answer of {app} in the canary was empty")

    def _has_answer(self, app: str) -> bool:
        """Return whether the engine answers a completion of our own with something."""
        prompt = self._settings.verify_prompts[0]
        answer = self._production.complete(prompt, PROBE_TOKENS, app)
        return bool(answer.get("text") and answer.get("output_tokens"))

    def _deadline(self) -> float:
        return self._clock.monotonic() + self._settings.deadline_s

    def _state(self) -> ProductionState:
        return self._tried(self._production.state)

    def _tried(self, call: Callable[[], _T]) -> _T:
        for _ in range(_TRIES - 1):
            try:
                return call()
            except TransientError:
                self._clock.sleep(POLL_S)
        return call()


def _since(begun: Mapping[str, Served], now: Mapping[str, Served], app: str) -> Share:
    """Return what was counted since; a router that was restarted counts from 0 again."""
    first, last = begun.get(app, _NOTHING), now.get(app, _NOTHING)
    if last.answered < first.answered or last.failed < first.failed:
        first = _NOTHING
    return Share(answered=last.answered - first.answered, failed=last.failed - first.failed)


def _reason(state: ProductionState, app: str) -> str:
    """Return why an application does not run: its first lines, and the last of a long text."""
    text = state.messages.get(app, "").strip() or "Serve gives no reason"
    return text if len(text) <= _LONG else f"{text[: _LONG // 2]}\n...\n{text[-_LONG // 2 :]}"
