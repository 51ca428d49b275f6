"""Leases on trial applications, and the detached actor that ends those that nobody renews.

A trial's actor can die without its cleanup; its application would then keep a board for ever.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import ray
from ray import serve

from orchestrator.errors import TransientError

REAPER_NAME = "specpilot-reaper"
REAPER_NAMESPACE = "specpilot"
LEASE_S = 60.0
"""A trial that has not renewed for this long is dead; its heartbeat is four times as fast."""
LOOK_S = 5.0
_ANSWER_S = 10.0

logger = logging.getLogger(__name__)


class Reaper:
    """Deletes trial applications whose lease ran out; survives the job that created it."""

    def __init__(self, prefix: str, lease_s: float = LEASE_S) -> None:
        self._prefix = prefix
        self._lease_s = lease_s
        self._expires: dict[str, float] = {}
        self._thread = threading.Thread(target=self._watch, daemon=True, name="reaper")
        self._thread.start()

    def renew(self, app_name: str) -> None:
        """Extend the lease of one application."""
        self._expires[app_name] = time.monotonic() + self._lease_s

    def release(self, app_name: str) -> None:
        """Forget an application that its trial has deleted itself."""
        self._expires.pop(app_name, None)

    def leases(self) -> list[str]:
        """Return the applications that have a lease."""
        return sorted(self._expires)

    def look(self, now: float) -> list[str]:
        """Return the applications whose lease ran out, and forget them.

        An application that is not known (this actor was restarted) gets one lease from now. A lease
        that ran out of an application that is gone is forgotten, too: a trial that is tried again
        has the same name.
        """
        names = [n for n in serve.status().applications if n.startswith(self._prefix)]
        for name in names:
            self._expires.setdefault(name, now + self._lease_s)
        expired = [name for name in names if self._expires.get(name, now) < now]
        for name, until in list(self._expires.items()):
            if until < now:
                self._expires.pop(name, None)
        return expired

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_S)
            try:
                for name in self.look(time.monotonic()):
                    logger.warning("lease of %s ran out; deleting it", name)
                    serve.delete(name, _blocking=False)
            except Exception:  # whatever it is, the thread must look again
                logger.exception("cannot look at the trial applications")


def start_reaper(prefix: str) -> Any:
    """Return the cluster's reaper, created if there is none."""
    actor: Any = ray.remote(Reaper).options(
        name=REAPER_NAME,
        namespace=REAPER_NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        num_cpus=0,
    )
    return actor.remote(prefix)


def leases() -> list[str]:
    """Return the applications that the cluster's reaper has a lease of; none without a reaper.

    Raises:
        TransientError: There is a reaper, and it does not say.
    """
    try:
        reaper = _reaper()
    except ValueError:  # there is none of this name
        return []
    try:
        found: list[str] = ray.get(reaper.leases.remote(), timeout=_ANSWER_S)
    except AttributeError as error:
        raise TransientError("the reaper is of an earlier version and has no list") from error
    except ray.exceptions.RayError as error:
        raise TransientError(f"the reaper does not answer: {_first_line(error)}") from error
    return found


def release(app_name: str) -> str | None:
    """Let the reaper forget a lease; its application is gone. Return why it could not, or None."""
    try:
        ray.get(_reaper().release.remote(app_name), timeout=_ANSWER_S)
    except (ValueError, ray.exceptions.RayError) as error:
        return _first_line(error)
    return None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _reaper() -> Any:
    return ray.get_actor(REAPER_NAME, namespace=REAPER_NAMESPACE)


class Lease:
    """A trial's claim on its application, renewed by a thread until it is ended."""

    def __init__(self, app_name: str) -> None:
        self._app_name = app_name
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True, name="lease")
        self._reaper: ray.actor.ActorHandle[Any] | None = None

    def start(self) -> None:
        """Take the lease; the reaper must have been started by the study."""
        self._reaper = ray.get_actor(REAPER_NAME, namespace=REAPER_NAMESPACE)
        ray.get(self._reaper.renew.remote(self._app_name))
        self._thread.start()

    def end(self) -> None:
        """Give the lease back; safe to call twice and without a start."""
        self._ended.set()
        if self._reaper is not None:
            self._reaper.release.remote(self._app_name)
            self._reaper = None

    def _renew(self) -> None:
        while not self._ended.wait(LEASE_S / 4):
            if self._reaper is not None:
                self._reaper.renew.remote(self._app_name)
