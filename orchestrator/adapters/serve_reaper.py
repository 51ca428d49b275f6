"""Leases on trial applications, and the detached actor that ends those that nobody renews.

A trial's actor can die without its cleanup, and it can outlive its study for a moment in which it
deploys; its application would then keep a board for ever.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import ray
from ray import serve

from orchestrator.core.failures import Failure, FailureKind, boot_error
from orchestrator.errors import TransientError

REAPER_NAME = "specpilot-reaper"
REAPER_NAMESPACE = "specpilot"
LEASE_S = 60.0
"""A trial that has not renewed for this long is dead; its heartbeat is four times as fast."""
LOOK_S = 5.0
_ANSWER_S = 10.0
_START_S = 60.0
"""Longest wait for an answer without which nothing can begin: its worker may have to start."""
_AGAIN_S = 0.2
"""Between two attempts."""

logger = logging.getLogger(__name__)


class Reaper:
    """Deletes trial applications that nobody answers for; survives the job that created it.

    It is told whose trials may hold leases: those of one job, and of none once its study is over.
    Then an application without a lease is of no living trial, since a trial takes its lease before
    it deploys. Until it is told, as after a restart, an application that it finds gets one lease.
    """

    def __init__(self, prefix: str, lease_s: float = LEASE_S) -> None:
        self._prefix = prefix
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._expires: dict[str, float] = {}
        self._is_told = False
        self._job_id: str | None = None
        self._found: set[str] = set()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="reaper")
        self._thread.start()

    def open(self, job_id: str) -> None:
        """Give leases to the trials of this job alone; those of an earlier one lose theirs."""
        with self._lock:
            if job_id != self._job_id:
                self._expires.clear()
            self._is_told, self._job_id = True, job_id

    def close(self, job_id: str) -> None:
        """Give no lease any more, and end all; a job after which another has come says nothing."""
        with self._lock:
            if self._job_id in (job_id, None):
                self._expires.clear()
                self._is_told, self._job_id = True, None

    def renew(self, app_name: str, job_id: str) -> bool:
        """Extend the lease of one application; return whether a trial of this job may hold one."""
        with self._lock:
            if self._is_told and job_id != self._job_id:
                return False
            self._expires[app_name] = time.monotonic() + self._lease_s
            return True

    def release(self, app_name: str) -> None:
        """Forget an application that its trial has deleted itself."""
        with self._lock:
            self._expires.pop(app_name, None)

    def leases(self) -> list[str]:
        """Return the applications that have a lease."""
        with self._lock:
            return sorted(self._expires)

    def look(self, now: float) -> list[str]:
        """Return the applications that have no lease or whose lease ran out.

        A lease that ran out is forgotten, also of an application that is gone: a trial that is
        tried again has the same name. An application stays in the answer until it has gone, since a
        controller of Serve that dies can lose what it was asked.
        """
        names = [n for n in serve.status().applications if n.startswith(self._prefix)]
        with self._lock:
            if not self._is_told:
                for name in set(names) - self._found:
                    self._expires.setdefault(name, now + self._lease_s)
            self._found = set(names)
            for name, until in list(self._expires.items()):
                if until < now:
                    del self._expires[name]
            return [name for name in names if name not in self._expires]

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_S)
            try:
                for name in self.look(time.monotonic()):
                    self._delete(name)
            except Exception:  # whatever it is, the thread must look again
                logger.exception("cannot look at the trial applications")

    def _delete(self, name: str) -> None:
        """Delete an application, unless a trial has taken a lease of this name meanwhile."""
        with self._lock:
            if name in self._expires:
                return
        logger.warning("%s has no lease; deleting it", name)
        serve.delete(name, _blocking=False)


def start_reaper(prefix: str) -> Any:
    """Return the cluster's reaper, created if there is none; only the claim's holder may.

    One of an earlier version is replaced: it cannot be told that a study is over, and beside
    another it would take down what it gave no lease.

    Raises:
        TransientError: The earlier one stays.
    """
    deadline = time.monotonic() + _START_S
    while True:
        reaper = _created(prefix)
        if hasattr(reaper, "open"):
            return reaper
        if time.monotonic() > deadline:
            raise TransientError("the reaper is of an earlier version and does not end")
        ray.kill(reaper)
        time.sleep(_AGAIN_S)  # its name is free a moment later


def _created(prefix: str) -> Any:
    actor: Any = ray.remote(Reaper).options(
        name=REAPER_NAME,
        namespace=REAPER_NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        num_cpus=0,
    )
    return actor.remote(prefix)


def open_leases(prefix: str) -> None:
    """Let the trials of this process's job, and no others, hold leases; starts the reaper.

    Args:
        prefix: Of the applications of trials.

    Raises:
        TransientError: The reaper does not answer.
    """
    _ask(start_reaper(prefix), "open", _job_id(), wait_s=_START_S)


def close_leases(*, wait_s: float) -> None:
    """Tell the reaper that this job's trials are over, so that none of them comes up any more.

    Args:
        wait_s: Longest wait for it; one that is being restarted is asked again.

    Raises:
        TransientError: There is none, or it does not answer.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            _ask(_living(), "close", _job_id(), wait_s=max(0.1, deadline - time.monotonic()))
        except TransientError:
            if time.monotonic() + _AGAIN_S > deadline:
                raise
            time.sleep(_AGAIN_S)
        else:
            return


