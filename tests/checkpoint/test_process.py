"""The service as a process over a real broker, with real files: killed at any moment it goes on from log and disk."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from reknit.core.bus import Bus, Received
from reknit.core.context import Endpoint
from reknit.core.events import (
    CheckpointCommitted,
    CheckpointDeleted,
    CheckpointFailed,
    CheckpointRequested,
    CheckpointWritten,
    JobSubmitted,
    Range,
    StepsCommitted,
    Terms,
)
from reknit.core.manifest import MANIFEST, read_manifest
from reknit.core.newest import newest_verified
from reknit.worker.restore import newest_state
from reknit.worker.state import load
from reknit.worker.tracked import Tracked
from support.buses import joined, until
from support.checkpoints import CHUNK, JOB, Model, manifest_of, snapshot, write_files
from support.history import member, registered, world
from support.service_process import ServiceProcess, ready

TERMS = Terms(slots=4, micro_batch=5, samples=10000, epochs=2, seed=9)
RUN = "r1"
WORKERS = ("a", "b", "c")


class Log:
    """What was said about checkpoints."""

    def __init__(self) -> None:
        self.heard: list[Received] = []

    def of(self, kind: type) -> list:  # type: ignore[type-arg]
        return [r.event for r in self.heard if isinstance(r.event, kind)]

    def asked(self) -> list[str]:
        return [r.checkpoint for r in self.of(CheckpointRequested) if not r.reassigned]

    def committed(self) -> list[str]:
        return [c.checkpoint for c in self.of(CheckpointCommitted)]


async def begin(bus: Bus, root: Path, workers: Sequence[str] = WORKERS, **spec: object) -> Log:
    log = Log()
    await bus.follow(log.heard.append, job=JOB, areas=["checkpoint"])
    spec = {"checkpoint_every_steps": 10, "checkpoint_keep": 2, **spec}
    await bus.publish(JOB, JobSubmitted(run=RUN, script="t.py", checkpoint_dir=str(root), **spec))
    for worker in workers:
        await bus.publish(JOB, registered(worker, TERMS, RUN))
    await bus.publish(JOB, world(1, *(member(w) for w in workers), run=RUN))
    return log


async def train(bus: Bus, first: int, last: int) -> None:
    ranges = (Range(worker="a", first=0, end=4),)
    await bus.publish(JOB, StepsCommitted(run=RUN, first=first, last=last, generation=1, ranges=ranges, slots=4))


def files_of(root: Path, step: int, checkpoint: str, workers: Sequence[str] = WORKERS) -> list[CheckpointWritten]:
    return [w for w in write_files(root, step, checkpoint, workers) if isinstance(w, CheckpointWritten)]


async def save(bus: Bus, log: Log, root: Path, number: int, step: int) -> None:
    checkpoint = f"{RUN}-{number}"
    await until(lambda: checkpoint in log.asked(), f"the request of {checkpoint}")
    for w in files_of(root, step, checkpoint):
        await bus.publish(JOB, w)
    await until(lambda: checkpoint in log.committed(), f"the commit of {checkpoint}")


def state_of(root: Path) -> int:
    restored, _ = newest_state(root, JOB, run=RUN)
    assert restored is not None
    model = Model(-1)
    load(Tracked(model=model), restored.layout, restored.memory)
    return model.says()


async def test_from_request_to_manifest_and_retention(endpoint: Endpoint, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    async with joined(endpoint) as bus:
        log = await begin(bus, root)
        with ServiceProcess("checkpoint", endpoint):
            for number in range(1, 5):
                await train(bus, 10 * number - 10, 10 * number - 1)
                await save(bus, log, root, number, 10 * number)
            await until(lambda: len(log.of(CheckpointDeleted)) == 2, "the deletions")
        assert [d.checkpoint for d in log.of(CheckpointDeleted)] == ["r1-1", "r1-2"]
        assert sorted(p.name for p in (root / JOB).iterdir()) == ["step-00000030-r1-3", "step-00000040-r1-4"]
        manifest, skipped = newest_verified(root, JOB, run=RUN)
        assert manifest is not None
        assert skipped == ()
        assert (manifest.number, manifest.step, manifest.parent, manifest.seed) == (4, 40, "r1-3", 9)
        assert manifest.terms == TERMS
        assert state_of(root) == 40
        committed = log.of(CheckpointCommitted)[-1]
        assert Path(committed.path) == root / JOB / manifest.directory
        assert committed.bytes == manifest.bytes


async def test_killed_in_the_middle_of_an_assembly_it_goes_on(endpoint: Endpoint, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    async with joined(endpoint) as bus:
        log = await begin(bus, root)
        with ServiceProcess("checkpoint", endpoint) as service:
            await train(bus, 0, 9)
            await until(lambda: log.asked() == ["r1-1"], "the request")
            written = files_of(root, 10, "r1-1")
            for w in written[:3]:
                await bus.publish(JOB, w)
            service.kill()
            for w in written[3:]:
                await bus.publish(JOB, w)
            assert not list(root.rglob(MANIFEST))
            service.start()
            await until(lambda: log.committed() == ["r1-1"], "the commit")
            assert service.terminate() == 0
        assert log.asked() == ["r1-1"]
        assert state_of(root) == 10


async def test_a_manifest_that_was_not_announced_is_announced(endpoint: Endpoint, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    async with joined(endpoint) as bus:
        log = await begin(bus, root)
        await bus.publish(JOB, CheckpointRequested(checkpoint="r1-1", at_step=10))
        await train(bus, 0, 9)
        written = files_of(root, 10, "r1-1")
        for w in written:
            await bus.publish(JOB, w)
        from reknit.services.checkpoint import disk

        manifest = disk.commit(root, manifest_of(root, written, run=RUN))
        stray = root / JOB / manifest.directory / ".chunk-00001-b.safetensors.99.tmp"
        stray.write_bytes(b"half")
        with ServiceProcess("checkpoint", endpoint):
            await until(lambda: log.committed() == ["r1-1"], "the announcement")
        assert read_manifest(root / JOB / manifest.directory).created == manifest.created
        assert not stray.exists()


async def test_a_writer_dies_and_its_part_is_written_by_another(endpoint: Endpoint, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    async with joined(endpoint) as bus:
        log = await begin(bus, root)
        with ServiceProcess("checkpoint", endpoint):
            await train(bus, 0, 9)
            await until(lambda: log.asked() == ["r1-1"], "the request")
            written = files_of(root, 10, "r1-1")
            for w in written:
                if w.worker != "b":
                    await bus.publish(JOB, w)
            for path in root.rglob("*-b.safetensors"):
                path.unlink()
            await bus.publish(JOB, world(2, member("a"), member("c"), run=RUN, removed=("b",)))
            await until(lambda: any(r.reassigned for r in log.of(CheckpointRequested)), "the new order")
            again = next(r for r in log.of(CheckpointRequested) if r.reassigned)
            assert again.checkpoint == "r1-1"
            wanted = [w.chunk for w in written if w.worker == "b"]
            assert sorted(n for part in again.reassigned.values() for n in part) == wanted
            for worker, part in again.reassigned.items():
                for w in take_over(root, worker, part):
                    await bus.publish(JOB, w)
            await until(lambda: log.committed() == ["r1-1"], "the commit")
        assert state_of(root) == 10


def take_over(root: Path, worker: str, part: Sequence[int]) -> list[CheckpointWritten]:
    from reknit.worker.chunks import Writer

    said: list[CheckpointWritten] = []
    writer = Writer(worker, job=JOB, checkpoint_dir=root, on_written=said.append, on_failed=print, chunk_bytes=CHUNK)
    writer.write(snapshot(10), "r1-1", part, writers=WORKERS)
    assert writer.close(30)
    return said


async def test_a_failed_checkpoint_is_removed_and_the_old_one_is_intact(endpoint: Endpoint, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    async with joined(endpoint) as bus:
        log = await begin(bus, root)
        with ServiceProcess("checkpoint", endpoint):
            await train(bus, 0, 9)
            await save(bus, log, root, 1, 10)
            await train(bus, 10, 19)
            await until(lambda: "r1-2" in log.asked(), "the second request")
            for w in files_of(root, 20, "r1-2")[:4]:
                await bus.publish(JOB, w)
            keeper = root / JOB / "step-00000020-r1-2"
            assert keeper.is_dir()
            failed = CheckpointFailed(checkpoint="r1-2", reason="c: No space left on device", step=20, worker="c")
            await bus.publish(JOB, failed)
            await until(lambda: not keeper.exists(), "the removal")
            assert state_of(root) == 10
            await train(bus, 20, 29)
            await save(bus, log, root, 3, 30)
        assert state_of(root) == 30
        assert newest_verified(root, JOB)[0].parent == "r1-1"  # type: ignore[union-attr]


async def test_files_that_are_not_on_this_node_make_no_checkpoint(endpoint: Endpoint, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    async with joined(endpoint) as bus:
        log = await begin(bus, root)
        with ServiceProcess("checkpoint", endpoint):
            await train(bus, 0, 9)
            await until(lambda: log.asked() == ["r1-1"], "the request")
            for w in files_of(tmp_path / "another-disk", 10, "r1-1"):
                await bus.publish(JOB, w)
            await until(lambda: log.of(CheckpointFailed), "the failure")
        reason = log.of(CheckpointFailed)[0].reason
        assert "which a wrote, is not in" in reason
        assert newest_verified(root, JOB) == (None, ())


async def test_foreign_directories_survive_retention(endpoint: Endpoint, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    foreign = root / JOB / "ckpt-9999"
    foreign.mkdir(parents=True)
    (foreign / "model.pt").write_bytes(b"precious")
    unknown = root / JOB / "step-00009999-elsewhere"
    unknown.mkdir()
    (unknown / "chunk-00000-w.safetensors").write_bytes(b"precious too")
    async with joined(endpoint) as bus:
        log = await begin(bus, root, checkpoint_keep=1)
        with ServiceProcess("checkpoint", endpoint):
            for number in range(1, 4):
                await train(bus, 10 * number - 10, 10 * number - 1)
                await save(bus, log, root, number, 10 * number)
            note = root / JOB / "step-00000030-r1-3" / "note.txt"
            note.write_text("a person's own")
            await train(bus, 30, 39)
            await save(bus, log, root, 4, 40)
            await until(lambda: len(log.of(CheckpointDeleted)) == 3, "the deletions")
    assert (foreign / "model.pt").exists()
    assert (unknown / "chunk-00000-w.safetensors").exists()
    assert [p.name for p in note.parent.iterdir()] == ["note.txt"]


async def test_two_services_make_one_sequence(endpoint: Endpoint, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    async with joined(endpoint) as bus:
        log = await begin(bus, root)
        with ServiceProcess("checkpoint", endpoint) as one, ServiceProcess("checkpoint", endpoint) as two:
            for process in (one, two):
                await ready(bus, "checkpoint", process.pid)
            for number in range(1, 6):
                await train(bus, 10 * number - 10, 10 * number - 1)
                await save(bus, log, root, number, 10 * number)
            await until(lambda: len(log.of(CheckpointDeleted)) >= 3, "the deletions")
        numbers = [f"r1-{n}" for n in range(1, 6)]
        assert log.asked() == numbers
        assert log.committed() == numbers
        assert log.of(CheckpointFailed) == []
        assert state_of(root) == 50


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 6))])
async def test_killed_at_random_moments_over_a_whole_run(endpoint: Endpoint, tmp_path: Path, seed: int) -> None:
    root = tmp_path / "checkpoints"
    chance = random.Random(seed)
    async with joined(endpoint) as bus:
        log = await begin(bus, root)
        with ServiceProcess("checkpoint", endpoint) as service:

            def strike() -> None:
                if chance.random() < 0.12:
                    service.kill()
                    service.start()

            for number in range(1, 5):
                await train(bus, 10 * number - 10, 10 * number - 1)
                strike()
                checkpoint = f"r1-{number}"
                await until(lambda c=checkpoint: c in log.asked(), "the request")
                for w in files_of(root, 10 * number, checkpoint):
                    await bus.publish(JOB, w)
                    strike()
                await until(lambda c=checkpoint: c in log.committed(), "the commit")
            service.kill()
            service.start()
            await until(lambda: len(log.of(CheckpointDeleted)) >= 2, "the deletions")
        assert log.asked() == log.committed() == [f"r1-{n}" for n in range(1, 5)]
        assert log.of(CheckpointFailed) == []
        assert sorted(p.name for p in (root / JOB).iterdir()) == ["step-00000030-r1-3", "step-00000040-r1-4"]
        assert not list(root.rglob("*.tmp"))
        assert state_of(root) == 40
