"""A snapshot is the state of its step, whatever happens to the model while it is copied and after it."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from reknit.core.errors import StateError
from reknit.worker import snapshot as module
from reknit.worker.parts import span
from reknit.worker.snapshot import Snapshot, SnapshotMemory, Snapshotter, free_memory
from reknit.worker.state import load
from reknit.worker.tracked import Tracked
from support.checkpoints import Model


def restored(snapshot: Snapshot) -> int:
    model = Model(-1)
    load(Tracked(model=model), snapshot.layout, snapshot.memory)
    return model.says()


def take(snapshotter: Snapshotter, step: int) -> Snapshot:
    future = snapshotter.begin(step, chain=1, generation=2)
    snapshotter.wait()
    return future.result(0)


class Gate:
    """Holds copies back until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        real = module.write

        def write(*args: Any) -> None:
            assert self.open.wait(30)
            real(*args)

        monkeypatch.setattr(module, "write", write)


def test_a_snapshot_holds_the_state_of_its_step() -> None:
    model = Model(3)
    snapshot = take(Snapshotter(Tracked(model=model)), 3)
    model.set(4)
    assert restored(snapshot) == 3
    assert (snapshot.step, snapshot.chain, snapshot.generation) == (3, 1, 2)


def test_buffers_are_those_of_begin_even_if_forward_changes_them_during_the_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate(monkeypatch)
    model = Model(3)
    snapshotter = Snapshotter(Tracked(model=model))
    future = snapshotter.begin(3, chain=0, generation=0)
    model.step.fill_(99)
    gate.open.set()
    snapshotter.wait()
    assert restored(future.result(0)) == 3


def test_wait_returns_only_when_the_copy_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    model = Model(3)
    snapshotter = Snapshotter(Tracked(model=model))
    future = snapshotter.begin(3, chain=0, generation=0)
    waited = threading.Event()

    def main() -> None:
        snapshotter.wait()
        assert future.done()
        model.set(4)
        waited.set()

    thread = threading.Thread(target=main)
    thread.start()
    assert not waited.wait(0.05)
    gate.open.set()
    thread.join(30)
    assert waited.is_set()
    assert restored(future.result(0)) == 3


def address(snapshot: Snapshot) -> int:
    return torch.frombuffer(snapshot.memory, dtype=torch.uint8).data_ptr()


def test_memory_is_used_again_after_release_and_not_before() -> None:
    model = Model(1)
    snapshotter = Snapshotter(Tracked(model=model))
    first = take(snapshotter, 1)
    model.set(2)
    second = take(snapshotter, 2)
    assert address(first) != address(second)
    place = address(first)
    first.hold()
    first.release()
    model.set(3)
    third = take(snapshotter, 3)
    assert address(third) != place
    first.release()
    first.release()
    model.set(4)
    fourth = take(snapshotter, 4)
    assert address(fourth) == place
    assert [restored(s) for s in (second, third, fourth)] == [2, 3, 4]
    with pytest.raises(StateError, match="step 1 is gone"):
        first.hold()


def test_a_copy_that_nobody_refers_to_gives_its_memory_back() -> None:
    model = Model(1)
    snapshotter = Snapshotter(Tracked(model=model))
    snapshot = take(snapshotter, 1)
    place, sent = address(snapshot), snapshot.memory[10:20]
    del snapshot
    gc.collect()
    model.set(2)
    second = take(snapshotter, 2)
    assert address(second) != place  # a part of it is still being sent
    del sent
    gc.collect()
    assert address(take(snapshotter, 3)) == place


def test_prepared_memory_is_the_one_that_is_used() -> None:
    snapshotter = Snapshotter(Tracked(model=Model(1)))
    snapshotter.prepare()
    snapshotter.prepare()
    snapshot = take(snapshotter, 1)
    assert restored(snapshot) == 1
    assert len(snapshotter._idle) == 0


def test_a_part_is_copied_into_memory_that_was_made_ready_for_it_and_given_back_after_it() -> None:
    model = Model(1)
    snapshotter = Snapshotter(Tracked(model=model))
    whole = bytes(take(snapshotter, 1).memory)
    held = snapshotter.ready(3)
    assert isinstance(held, SnapshotMemory)
    place = torch.frombuffer(held.reserve(1), dtype=torch.uint8).data_ptr()
    future = snapshotter.begin(1, chain=1, generation=2, which=lambda size: span(size, 1, 3))
    snapshotter.wait()
    part = future.result(0)
    first, end = span(len(whole), 1, 3)
    assert (part.first, bytes(part.memory)) == (first, whole[first:end])
    assert address(part) == place
    part.release()
    assert held.size == 0


def test_memory_made_ready_for_nothing_is_gone_with_its_learner() -> None:
    snapshotter = Snapshotter(Tracked(model=Model(1)))
    snapshotter.measure()
    gone = weakref.ref(snapshotter.ready(1))
    gc.collect()
    assert gone() is None
    future = snapshotter.begin(1, chain=1, generation=2, which=lambda size: span(size, 0, 1))
    snapshotter.wait()
    assert restored(future.result(0)) == 1


def test_memory_grows_with_the_state() -> None:
    model = Model(1)
    optimizer = torch.optim.Adam(model.parameters())
    snapshotter = Snapshotter(Tracked(model=model, optimizer=optimizer))
    first = take(snapshotter, 1)
    first.release()
    model.weight.sum().backward()
    optimizer.step()
    second = take(snapshotter, 2)
    assert second.layout.total > 2 * first.layout.total
    assert len(second.memory) == second.layout.total


def test_state_that_cannot_travel_is_an_error_of_begin() -> None:
    class Odd:
        def state_dict(self) -> Any:
            return {"f": print}

        def load_state_dict(self, state: Any) -> None: ...

    with pytest.raises(StateError, match=r"odd\.f"):
        Snapshotter(Tracked(odd=Odd())).begin(0, chain=0, generation=0)


# ------------------------------------------------------------------------------------------------ short of memory


def test_too_little_memory_goes_to_a_file_and_works_as_well(tmp_path: Path) -> None:
    memory = SnapshotMemory(tmp_path, free=lambda: 0)
    array = memory.reserve(100_000)
    assert memory.spilled
    assert array.shape == (100_000,)
    array[:] = 7
    assert memory.reserve(1000)[999] == 7
    assert list(tmp_path.iterdir()) == []


def test_no_room_anywhere_is_said_by_the_future_and_the_next_one_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshotter = Snapshotter(Tracked(model=Model(1)), spill=tmp_path / "missing")
    monkeypatch.setattr(module, "free_memory", lambda: 0)
    future = snapshotter.begin(1, chain=0, generation=0)
    snapshotter.wait()
    error = future.exception(0)
    assert isinstance(error, StateError)
    assert "MB of memory are free" in str(error)
    assert error.hint
    monkeypatch.undo()
    assert restored(take(snapshotter, 2)) == 1


def test_free_memory_is_a_plausible_number() -> None:
    assert 0 < free_memory() < 1 << 50
