"""Production applications in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orchestrator.errors import ConfigError, TransientError
from orchestrator.ports import ProductionState, Served

DEPLOYING = "DEPLOYING"
RUNNING = "RUNNING"
DEPLOY_FAILED = "DEPLOY_FAILED"
UNHEALTHY = "UNHEALTHY"


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
        self._boots: dict[str, int] = {}
        self._dead: dict[str, int] = {}
        """Looks at the state until Serve has started a dead engine again."""
        self._served: dict[str, Served] = {}
        self._has_router = False
        self.declarations: list[tuple[tuple[str, ...], dict[str, float]]] = []
        """Every accepted declaration: names and weights, oldest first."""

    @property
    def num_free(self) -> int:
        """Boards that no engine holds."""
        return max(0, self._capacity - len(self._engines))

    @property
    def url(self) -> str:
        """Public address of the production route; nothing listens there."""
        return "http://production.invalid/"

    def state(self) -> ProductionState:
        """Read what is declared; each call brings deploying engines nearer to running."""
        for name in self._engines:
            self._polls[name] += 1
            if name in self._dead:
                self._dead[name] -= 1
                if self._dead[name] < 0:
                    self._start(name)
        statuses = {name: self._status(name) for name in self._engines}
        return ProductionState(
            weights=dict(self._weights),
            engines=statuses,
            router_status=RUNNING if self._has_router else None,
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
                self._start(name)
        self._engines = {name: dict(spec) for name, spec in engines.items()}
        self._polls = {name: self._polls[name] for name in engines}
        self._weights = dict(weights)
        self._credit = dict.fromkeys(weights, 0.0)
        # As on Serve: a declaration has a router, even one without weights.
        self._has_router = True
        self.declarations.append((tuple(engines), dict(weights)))

    def complete(self, prompt: str, max_tokens: int, app: str | None) -> Mapping[str, object]:
        """Answer one completion of specpilot's own from the pinned engine, or by the weights.

        Raises:
            TransientError: The engine is not up or answers nothing.
        """
        return self._complete(prompt, max_tokens, app, is_client=False)

    def ask_as_client(self) -> Mapping[str, object]:
        """Answer one completion of a client's, which is counted.

        Raises:
            TransientError: No engine is up, or it answers nothing.
        """
        return self._complete("x", 4, None, is_client=True)

    def _complete(
        self, prompt: str, max_tokens: int, app: str | None, *, is_client: bool
    ) -> Mapping[str, object]:
        name = app if app is not None else self._next_app()
        if name is None or name not in self._engines or self._status(name) != RUNNING:
            self._count(name, is_client, failed=True)
            if app is None and (other := self._running()) is not None:
                name = other  # the router passes over what is not there
            else:
                raise TransientError(f"no engine answers for '{name}'")
        if self._is_broken(self._engines[name]):
            self._count(name, is_client, failed=True)
            raise TransientError(f"'{name}' answered no completion")
        self._count(name, is_client, failed=False)
        tokens = max(1, max_tokens)
        return {
            "text": f"{prompt} and so on",
            "finish_reason": "length",
            "output_tokens": tokens,
            "system_fingerprint": name,
        }

    def pin(self, app: str) -> Mapping[str, str]:
        """Return the headers that name an engine."""
        return {"x-app": app}

    def served(self) -> Mapping[str, Served]:
        """Return what became of clients' completions."""
        return dict(self._served)

    def boot_id(self, app: str) -> str:
        """Return a name for each start of the engine.

        Raises:
            TransientError: It is not up.
        """
        self._require_up(app)
        return f"{app}-boot-{self._boots[app]}"

    def metrics_text(self, app: str) -> str:
        """Return an exposition without series.

        Raises:
            TransientError: It is not up.
        """
        self._require_up(app)
        return ""

    def die(self, app: str) -> None:
        """Let an engine die; after a few looks it is starting again, as Serve sees to."""
        self._dead[app] = 3

    def restart(self, app: str) -> None:
        """Let an engine be another boot, without a word."""
        self._boots[app] += 1

    def lose(self) -> None:
        """Forget everything that was declared, as Serve does with its head node."""
        self._engines, self._polls, self._weights, self._credit = {}, {}, {}, {}
        self._dead, self._served, self._has_router = {}, {}, False

    def _start(self, name: str) -> None:
        self._polls[name] = 0
        self._boots[name] = self._boots.get(name, 0) + 1
        self._dead.pop(name, None)

    def _count(self, name: str | None, is_client: bool, *, failed: bool) -> None:
        if is_client and name is not None:
            old = self._served.get(name, Served())
            self._served[name] = Served(
                answered=old.answered + (not failed), failed=old.failed + failed
            )

    def _running(self) -> str | None:
        names = (name for name, weight in self._weights.items() if weight > 0)
        return next((name for name in names if self._status(name) == RUNNING), None)

    def _require_up(self, app: str) -> None:
        if app not in self._engines or self._status(app) != RUNNING:
            raise TransientError(f"no engine answers for '{app}'")

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
        if name in self._dead:
            return UNHEALTHY
        position = list(self._engines).index(name)
        if position >= self._capacity or self._polls[name] < self._polls_to_start:
            return DEPLOYING
        return DEPLOY_FAILED if self._fails(self._engines[name]) else RUNNING


def _never(spec: Mapping[str, object]) -> bool:  # noqa: ARG001  the shape of a predicate
    return False
