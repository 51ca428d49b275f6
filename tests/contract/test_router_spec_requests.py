"""The router on loopback, asked by schemathesis for what its specification has, and beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import requests

from infra.fuzz.router_site import APP, KEY, Site, serving
from infra.fuzz.router_spec import Asked, edges, fault_of, honest_fault

AUTHORIZED = {"authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as found:
        found.trust_env = False
        yield found


@pytest.mark.parametrize("headers", [AUTHORIZED, {}], ids=["key", "no key"])
def test_edges_of_the_specification_are_answered_as_it_says(
    site: Site, session: requests.Session, headers: dict[str, str]
) -> None:
    found = edges()
    assert len(found) > 150
    faults = [fault_of(site, session, Asked(case, headers)) for case in found]
    assert [each for each in faults if each is not None] == []
    assert honest_fault(site, session) is None
    rooms = (site.router._streams, site.router._probes, site.router._bodies)
    assert [room.taken for room in rooms] == [0, 0, 0]
    assert site.router.counts()[APP]["under_way"] == 0


CHAT = {"messages": [{"role": "user", "content": "x"}], "prompt": "x"}
NO_REQUESTS: list[dict[str, object]] = [
    *({}, {"prompt": None}, {"prompt": {}}, {"messages": None}, {"messages": [3]}),
    *({"messages": [{}]}, {"prompt": "\ud800"}),
]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *(("/tokenize", body) for body in NO_REQUESTS),
        *(("/v1/completions", body) for body in NO_REQUESTS),
        *(("/v1/chat/completions", body) for body in (*NO_REQUESTS, {"messages": []})),
        *(("/v1/completions", {**CHAT, "max_tokens": number}) for number in (-1, 1e999)),
        *(("/v1/chat/completions", {**CHAT, "temperature": number}) for number in (-0.1, 1e999)),
    ],
)
def test_stand_in_refuses_what_is_no_request(
    site: Site, session: requests.Session, path: str, body: dict[str, object]
) -> None:
    answer = session.post(f"{site.direct}{path}", data=json.dumps(body), timeout=20)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, 400)


def test_temperature_next_to_nothing_is_answered(site: Site, session: requests.Session) -> None:
    for temperature in (5e-324, 1e-200, 1e308):
        body = {"prompt": "x", "max_tokens": 3, "temperature": temperature}
        answer = session.post(f"{site.direct}/v1/completions", json=body, timeout=20)
        assert answer.json()["usage"]["completion_tokens"] == 3
