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
        self._fault: ValueError | None = None

    def feed(self, read: bytes) -> list[str]:
        """Return the data of the events that this read completes, in order.

        Events in front of a fault are returned first, so that an answer does not depend on where
        its reads end: the fault is raised by ``check`` and by every later call.

        Raises:
            UnicodeDecodeError: A line is not UTF-8.
            ValueError: A line or an event is longer than ``MAX_EVENT_BYTES``.
        """
        self.check()
        if self._is_after_cr or b"\r" in read:
            read = self._unify(read)
        end = read.rfind(b"\n") + 1
        rest = read[end:]
        events: list[str] = []
        if end:
            lines = read[:end]
            if self._pending:
                lines = bytes(self._pending) + lines
                self._pending.clear()
            self._take(lines, events)
        if rest:
            self._keep(rest)
        if not events:
            self.check()
        return events

    def finish(self) -> list[str]:
        """Return the events that the end of the stream completes.

        Servers that close without a last blank line are common, so their last event counts.

        Raises:
            ValueError: As ``feed``.
        """
        return self.feed(b"\n\n")

    def check(self) -> None:
        """Raise what is wrong behind the events that were returned.

        Raises:
            ValueError: As ``feed``.
        """
        if self._fault is not None:
            raise self._fault

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
            self._fail(ValueError(f"a line of more than {MAX_EVENT_BYTES} bytes"))
        else:
            self._pending += rest

    def _fail(self, fault: ValueError) -> None:
        self._fault = self._fault or fault

    def _take(self, lines: bytes, events: list[str]) -> None:
        """Add the events of whole lines; the last of them ends with LF."""
        if len(lines) > MAX_EVENT_BYTES:
            lines = self._without_endless(lines)
        if self._is_start:
            self._is_start = False
            lines = lines.removeprefix(_BOM)
        try:
            text = lines.decode("utf-8")
        except UnicodeDecodeError:
            text = self._readable(lines)
        data = self._data
        # The piece behind the last LF is no line.
        for line in text.split("\n")[:-1]:
            if line.startswith("data:"):
                data.append(line[6:] if line.startswith("data: ") else line[5:])
            elif not line:
                if data:
                    events.append(data[0] if len(data) == 1 else "\n".join(data))
                    data.clear()
                    self._data_size = 0
                continue
            elif line == "data":
                data.append("")
            else:
                continue
            self._data_size += len(line) + 1
            if self._data_size > MAX_EVENT_BYTES:
                # In front of what is wrong further behind.
                self._fault = ValueError(f"an event of more than {MAX_EVENT_BYTES} characters")
                return

    def _without_endless(self, lines: bytes) -> bytes:
        """Return what stands in front of a line that is too long, and note the line."""
        start = 0
        while start < len(lines):
            end = lines.index(b"\n", start)
            if end - start > MAX_EVENT_BYTES:
                self._fail(ValueError(f"a line of more than {MAX_EVENT_BYTES} bytes"))
                return lines[:start]
            start = end + 1
        return lines

    def _readable(self, lines: bytes) -> str:
        """Return the lines in front of one that is not UTF-8, and note what is wrong with it."""
        good: list[str] = []
        for line in lines.split(b"\n"):
            try:
                good.append(line.decode("utf-8"))
            except UnicodeDecodeError as fault:
                # In front of a line that is too long: of that one no bytes are here.
                self._fault = fault
                break
        return "\n".join((*good, ""))
