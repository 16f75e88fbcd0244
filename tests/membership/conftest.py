from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reknit.core.context import Endpoint
from reknit.services.membership import view
from support.buses import Broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "broker")
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def endpoint(broker: Broker) -> Endpoint:
    return broker.endpoint


@pytest.fixture(params=[False, True], ids=["in-ring", "beside"], autouse=True)
def candidates(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both ways to learn, as long as there are two."""
    if request.param and "endpoint" in request.fixturenames:
        pytest.skip("a process of its own has the default")
    monkeypatch.setattr(view, "CANDIDATES", request.param)
    return request.param
