"""The deployment files fit the code: they parse, name metrics that exist, and use flags that `serve` has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
import yaml
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from typer.testing import CliRunner

from runtime.config import ServeConfig, build_config
from runtime.engine import Engine
from runtime.engine_config import EngineConfig
from runtime.models.loaded_model import LoadedModel
from runtime.models.loader import load_model
from runtime.monitoring.metrics import RuntimeMetrics
from runtime.publishing.publisher import PublisherStatus
from runtime.retention.keeping import KeepingBooks

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "radixloop.json"
RULES = DEPLOY / "prometheus" / "rules.yml"


def load(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def manifests(kind: str) -> list[Any]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8"))
    return [one for one in documents if one["kind"] == kind]


def runtime_pod() -> Any:
    return next(one for one in manifests("Deployment") if one["metadata"]["name"] == "radixloop")["spec"]["template"]


@pytest.fixture(scope="module")
def sample_names(tiny_model: Path) -> set[str]:
    """Every name that a scrape can hold."""
    loaded: LoadedModel = load_model(str(tiny_model), dtype="fp32", device="cpu")
    engine = Engine(loaded, EngineConfig(num_blocks=8))
    engine.start()
    try:
        status = PublisherStatus(True, 0.0, 0, 0, 0, "")
        books = KeepingBooks(0, 0, 0, 0, 0)
        metrics = RuntimeMetrics(
            engine, loaded.info, sessions=lambda: 0, keeping=lambda: books, publisher=lambda: status
        )
        return {sample.name for family in metrics.registry.collect() for sample in family.samples}
    finally:
        engine.shutdown(0)


def queries_of_dashboard() -> Iterator[str]:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"]
    for variable in board["templating"]["list"]:
        yield variable["definition"]


def queries_of_rules() -> Iterator[str]:
    for group in load("prometheus/rules.yml")["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


def metrics_in(query: str) -> set[str]:
    return set(re.findall(r"(?<![:\w])radixloop_\w+", query))


def test_every_metric_of_dashboard_and_rules_exists(sample_names: set[str]) -> None:
    for query in (*queries_of_dashboard(), *queries_of_rules()):
        used = metrics_in(query)
        assert used or 'job="radixloop"' in query, query
        assert used <= sample_names, query


def test_the_dashboard_shows_the_metrics_that_matter() -> None:
    shown = set().union(*map(metrics_in, queries_of_dashboard()))
    for name in (
        "radixloop_prefix_cache_hits_tokens_total",
        "radixloop_prefix_cache_queries_tokens_total",
        "radixloop_time_to_first_token_seconds_bucket",
        "radixloop_inter_token_latency_seconds_bucket",
        "radixloop_request_queue_seconds_bucket",
        "radixloop_pool_unused_slots",
        "radixloop_pool_blocks",
        "radixloop_evicted_tokens_total",
        "radixloop_missed_tokens_total",
    ):
        assert name in shown


def test_dashboard_panels_do_not_overlap_and_have_the_provisioned_source() -> None:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    uid = load("grafana/provisioning/datasources/prometheus.yml")["datasources"][0]["uid"]
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        assert place["x"] + place["w"] <= 24
        for target in panel.get("targets", []):
            assert target["datasource"]["uid"] == uid
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def serve_flags() -> set[str]:
    from runtime.cli import app

    text = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    flags = set(re.findall(r"--[a-z][a-z-]+", re.sub(r"\x1b\[[0-9;]*m", "", text)))
    assert len(flags) > 10
    return flags


def test_flags_and_settings_are_known_to_serve() -> None:
    container = runtime_pod()["spec"]["containers"][0]
    for words in (load("compose.yaml")["services"]["runtime"]["command"], container["args"]):
        assert words[0] == "serve"
        assert {word.partition("=")[0] for word in words[1:]} <= serve_flags()

    settings = yaml.safe_load(manifests("ConfigMap")[0]["data"]["radixloop.yaml"])
    assert build_config(settings | {"host": "0.0.0.0"}).redis == "redis://radixloop-valkey:6379"

    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    variables = set(re.findall(r"\bRADIX_RUNTIME_(\w+)=", dockerfile))
    assert variables == {"HOST", "PORT", "METRICS_HOST", "METRICS_PORT"}
    assert {name.lower() for name in variables} <= set(ServeConfig.model_fields)


def test_compose_values_are_accepted() -> None:
    words = load("compose.yaml")["services"]["runtime"]["command"][1:]
    given = {}
    for word in words:
        name, _, value = word.removeprefix("--").partition("=")
        default = re.fullmatch(r"\$\{\w+:-(.*)\}", value)
        given[name.replace("-", "_")] = default[1] if default else value or "true"
    assert build_config(given | {"host": "0.0.0.0"}).redis == "redis://valkey:6379"


def test_the_files_for_a_router_fit_the_runtime_and_its_service() -> None:
    compose = load("compose.router.yaml")["services"]
    flags = serve_flags()
    runtimes = [name for name in compose if name.startswith("runtime-")]
    for name in runtimes:
        assert {word.partition("=")[0] for word in compose[name]["command"][1:]} <= flags
    assert [f"grpc://{name}:50051" for name in runtimes] == workers(compose["router"]["command"])
    (scraped, router) = load("prometheus/router.yml")["scrape_configs"]
    assert scraped["static_configs"][0]["targets"] == [f"{name}:9400" for name in runtimes]
    assert router["static_configs"][0]["targets"] == ["router:29000"]

    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes-router.yaml").read_text(encoding="utf-8")))
    named = {(one["kind"], one["metadata"]["name"]): one for one in documents}
    runtime, service = named["StatefulSet", "radixloop"]["spec"], named["Service", "radixloop"]["spec"]
    pods = [f"radixloop-{i}.{runtime['serviceName']}" for i in range(runtime["replicas"])]
    router_pod = named["Deployment", "radixloop-router"]["spec"]["template"]["spec"]
    assert workers(router_pod["containers"][0]["args"]) == [f"grpc://{pod}:50051" for pod in pods]
    prometheus = yaml.safe_load(named["ConfigMap", "radixloop-prometheus"]["data"]["prometheus.yml"])
    assert prometheus["scrape_configs"][0]["static_configs"][0]["targets"] == [f"{pod}:9400" for pod in pods]
    assert service["selector"] == runtime["template"]["metadata"]["labels"] == runtime["selector"]["matchLabels"]
    settings = yaml.safe_load(named["ConfigMap", "radixloop-runtime"]["data"]["radixloop.yaml"])
    assert build_config(settings | {"host": "0.0.0.0"}).vllm_engine == "on"
    assert runtime["template"]["spec"]["terminationGracePeriodSeconds"] > settings["drain_seconds"] + 10
    for kind, name in named:
        if kind in ("Deployment", "StatefulSet"):
            pod = named[kind, name]["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["enableServiceLinks"] is False
    for name, one in compose.items():
        assert all(str(port).startswith("127.0.0.1:") for port in one.get("ports", [])), name
        assert one["cap_drop"] == ["ALL"], name


def workers(words: list[str]) -> list[str]:
    return [word for word in words if word.startswith("grpc://")]


def test_a_container_is_given_longer_than_the_drain() -> None:
    pod = runtime_pod()["spec"]
    settings = yaml.safe_load(manifests("ConfigMap")[0]["data"]["radixloop.yaml"])
    assert pod["terminationGracePeriodSeconds"] > settings["drain_seconds"] + 10
    runtime = load("compose.yaml")["services"]["runtime"]
    drain = next(float(word.partition("=")[2]) for word in runtime["command"] if word.startswith("--drain-seconds"))
    assert float(runtime["stop_grace_period"].rstrip("s")) > drain + 10


def test_ports_agree() -> None:
    defaults = {"grpc": ServeConfig().port, "metrics": ServeConfig().metrics_port}
    container = runtime_pod()["spec"]["containers"][0]
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == defaults
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["grpc"]["port"] == defaults["grpc"]
    service = next(one for one in manifests("Service") if one["metadata"]["name"] == "radixloop")
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == defaults
    scrape = load("prometheus/prometheus.yml")["scrape_configs"][0]["static_configs"][0]["targets"]
    assert scrape == [f"runtime:{defaults['metrics']}"]


def test_the_runtimes_variables_cannot_be_set_by_a_service_link() -> None:
    assert runtime_pod()["spec"]["enableServiceLinks"] is False


def test_nothing_listens_beyond_loopback_and_nothing_runs_as_root() -> None:
    for name, service in load("compose.yaml")["services"].items():
        assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert service["cap_drop"] == ["ALL"], name
    for deployment in manifests("Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
    users = re.findall(r"^USER (\S+)$", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert users
    assert users[-1] == "10001:10001"


def test_what_the_dockerfile_copies_is_there_and_not_ignored() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    kept = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", dockerfile, re.MULTILINE)
        for source in line.split()[:-1]
    }
    assert copied == kept
    for source in copied:
        assert (DEPLOY.parent / source).exists(), source


def test_paths_in_compose_exist() -> None:
    for name, service in load("compose.yaml")["services"].items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), f"{name}: {source}"
            else:
                assert source in load("compose.yaml")["volumes"], f"{name}: {source}"


@pytest.mark.parametrize("serving", [True, False])
def test_the_healthcheck_tells_a_serving_runtime_from_one_that_drains(serving: bool) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    states = health_pb2.HealthCheckResponse
    servicer.set("", states.SERVING if serving else states.NOT_SERVING)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        result = run_healthcheck(port)
    finally:
        server.stop(None)
    assert (result.returncode, "NOT_SERVING" in result.stdout) == ((0, False) if serving else (1, True))


def test_the_healthcheck_fails_without_a_runtime() -> None:
    result = run_healthcheck(1)
    assert result.returncode == 1
    assert "UNAVAILABLE" in result.stdout


@pytest.mark.parametrize("name", ["127.0.0.1", "runtime.radixloop.svc", "*.radixloop.svc"])
@pytest.mark.parametrize("mutual", [False, True])
def test_the_healthcheck_speaks_tls_where_the_runtime_does(tmp_path: Path, name: str, mutual: bool) -> None:
    authority = trustme.CA()
    pair = authority.issue_cert(name)
    files = {"CERT": tmp_path / "tls.crt", "KEY": tmp_path / "tls.key"}
    files["KEY"].write_bytes(pair.private_key_pem.bytes())
    files["CERT"].write_bytes(b"".join(blob.bytes() for blob in pair.cert_chain_pems))
    server = grpc.server(futures.ThreadPoolExecutor(2))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    shown = [(files["KEY"].read_bytes(), files["CERT"].read_bytes())]
    trusted = authority.cert_pem.bytes() if mutual else None
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(shown, trusted, mutual))
    server.start()
    try:
        result = run_healthcheck(port, **{f"RADIX_RUNTIME_TLS_{kind}": str(file) for kind, file in files.items()})
        in_the_clear = run_healthcheck(port)
    finally:
        server.stop(None)
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    assert in_the_clear.returncode == 1


def run_healthcheck(port: int, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DEPLOY / "healthcheck.py")],
        env={"RADIX_RUNTIME_PORT": str(port), **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")
def test_promtool_accepts_configuration_and_rules() -> None:
    for words in (
        ["check", "config", "prometheus/prometheus.yml"],
        ["test", "rules", str(Path(__file__).parent / "rules_test.yml")],
    ):
        result = subprocess.run(["promtool", *words], cwd=DEPLOY, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")
def test_promtool_accepts_the_dashboards_queries(tmp_path: Path) -> None:
    queries = [query for query in queries_of_dashboard() if not query.startswith("label_values")]
    assert len(queries) > 30
    plain = [
        query.replace("$__rate_interval", "1m").replace("$__range", "1h").replace("$instance", ".*")
        for query in queries
    ]
    rules = [{"record": f"panel:query:{number}", "expr": query} for number, query in enumerate(plain)]
    file = tmp_path / "dashboard.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    result = subprocess.run(
        ["promtool", "check", "rules", "--lint=none", str(file)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
