"""Files that a script saves: written once, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import reknit
from reknit.core.context import Endpoint
from reknit.core.errors import UsageError
from support.crews import Crew

SCRIPT = "support.keeper:train"


def test_only_the_lead_writes(endpoint: Endpoint, tmp_path: Path) -> None:
    path = tmp_path / "best.pt"
    with Crew(endpoint, tmp_path, SCRIPT, path=str(path)) as crew:
        crew.start("w0", "w1")
        crew.world("w0", "w1")
        assert crew.finish("w0", "w1") == {"w0": [True] * 4, "w1": [False] * 4}
    found = torch.load(path)
    assert found["step"] == 3
    assert torch.equal(found["much"], torch.full((5000,), 3.0))
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["best.pt"]


def test_a_lead_that_dies_while_it_writes_leaves_the_file_before_and_the_next_one_writes(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    path = tmp_path / "best.pt"
    with Crew(endpoint, tmp_path, SCRIPT, path=str(path)) as crew:
        crew.start("w0", "w1", hold={"w0": (1, -1)})
        crew.world("w0", "w1")
        crew.held("w0")
        crew.want("w0", place="writing")
        crew.go("w0")
        crew.held("w0", place="writing")
        assert torch.load(path)["step"] == 1
        crew.kill("w0")
        assert torch.load(path)["step"] == 1
        crew.world("w1")
        wrote = crew.finish("w1")["w1"]
        assert wrote[-1] is True
    assert torch.load(path)["step"] == 3


def test_what_cannot_be_written_is_an_error_and_harms_nothing(tmp_path: Path) -> None:
    path = tmp_path / "best.pt"
    with reknit.join() as ring:
        with pytest.raises(UsageError, match="nobody is the lead yet"):
            ring.save(torch.ones(3), path)
        ring.track(model=torch.nn.Linear(1, 1))
        next(ring.steps([0, 1], micro_batch=1))
        assert ring.save(torch.ones(3), path)
        with pytest.raises(AttributeError):
            ring.save(lambda: 0, path)
        assert torch.equal(torch.load(path), torch.ones(3))
        assert list(tmp_path.iterdir()) == [path]
        with pytest.raises(FileNotFoundError):
            ring.save(torch.ones(3), tmp_path / "nowhere" / "best.pt")
