from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.collector import Collector, collector
from support.launchers import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A home of its own; whatever a test leaves running is ended."""
    place = Place(tmp_path)
    try:
        yield place
    finally:
        place.clean()


@pytest.fixture
def traces() -> Iterator[Collector]:
    with collector() as one:
        yield one
