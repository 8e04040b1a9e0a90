"""A real Prometheus scrapes real services, and every query of the rules and the dashboard has a result."""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from draftwire import Client, DraftwireError, Learning, LearningRound, Speculation
from tests.harness.certificates import Authority
from tests.harness.deploy.monitoring import PROMETHEUS, RULES, dashboard_queries, rules
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.suite.skipped import needs
from tests.harness.waiting import PATIENCE, eventually, sometimes

pytestmark = [
    pytest.mark.slow,
    needs("prometheus"),
]

WINDOW = "10m"
NO_WAITS = "tokens gained per second waited"
"""A query without a result if no step waited for proposals, which depends on the machine's speed."""
GPUS = "DCGM_"
"""Metrics of NVIDIA's exporter, which is not here."""


class Prometheus:
    """A Prometheus process with the configuration of deploy/prometheus and other targets."""

    def __init__(self, folder: Path, targets: dict[str, str]) -> None:
        config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(path) for path in RULES]
        for job in config["scrape_configs"]:
            job["static_configs"] = [{"targets": [targets.pop(job["job_name"])]}]
        assert not targets
        path = folder / "prometheus.yml"
        path.write_text(yaml.safe_dump(config))
        self._log = folder / "prometheus.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    "prometheus", f"--config.file={path}", f"--storage.tsdb.path={folder / 'data'}",
                    "--web.listen-address=127.0.0.1:0", "--log.format=json",
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    @cached_property
    def url(self) -> str:
        def found() -> str | None:
            text = self._log.read_text(errors="replace")
            assert self.process.poll() is None, text
            listening = re.search(r'"address":"([^"]+)"[^\n]*"msg":"Listening on"', text)
            return listening[1] if listening and "ready to receive web requests" in text else None

        return f"http://{eventually(found, 'it serves')}"

    def get(self, path: str, **parameters: str) -> Any:
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=PATIENCE).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def ask(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def until(self, expression: str) -> None:
        """Waits until an expression has a result."""
        deadline = time.monotonic() + PATIENCE
        while not self.ask(expression):
            compared = expression.partition(" == ")[0]
            assert time.monotonic() < deadline, (expression, self.ask(compared))
            time.sleep(0.2)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE)


class Monitored:
    """Services, their traffic, and a Prometheus that has scraped them."""

    def __init__(self, prometheus: Prometheus, tokens: int, requests: int) -> None:
        self.prometheus = prometheus
        self.tokens = tokens
        """Output tokens of all requests."""
        self.requests = requests
        """Number of requests that got all the tokens that they asked for."""


def metrics_address(service: ServiceProcess) -> str:
    assert service.address
    return next(str(event["address"]) for event in service.events() if event["event"] == "metrics server started")


def traffic(client: Client, gateway: ServiceProcess) -> int:
    """Sends requests of every kind that affects metrics; returns the number of output tokens."""
    for seed in range(3):
        client.generate("Once upon a time", max_tokens=48, temperature=0.7, seed=seed, ignore_eos=True)
    lossy = Speculation(acceptance="threshold", preset="narrative")
    client.generate("Once", max_tokens=32, temperature=1.0, seed=1, speculation=lossy, ignore_eos=True)
    with pytest.raises(DraftwireError):
        client.generate("Once", max_tokens=8, temperature=-1.0)
    for stream in (False, True):
        response = httpx.post(
            f"{gateway.url}/v1/completions",
            json={"model": "target", "prompt": "The", "max_tokens": 24, "stream": stream, "ignore_eos": True},
            timeout=PATIENCE,
        )
        assert response.status_code == 200, response.text
    return 3 * 48 + 32 + 2 * 24


