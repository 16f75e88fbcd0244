"""Endpoints, addresses, scripts, traces: the small pure parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reknit.cli import address, trace
from reknit.cli.control import given
from reknit.cli.entry import size, workers_of
from reknit.cli.order import job_name
from reknit.cli.script import find
from reknit.core import settings
from reknit.core.context import Endpoint
from reknit.core.errors import UsageError
from reknit.core.events import JobSubmitted


@pytest.mark.parametrize(
    ("text", "url", "user", "password"),
    [
        ("host", "nats://host:4222", "", ""),
        ("host:1", "nats://host:1", "", ""),
        ("nats://u:p%40ss@10.0.0.1:5", "nats://10.0.0.1:5", "u", "p@ss"),
        ("tls://host", "tls://host:4222", "", ""),
        ("u:p@host:7", "nats://host:7", "u", "p"),
        ("[::1]:7", "nats://[::1]:7", "", ""),
        ("nats://u:p@a:1, b:2,[::1]", "nats://a:1,nats://b:2,nats://[::1]:4222", "u", "p"),
        ("u:p@a,u:p@b", "nats://a:4222,nats://b:4222", "u", "p"),
    ],
)
def test_addresses_of_brokers(text: str, url: str, user: str, password: str) -> None:
    assert given(text) == Endpoint(url=url, user=user, password=password)


@pytest.mark.parametrize(
    "text", ["", "http://x", "nats://", "host:port", "nats://h/path", "a b", "a,", ",a", "a,http://x"]
)
def test_what_is_no_address_of_a_broker(text: str) -> None:
    with pytest.raises(UsageError):
        given(text)


def test_brokers_of_one_cluster_let_the_same_user_in() -> None:
    with pytest.raises(UsageError, match="different credentials") as refused:
        given("u:secret1@a,u:secret2@b")
    assert "secret" not in str(refused.value)
    assert given("a,b", 5).replicas == 5


def test_an_endpoint_file(tmp_path: Path) -> None:
    file = tmp_path / "endpoint.json"
    file.write_text(json.dumps({"url": "nats://h:1", "user": "u", "system_user": "s"}))
    assert given(str(file)) == given(f"@{file}") == Endpoint(url="nats://h:1", user="u", system_user="s")


def test_the_address_on_the_route_is_never_loopback_for_others() -> None:
    assert address.route_to("nats://127.0.0.1:4222") == "127.0.0.1"
    assert address.route_to("nats://no.such.host.invalid:1") == "127.0.0.1"
    assert address.route_to("nats://no.such.host.invalid:1,nats://127.0.0.1:2") == "127.0.0.1"
    assert address.is_loopback("127.0.1.1")
    assert not address.is_loopback("10.0.0.1")


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("node7.cluster.local", "node7"),
        ("a_b", "a_b"),
        ("--", "node"),
        ("x" * 100, "x" * 52),
        ("ä.b", "node"),
        ("", "node"),
    ],
)
def test_node_names_from_host_names(monkeypatch: pytest.MonkeyPatch, host: str, name: str) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    assert address.node_name() == name


def test_job_names_are_the_scripts_and_unique(tmp_path: Path) -> None:
    file = tmp_path / "my train (2).py"
    file.write_text("")
    found = settings.resolve({}, {}, tmp_path)
    names = {job_name(found, find(str(file), (), module=False)) for _ in range(20)}
    assert len(names) > 15
    assert all(name.startswith("my-train--2-") for name in names)
    assert job_name(settings.resolve({"job": "j"}, {}, tmp_path), find(str(file), (), module=False)) == "j"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, "1 worker"),
        ({"min_nodes": 1, "max_nodes": 4, "nproc_per_node": 2}, "2 to 8 workers"),
        ({"nproc_per_node": 5, "slots": 2}, "2 workers and 3 spares: a step has 2 slots"),
        ({"nproc_per_node": 3, "spares": 1, "slots": 1}, "1 worker and 3 spares: a step has 1 slot"),
        ({"nproc_per_node": 2, "max_nodes": 4, "slots": 4}, "2 to 4 workers and 4 spares: a step has 4 slots"),
        ({"nproc_per_node": 2, "spares": 1}, "2 workers and 1 spare"),
        ({"nproc_per_node": 2, "slots": 8, "spares": 1}, "2 workers and 1 spare"),
    ],
)
def test_the_size_of_a_job_in_words(spec: dict[str, int], said: str) -> None:
    assert size(JobSubmitted(run="r", script="s", **spec)) == said  # type: ignore[arg-type]


def test_a_module_of_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack/__init__.py").write_text("raise SystemExit('it ran')")
    (tmp_path / "pack/train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    found = find("pack.train", ("-x",), module=True)
    assert (found.path, found.name, found.stem, found.target) == (
        tmp_path / "pack/train.py",
        "pack.train",
        "train",
        "pack.train",
    )


def span(
    name: str, start: int, end: int, *, of: str = "t", parent: str = "", kind: str = "", pid: int = 1
) -> dict[str, object]:
    attributes = {"reknit.kind": kind} if kind else {}
    return {
        "name": name,
        "service": "s",
        "pid": pid,
        "trace": of,
        "span": name,
        "parent": parent,
        "start": start,
        "end": end,
        "attributes": attributes,
    }


def test_traces_in_order_with_depths_and_a_torn_last_line(tmp_path: Path) -> None:
    lines = [
        span("child", 2_000_000, 3_000_000, parent="root", pid=2),
        span("root", 1_000_000, 9_000_000, kind="world.changed"),
        span("grandchild", 2_500_000, 2_600_000, parent="child"),
        span("newer", 20_000_000, 21_000_000, of="u", kind="world.changed"),
        span("newer too", 20_500_000, 21_000_000, of="u", pid=2),
        span("dull", 30_000_000, 31_000_000, of="v"),
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + '\n{"name": "to')
    spans = trace._read(tmp_path / "a.jsonl")
    assert len(spans) == 6
    found = trace.newest(spans, 2)
    assert [[s.name for s in group] for group in found] == [["root", "child", "grandchild"], ["newer", "newer too"]]
    assert [s.name for s in trace.newest(spans, 1, every=True)[0]] == ["dull"]
    assert trace.depth_of(found[0]) == {"root": 0, "child": 1, "grandchild": 2}
    assert trace.newest([], 3) == []


@pytest.mark.parametrize(("nodes", "spares", "starts"), [(1, 0, 2), (1, 1, 3), (3, 1, 2)])
def test_the_only_node_of_a_job_starts_its_spares_too(nodes: int, spares: int, starts: int) -> None:
    assert (
        workers_of(JobSubmitted(run="r", script="t.py", max_nodes=nodes, spares=spares, nproc_per_node=2), 2) == starts
    )
