"""Server-sent events: bytes in, data of whole events out. Pure."""

from __future__ import annotations

DONE = "[DONE]"
"""Data of the event that ends an OpenAI-style stream."""


class SseDecoder:
    """Splits a byte stream into events, whatever the reads look like.

    Lines are decoded only when they are whole, so a character that is split over two reads
    survives. Comments (keep-alives) and fields other than ``data`` are dropped.
    """

    def __init__(self) -> None:
        self._pending = bytearray()
        self._data: list[str] = []

    def feed(self, read: bytes) -> list[str]:
        """Return the data of the events that this read completes, in order.

        Raises:
            UnicodeDecodeError: A whole line is not UTF-8.
        """
        self._pending += read
        *lines, rest = self._pending.split(b"\n")
        self._pending = rest
        return [event for line in lines if (event := self._take(bytes(line))) is not None]

    def finish(self) -> list[str]:
        """Return the events that the end of the stream completes.

        Servers that close without a last blank line are common, so their last event counts.

        Raises:
            UnicodeDecodeError: The last line is not UTF-8.
        """
        return self.feed(b"\n\n")

    def _take(self, raw: bytes) -> str | None:
        line = raw.removesuffix(b"\r").decode("utf-8")
        if not line:
            event = "\n".join(self._data) if self._data else None
            self._data.clear()
            return event
        if line.startswith("data:"):
            self._data.append(line.removeprefix("data:").removeprefix(" "))
        return None
