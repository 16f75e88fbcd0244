from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reknit.core.context import Endpoint
from support.buses import Broker


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    broker = Broker(tmp_path / "broker")
    yield broker.start()
    broker.stop()
