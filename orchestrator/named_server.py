"""The servers that a command is pointed at: their addresses, keys and served models."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field

from orchestrator.adapters import http_metrics
from orchestrator.errors import ConfigError, TransientError
from orchestrator.load.client import check_api_key

CONTROL = "control_"
"""What the control's arguments begin with; the arm's begin with nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedServer:
    """A server that answers."""

    base: str
    """Without ``/v1``."""
    model: str
    api_key: str | None = field(default=None, repr=False)


def add_arm_and_control(
    sub: argparse.ArgumentParser, *, control: str, is_control_required: bool
) -> None:
    """Add the arguments that name an arm and its control.

    Args:
        sub: Of the command.
        control: Help of ``--control-url``.
        is_control_required: Whether the command needs a control.
    """
    sub.add_argument("--url", required=True, help="address of the arm, http://host:port/v1")
    sub.add_argument("--control-url", required=is_control_required, metavar="URL", help=control)
    sub.add_argument("--model", help="served model name; by default the first that is offered")
    sub.add_argument("--control-model", metavar="MODEL", help="likewise, of the control")
    sub.add_argument("--api-key-env", metavar="NAME", help="variable that holds the arm's API key")
    sub.add_argument("--control-api-key-env", metavar="NAME", help="likewise, of the control")


def named_server(args: argparse.Namespace, side: str = "") -> NamedServer:
    """Return the server that the arguments of one side name.

    Raises:
        ConfigError: The address is none, the key is not set or cannot be sent, no server answers,
            or it does not offer the model.
    """
    option = f"--{side.replace('_', '-')}"
    base = http_metrics.base_url(getattr(args, f"{side}url"), f"{option}url")
    key = _api_key(getattr(args, f"{side}api_key_env"), f"{option}api-key-env")
    wanted: str | None = getattr(args, f"{side}model")
    model = _model(wanted, base, key, option=option)
    return NamedServer(base=base, model=model, api_key=key)


def _api_key(name: str | None, option: str) -> str | None:
    if name is None:
        return None
    key = os.environ.get(name)
    if not key:
        raise ConfigError(option, f"the variable {name} is not set", "export it")
    check_api_key(key, option)
    return key


def _model(wanted: str | None, base: str, api_key: str | None, *, option: str) -> str:
    """Return the model to ask for: the named one if the server offers it, else its first."""
    try:
        offered = http_metrics.served_models(base, api_key=api_key)
    except TransientError as error:
        if wanted:
            return wanted  # some servers and proxies list no models
        raise ConfigError(
            f"{option}url", str(error),
            "start the server, correct the address, or name its key's variable by "
            f"{option}api-key-env",
        ) from error  # fmt: skip
    if wanted and wanted not in offered:
        shown = ", ".join(offered[:5]) + (", ..." if len(offered) > 5 else "")
        raise ConfigError(
            f"{option}model", f"the server does not offer '{wanted}'", f"use one of {shown}"
        )
    return wanted or offered[0]
