"""How answers of the shipped tasks are judged; loaded by the harness, so standard library only.

Each function returns ``hit`` and ``parsed``, 1 or 0: an answer that has no form that can be judged
is no hit and is counted for itself, since a score of such answers says nothing of the model.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence

_NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")

Marks = dict[str, int]


def number(doc: Mapping[str, str], results: Sequence[str]) -> Marks:
    """Judge by the last number on the answer's first line that is not empty."""
    lines = [line for line in results[0].splitlines() if line.strip()]
    found = _NUMBER.findall(lines[0]) if lines else []
    if not found:
        return {"hit": 0, "parsed": 0}
    given = float(found[-1].replace(",", ""))
    return {"hit": int(given == float(doc["answer"])), "parsed": 1}


def json_object(doc: Mapping[str, str], results: Sequence[str]) -> Marks:
    """Judge by the first JSON object of the answer: all fields and no others, in any order."""
    text = results[0]
    start = text.find("{")
    try:
        given, _ = json.JSONDecoder().raw_decode(text[start:] if start >= 0 else "")
    except (ValueError, RecursionError):
        return {"hit": 0, "parsed": 0}
    return {"hit": int(given == json.loads(doc["target"])), "parsed": 1}


def choice(doc: Mapping[str, object], results: Sequence[tuple[float, bool]]) -> Marks:
    """Judge by the choice whose tokens are the most likely, the first of equals."""
    likelihoods = [float(likelihood) for likelihood, _ in results]
    if not all(math.isfinite(likelihood) for likelihood in likelihoods):
        return {"hit": 0, "parsed": 0}
    return {"hit": int(likelihoods.index(max(likelihoods)) == doc["gold"]), "parsed": 1}
