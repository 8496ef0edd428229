"""The files for clusters and containers match their schemas and the application."""

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

from tests.support.processes import ROOT

kubernetes_validate = pytest.importorskip("kubernetes_validate")

MANIFESTS = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
COMPOSE = ROOT / "deploy" / "compose.yaml"
PROMETHEUS = ROOT / "deploy" / "prometheus"
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
SCALING = (ROOT / "docs" / "operations" / "scaling.md").read_text()
VERSIONS = ("1.31", "1.37")
VARIABLES = set(
    re.findall(r"^\| `([A-Z_]+)`", (ROOT / "docs" / "reference" / "configuration.md").read_text(), re.MULTILINE)
)


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


def test_the_page_names_a_cluster_that_knows_the_pause_before_the_stop() -> None:
    """`preStop.sleep` exists since Kubernetes 1.30."""
    assert any("sleep" in container.get("lifecycle", {}).get("preStop", {}) for _, container in containers())
    (named,) = re.findall(r"for Kubernetes 1\.(\d+) or later", SCALING)
    assert 30 <= int(named) <= min(int(version.partition(".")[2]) for version in VERSIONS)


def test_images_have_a_version() -> None:
    """A tag that moves would mix versions among the processes."""
    (kustomization,) = [one for one in OURS.values() if one["kind"] == "Kustomization"]
    assert [one.get("newTag", "") for one in kustomization["images"]] == ["1"]
    services = yaml.safe_load(COMPOSE.read_text())["services"].values()
    tags = {one["image"].partition(":")[2] for one in services if one["image"] != "dispatch"}
    assert tags
    assert not tags & {"", "latest"}


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


def test_every_queue_has_workers_that_scale_by_existing_metrics() -> None:
    worked = {c["command"][3] for _, c in containers() if c["command"][2] == "worker"}
    assert worked == set(settings.RQ_QUEUES)
    from dispatch.core.observability import gauges  # noqa: F401
    from dispatch.core.observability.metrics import _gauges
    from dispatch.core.runtime.loops import all_loops

    all_loops()
    for name, one in SCALED.items():
        for metric in one["spec"]["metrics"]:
            if metric["type"] == "External":
                assert metric["external"]["metric"]["name"] in _gauges, name


def test_cluster_scaling_counts_metrics_of_several_web_processes_once() -> None:
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
    from dispatch.core.observability.metrics import _gauges

    for metric in asked:
        _, labels, _ = _gauges[metric["name"]]
        assert set(metric.get("selector", {}).get("matchLabels", {})) <= set(labels)
        query = f"max by ({', '.join(labels)}) ({metric['name']}{{<<.LabelMatchers>>}})"
        assert rules[metric["name"]]["metricsQuery"] == query
        assert rules[metric["name"]]["resources"] == {"namespaced": False}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_agrees_with_the_scrapes(tmp_path: Path) -> None:
    text = (PROMETHEUS / "prometheus.yml").read_text()
    # A build of promtool may not support Kubernetes.
    checked = tmp_path / "prometheus.yml"
    checked.write_text(re.sub(r"kubernetes_sd_configs: .*", "static_configs: [{targets: [here]}]", text))
    told = subprocess.run(
        ["promtool", "check", "config", "--syntax-only", checked], capture_output=True, text=True
    )
    assert told.returncode == 0, told.stdout + told.stderr


def test_every_process_is_scraped_at_its_metrics_port() -> None:
    port = OURS["config/ConfigMap/dispatch-config"]["data"]["METRICS_PORT"]
    configured = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"]
    jobs = [job for job in configured if job["job_name"].startswith("dispatch")]
    assert all(job["authorization"]["credentials_file"].endswith("/METRICS_TOKEN") for job in jobs)
    kept = {job["job_name"]: job["relabel_configs"][1] for job in jobs}
    assert kept["dispatch-web"]["regex"] == "web"
    assert (kept["dispatch"]["regex"], kept["dispatch"]["action"]) == ("web|migrate", "drop")
    assert jobs[1]["relabel_configs"][-1]["replacement"] == f"$1:{port}"


