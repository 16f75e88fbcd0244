from __future__ import annotations

from collections.abc import Iterator

import pytest

from reknit.core.broker import Broker
from reknit.core.context import Endpoint


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A broker for all crews of this folder."""
    broker = Broker(tmp_path_factory.mktemp("broker"))
    try:
        yield broker.start()
    finally:
        broker.stop()
