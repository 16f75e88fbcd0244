"""Each example of docs/script.md runs as it stands, and prints the same alone and in a crew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from reknit.core.broker import Broker
from reknit.core.context import Endpoint
from support.crews import Crew
from support.pages import examples, run


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    broker = Broker(tmp_path_factory.mktemp("broker"))
    try:
        yield broker.start()
    finally:
        broker.stop()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_there_is_one_for_each_feature() -> None:
    assert len(examples()) >= 10


@pytest.mark.parametrize("name", examples())
def test_an_example_prints_the_same_alone_and_in_a_crew(name: str, endpoint: Endpoint, tmp_path: Path) -> None:
    expected = run(None, name)
    assert expected
    with Crew(endpoint, tmp_path, "support.pages:run", name=name, joins=False) as crew:
        crew.start("w0", "w1")
        crew.world("w0", "w1")
        assert crew.finish("w0", "w1") == {"w0": expected, "w1": ""}
