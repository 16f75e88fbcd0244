"""A copy of the tracked state at one step, taken while the next forward and backward run.

    future = snapshotter.begin(step, chain=…, generation=…)    # main thread, right after a step was applied
    …forward, backward…
    snapshotter.wait()                                         # main thread, before parameters may change
    snapshot = future.result()                                 # any thread; snapshot.release() when done with it

What only an optimizer step changes is copied on a thread; the rest (buffers, the user's own objects) at once in
`begin`, because forward changes it. The memory is touched once, ahead of time (`prepare`), and used again: a first copy
into new pages was measured to take six to forty times as long as any later one. A copy for a learner is of a part of
the state only, in memory that is touched when the learner announces itself (`ready`) and given back after it.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from reknit.core import log
from reknit.core.errors import StateError
from reknit.core.layout import Layout

from .memory import anonymous, free_memory
from .parts import span
from .state import Capture, capture, write
from .tracked import Tracked

_RESERVE = 64 * 1024 * 1024  # left free for everybody else when memory is counted
_PAGE = mmap.PAGESIZE
_log = log.get("checkpoint")


class SnapshotMemory:
    """Memory of one snapshot: anonymous, never in children that the script forks, every page touched.

    It is no file under /dev/shm, whose size limit kills a process without a message (containers: 64 MB). When
    the machine has too little free memory, an unlinked file in `spill` stands in; that is said once, as a warning.

    Attributes:
        size: bytes that are mapped and touched now.
        spilled: True if the memory is a file.
    """

    def __init__(self, spill: Path | None = None, *, free: Callable[[], int] | None = None) -> None:
        self.size = 0
        self.spilled = False
        self._spill = spill or Path(tempfile.gettempdir())
        self._free = free or free_memory
        self._map: mmap.mmap | None = None

    def reserve(self, size: int) -> npt.NDArray[np.uint8]:
        """Return `size` bytes of it, shape (size,); it grows when needed, and what it held is then lost.

        Raises:
            StateError: neither memory nor the spill directory has room.
        """
        if self._map is None or self.size < size:
            self._map = None  # given back before the larger one is taken
            self.size = 0
            wanted = max(_PAGE, -(-size // _PAGE) * _PAGE)
            self._map = self._allocate(wanted)
            # torch fills without the GIL; mmap.madvise(MADV_POPULATE_WRITE) would hold it all the time
            torch.frombuffer(self._map, dtype=torch.uint8).zero_()
            self.size = wanted
        return np.frombuffer(self._map, np.uint8)[:size]

    def drop(self) -> None:
        """Give the memory back; views of it that are still in use keep it alive until they are gone."""
        self._map = None
        self.size = 0

    def _allocate(self, size: int) -> mmap.mmap:
        free = self._free()
        self.spilled = False
        if size + _RESERVE <= free:
            try:
                return anonymous(size)
            except OSError:
                free = 0  # an address space limit: RLIMIT_AS
        try:
            return self._allocate_file(size, free)
        except OSError as error:
            raise StateError(
                f"a snapshot needs {_mb(size)} MB: {_mb(free)} MB of memory are free, "
                f"and {self._spill} has no room either ({error.strerror})",
                hint="give the process more memory, or set TMPDIR to a directory on a larger disk",
            ) from error

    def _allocate_file(self, size: int, free: int) -> mmap.mmap:
        with tempfile.TemporaryFile(dir=self._spill, prefix="reknit-snapshot-") as file:
            os.posix_fallocate(file.fileno(), 0, size)  # a hole would be a SIGBUS when the disk is full
            mapped = mmap.mmap(file.fileno(), size)
        self.spilled = True
        _log.warning(
            "snapshot goes to a file: too little free memory",
            needed_mb=_mb(size),
            free_mb=_mb(free),
            directory=str(self._spill),
        )
        return mapped


class Snapshot:
    """The state after `step` committed steps, or a part of it, in memory of its own.

    Whoever works with it holds it (`hold`, `release`); the first hold belongs to who got it from `begin`. After the
    last release, or when nobody refers to the memory any more, it is used for the next snapshot.

    Attributes:
        step: steps committed in this state, so the next step to run.
        chain: result chain after the last of them.
        generation: of the world in which it was taken.
        layout: where the tensors lie in the flat state.
        memory: bytes `[first, first + len(memory))` of the flat state.
        first: 0 unless it is a part.
    """

    def __init__(
        self,
        step: int,
        *,
        chain: int,
        generation: int,
        layout: Layout,
        memory: memoryview,
        first: int = 0,
        give_back: Callable[[], object] = lambda: None,
    ) -> None:
        self.step = step
        self.chain = chain
        self.generation = generation
        self.layout = layout
        self.memory = memory
        self.first = first
        self._give_back = give_back
        self._holds = 1
        self._lock = threading.Lock()

    def hold(self) -> None:
        """Keep the memory as it is until one more `release`.

        Raises:
            StateError: it was released already.
        """
        with self._lock:
            if self._holds == 0:
                raise StateError(f"the snapshot of step {self.step} is gone")
            self._holds += 1

    def release(self) -> None:
        """End one hold; once too often does nothing."""
        with self._lock:
            if self._holds == 0:
                return
            self._holds -= 1
            last = self._holds == 0
        if last:
            self._give_back()


class Snapshotter:
    """Takes snapshots of the tracked objects; `prepare`, `begin` and `wait` belong to the main thread.

    Args:
        tracked: what to copy.
        spill: directory for the stand-in file when memory is short; the system's temp directory by default.
        warm: how many memories are kept after use; a snapshot that finds none takes a new one, slowly.
    """

    def __init__(self, tracked: Tracked, *, spill: Path | None = None, warm: int = 1) -> None:
        self._tracked = tracked
        self._spill = spill
        self._warm = warm
        self._idle: list[SnapshotMemory] = []
        self._ready: weakref.WeakSet[SnapshotMemory] = weakref.WeakSet()
        self._size = 0
        self._lock = threading.RLock()  # `_keep` may be called by a garbage collection inside `_take`
        self._preparing: threading.Thread | None = None
        self._running: list[threading.Thread] = []

    def measure(self) -> None:
        """Note how large the state is; call it when it has its final size (after a step).

        Raises:
            StateError: something in the state cannot travel.
        """
        self._size = capture(self._tracked).layout.total

    def prepare(self) -> None:
        """Get memory for one snapshot ready on a thread; call it when the state has its final size (after a step).

        Raises:
            StateError: something in the state cannot travel.
        """
        self.measure()
        if self._preparing is not None:
            self._preparing.join()
        self._preparing = threading.Thread(target=self._touch, args=(self._size,), name="snapshot-memory", daemon=True)
        self._preparing.start()

    def ready(self, parts: int) -> object:
        """Touch the memory of one of so many equal parts, on any thread; it is there as long as the return value is."""
        memory = SnapshotMemory(self._spill)
        try:
            memory.reserve(max(end - first for first, end in (span(self._size, 0, parts), span(self._size, 1, parts))))
        except StateError as error:
            _log.warning("no memory for a learner's part", reason=str(error))
            return None
        with self._lock:
            self._ready.add(memory)
        return memory

    def begin(
        self, step: int, *, chain: int, generation: int, which: Callable[[int], tuple[int, int]] | None = None
    ) -> Future[Snapshot]:
        """Start to copy the state as it is now.

        Args:
            step: steps committed in this state.
            chain: result chain after the last of them.
            generation: of the present world.
            which: gets the size of the flat state, returns which bytes `[first, end)` to copy; all of them by default.

        Returns:
            A future of the snapshot; it fails with a `StateError` when there is no room.

        Raises:
            StateError: something in the state cannot travel.
        """
        captured = _settle(capture(self._tracked))
        future: Future[Snapshot] = Future()
        thread = threading.Thread(
            target=self._copy,
            args=(captured, future),
            kwargs={"step": step, "chain": chain, "generation": generation, "which": which},
            name=f"snapshot-{step}",
            daemon=True,
        )
        self._running.append(thread)
        thread.start()
        return future

    def wait(self) -> None:
        """Return when no copy runs any more: parameters may change then. How it went, the futures tell."""
        while self._running:
            self._running.pop().join()

    def _copy(
        self,
        captured: Capture,
        future: Future[Snapshot],
        *,
        step: int,
        chain: int,
        generation: int,
        which: Callable[[int], tuple[int, int]] | None,
    ) -> None:
        try:
            self._size = total = captured.layout.total
            first, end = (0, total) if which is None else which(total)
            if which is None and self._preparing is not None:
                self._preparing.join()
            memory = self._take() if which is None else self._take_ready(end - first)
            array = memory.reserve(end - first)
            write(captured, array.data, first, end)
        except BaseException as error:  # noqa: BLE001 - the future carries it to whoever waits
            future.set_exception(error)
            return
        # every view of the array keeps it alive: a copy that somebody still sends is not written over
        given_back = weakref.finalize(array, self._keep if which is None else SnapshotMemory.drop, memory)
        given_back.atexit = False
        snapshot = Snapshot(
            step,
            chain=chain,
            generation=generation,
            layout=captured.layout,
            memory=array.data,
            first=first,
            give_back=given_back,
        )
        del array
        future.set_result(snapshot)

    def _touch(self, size: int) -> None:
        memory = self._take()
        try:
            memory.reserve(size)
        except StateError as error:
            _log.warning("no memory for snapshots", reason=str(error))
            return
        self._keep(memory)

    def _take(self) -> SnapshotMemory:
        with self._lock:
            return self._idle.pop() if self._idle else SnapshotMemory(self._spill)

    def _take_ready(self, size: int) -> SnapshotMemory:
        with self._lock:
            large = [memory for memory in self._ready if memory.size >= size]
            memory = min(large, key=lambda m: m.size, default=SnapshotMemory(self._spill))
            self._ready.discard(memory)
        return memory

    def _keep(self, memory: SnapshotMemory) -> None:
        with self._lock:
            if len(self._idle) < self._warm:
                self._idle.append(memory)
            else:
                memory.drop()


def _settle(captured: Capture) -> Capture:
    with torch.no_grad():
        tensors = tuple(
            tensor if steady else tensor.detach().clone()
            for tensor, steady in zip(captured.tensors, captured.steady, strict=True)
        )
    return Capture(captured.layout, tensors, captured.steady)


def _mb(size: int) -> int:
    return -(-size // 1_000_000)
