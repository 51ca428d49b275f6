"""Whether the tracking address can serve every node of a study."""

from __future__ import annotations

import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path

from orchestrator.core.secrecy import redact_text
from orchestrator.errors import ConfigError

CHECK_TIMEOUT_S = 3.0
REMOTE_SCHEMES = ("http://", "https://")
LOCAL_SCHEMES = ("sqlite:", "file:")
DATABASE_SCHEMES = ("postgresql", "mysql", "mssql")
"""What MLflow can keep its store in, beside files; a driver may follow, as in mysql+pymysql."""
SQLITE_PREFIX = "sqlite:///"


def check(uri: str, *, num_nodes: int = 1, timeout_s: float = CHECK_TIMEOUT_S) -> str:
    """Check that every node can log to the address and return it in a form all may use.

    Args:
        uri: Address of a server, of a database, or of a local store.
        num_nodes: Nodes that trials run on.
        timeout_s: Longest wait for a server's answer.

    Returns:
        The address; a relative SQLite path is made absolute, because trials have other folders.

    Raises:
        ConfigError: The server does not answer in time, the scheme is unknown, or the store is a
            file of this machine and there are other nodes.
    """
    shown = redact_text(uri)
    if uri.startswith(REMOTE_SCHEMES):
        _check_server(uri, timeout_s)
        return uri.rstrip("/")
    is_local = uri.startswith(LOCAL_SCHEMES) or "://" not in uri
    if not is_local and uri.partition(":")[0].partition("+")[0] not in DATABASE_SCHEMES:
        raise ConfigError(
            "tracking.uri",
            f"'{shown}' is nothing that MLflow can log to",
            "give the http:// address of an `mlflow server`",
        )
    if is_local and num_nodes > 1:
        raise ConfigError(
            "tracking.uri",
            f"'{shown}' is a file of one machine, and a driver may run on any of {num_nodes} nodes",
            "start `mlflow server` and give its http:// address",
        )
    path = uri.removeprefix(SQLITE_PREFIX)
    return f"{SQLITE_PREFIX}{Path(path).resolve()}" if path not in (uri, "") else uri


def artifact_location(uri: str) -> str | None:
    """Return where a new experiment keeps its files; None leaves it to the server.

    Beside an SQLite file: MLflow would take the folder that the process happens to be in.
    """
    if not uri.startswith(SQLITE_PREFIX):
        return None
    return (Path(uri.removeprefix(SQLITE_PREFIX)).parent / "mlartifacts").resolve().as_uri()


def _check_server(uri: str, timeout_s: float) -> None:
    shown = redact_text(uri)
    remedy = "start `mlflow server` or correct the address"
    address = uri.rstrip("/") + "/health"
    try:
        with urllib.request.urlopen(address, timeout=timeout_s):
            return
    except urllib.error.HTTPError as error:
        if error.code == 403:
            remedy = "start `mlflow server` with --allowed-hosts that names this host"
        problem = f"'{shown}' answers HTTP {error.code} to /health"
        error.close()
        if error.code == 401:
            return  # It is up and wants the credentials that MLflow's client will send.
        raise ConfigError("tracking.uri", problem, remedy) from error
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ConfigError(
            "tracking.uri", f"'{shown}' does not answer ({reason})", remedy
        ) from error
