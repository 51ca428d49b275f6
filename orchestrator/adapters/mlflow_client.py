"""The client of MLflow that tracker and registry share, and its errors as ours."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import mlflow.telemetry
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import DatabaseError, OperationalError, SQLAlchemyError

from orchestrator.core.secrecy import redact_text
from orchestrator.errors import ConfigError, TransientError

CLIENT_SETTINGS = {
    # A server that is down must cost seconds; MLflow's own defaults wait for many minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
"""Settings that MLflow takes from the environment only; what the user set there wins."""


def make_client(uri: str) -> MlflowClient:
    """Return a quiet client whose calls end within seconds when the server is down."""
    for key, value in CLIENT_SETTINGS.items():
        os.environ.setdefault(key, value)
    mlflow.telemetry.set_telemetry_client()  # type: ignore[no-untyped-call]  # MLflow's
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        with translated():
            return MlflowClient(tracking_uri=uri, registry_uri=uri)
    except TransientError as error:
        cause = error.__cause__
        if isinstance(cause, DatabaseError) and not isinstance(cause, OperationalError):
            raise ConfigError(
                "tracking.uri", f"{redact_text(uri)} is damaged, or is no database of MLflow",
                "put a copy of it back, or name another",
            ) from error  # fmt: skip
        raise


@contextmanager
def translated() -> Iterator[None]:
    """Raise what MLflow and its store raise as TransientError, in one line."""
    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError) as error:
        # What follows the first line is SQL, or a server's page.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise TransientError(f"MLflow: {redact_text(reason)}") from error
