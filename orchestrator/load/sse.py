"""Server-sent events: bytes in, data of whole events out. Pure."""

from __future__ import annotations

DONE = "[DONE]"
"""Data of the event that ends an OpenAI-style stream."""

MAX_EVENT_BYTES = 8 << 20
"""Longest line or event; a stream that never ends one must not fill the memory."""

_BOM = b"\xef\xbb\xbf"


class SseDecoder:
    """Splits a byte stream into events, whatever the reads look like.

    Lines may end with LF, CRLF or CR, as the standard says. They are decoded only when they are
    whole, so a character that is split over two reads survives. Comments (keep-alives) and fields
    other than ``data`` are dropped.
    """

    def __init__(self) -> None:
        self._pending = bytearray()
        self._data: list[str] = []
        self._data_size = 0
        self._is_after_cr = False
        self._is_start = True

    def feed(self, read: bytes) -> list[str]:
        """Return the data of the events that this read completes, in order.

        Raises:
            UnicodeDecodeError: What came is not UTF-8.
            ValueError: A line or an event is longer than ``MAX_EVENT_BYTES``.
        """
        if self._is_after_cr or b"\r" in read:
            read = self._unify(read)
        end = read.rfind(b"\n") + 1
        if end == 0:
            self._keep(read)
            return []
        rest = read[end:]
        lines = read[:end]
        if self._pending:
            lines = bytes(self._pending) + lines
            self._pending.clear()
        if rest:
            self._keep(rest)
        return self._take(lines)

    def finish(self) -> list[str]:
        """Return the events that the end of the stream completes.

        Servers that close without a last blank line are common, so their last event counts.

        Raises:
            UnicodeDecodeError: The last line is not UTF-8.
        """
        return self.feed(b"\n\n")

    def _unify(self, read: bytes) -> bytes:
        """Return the read with every line end as LF; a CRLF may be split over two reads."""
        if self._is_after_cr and read.startswith(b"\n"):
            read = read[1:]
            self._is_after_cr = False
        if read:
            self._is_after_cr = read.endswith(b"\r")
        return read.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _keep(self, rest: bytes) -> None:
        if len(self._pending) + len(rest) > MAX_EVENT_BYTES:
            raise ValueError(f"a line of more than {MAX_EVENT_BYTES} bytes")
        self._pending += rest

    def _take(self, lines: bytes) -> list[str]:
        """Return the events of whole lines; the last of them ends with LF."""
        if self._is_start:
            self._is_start = False
            lines = lines.removeprefix(_BOM)
        events = []
        data = self._data
        # The piece behind the last LF is no line.
        for line in lines.decode("utf-8").split("\n")[:-1]:
            if line.startswith("data:"):
                data.append(line[6:] if line.startswith("data: ") else line[5:])
                self._data_size += len(line)
            elif not line:
                if data:
                    events.append(data[0] if len(data) == 1 else "\n".join(data))
                    data.clear()
                    self._data_size = 0
            elif line == "data":
                data.append("")
        if self._data_size > MAX_EVENT_BYTES:
            raise ValueError(f"an event of more than {MAX_EVENT_BYTES} characters")
        return events