def test_first_step_has_everything_the_migration_needs() -> None:
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
    assert told, "docs/operations/scaling.md does not say how many processes there are at most"
    found = [most("worker-"), most("dispatcher"), most("lead-dialer"), most("web")]
    assert [int(number) for number in told.groups()] == found


def test_timer_processes_never_scale_to_zero_and_stop_cleanly() -> None:
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


def test_compose_file_uses_existing_commands_and_variables() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    ours = [one for one in services.values() if one["image"] == "dispatch"]
    assert {one["command"][2] for one in ours} == {"migrate", "web", "dispatcher", "autoscale"}
    assert all(one["command"][2] in get_commands() for one in ours)
    example = (ROOT / "deploy" / "env.example").read_text()
    named = set(re.findall(r"^([A-Z_]+)=", example, re.MULTILINE)) - {"POSTGRES_PASSWORD"}
    assert named <= VARIABLES
    assert set(OURS["config/ConfigMap/dispatch-config"]["data"]) <= VARIABLES


def test_the_page_runs_commands_of_the_application_in_containers() -> None:
    """The image has no entry point. The migration, on which web depends, needs the key that `make_key` makes."""
    page = (ROOT / "docs" / "operations" / "operations.md").read_text()
    commands = re.findall(r"docker compose -f deploy/compose\.yaml run ((?:--\S+ )*)web ([^`\n]*)", page)
    assert len(commands) > 1
    for options, command in commands:
        python, manage, name, *_ = command.split()
        assert (python, manage) == ("python", "manage.py")
        assert name in get_commands()
        assert ("--no-deps" in options) == (name == "make_key")
    assert "ENTRYPOINT" not in DOCKERFILE
    assert "make_key" in commands[0][1], "another command comes before the key"


def test_probes_of_web_have_time_limits_and_readiness_needs_the_database() -> None:
    (web,) = (container for name, container in containers() if container["name"] == "web")
    asked = {kind: web[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert asked == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/servez"}
    from dispatch.core.web.probes import LIMIT_S

    assert all(web[f"{kind}Probe"]["timeoutSeconds"] > LIMIT_S for kind in asked)
    healthcheck = yaml.safe_load(COMPOSE.read_text())["services"]["web"]["healthcheck"]
    assert "/servez" in healthcheck["test"][-1]
    assert healthcheck["timeout"]


def test_every_other_process_is_restarted_when_it_is_stuck() -> None:
    port = int(OURS["config/ConfigMap/dispatch-config"]["data"]["METRICS_PORT"])
    others = [container for _, container in containers() if container["name"] not in ("web", "migrate")]
    assert len(others) == 10
    for container in others:
        probe = container["livenessProbe"]
        assert probe["httpGet"] == {"path": "/healthz", "port": "metrics"}, container["name"]
        assert {"containerPort": port, "name": "metrics"} in container["ports"], container["name"]
        assert probe["timeoutSeconds"] >= 5, container["name"]


def test_the_settings_of_the_manifests_override_those_of_the_secret() -> None:
    """The secret is made of a file that may also have an address and a proxy, such as the one for compose."""
    for name, container in containers():
        assert [next(iter(source)) for source in container["envFrom"]] == ["secretRef", "configMapRef"], name


def test_the_files_trust_only_their_proxy(settings: Any) -> None:
    from dispatch.core import checks

    settings.DEVELOPMENT, settings.BEHIND_PROXY = False, True
    example = dict(re.findall(r"^([A-Z_]+)=(.*)$", (ROOT / "deploy" / "env.example").read_text(), re.MULTILINE))
    network = yaml.safe_load(COMPOSE.read_text())["networks"]["default"]["ipam"]["config"][0]
    assert example["FORWARDED_ALLOW_IPS"] == network["gateway"]
    for trusted in (
        example["FORWARDED_ALLOW_IPS"],
        OURS["config/ConfigMap/dispatch-config"]["data"]["FORWARDED_ALLOW_IPS"],
    ):
        settings.FORWARDED_ALLOW_IPS = trusted
        assert checks.trusted_proxies(None) == []


def test_the_build_gets_only_what_the_image_copies() -> None:
    """The first line of .dockerignore excludes everything; what follows adds the sources of COPY."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    sent = {line[1:] for line in lines if line.startswith("!")}
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    assert sent == {source for line in copies for source in line.split()}
