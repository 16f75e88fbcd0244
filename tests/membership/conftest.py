from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reknit.core.context import Endpoint
from reknit.services.membership import decide, verdict
from reknit.services.membership.verdict import Verdict
from reknit.services.membership.view import Record, Sight
from support.buses import Broker


@pytest.fixture(autouse=True)
def whoever_is_well_is_judged_as_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each verdict of each test is compared with the one that looks at everybody closely."""
    short, is_well = decide.judge, verdict._is_well

    def judge(record: Record, sight: Sight, now: float) -> Verdict:
        found = short(record, sight, now)
        verdict._is_well = lambda *_: False
        try:
            assert short(record, sight, now) == found
        finally:
            verdict._is_well = is_well
        return found

    monkeypatch.setattr(decide, "judge", judge)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "broker")
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def endpoint(broker: Broker) -> Endpoint:
    return broker.endpoint
