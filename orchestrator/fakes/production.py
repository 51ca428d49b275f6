"""Production applications in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orchestrator.errors import ConfigError, TransientError
from orchestrator.ports import ProductionState

DEPLOYING = "DEPLOYING"
RUNNING = "RUNNING"
DEPLOY_FAILED = "DEPLOY_FAILED"


class FakeProduction:
    """Implements ``ports.Production``: a declared engine comes up after a few looks at the state.

    Args:
        polls_to_start: Calls of ``state`` that a new engine is deploying for.
        fails: Says of a spec whether its engine never comes up.
        is_broken: Says of a spec whether its engine comes up and answers nothing.
        capacity: Engines that fit; one more stays deploying for ever.
    """

    def __init__(
        self,
        *,
        polls_to_start: int = 1,
        fails: Callable[[Mapping[str, object]], bool] | None = None,
        is_broken: Callable[[Mapping[str, object]], bool] | None = None,
        capacity: int = 2,
    ) -> None:
        self._polls_to_start = polls_to_start
        self._fails = fails or _never
        self._is_broken = is_broken or _never
        self._capacity = capacity
        self._engines: dict[str, Mapping[str, object]] = {}
        self._polls: dict[str, int] = {}
        self._weights: dict[str, float] = {}
        self._credit: dict[str, float] = {}
        self.declarations: list[tuple[tuple[str, ...], dict[str, float]]] = []
        """Every accepted declaration: names and weights, oldest first."""

    @property
    def url(self) -> str:
        """Public address of the production route; nothing listens there."""
        return "http://production.invalid/"

    def state(self) -> ProductionState:
        """Read what is declared; each call brings deploying engines nearer to running."""
        for name in self._engines:
            self._polls[name] += 1
        statuses = {name: self._status(name) for name in self._engines}
        return ProductionState(
            weights=dict(self._weights),
            engines=statuses,
            # As on Serve: a declaration has a router, even one without weights.
            router_status=RUNNING if self.declarations else None,
            messages={
                name: f"{name} is {status}"
                for name, status in statuses.items()
                if status != RUNNING
            },
        )

    def declare(
        self, engines: Mapping[str, Mapping[str, object]], weights: Mapping[str, float]
    ) -> None:
        """Make exactly these applications and weights the declared set.

        An engine whose spec is unchanged keeps running; a changed one starts again.

        Raises:
            ConfigError: A weight names no engine, or the weights make no shares.
        """
        unknown = sorted(set(weights) - set(engines))
        if unknown:
            raise ConfigError("production", f"weight for '{unknown[0]}'", "declare its engine")
        if weights and (min(weights.values()) < 0 or sum(weights.values()) <= 0):
            raise ConfigError("production", f"weights {dict(weights)}", "give one above 0")
        for name, spec in engines.items():
            if self._engines.get(name) != spec:
                self._polls[name] = 0
        self._engines = {name: dict(spec) for name, spec in engines.items()}
        self._polls = {name: self._polls[name] for name in engines}
        self._weights = dict(weights)
        self._credit = dict.fromkeys(weights, 0.0)
        self.declarations.append((tuple(engines), dict(weights)))

    def complete(self, prompt: str, max_tokens: int, app: str | None) -> Mapping[str, object]:
        """Answer one completion from the pinned engine, or by the weights.

        Raises:
            TransientError: The engine is not up or answers nothing.
        """
        name = app if app is not None else self._next_app()
        if name is None or name not in self._engines or self._status(name) != RUNNING:
            raise TransientError(f"no engine answers for '{name}'")
        if self._is_broken(self._engines[name]):
            raise TransientError(f"'{name}' answered no completion")
        tokens = max(1, max_tokens)
        return {
            "text": f"{prompt} and so on",
            "finish_reason": "length",
            "output_tokens": tokens,
            "system_fingerprint": name,
        }

    def _next_app(self) -> str | None:
        """Return the application whose share is most behind: smooth weighted round robin."""
        if not self._weights:
            return None
        for name, weight in self._weights.items():
            self._credit[name] += weight
        best = max(self._credit, key=lambda name: self._credit[name])
        self._credit[best] -= sum(self._weights.values())
        return best

    def _status(self, name: str) -> str:
        position = list(self._engines).index(name)
        if position >= self._capacity or self._polls[name] < self._polls_to_start:
            return DEPLOYING
        return DEPLOY_FAILED if self._fails(self._engines[name]) else RUNNING


def _never(spec: Mapping[str, object]) -> bool:  # noqa: ARG001  the shape of a predicate
    return False
