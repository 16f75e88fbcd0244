from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from reknit.core.broker import Broker
from reknit.core.context import Endpoint


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Bits depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A broker for all crews of this folder."""
    broker = Broker(tmp_path_factory.mktemp("broker"))
    try:
        yield broker.start()
    finally:
        broker.stop()
