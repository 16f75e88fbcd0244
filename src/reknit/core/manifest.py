"""What a checkpoint is on disk: a directory whose `manifest.json`, written last, names every file with size and hash.

    <checkpoint_dir>/<job>/step-00000120-<id>/
        chunk-00000-<worker>.safetensors …      the flat bytes, cut (written by the workers)
        index-<worker>.msgpack                  `core.layout.Index` (written by the owner of chunk 0)
        manifest.json                           {"hash": …, "manifest": …}: from now on the checkpoint exists
        pinned                                  optional, empty: retention keeps it

There is no pointer to "the latest": the newest is found by listing manifests (`core.newest`). Newest means the highest
`number`, which counts a job's checkpoints in the order they were committed; not the highest step (a run that fell back
goes on from a lower one), not the time (clocks differ). Which runs' checkpoints count, `core.lineage` says.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import xxhash

from reknit.core.durable import DurableFile
from reknit.core.errors import CheckpointError
from reknit.core.events import Part, Terms

FORMAT = 1
MANIFEST = "manifest.json"
PIN = "pinned"
INDEX_NUMBER = -1
"""Number of a checkpoint's index file; its chunks count from 0."""
_DIRECTORY = re.compile(r"step-(\d{8,})-([A-Za-z0-9][A-Za-z0-9_-]*)")
_FILE = re.compile(r"(?:chunk-\d{5,}|index)-[A-Za-z0-9][A-Za-z0-9_-]*\.(?:safetensors|msgpack)")
_READ = 4 * 1024 * 1024


class StoredFile(Part, frozen=True):
    """One file of a checkpoint.

    Attributes:
        number: of the chunk; `INDEX_NUMBER` for the index.
        file: name inside the checkpoint's directory.
        bytes: length of the file.
        hash: xxh3-128 of the whole file, hex.
        worker: who wrote it.
    """

    number: int
    file: str
    bytes: int
    hash: str
    worker: str = ""


class Manifest(Part, frozen=True):
    """One committed checkpoint.

    Attributes:
        checkpoint: id, unique in the job.
        number: counts the job's checkpoints in this directory, from 1; the order of commitment.
        job: name of the job.
        run: id of the run that took it.
        step: steps committed in this state, so the next step to run.
        index: the index file.
        chunks: the chunk files, by number.
        epoch: epoch of the next step.
        seed: root of the sample order and of every slot's random numbers.
        terms: what the workers had agreed on, with the numeric contract; None if it was not known.
        generation: of the world that took it.
        chain: result chain after the last committed step.
        parent: id of the checkpoint before it, empty for the first.
        bytes: of all files together.
        created: wall time, seconds since 1970; for people only.
        format: version of this record.
    """

    checkpoint: str
    number: int
    job: str
    run: str
    step: int
    index: StoredFile
    chunks: tuple[StoredFile, ...]
    epoch: int = 0
    seed: int = 0
    terms: Terms | None = None
    generation: int = 0
    chain: int = 0
    parent: str = ""
    bytes: int = 0
    created: float = 0.0
    format: int = FORMAT

    @property
    def directory(self) -> str:
        """Name of the checkpoint's directory."""
        return directory_name(self.step, self.checkpoint)

    @property
    def files(self) -> tuple[StoredFile, ...]:
        """The index and all chunks."""
        return (self.index, *self.chunks)


class _Envelope(msgspec.Struct):
    hash: str
    manifest: msgspec.Raw


@dataclasses.dataclass(frozen=True, slots=True)
class Listed:
    """One checkpoint directory.

    Attributes:
        path: the directory.
        manifest: what it says, None if it cannot be read.
        problem: why it is not usable, as far as the manifest alone tells; empty if it is.
        foreign: True if it belongs to another job.
        pinned: True if retention must keep it.
    """

    path: Path
    manifest: Manifest | None
    problem: str = ""
    foreign: bool = False
    pinned: bool = False


def checkpoint_id(run: str, number: int) -> str:
    """Return the id of a run's checkpoint: it begins with the run."""
    return f"{run}-{number}"


def run_of(checkpoint: str) -> str:
    """Return the run that took a checkpoint, from the checkpoint's id."""
    return checkpoint.rpartition("-")[0]


def directory_name(step: int, checkpoint: str) -> str:
    """Return the name of a checkpoint's directory."""
    return f"step-{step:08d}-{checkpoint}"


def parse_directory(name: str) -> tuple[int, str] | None:
    """Return (step, id) of a directory name, None if it is not a checkpoint's."""
    match = _DIRECTORY.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def chunk_file(chunk: int, worker: str) -> str:
    """Return the name of a chunk's file (of the index for `INDEX_NUMBER`); each writer has its own names."""
    return f"index-{worker}.msgpack" if chunk == INDEX_NUMBER else f"chunk-{chunk:05d}-{worker}.safetensors"


def is_checkpoint_file(name: str) -> bool:
    """True for names that `chunk_file` makes."""
    return _FILE.fullmatch(name) is not None


def file_numbers(chunks: int) -> range:
    """Return the numbers of all files of a checkpoint: `INDEX_NUMBER`, then 0 to `chunks` - 1."""
    return range(INDEX_NUMBER, chunks)