@pytest.fixture(scope="module")
def monitored(module_services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    folder = tmp_path_factory.mktemp("prometheus")
    with ExitStack() as running:
        served = ("--metrics-listen", "127.0.0.1:0")
        verifier = module_services.verifier("target", *served)
        authorities = ("--tls-ca", str(Authority(folder).file))  # of calls, which this drafter makes none of
        drafter = module_services.drafter("draft", *served, *authorities)
        gateway = module_services.gateway("--verifier", verifier.address)
        client = running.enter_context(Client(verifier.address, timeout=PATIENCE))
        client.drafters.attach(drafter.address, name="one")
        client.drafters.attach(drafter.address, name="two")
        client.drafters.swap("one", "two")
        last = LearningRound(1, True, "better", 0.5, 0.6, 100, 1.0, 1.2, datetime.now(UTC), 1.1)
        client.drafters.report_learning("two", Learning("collecting", 1, 1000, 1, 0.5, 0.6, last))
        tokens = traffic(client, gateway)
        targets = {
            "verifier": metrics_address(verifier),
            "drafter": metrics_address(drafter),
            "gateway": gateway.address,
        }
        prometheus = Prometheus(folder, dict(targets))
        running.callback(prometheus.stop)
        # Increases need two scrapes: one before and one after.
        for job in targets:
            prometheus.until(f'up{{job="{job}"}} == 1')
        tokens += traffic(client, gateway)
        requests = 12

        def drafted() -> int:
            nonlocal tokens, requests
            tokens, requests = tokens + 48, requests + 1
            always = Speculation(planning="always")
            found = client.generate("Once", max_tokens=48, temperature=0.0, ignore_eos=True, speculation=always)
            return found.speculation.accepted_tokens

        sometimes(drafted, "drafts are accepted")
        prometheus.until(f"sum(draftwire:generation_tokens_total) == {tokens}")
        prometheus.until(f"sum(rate(draftwire:gateway_requests_total[{WINDOW}])) > 0")
        prometheus.until(f"sum(rate(draftwire:drafting_nodes_total[{WINDOW}])) > 0")
        yield Monitored(prometheus, tokens, requests)


def test_every_target_is_scraped(monitored: Monitored) -> None:
    def found() -> list[tuple[str, str]]:
        targets = monitored.prometheus.get("targets")["activeTargets"]
        return sorted((target["labels"]["job"], target["lastError"]) for target in targets)

    eventually(lambda: found() == [("drafter", ""), ("gateway", ""), ("verifier", "")], "each answers")


def test_counters_are_what_was_done(monitored: Monitored) -> None:
    until = monitored.prometheus.until
    until(f"draftwire:generation_tokens_total == {monitored.tokens}")
    until(f'draftwire:request_success_total{{finished_reason="length"}} == {monitored.requests}')
    until('draftwire:requests_refused_total{reason="INVALID_FIELD"} == 2')
    until('draftwire:spec_decode_num_requests_total{rule="threshold"} == 2')
    until('draftwire:drafter_swaps_total{result="done"} == 1')
    until('draftwire:drafters{state="ready"} == 1')
    until('scalar(draftwire:drafting_nodes_total) >= draftwire:drafter_proposed_nodes_total{drafter="two"} > 0')
    until(f'sum(draftwire:gateway_tokens_total{{kind="completion"}}) == {4 * 24}')
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        until(f'scalar(draftwire:gateway_{name}{{model_name="target"}}) == draftwire:{name}')
    accepted = "sum(draftwire:spec_decode_num_accepted_tokens_total)"
    until(f"sum(draftwire:spec_decode_num_accepted_tokens_per_pos_total) == {accepted} > 0")


def test_every_query_of_the_dashboard_has_an_answer(monitored: Monitored) -> None:
    queries = dashboard_queries(WINDOW)
    assert len(queries) > 60
    for query in queries:
        if NO_WAITS not in query.place and GPUS not in query.expression:
            monitored.prometheus.until(query.expression)


def test_every_rule_has_an_answer(monitored: Monitored) -> None:
    """For alerts, the operands of the comparison are queried: the comparison itself has no result while all is well."""
    compared = re.compile(r" (==|>|<) (?=[\d.]+( and |$|\)))")
    for rule in rules():
        expression = " ".join(rule["expr"].split())
        if "alert" in rule:
            expression, count = compared.subn(r" \1 bool ", expression)
            assert count, rule
        monitored.prometheus.until(expression)


def test_rules_are_evaluated_without_a_fault(monitored: Monitored) -> None:
    monitored.prometheus.until("draftwire:acceptance:ratio_rate5m")

    def found() -> dict[str, tuple[str, str]]:
        groups = monitored.prometheus.get("rules")["groups"]
        return {
            rule["name"]: (rule["health"], rule.get("lastError", "")) for group in groups for rule in group["rules"]
        }

    assert len(found()) == len(rules())
    eventually(lambda: set(found().values()) == {("ok", "")}, "all are well")


def test_nothing_is_wrong_with_services_that_are_well(monitored: Monitored) -> None:
    """Alerts on acceptance and speed may fire with tiny models on a busy machine; no other may."""
    allowed = {"DraftwireLowAcceptance", "DraftwireStaleProposals", "DraftwireSpeculationDoesNotPay"}
    allowed.add("DraftwireSlowFirstToken")

    def pending() -> set[str]:
        return {each["metric"]["alertname"] for each in monitored.prometheus.ask("ALERTS")}

    eventually(lambda: pending() <= allowed, "one scrape that was late is forgotten")


def test_what_is_scraped_is_documented(monitored: Monitored) -> None:
    names = monitored.prometheus.get("label/__name__/values")
    text = (PROMETHEUS.parents[1] / "docs" / "monitoring.md").read_text()
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    ours = {name for name in names if name.startswith("draftwire:")} - recorded
    series = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in ours}
    assert len(series) > 70
    assert sorted(name for name in series if f"`{name}`" not in text and f"`{name}_total`" not in text) == []
    assert json.dumps(sorted(series)).count("gateway") >= 5
