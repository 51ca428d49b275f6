"""The lines of Prometheus' text format, read strictly and in time that grows with their length.

Grammar: https://prometheus.io/docs/instrumenting/exposition_formats/ (0.0.4), with the quoted names
of 1.0.0 and, behind a sample, an exemplar of OpenMetrics. prometheus_client's reader is laxer: it
takes ``5 x 7`` for 5, drops a label without a value, renames a sample by its ``# TYPE``, and takes
time that grows with the square of a line's length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_LABEL = r"[a-zA-Z_][a-zA-Z0-9_]*+"
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*+"
# One label, or the quoted name of the metric.
_ITEM = rf"(?:(?:{_LABEL}|{_STRING})[ \t]*+=[ \t]*+{_STRING}|{_STRING})[ \t]*+"
_ITEMS = rf"(?:{_ITEM}(?:,[ \t]*+{_ITEM})*+(?:,[ \t]*+)?+)?+"
_NUMBER = (
    r"[+-]?+(?:[0-9]++(?:\.[0-9]*+)?+(?:[eE][+-]?+[0-9]++)?+"
    r"|\.[0-9]++(?:[eE][+-]?+[0-9]++)?+|[iI]nf(?:inity)?+)|[nN]a[nN]"
)
_VALUE_AND_TIME = rf"(?P<value>{_NUMBER})(?:[ \t]++(?:{_NUMBER}))?+"
_EXEMPLAR = rf"[ \t]++\#[ \t]++\{{[ \t]*+{_ITEMS}\}}[ \t]*+(?:{_NUMBER})(?:[ \t]++(?:{_NUMBER}))?+"
_SAMPLE = re.compile(
    rf"[ \t]*+(?:(?P<bare>{_NAME})[ \t]++"
    rf"|(?P<name>{_NAME})?+[ \t]*+\{{[ \t]*+(?P<labels>{_ITEMS})\}}[ \t]*+)"
    rf"{_VALUE_AND_TIME}(?:{_EXEMPLAR})?+[ \t\r]*+"
)
_PAIR = re.compile(
    rf"(?:(?P<label>{_LABEL}|{_STRING})[ \t]*+=[ \t]*+)?(?P<value>{_STRING})[ \t]*+,?[ \t]*+"
)
_ESCAPE = re.compile(r'\\[\\n"]')
_ESCAPED = {r"\\": "\\", r"\n": "\n", r"\"": '"'}
_SHOWN_CHARS = 80


class Sample(NamedTuple):
    """One sample: a number under a name and labels."""

    name: str
    labels: Mapping[str, str]
    value: float


def samples(text: str) -> Iterator[Sample]:
    """Yield the samples of a text exposition, in order; comments and types say nothing here.

    Raises:
        ValueError: A line is none of the format.
    """
    for number, line in enumerate(text.split("\n"), start=1):
        head = line.lstrip(" \t\r")
        if head and not head.startswith("#"):
            sample = _sample(line)
            if sample is None:
                raise ValueError(f"line {number} is no sample: {line[:_SHOWN_CHARS]!r}")
            yield sample


def _sample(line: str) -> Sample | None:
    found = _SAMPLE.fullmatch(line)
    if found is None:
        return None
    names = [name for name in (found["bare"], found["name"]) if name is not None]
    labels: dict[str, str] = {}
    for pair in _PAIR.finditer(found["labels"] or ""):
        value = _unquoted(pair["value"])
        if pair["label"] is None:
            names.append(value)
            continue
        label = _unquoted(pair["label"])
        if label in labels:
            return None
        labels[label] = value
    return Sample(names[0], labels, float(found["value"])) if len(names) == 1 else None


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    return _ESCAPE.sub(lambda found: _ESCAPED[found[0]], text[1:-1])
