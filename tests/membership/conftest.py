from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reknit.core.context import Endpoint
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
