"""Tags by which runs are found, and keys and parameters in the form that MLflow takes them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from orchestrator.core.types import BootStatus
from orchestrator.errors import ConfigError

PARENT_TAG = "mlflow.parentRunId"
KIND_TAG = "specpilot.kind"
"""``study``, ``trial`` or ``finding``."""
STUDY_TAG = "specpilot.study_id"
TRIAL_TAG = "specpilot.trial_id"
BLOCK_TAG = "specpilot.block."
"""Prefix; the rest is the block's index and the value its id."""
BLOCK_METRIC = "block/streams"
"""Of every block, valid or not, with the block's index as its step."""
STATUS_TAG = "specpilot.status"
REASON_TAG = "specpilot.reason"
FAILURE_TAG = "specpilot.failure"
"""Kind of ``core.failures``; only of a boot that failed."""
CLOSED_TAG = "specpilot.closed"
FINGERPRINT_TAG = "specpilot.fingerprint"
DEAD_TRIAL_TAGS = {
    STATUS_TAG: str(BootStatus.FAILED),
    REASON_TAG: "its process ended before it could say how: killed, or stopped with its study",
    CLOSED_TAG: "true",
}
"""Of a trial whose process could not say how it ended."""
DROPPED_TRIAL_TAGS = {
    **DEAD_TRIAL_TAGS,
    REASON_TAG: "the study's driver ended before it knew of this boot, which counts nowhere",
}
"""Of a trial whose boot did not reach the study."""

MAX_KEY_CHARS = 250
MAX_PARAM_CHARS = 6000
"""Limits of MLflow 3.17; it cuts a longer parameter without a word."""


def flatten_params(params: Mapping[str, object], *, prefix: str = "") -> dict[str, str]:
    """Return parameters as MLflow takes them: one level, legal keys, text of legal length.

    Nested mappings become dotted keys; numbers stay as they are written, so that the UI can sort
    and plot by them; None is left out.
    """
    flat: dict[str, str] = {}
    for name, value in params.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat |= flatten_params(value, prefix=f"{key}.")
        elif value is not None:
            text = json.dumps(value) if isinstance(value, bool | list | tuple) else str(value)
            flat[legal_key(key)] = text[:MAX_PARAM_CHARS]
    return flat


def legal_key(name: str) -> str:
    """Return a key with every character that MLflow refuses replaced by an underscore."""
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)[:MAX_KEY_CHARS]


def quoted(value: str) -> str:
    """Return a value for MLflow's filter language, which has two quotes and no escape."""
    if "'" not in value:
        return f"'{value}'"
    if '"' in value:
        raise ConfigError("name", f"{value} has both kinds of quotes", "use letters and digits")
    return f'"{value}"'
