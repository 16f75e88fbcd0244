from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from reknit.core.broker import Broker
from reknit.core.context import Endpoint
from support.agents import AgentUnderTest, agent


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    broker = Broker(tmp_path_factory.mktemp("broker"), die_with_parent=True)
    try:
        yield broker.start()
    finally:
        broker.stop()


@pytest.fixture
def make_agent(endpoint: Endpoint, tmp_path: Path) -> Iterator[Callable[..., AgentUnderTest]]:
    """Makes agents that are ended with the test."""
    with ExitStack() as stack:

        def make(source: str, *, folder: str = "", **fields: object) -> AgentUnderTest:
            place = tmp_path / folder
            place.mkdir(exist_ok=True)
            return stack.enter_context(agent(endpoint, place, source, **fields))

        yield make
