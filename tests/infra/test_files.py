"""The files under infra/ parse, fit together, and are taken by the programs they are for, where those are installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from reknit.cli.plane import SERVICES
from reknit.core.settings import INTERNAL_ENV, NAMES, env_names
from reknit.core.status import Status
from reknit.services.monitor.metrics import STATES, Figures

INFRA = Path(__file__).parents[2] / "infra"
KNOWN_ENV = {name for setting in NAMES for name in env_names(setting)} | set(INTERNAL_ENV)
PASSWORDS = {"REKNIT_NATS_PASSWORD", "REKNIT_NATS_SYSTEM_PASSWORD", "REKNIT_NATS_STORE"}
PASSWORDS |= {"REKNIT_NATS_NAME", "REKNIT_NATS_ROUTE_PASSWORD"}
"""Of the broker, not of reknit."""


def load(name: str) -> Any:
    return yaml.safe_load((INFRA / name).read_text())


def documents() -> Iterator[dict[str, Any]]:
    for file in load("kustomization.yaml")["resources"]:
        yield from yaml.safe_load_all((INFRA / file).read_text())


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {d["metadata"]["name"]: d for d in documents() if d["kind"] == kind}


def pod_of(document: dict[str, Any]) -> dict[str, Any]:
    return document["spec"]["template"]["spec"]


# ------------------------------------------------------------------------------------------------------- everything


@pytest.mark.parametrize("file", sorted(p for p in INFRA.rglob("*") if p.is_file()), ids=lambda p: p.name)
def test_variables_that_are_set_are_known(file: Path) -> None:
    named = set(re.findall(r"\bREKNIT_[A-Z_]+[A-Z]\b", file.read_text()))
    of_units = {"REKNIT_SCRIPT", "REKNIT_UP_FLAGS"}  # systemd's own, split into words by it
    assert named <= KNOWN_ENV | PASSWORDS | of_units


# ---------------------------------------------------------------------------------------------------------- compose


def test_compose_runs_every_service_once_with_a_valid_endpoint() -> None:
    services = load("compose.yaml")["services"]
    assert {s for s in services if "reknit.services" in str(services[s].get("command"))} == set(SERVICES)
    for name in SERVICES:
        assert services[name]["command"] == [f"reknit.services.{name}"]
        assert services[name]["entrypoint"] == ["python", "-P", "-m"]
        text = re.sub(r"\$\{(\w+):\?[^}]*\}", r"\1", services[name]["environment"]["REKNIT_ENDPOINT"])
        endpoint = json.loads(text)
        assert endpoint["url"] == "nats://nats:4222"
        assert (endpoint["user"], endpoint["system_user"]) == ("reknit", "system")


def test_compose_mounts_files_that_exist_and_volumes_that_are_declared() -> None:
    compose = load("compose.yaml")
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source.startswith("/") or source in compose["volumes"] or (INFRA / source).is_file(), volume
        for needed in service.get("depends_on", {}):
            assert "healthcheck" in compose["services"][needed]


def test_compose_asks_for_each_password_that_the_example_lists() -> None:
    listed = set(re.findall(r"^(\w+)=", (INFRA / ".env.example").read_text(), re.MULTILINE))
    used = set(re.findall(r"\$\{(\w+)", (INFRA / "compose.yaml").read_text()))
    assert used == listed


def test_prometheus_scrapes_the_port_that_the_monitor_has() -> None:
    monitor = load("compose.yaml")["services"]["monitor"]
    config = load("prometheus/prometheus.yml")
    (target,) = config["scrape_configs"][0]["static_configs"][0]["targets"]
    assert target == f"monitor:{monitor['environment']['REKNIT_MONITOR_PORT']}"
    assert f"{target.split(':')[1]}:{target.split(':')[1]}" in monitor["ports"]
    assert all((INFRA / "prometheus" / file).is_file() for file in config["rule_files"])


def test_alert_rules_ask_for_figures_and_states_that_exist() -> None:
    families = {family.name for family in Figures(lambda: {"job": Status("job")}, lambda: 0.0).collect()}
    rules = [rule for group in load("prometheus/alerts.yml")["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert set(re.findall(r"reknit_\w+", rule["expr"])) <= families
        for states in re.findall(r'state=~?"([^"]+)"', rule["expr"]):
            assert set(states.split("|")) <= set(STATES)


# ------------------------------------------------------------------------------------------------------- kubernetes


def test_kubernetes_selectors_find_their_pods() -> None:
    for document in documents():
        if document["kind"] in {"Deployment", "StatefulSet"}:
            labels = document["spec"]["template"]["metadata"]["labels"]
            assert document["spec"]["selector"]["matchLabels"].items() <= labels.items()
    pods = [d["spec"]["template"]["metadata"]["labels"] for d in documents() if "template" in d.get("spec", {})]
    for service in of_kind("Service").values():
        assert any(service["spec"]["selector"].items() <= labels.items() for labels in pods)


def test_kubernetes_mounts_are_volumes_and_claims_exist() -> None:
    for document in documents():
        if "template" not in document.get("spec", {}):
            continue
        pod = pod_of(document)
        volumes = {v["name"]: v for v in pod.get("volumes", [])}
        templates = {t["metadata"]["name"] for t in document["spec"].get("volumeClaimTemplates", [])}
        for container in pod["containers"]:
            assert {m["name"] for m in container.get("volumeMounts", [])} <= set(volumes) | templates
        for volume in volumes.values():
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            assert claim is None or claim in of_kind("PersistentVolumeClaim")


def test_kubernetes_runs_every_service_with_a_valid_endpoint() -> None:
    deployments = of_kind("Deployment")
    assert set(deployments) == set(SERVICES)
    for name, deployment in deployments.items():
        (container,) = pod_of(deployment)["containers"]
        assert container["command"][-1] == f"reknit.services.{name}"
        env = {e["name"]: e for e in container["env"]}
        order = [e["name"] for e in container["env"]]
        text = env["REKNIT_ENDPOINT"]["value"]
        for used in re.findall(r"\$\((\w+)\)", text):
            assert order.index(used) < order.index("REKNIT_ENDPOINT"), "Kubernetes fills in earlier variables only"
        endpoint = json.loads(text)
        assert endpoint["url"] == f"nats://nats:{of_kind('Service')['nats']['spec']['ports'][0]['port']}"


def test_kubernetes_workers_are_started_with_flags_that_exist() -> None:
    (container,) = pod_of(of_kind("Job")["digits"])["containers"]
    args = container["args"]
    assert args[0] == "run"
    flags = [arg.partition("=")[0].removeprefix("--").replace("-", "_") for arg in args if arg.startswith("--")]
    assert set(flags) <= set(NAMES)
    env = {e["name"] for e in container["env"]}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(args))) <= env
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    checkpoints = next(a.split("=")[1] for a in args if a.startswith("--checkpoint-dir"))
    (service,) = pod_of(of_kind("Deployment")["checkpoint"])["containers"]
    assert mounts["checkpoints"] == checkpoints == service["volumeMounts"][0]["mountPath"]


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
def test_kustomize_takes_it() -> None:
    made = subprocess.run(["kubectl", "kustomize", INFRA], check=False, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    kinds = [d["kind"] for d in yaml.safe_load_all(made.stdout)]
    assert sorted(kinds) == sorted([*(d["kind"] for d in documents()), "ConfigMap"])


# ---------------------------------------------------------------------------------------------------------- systemd


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    units = []
    for file in (INFRA / "systemd").iterdir():
        unit = tmp_path / file.name
        unit.write_text(file.read_text().replace("/opt/reknit/bin/reknit", str(shutil.which("true"))))
        units.append(str(unit))
    said = subprocess.run(["systemd-analyze", "verify", *units], check=False, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert not said.stderr.strip()


def test_units_end_only_the_launcher_and_give_it_time() -> None:
    for file in (INFRA / "systemd").iterdir():
        unit = file.read_text()
        assert "KillMode=mixed" in unit
        assert int(re.findall(r"TimeoutStopSec=(\d+)", unit)[0]) >= 30


# ------------------------------------------------------------------------------------------------------------ image


def test_the_image_copies_all_that_the_wheel_is_built_from() -> None:
    text = (INFRA / "Dockerfile").read_text()
    copied = {word for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE) for word in line.split()[:-1]}
    assert copied == {"pyproject.toml", "constraints.txt", "README.md", "LICENSE", "src", "services", "worker"}
    assert all((INFRA.parent / name).exists() for name in copied)
