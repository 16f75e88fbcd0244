"""`reknit trace`: changes of the world as waterfalls, from the spans that the processes of a job wrote."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from reknit.core import setting_kinds as kinds
from reknit.core.home import Home, JobFolder

from . import options, output
from .app import app, verb
from .look import folder_of

_BAR = 32
_KIND = "reknit.kind"
_CHANGE = "world.changed"


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """One span; times in nanoseconds since the epoch, each by its process's clock."""

    trace: str
    span: str
    parent: str
    name: str
    process: str
    start: int
    end: int
    attributes: dict[str, Any]
    status: str


@app.command()
@verb
def trace(
    *,
    job: options.JobFlag = None,
    nats: options.NatsFlag = None,
    last: Annotated[
        int,
        typer.Option(
            "--last", "-n", metavar="N", parser=options.value(kinds.whole(1)), help="So many traces, the newest last."
        ),
    ] = 1,
    every: Annotated[bool, typer.Option("--all", help="Also traces that are about no change of the world.")] = False,
    as_json: options.JsonFlag = False,
) -> None:
    """Draw the newest changes of the world: one line a span, its offset, duration and process; read on this machine."""
    settings = options.settings(job=job, nats=nats)
    home = Home.at(settings.control.home)
    folder = folder_of(settings)
    shown = newest(_spans([folder.traces, home.up.traces], folder), last, every=every)
    if as_json:
        output.document([[dataclasses.asdict(span) for span in spans] for spans in shown])
        return
    if not shown:
        output.note(f"no traces in {folder.traces}: the world of job {folder.name} has not changed yet")
    for i, spans in enumerate(shown):
        if i:
            output.data("")
        _draw(spans)


def _spans(folders: Iterable[Path], job: JobFolder) -> list[Span]:
    """The spans of a job: all of its own folder, and those of the shared services that belong to the same traces."""
    own: list[Span] = []
    shared: list[Span] = []
    for path in folders:
        for file in sorted(path.glob("*.jsonl")):
            (own if path == job.traces else shared).extend(_read(file))
    ids = {span.trace for span in own}
    return own + [span for span in shared if span.trace in ids]


def _read(file: Path) -> list[Span]:
    spans = []
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return []
    for text in lines:
        try:
            plain = json.loads(text)
            spans.append(
                Span(
                    trace=plain["trace"],
                    span=plain["span"],
                    parent=plain.get("parent", ""),
                    name=plain["name"],
                    process=f"{plain.get('service', file.stem)}/{plain.get('pid', '?')}",
                    start=int(plain["start"]),
                    end=int(plain["end"]),
                    attributes=plain.get("attributes") or {},
                    status=plain.get("status", ""),
                )
            )
        except (ValueError, KeyError, TypeError):
            continue  # the last line of a process that was killed may be torn
    return spans


def newest(spans: list[Span], count: int, *, every: bool = False) -> list[list[Span]]:
    """The newest traces, the newest last; in each the spans by their start, parents before children.

    Args:
        spans: of one job.
        count: how many traces.
        every: also traces in which the world did not change.
    """
    traces: dict[str, list[Span]] = {}
    for span in spans:
        traces.setdefault(span.trace, []).append(span)
    groups = [group for group in traces.values() if every or _is_change(group)]
    ordered = sorted(groups, key=lambda group: min(span.start for span in group))
    return [sorted(group, key=lambda s: (s.start, -s.end)) for group in ordered[-count:]]


def _is_change(group: list[Span]) -> bool:
    """True for a change of the world in which more than one process had a part (at the end of a run, none has)."""
    return len({s.process for s in group}) > 1 and any(s.attributes.get(_KIND) == _CHANGE for s in group)


def depth_of(spans: list[Span]) -> dict[str, int]:
    """Span id -> how many of its ancestors are in the trace."""
    parents = {span.span: span.parent for span in spans}
    depths = {}
    for span in spans:
        depth, at = 0, span.parent
        while at in parents and depth < len(parents):
            depth, at = depth + 1, parents[at]
        depths[span.span] = depth
    return depths


def _draw(spans: list[Span]) -> None:
    begin, end = min(s.start for s in spans), max(s.end for s in spans)
    whole = max(end - begin, 1)
    depths = depth_of(spans)
    output.data(f"trace {spans[0].trace}  {len(spans)} spans  {whole / 1e6:.1f} ms")
    rows = []
    for span in spans:
        first = int((span.start - begin) / whole * (_BAR - 1))
        length = max(1, round((span.end - span.start) / whole * _BAR))
        bar = (" " * first + "█" * length)[:_BAR].ljust(_BAR)
        rows.append(
            (
                f"{(span.start - begin) / 1e6:8.1f}",
                f"{(span.end - span.start) / 1e6:8.1f}",
                f"│{bar}│",
                span.process,
                "  " * depths[span.span] + span.name + (" !" if span.status == "error" else ""),
                " ".join(f"{k}={v}" for k, v in span.attributes.items()),
            )
        )
    output.table(("offset ms", "took ms", "", "process", "span", "with"), rows)
