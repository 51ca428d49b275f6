from __future__ import annotations

from serve_apps.router.counts import Counts


def test_counts_tell_answered_failed_and_under_way_by_engine() -> None:
    counts = Counts()
    counts.ended("v1", failed=False)
    counts.ended("v1", failed=False)
    counts.ended("v2", failed=True)

    with counts.under_way("v2"):
        inside = counts.to_dict()

    assert inside == {
        "v1": {"answered": 2, "failed": 0, "under_way": 0},
        "v2": {"answered": 0, "failed": 1, "under_way": 1},
    }
    assert counts.to_dict()["v2"]["under_way"] == 0


def test_request_that_breaks_off_is_under_way_no_more() -> None:
    counts = Counts()

    try:
        with counts.under_way("v1"):
            raise ValueError
    except ValueError:
        pass

    assert counts.to_dict() == {"v1": {"answered": 0, "failed": 0, "under_way": 0}}
