"""Settings: what a flag says, else the environment, else a file, else the default.

Used like this: `settings = resolve(flags, os.environ, Path.cwd())`, then `settings.job.slots`;
`settings.sources["slots"]` says where that came from. The name of a setting is the same everywhere: `slots` here,
`--slots` as a flag, `REKNIT_SLOTS` in the environment, `slots = 8` in `reknit.toml` (or under `[tool.reknit]` of
`pyproject.toml`) in the working directory. What torchrun shares with us is also read from its `PET_*` variables.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from reknit.core import setting_kinds as kinds
from reknit.core.errors import UsageError
from reknit.core.setting_kinds import NodeSpan

FILE = "reknit.toml"
PYPROJECT = "pyproject.toml"
AUTO = kinds.AUTO
MAX_NODE = 56
"""Longest node name: a worker is called `<node>-<number>`, and that must be a valid name too."""


def _setting(default: Any, parse: kinds.Parse, doc: str, *, also: tuple[str, ...] = (), flag: str = "") -> Any:
    return dataclasses.field(default=default, metadata={"parse": parse, "doc": doc, "also": also, "flag": flag})


@dataclasses.dataclass(frozen=True, slots=True)
class JobSettings:
    """The job: the same on every node that takes part."""

    job: str = _setting(
        "",
        kinds.name("the job's name"),
        "Name of the job; by default the script's name and 4 random letters.",
        also=("PET_RDZV_ID",),
    )
    nnodes: NodeSpan = _setting(  # noqa: RUF009  (a `dataclasses.field` in the end)
        kinds.ONE_NODE,
        kinds.span,
        "Nodes that the job needs and takes at most, as MIN:MAX or one number.",
        also=("PET_NNODES",),
    )
    nproc_per_node: int = _setting(
        1, kinds.workers, "Workers on this node; auto: one for each core.", also=("PET_NPROC_PER_NODE",)
    )
    slots: int = _setting(
        0, kinds.whole(0), "Slots of a step (global batch = slots x micro-batch); 0: the number in the script holds."
    )
    spares: int = _setting(
        0,
        kinds.whole(0),
        "Hot spares: workers above the maximum that stand ready without slots; more nodes bring them, or the only one.",
    )
    max_restarts: int = _setting(
        100, kinds.whole(0), "Restarts of failed workers that the whole job may use up.", also=("PET_MAX_RESTARTS",)
    )
    stuck_after: float = _setting(
        120.0,
        kinds.number(0, above=True),
        "Seconds without progress, while others wait, until a worker counts as stuck.",
    )
    verify_weights: bool = _setting(
        True, kinds.yes_or_no, "Compare the weights of all workers in every step, before it is committed."
    )
    numerics: str = _setting(
        "strict",
        kinds.one_of("strict", "relaxed"),
        "strict: a worker whose arithmetic differs is refused; relaxed: it is let in, the run is not exact, "
        "and weights are not compared.",
    )
    transport: str = _setting(
        "tcp",
        kinds.one_of("tcp", "gloo", "nccl"),
        "What adds up gradients: tcp, the ring's own links; gloo or nccl, exact sums over torch.distributed.",
    )
    allow_chaos: bool = _setting(
        False, kinds.yes_or_no, "Workers obey `reknit chaos`, which spoils what they hold.", also=("REKNIT_CHAOS",)
    )
    gossip: str = _setting(
        "train",
        kinds.one_of("train", "fast", "off"),
        "Nodes watch each other over UDP: train, a silent one is known after 1.5 s; fast, after 0.8 s; off.",
    )
    last_call: float = _setting(3.0, kinds.number(0), "Seconds to wait for more workers once the minimum is there.")


@dataclasses.dataclass(frozen=True, slots=True)
class NodeSettings:
    """This node only."""

    node: str = _setting("", kinds.name("the node's name", MAX_NODE), "Name of this node; by default the host's name.")
    host: str = _setting(
        "",
        kinds.text,
        "Address of this node that the others can reach; by default the one on the route to the broker.",
        also=("PET_LOCAL_ADDR",),
    )
    threads: int = _setting(
        0, kinds.whole(0), "Threads a worker computes with; 0: OMP_NUM_THREADS, else 1. They change bits."
    )
    labels: str = _setting(
        "",
        kinds.labels_text,
        "What this node says of itself, KEY=VALUE; the ring goes through one region, zone and rack before the next.",
        flag="--label",
    )
    seeds: str = _setting(
        "",
        kinds.seeds_text,
        "Agents to gossip with first, HOST:PORT; by default those that the broker tells of.",
        flag="--seed",
    )
    gossip_port: int = _setting(
        0, kinds.port, "UDP port that this node gossips on, for others to name it with --seed; 0: a free one."
    )
    gossip_keys: str = _setting(
        "",
        kinds.text,
        "File of the keys that seal gossip, one a line, the sealing one first; by default made of the job's secret.",
    )
    discover: str = _setting(
        "",
        kinds.sources_text,
        "Where other nodes are: dns:NAME[:PORT] to gossip with; script:PATH or file:PATH, the hosts that take part.",
    )
    discover_every: float = _setting(
        2.0, kinds.number(0, above=True), "Seconds between two readings of the hosts that take part."
    )
    lanes: bool = _setting(
        True,
        kinds.yes_or_no,
        "Neighbouring workers on one host hand gradients over through shared memory, not the loopback.",
    )
    overlap: str = _setting(
        "auto",
        kinds.when,
        "Gradients enter the ring while backward still runs; auto: where the network is slow enough.",
    )
    grace: float = _setting(
        30.0, kinds.number(0), "Seconds that workers have to finish after a polite stop until they are killed."
    )


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """Checkpoints: where, how often, how many."""

    checkpoint_dir: str = _setting(
        "",
        kinds.folder,
        "Folder of the checkpoints, the same on all nodes; by default inside the job's folder of the home.",
    )
    checkpoint_every_steps: int = _setting(0, kinds.whole(0), "Take a checkpoint every so many steps; 0: not by steps.")
    checkpoint_every_seconds: float = _setting(
        0.0, kinds.number(0), "Take a checkpoint every so many seconds; 0: not by time."
    )
    keep: int = _setting(3, kinds.whole(1), "Newest checkpoints that are kept.")
    resume: bool = _setting(
        False,
        kinds.yes_or_no,
        "Begin a new run of this job from the newest checkpoint of the run before it and those that it went on from; "
        "an error if another run came further.",
    )
    resume_run: str = _setting(
        "",
        kinds.text,
        "The same from the newest checkpoint of this run (`reknit checkpoints ls` shows which there are).",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class ControlSettings:
    """Where the control plane is."""

    home: str = _setting(
        "", kinds.text, "Folder for what the jobs leave on this machine; ~/.local/state/reknit by default."
    )
    nats: str = _setting(
        "",
        kinds.text,
        "Broker to use: nats://user:password@host:port, host:port, or the path of a job's endpoint.json. "
        "Several of one cluster with commas between them. By default that of `reknit up`, else one of the job's own.",
        also=("PET_RDZV_ENDPOINT",),
    )
    nats_replicas: int = _setting(
        0,
        kinds.whole(0),
        "On how many brokers of a cluster each event is stored; 0: on 3 if it has as many.",
    )
    standby: bool = _setting(
        False,
        kinds.yes_or_no,
        "A second membership service stands by and takes over within milliseconds when the first is gone.",
    )
    port: int = _setting(0, kinds.port, "Port of a broker that is started here; 0: a free one.")
    secret_file: str = _setting(
        "",
        kinds.text,
        "File that holds the job's secret; must say the same on all nodes. By default in the job's folder.",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """All settings, by concern.

    Attributes:
        sources: setting name -> where it came from: `flag --slots`, `environment REKNIT_SLOTS`, `file …`, `default`.
    """

    job: JobSettings
    node: NodeSettings
    checkpoint: CheckpointSettings
    control: ControlSettings
    sources: Mapping[str, str]

    def items(self) -> Iterator[tuple[str, Any, str, str]]:
        """Yield (name, value, source, what it means) of every setting, by concern."""
        for concern in (self.job, self.node, self.checkpoint, self.control):
            for field in dataclasses.fields(concern):
                value = getattr(concern, field.name)
                yield field.name, value, self.sources[field.name], field.metadata["doc"]


_CONCERNS = (JobSettings, NodeSettings, CheckpointSettings, ControlSettings)
_FIELDS: dict[str, dataclasses.Field[Any]] = {f.name: f for concern in _CONCERNS for f in dataclasses.fields(concern)}
NAMES = tuple(_FIELDS)


def doc_of(name: str) -> str:
    """What a setting means, one sentence or two; the help text of its flag."""
    return str(_FIELDS[name].metadata["doc"])


def default_of(name: str) -> str:
    """The default as a person types it; empty where it is nothing (none, 0, no): what the setting means tells that."""
    default = _FIELDS[name].default
    if isinstance(default, bool):
        return ""
    return f"{default:g}" if isinstance(default, int | float) and default else str(default or "")


def env_names(name: str) -> tuple[str, ...]:
    """Environment variables that set a setting; the first one that is set and not empty wins."""
    return (f"REKNIT_{name.upper()}", *_FIELDS[name].metadata["also"])


def flag_of(name: str) -> str:
    """The flag of a setting, as a person types it."""
    return str(_FIELDS[name].metadata["flag"]) or "--" + name.replace("_", "-")


def nearest(word: str, known: tuple[str, ...] | list[str]) -> str:
    """The known word that is most like this one, or empty if none is."""
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return found[0] if found else ""


def resolve(flags: Mapping[str, Any], env: Mapping[str, str], folder: Path) -> Settings:
    """Resolve every setting: flag, else environment, else file, else default.

    Args:
        flags: setting name -> value given on the command line; None: not given.
        env: the process's environment.
        folder: the working directory, where the file is looked for.

    Raises:
        UsageError: a value is not of its kind (the text names the setting and where it came from), the file does not
            parse, or holds an unknown key (the text names the nearest known one).
    """
    file, in_file = read_file(folder)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, field in _FIELDS.items():
        raw, source = _raw(name, flags, env, file, in_file)
        values[name] = field.default if source == "default" else _parsed(name, raw, source)
        sources[name] = source

    def of(concern: type) -> dict[str, Any]:
        return {f.name: values[f.name] for f in dataclasses.fields(concern)}

    return Settings(
        job=JobSettings(**of(JobSettings)),
        node=NodeSettings(**of(NodeSettings)),
        checkpoint=CheckpointSettings(**of(CheckpointSettings)),
        control=ControlSettings(**of(ControlSettings)),
        sources=sources,
    )


def _raw(
    name: str, flags: Mapping[str, Any], env: Mapping[str, str], file: Path | None, in_file: Mapping[str, Any]
) -> tuple[Any, str]:
    if flags.get(name) is not None:
        return flags[name], f"flag {flag_of(name)}"
    for variable in env_names(name):
        if env.get(variable):
            return env[variable], f"environment {variable}"
    if name in in_file:
        return in_file[name], f"file {file}"
    return None, "default"


def _parsed(name: str, raw: Any, source: str) -> Any:
    try:
        return _FIELDS[name].metadata["parse"](raw)
    except kinds.Unfit as error:
        said = ", ".join(map(str, raw)) if isinstance(raw, list | tuple) else raw
        instead = "" if isinstance(error, kinds.Named) else f", not {said!r}"
        raise UsageError(f"{name} {error}{instead} (from {source})", hint=doc_of(name)) from None


def read_file(folder: Path) -> tuple[Path | None, dict[str, Any]]:
    """Read `reknit.toml`, else `[tool.reknit]` of `pyproject.toml`, in `folder`; keys come back with underscores.

    Raises:
        UsageError: unreadable, not TOML, or a key that no setting has.
    """
    file = folder / FILE
    if file.is_file():
        return file, _known(file, "", _toml(file))
    file = folder / PYPROJECT
    if file.is_file():
        try:
            content = _toml(file)
        except UsageError:
            # somebody else's file: a project that does not use our table must not stop us
            if "tool.reknit" not in file.read_text(errors="replace"):
                return None, {}
            raise
        table = content.get("tool", {}).get("reknit")
        if isinstance(table, dict):
            return file, _known(file, "[tool.reknit] ", table)
    return None, {}


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file} is not valid TOML: {error}") from error


def _known(file: Path, table: str, content: dict[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if name not in _FIELDS:
            like = nearest(name, NAMES)
            raise UsageError(
                f"{file}: {table}{key!r} is not a setting",
                hint=f"did you mean {like!r}?" if like else "`reknit config show` lists them all",
            )
        known[name] = value
    return known


def unknown_env(env: Mapping[str, str]) -> list[tuple[str, str]]:
    """`REKNIT_*` variables that nothing reads, each with the nearest known one (or empty): a slip of the pen."""
    read = [v for name in NAMES for v in env_names(name)] + list(INTERNAL_ENV)
    return [(v, nearest(v, read)) for v in sorted(env) if v.startswith("REKNIT_") and v not in read]


INTERNAL_ENV = (
    "REKNIT_ENDPOINT",
    "REKNIT_AGENT",
    "REKNIT_WORKER",
    "REKNIT_TRACE_DIR",
    "REKNIT_LOG_FORMAT",
    "REKNIT_LOG_LEVEL",
    "REKNIT_ALERT_WEBHOOK",
    "REKNIT_MONITOR_HOST",
    "REKNIT_PRELOAD",
    "REKNIT_INSTANCE",
    "REKNIT_MONITOR_PORT",
    "REKNIT_MONITOR_PORT_FILE",
)
"""Variables that are no settings: what processes tell each other, and what single services read."""


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))
