"""A picture of one colour, made without an imaging library. Pure."""

from __future__ import annotations

import base64
import struct
import zlib

SIDE = 224
"""Pixels; no vision tower takes less, and some fail on pictures of a few pixels."""


def data_url(rgb: tuple[int, int, int], side: int = SIDE) -> str:
    """Return a square as the ``data:`` address of a PNG.

    Args:
        rgb: Red, green, blue, 0 to 255.
        side: Pixels.
    """
    return "data:image/png;base64," + base64.b64encode(png(rgb, side)).decode()


def png(rgb: tuple[int, int, int], side: int = SIDE) -> bytes:
    """Return the bytes of a PNG: 8 bits a channel, no alpha, one row after the other."""
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    row = b"\0" + bytes(rgb) * side  # each row begins with its filter, here none
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(row * side)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_part(kind, data) for kind, data in parts)


def _part(kind: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)
