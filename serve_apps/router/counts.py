"""What became of clients' completions, by engine application: a canary is judged by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Counts:
    """Counts since the router's replica started."""

    def __init__(self) -> None:
        self._answered: dict[str, int] = {}
        self._failed: dict[str, int] = {}
        self._under_way: dict[str, int] = {}

    @contextmanager
    def under_way(self, app: str) -> Iterator[None]:
        """Count one request, whoever's and for what, as under way at this engine while inside."""
        self._under_way[app] = self._under_way.get(app, 0) + 1
        try:
            yield
        finally:
            self._under_way[app] -= 1

    def ended(self, app: str, *, failed: bool) -> None:
        """Count a client's completion that this engine answered, or failed to.

        Args:
            app: The engine application.
            failed: Whether it took no request, answered 500 or above, broke off, or told an error
                of its own after a good status.
        """
        counts = self._failed if failed else self._answered
        counts[app] = counts.get(app, 0) + 1

    def to_dict(self) -> dict[str, dict[str, int]]:
        """Return {engine application: {"answered", "failed", "under_way"}}."""
        names = sorted({*self._answered, *self._failed, *self._under_way})
        return {
            name: {
                "answered": self._answered.get(name, 0),
                "failed": self._failed.get(name, 0),
                "under_way": self._under_way.get(name, 0),
            }
            for name in names
        }
