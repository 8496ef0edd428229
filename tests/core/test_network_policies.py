"""The manifests' network policies, read as a cluster reads them: what each kind of process may reach."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest

from tests.core.test_deploy import OURS

POLICIES = {one["metadata"]["name"]: one["spec"] for one in OURS.values() if one["kind"] == "NetworkPolicy"}
PODS = {
    name: one["spec"]["template"]["metadata"]["labels"]
    for name, one in OURS.items()
    if one["kind"] in ("Deployment", "Job")
}
PROCESSES = {labels["process"]: labels for labels in PODS.values()}

DNS, SERVERS = {("UDP", 53, 53), ("TCP", 53, 53)}, {("TCP", 5432, 5432), ("TCP", 6379, 6379)}
PROVIDER, MAIL = {("TCP", 443, 443)}, {("TCP", 465, 465), ("TCP", 587, 587)}
ENDPOINTS = {("TCP", 80, 80), ("TCP", 443, 443), ("TCP", 1024, 65535)}
REACHES = {
    "web": PROVIDER | MAIL | ENDPOINTS,
    "dispatcher": PROVIDER | MAIL | ENDPOINTS,
    "lead-dialer": PROVIDER | ENDPOINTS,
    "worker-dispatch": PROVIDER,
    "worker-timeout": PROVIDER,
    "worker-http": ENDPOINTS,
    "worker-import": ENDPOINTS,  # reads exclusion calendars (SCHEDULE_IMPORT_QUEUE)
}
INSIDE = [
    *("10.1.2.3", "100.64.0.1", "127.0.0.1", "169.254.169.254", "172.16.0.1", "192.168.1.1", "224.0.0.1"),
    *("::1", "fd12::1", "fe80::1"),
]


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    wanted = all(labels.get(name) == value for name, value in selector.get("matchLabels", {}).items())
    return wanted and all(
        (labels.get(one["key"]) in one["values"]) == (one["operator"] == "In")
        for one in selector.get("matchExpressions", ())
    )


def rules(process: str, direction: str) -> list[dict[str, Any]]:
    return [
        rule
        for spec in POLICIES.values()
        if selects(spec["podSelector"], PROCESSES[process])
        for rule in spec.get(direction, ())
    ]


def ports(rule: dict[str, Any]) -> set[tuple[str, int, int]]:
    return {(one["protocol"], one["port"], one.get("endPort", one["port"])) for one in rule["ports"]}


def admits(block: dict[str, Any], address: str) -> bool:
    found = ipaddress.ip_address(address)
    within = found in ipaddress.ip_network(block["cidr"])
    return within and not any(found in ipaddress.ip_network(one) for one in block.get("except", ()))


def test_everything_is_denied_that_no_policy_allows() -> None:
    assert POLICIES["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for name, spec in POLICIES.items():
        for direction in ("ingress", "egress"):
            assert direction not in spec or direction.title() in spec["policyTypes"], name
            # a rule without peers or ports would allow all of them
            assert all(rule.get("from" if direction == "ingress" else "to") for rule in spec.get(direction, ()))
            assert all(rule.get("ports") for rule in spec.get(direction, ()))


@pytest.mark.parametrize("process", PROCESSES)
def test_process_reaches_only_its_servers_and_needed_public_ports(process: str) -> None:
    inside, outside = set(), set()
    for rule in rules(process, "egress"):
        public = any(admits(peer["ipBlock"], "93.184.215.14") for peer in rule["to"] if "ipBlock" in peer)
        (outside if public else inside).update(ports(rule))
        if public:
            blocks = [peer["ipBlock"] for peer in rule["to"]]
            assert not [one for one in INSIDE if any(admits(block, one) for block in blocks)]
    assert inside == DNS | SERVERS
    assert outside == REACHES.get(process, set())


@pytest.mark.parametrize("process", PROCESSES)
def test_a_process_is_reached_only_at_its_port(process: str) -> None:
    expected = {"web": {("TCP", 8000, 8000)}, "migrate": set()}.get(process, {("TCP", 9100, 9100)})
    reached = rules(process, "ingress")
    assert {port for rule in reached for port in ports(rule)} == expected
    namespaces = {
        peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
        for rule in reached
        for peer in rule["from"]
    }
    assert namespaces <= ({"ingress-nginx", "monitoring"} if process == "web" else {"monitoring"})


def test_a_selector_names_only_existing_processes() -> None:
    for spec in POLICIES.values():
        for one in spec["podSelector"].get("matchExpressions", ()):
            assert set(one["values"]) <= set(PROCESSES)


def test_no_process_has_credentials_of_the_cluster_and_its_disk_is_limited() -> None:
    for name, one in OURS.items():
        if one["kind"] in ("Deployment", "Job"):
            spec = one["spec"]["template"]["spec"]
            assert spec["automountServiceAccountToken"] is False, name
            assert all(volume["emptyDir"]["sizeLimit"] for volume in spec["volumes"]), name


def test_the_ingress_serves_the_public_address_over_tls() -> None:
    (ingress,) = (one["spec"] for one in OURS.values() if one["kind"] == "Ingress")
    host = OURS["config/ConfigMap/dispatch-config"]["data"]["PUBLIC_BASE_URL"].removeprefix("https://")
    assert [rule["host"] for rule in ingress["rules"]] == [host]
    assert [tls["hosts"] for tls in ingress["tls"]] == [[host]]
    (path,) = ingress["rules"][0]["http"]["paths"]
    service = next(one for one in OURS.values() if one["kind"] == "Service")
    backend = path["backend"]["service"]
    assert (backend["name"], backend["port"]["name"]) == (
        service["metadata"]["name"],
        service["spec"]["ports"][0]["name"],
    )