def assign(numbers: Iterable[int], workers: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Give each worker its part of a checkpoint's files: neighbouring chunks, parts as even as possible, in ring order.

    The index goes to the first worker and does not count. Pure: every worker and the service compute the same.

    Raises:
        CheckpointError: there is no worker.
    """
    if not workers:
        raise CheckpointError("nobody is there to write the checkpoint")
    wanted = set(numbers)
    data = sorted(wanted - {INDEX_NUMBER})
    size, extra = divmod(len(data), len(workers))
    parts: dict[str, tuple[int, ...]] = {}
    first = 0
    for i, worker in enumerate(workers):
        end = first + size + (i < extra)
        parts[worker] = tuple(data[first:end])
        first = end
    if INDEX_NUMBER in wanted:
        parts[workers[0]] = (INDEX_NUMBER, *parts[workers[0]])
    return parts


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of `manifest.json`; they carry their own hash, so a flipped bit in a number is found."""
    body = msgspec.json.encode(manifest)
    envelope = _Envelope(hash=xxhash.xxh3_128_hexdigest(body), manifest=msgspec.Raw(body))
    return msgspec.json.encode(envelope) + b"\n"


def decode_manifest(data: bytes) -> Manifest:
    """Read the bytes of a `manifest.json`.

    Raises:
        CheckpointError: torn, damaged, of an unknown format, or it names files outside its directory.
    """
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        body = bytes(envelope.manifest)
        if xxhash.xxh3_128_hexdigest(body) != envelope.hash:
            raise CheckpointError(f"{MANIFEST} does not have its hash")
        manifest = msgspec.json.decode(body, type=Manifest)
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"{MANIFEST} is torn or damaged ({error})") from error
    if manifest.format != FORMAT:
        raise CheckpointError(f"{MANIFEST} has format {manifest.format}, known here is {FORMAT}")
    numbers = [chunk.number for chunk in manifest.chunks]
    if manifest.index.number != INDEX_NUMBER or not numbers or numbers != list(range(len(numbers))):
        raise CheckpointError(f"{MANIFEST} does not name an index and every chunk once")
    for stored in manifest.files:
        if not is_checkpoint_file(stored.file):
            raise CheckpointError(f"{MANIFEST} names {stored.file!r}, which is not a name of a checkpoint's file")
    return manifest


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write `manifest.json` into the checkpoint's directory, durably; from then on the checkpoint exists.

    Raises:
        OSError: it could not be written; there is no manifest then.
    """
    with DurableFile(path / MANIFEST) as file:
        file.write(encode_manifest(manifest))


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a checkpoint's directory.

    Raises:
        CheckpointError: there is none, it is damaged, or it says another step or id than the directory's name.
    """
    try:
        manifest = decode_manifest((path / MANIFEST).read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path.name}: no readable {MANIFEST} ({error.strerror})") from error
    except CheckpointError as error:
        raise CheckpointError(f"{path.name}: {error}") from error
    if manifest.directory != path.name:
        raise CheckpointError(f"{path.name}: its manifest belongs to {manifest.directory}")
    return manifest


def list_manifests(checkpoint_dir: Path, job: str) -> list[Listed]:
    """List the committed checkpoints of a job, newest first; those with an unreadable manifest come last.

    Directories without a manifest (being written, or given up) and foreign names are not listed.

    Raises:
        CheckpointError: the directory exists and cannot be listed.
    """
    try:
        paths = [p for p in (checkpoint_dir / job).iterdir() if parse_directory(p.name) and (p / MANIFEST).exists()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{checkpoint_dir / job} cannot be listed: {error.strerror}") from error
    listed = []
    for path in paths:
        pinned = (path / PIN).exists()
        try:
            manifest = read_manifest(path)
        except CheckpointError as error:
            listed.append(Listed(path, None, str(error), pinned=pinned))
            continue
        foreign = manifest.job != job
        problem = f"{path.name}: belongs to job {manifest.job}" if foreign else ""
        listed.append(Listed(path, manifest, problem, foreign=foreign, pinned=pinned))
    return sorted(listed, key=_age)


def _age(listed: Listed) -> tuple[int, int, int, str]:
    m = listed.manifest
    return (0, -m.number, -m.generation, m.checkpoint) if m else (1, 0, 0, listed.path.name)


def hash_file(path: Path) -> tuple[int, str]:
    """Return length and xxh3-128 (hex) of a file.

    Raises:
        OSError: it cannot be read.
    """
    hasher, length = xxhash.xxh3_128(), 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_READ):
            hasher.update(piece)
            length += len(piece)
    return length, hasher.hexdigest()


def verify(path: Path) -> Manifest:
    """Check every file of a checkpoint's directory against its manifest, and return the manifest.

    Raises:
        CheckpointError: names the first file that is missing, too short, too long or changed.
    """
    manifest = read_manifest(path)
    for stored in manifest.files:
        try:
            length, found = hash_file(path / stored.file)
        except OSError as error:
            raise CheckpointError(f"{path.name}/{stored.file}: {error.strerror}") from error
        if length != stored.bytes:
            raise CheckpointError(f"{path.name}/{stored.file} has {length} bytes, not {stored.bytes}")
        if found != stored.hash:
            raise CheckpointError(f"{path.name}/{stored.file} is damaged: its hash is {found}, not {stored.hash}")
    return manifest