def leases() -> list[str]:
    """Return the applications that the cluster's reaper has a lease of; none without a reaper.

    Raises:
        TransientError: There is a reaper, and it does not say; or Ray does not, whether there is.
    """
    try:
        reaper = _reaper()
    except ValueError:  # there is none of this name
        return []
    found: list[str] = _ask(reaper, "leases", wait_s=_ANSWER_S)
    return found


def release(app_name: str) -> str | None:
    """Let the reaper forget a lease; its application is gone. Return why it could not, or None."""
    try:
        _ask(_living(), "release", app_name, wait_s=_ANSWER_S)
    except TransientError as error:
        return str(error)
    return None


def _ask(reaper: Any, method: str, *args: object, wait_s: float) -> Any:
    """Return the reaper's answer.

    Raises:
        TransientError: It does not answer, or is of a version that has no such method.
    """
    try:
        return ray.get(getattr(reaper, method).remote(*args), timeout=wait_s)
    except AttributeError as error:
        raise TransientError(f"the reaper is of an earlier version and has no {method}") from error
    except ray.exceptions.RayError as error:
        raise TransientError(f"the reaper does not answer: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _reaper() -> Any:
    """Return the cluster's reaper.

    Raises:
        ValueError: There is none.
        TransientError: Ray does not say.
    """
    try:
        return ray.get_actor(REAPER_NAME, namespace=REAPER_NAMESPACE)
    except ray.exceptions.RayError as error:
        raise TransientError(f"Ray does not name the reaper: {_first_line(error)}") from error


def _living() -> Any:
    try:
        return _reaper()
    except ValueError as error:
        raise TransientError(f"there is no reaper: {_first_line(error)}") from error


def _job_id() -> str:
    """Return Ray's id of the driver, which its trials share and which no later driver has."""
    return str(ray.get_runtime_context().get_job_id())


class Lease:
    """A trial's claim on its application, renewed by a thread until it is ended."""

    def __init__(self, app_name: str) -> None:
        self._app_name = app_name
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True, name="lease")
        self._reaper: Any = None
        self._job_id = ""

    def start(self) -> None:
        """Take the lease; the study must have opened the leases of its job.

        Raises:
            FailedBoot: The study is over, so that nothing may be deployed.
            TransientError: There is no reaper, or it does not answer.
        """
        reaper, self._job_id = _living(), _job_id()
        if not _ask(reaper, "renew", self._app_name, self._job_id, wait_s=_START_S):
            reason = f"the study of {self._app_name} is over, and the boot did not begin"
            raise boot_error(Failure(FailureKind.CUT_SHORT, reason))
        self._reaper = reaper
        self._thread.start()

    def end(self) -> None:
        """Give the lease back; safe to call twice and without a start."""
        self._ended.set()
        if self._reaper is not None:
            self._reaper.release.remote(self._app_name)
            self._reaper = None

    def _renew(self) -> None:
        while not self._ended.wait(LEASE_S / 4):
            reaper = self._reaper  # another thread may end the lease
            if reaper is not None:
                reaper.renew.remote(self._app_name, self._job_id)
