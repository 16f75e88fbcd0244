from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.hosts import Hosts, NoHosts
from support.launchers import Place
from support.stages import Stage
from support.trainings import Training


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    try:
        Hosts().__enter__().__exit__(None, None, None)
    except NoHosts as error:
        pytest.skip(str(error))
    made = Stage(lambda: tmp_path_factory.mktemp("job"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def run(stage: Stage) -> Training:
    """A job of four workers on four hosts, a-0 to d-0, its control plane on a fifth; all of them at work."""
    return stage.training()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A home of its own; whatever a test leaves running is ended."""
    made = Place(tmp_path)
    try:
        yield made
    finally:
        made.clean()
