"""What is shipped for clusters and containers: valid by the schemas, and true to what the application has."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import settings
from django.core.management import get_commands

from tests.processes import ROOT

kubernetes_validate = pytest.importorskip("kubernetes_validate")

MANIFESTS = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
COMPOSE = ROOT / "deploy" / "compose.yaml"
PROMETHEUS = ROOT / "deploy" / "prometheus"
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
SCALING = (ROOT / "docs" / "scaling.md").read_text()
VERSIONS = ("1.31", "1.37")
VARIABLES = set(re.findall(r"^\| `([A-Z_]+)`", (ROOT / "docs" / "configuration.md").read_text(), re.MULTILINE))


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text()):
            yield f"{path.stem}/{document['kind']}/{document.get('metadata', {}).get('name', '')}", document


OURS = dict(documents())
RESOURCES = {name: one for name, one in OURS.items() if one["kind"] != "Kustomization"}
SCALED = {name: one for name, one in OURS.items() if one["kind"] == "HorizontalPodAutoscaler"}


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, one in OURS.items():
        if one["kind"] in ("Deployment", "Job"):
            for container in one["spec"]["template"]["spec"]["containers"]:
                yield name, container


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", RESOURCES)
def test_every_manifest_is_valid(name: str, version: str) -> None:
    kubernetes_validate.validate(RESOURCES[name], version, strict=True)


def test_the_kustomization_names_every_file() -> None:
    named = set(OURS["kustomization/Kustomization/"]["resources"])
    assert named == {path.name for path in MANIFESTS} - {"kustomization.yaml"}


def test_commands_and_queues_are_those_of_the_application() -> None:
    for name, container in containers():
        assert container["command"][:2] == ["python", "manage.py"]
        assert container["command"][2] in get_commands(), name
        if container["command"][2] == "worker":
            assert container["command"][3] in settings.RQ_QUEUES, name


def test_every_queue_has_workers_and_what_scales_them_asks_for_figures_that_there_are() -> None:
    worked = {c["command"][3] for _, c in containers() if c["command"][2] == "worker"}
    assert worked == set(settings.RQ_QUEUES)
    from dispatch.core import gauges  # noqa: F401
    from dispatch.core.loops import all_loops
    from dispatch.core.metrics import _gauges

    all_loops()
    for name, one in SCALED.items():
        for metric in one["spec"]["metrics"]:
            if metric["type"] == "External":
                assert metric["external"]["metric"]["name"] in _gauges, name


def test_what_a_cluster_scales_by_is_told_once_however_many_web_processes_tell_it() -> None:
    rules = {
        rule["seriesQuery"]: rule
        for rule in yaml.safe_load((PROMETHEUS / "adapter.yml").read_text())["externalRules"]
    }
    asked = [
        metric["external"]["metric"]
        for one in SCALED.values()
        for metric in one["spec"]["metrics"]
        if metric["type"] == "External"
    ]
    assert set(rules) == {metric["name"] for metric in asked}
    from dispatch.core.metrics import _gauges

    for metric in asked:
        _, labels, _ = _gauges[metric["name"]]
        assert set(metric.get("selector", {}).get("matchLabels", {})) <= set(labels)
        query = f"max by ({', '.join(labels)}) ({metric['name']}{{<<.LabelMatchers>>}})"
        assert rules[metric["name"]]["metricsQuery"] == query
        assert rules[metric["name"]]["resources"] == {"namespaced": False}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_agrees_with_the_scrapes(tmp_path: Path) -> None:
    text = (PROMETHEUS / "prometheus.yml").read_text()
    # A build of promtool need not know of Kubernetes.
    checked = tmp_path / "prometheus.yml"
    checked.write_text(re.sub(r"kubernetes_sd_configs: .*", "static_configs: [{targets: [here]}]", text))
    told = subprocess.run(
        ["promtool", "check", "config", "--syntax-only", checked], capture_output=True, text=True
    )
    assert told.returncode == 0, told.stdout + told.stderr


def test_every_process_is_scraped_where_it_tells_its_figures() -> None:
    port = OURS["config/ConfigMap/dispatch-config"]["data"]["METRICS_PORT"]
    jobs = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"]
    kept = {job["job_name"]: job["relabel_configs"][1] for job in jobs}
    assert kept["dispatch-web"]["regex"] == "web"
    assert (kept["dispatch"]["regex"], kept["dispatch"]["action"]) == ("web|migrate", "drop")
    assert jobs[1]["relabel_configs"][-1]["replacement"] == f"$1:{port}"


def test_the_first_step_has_all_that_the_migration_needs() -> None:
    first = {name for name, one in RESOURCES.items() if one["metadata"].get("labels", {}).get("apply") == "first"}
    assert first == {"namespace/Namespace/dispatch", "config/ConfigMap/dispatch-config", "migrate/Job/migrate"}
    assert "-l apply=first" in SCALING
    assert "-l apply!=first" in SCALING


def test_every_container_has_a_folder_that_it_may_write() -> None:
    (folder,) = re.findall(r"^ENV DISPATCH_DATA_DIR=(\S+)$", DOCKERFILE, re.MULTILINE)
    for name, container in containers():
        assert container["securityContext"]["readOnlyRootFilesystem"]
        mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert any(Path(folder).is_relative_to(at) for at in mounted), name
    assert Path(folder).is_relative_to("/tmp")  # the compose file mounts nothing


def test_the_limits_are_as_the_scaling_page_adds_them_up() -> None:
    def most(process: str) -> int:
        return sum(
            one["spec"]["maxReplicas"] for one in SCALED.values() if one["metadata"]["name"].startswith(process)
        )

    told = re.search(r"(\d+) workers, (\d+) dispatchers, (\d+) lead dialers and (\d+) web processes", SCALING)
    assert told, "docs/scaling.md does not say how many processes there are at most"
    found = [most("worker-"), most("dispatcher"), most("lead-dialer"), most("web")]
    assert [int(number) for number in told.groups()] == found


def test_nothing_that_holds_timers_is_ever_none_and_all_have_time_to_end() -> None:
    for name, one in SCALED.items():
        assert one["spec"]["minReplicas"] >= 1, name
        assert one["spec"]["scaleTargetRef"]["name"] in {
            other["metadata"]["name"] for other in OURS.values() if other["kind"] == "Deployment"
        }
    for name, one in OURS.items():
        if one["kind"] == "Deployment":
            assert one["spec"]["replicas"] >= 1, name
            grace = one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
            longest = settings.RQ_QUEUES[settings.DISPATCH_QUEUE]["DEFAULT_TIMEOUT"]
            assert grace >= (longest if "worker" in name else 30), name


def test_the_compose_file_runs_commands_that_there_are_with_variables_that_there_are() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    ours = [one for one in services.values() if one["image"] == "dispatch"]
    assert {one["command"][2] for one in ours} == {"migrate", "web", "dispatcher", "autoscale"}
    assert all(one["command"][2] in get_commands() for one in ours)
    example = (ROOT / "deploy" / "env.example").read_text()
    named = set(re.findall(r"^([A-Z_]+)=", example, re.MULTILINE)) - {"POSTGRES_PASSWORD"}
    assert named <= VARIABLES
    assert set(OURS["config/ConfigMap/dispatch-config"]["data"]) <= VARIABLES
