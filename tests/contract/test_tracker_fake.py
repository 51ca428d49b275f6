from __future__ import annotations

import pytest
from tracker_contract import FakeReader, RegistryContract, Store, TrackerContract

from orchestrator.fakes.tracker import FakeRegistry, FakeTracker


@pytest.fixture
def store() -> Store:
    tracker = FakeTracker()
    return Store(tracker, tracker, FakeReader(tracker), FakeRegistry())


class TestFakeTracker(TrackerContract):
    pass


class TestFakeRegistry(RegistryContract):
    pass
