"""The loopback port and the folder of sockets that one boot has to itself."""

from __future__ import annotations

import os
import random
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path

from serve_apps.engine.spec import HOST

FOLDER_VARIABLE = "VLLM_RPC_BASE_PATH"
"""Where vLLM binds the sockets between its processes; by default the system's temp folder, in which
an engine that is killed leaves them."""
_MAX_PATH_BYTES = 107
"""Of a unix socket on Linux: ``sun_path`` in unix(7), without its closing zero."""
_NAME_BYTES = 1 + 36
"""A slash and a UUID: ``get_open_zmq_ipc_path`` of vLLM 0.32.0."""
_SHORT = "/tmp"
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_PORT = 20_000
"""Ray's workers listen on 10002 to 19999: ``ray start --help``."""
_TRIES = 100
_chance = random.SystemRandom()
"""Never seeded: processes that draw the same ports would take them from each other."""


def free_port(host: str = HOST) -> int:
    """Return a TCP port of an address of this machine, by default loopback's, that is free now.

    Who asks for it listens on it seconds later. Where there is room, it lies below the ports that
    the kernel itself gives to every connection and to listeners that name none
    (``ip_local_port_range`` in ip(7)), one of which could have it by then.
    """
    for _ in range(_TRIES if (end := _first_ephemeral()) > _FIRST_PORT else 0):
        if is_port_free(port := _chance.randrange(_FIRST_PORT, end), host):
            return port
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _first_ephemeral() -> int:
    try:
        return int(_EPHEMERAL.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def is_port_free(port: int, host: str = HOST) -> bool:
    """Return whether a TCP port of an address of this machine can be listened on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # TIME_WAIT is not a server
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def socket_folder(boot_id: str, env: Mapping[str, str]) -> str:
    """Return a new folder for a boot's sockets, in the place that the environment names.

    Where a socket's path would be longer than the kernel takes, the folder lies in /tmp.

    Raises:
        OSError: It cannot be made.
    """
    place, prefix = env.get(FOLDER_VARIABLE) or tempfile.gettempdir(), f"specpilot-{boot_id}-"
    folder = tempfile.mkdtemp(prefix=prefix, dir=place)
    if len(os.fsencode(folder)) + _NAME_BYTES <= _MAX_PATH_BYTES:
        return folder
    os.rmdir(folder)  # noqa: PTH106  as the rest: its paths are text for an environment
    return tempfile.mkdtemp(prefix=prefix, dir=_SHORT)
