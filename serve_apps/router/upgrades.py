"""Requests that offer another protocol beside their body, as Java's client offers HTTP/2 with each.

A server may go on in HTTP/1.1 (RFC 9110, 7.8), and uvicorn does. But its parser takes what follows
such a head for the other protocol: the body is lost, and where it comes by itself it is read as the
connection's next request. Whoever is in front then gets two answers to one request, and may give
the second one to another client. What follows the head of a CONNECT is read the same way.

Of the offers uvicorn takes WebSocket's. Nothing here speaks it, and its handshake keeps for ever a
connection that asks for it with another method than GET.
"""

from __future__ import annotations

import sys

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Staying(HttpToolsProtocol):
    """A connection that reads a request with an offer as if it had none; a CONNECT ends it."""

    _is_offered = False
    """Whether the head that was read last has an offer that is not taken."""
    _data = b""
    """What the parser has been given last."""
    _again: bytes | None = None
    """What it is to be given next: the head without its offer, and all that came after it."""

    def data_received(self, data: bytes) -> None:
        """Read on."""
        left: bytes | None = data
        while left is not None:  # a client may send one such request after the other
            self._data, self._again = left, None
            super().data_received(left)
            left = self._again
        self._data = b""

    def on_headers_complete(self) -> None:
        """Begin a request, unless its head is to be read again."""
        is_connect = self.parser.get_method() == b"CONNECT"  # which is an upgrade without an offer
        self._is_offered = self.parser.should_upgrade() and not is_connect
        if not self._is_offered:
            super().on_headers_complete()
        if is_connect:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """End a request that was begun."""
        if not self._is_offered:
            super().on_message_complete()

    def _should_upgrade(self) -> bool:
        """Return whether an offer is taken, which uvicorn asks: none is."""
        return False

    def _unsupported_upgrade_warning(self) -> None:
        """Begin again where the parser has stopped; uvicorn calls this as it handles that."""
        stopped = sys.exception()
        if not self._is_offered or not isinstance(stopped, httptools.HttpParserUpgrade):
            return
        head = self._head()
        self._is_offered = False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        self._again = head + self._data[stopped.args[0] :]

    def _head(self) -> bytes:
        """Return the head that was read, without its offer."""
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                value = b", ".join(token for token in tokens if token.lower() != b"upgrade")
            if name != b"upgrade":
                lines.append(b"%s: %s" % (name, value))
        return b"\r\n".join([*lines, b"\r\n"])
