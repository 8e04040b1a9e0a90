"""The rules and the dashboard, checked by Prometheus' own promtool and as files."""

import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.deploy.monitoring import DASHBOARDS, DEPLOY, PROMETHEUS, RULES, dashboard_queries, panels, rules
from tests.harness.suite.skipped import needs
from tests.harness.waiting import LONG_PATIENCE

ROOT = DEPLOY.parent
ALERTS = [rule for rule in rules() if "alert" in rule]


def check(*arguments: str, folder: Path = PROMETHEUS) -> str:
    done = subprocess.run(
        ["promtool", *arguments], cwd=folder, capture_output=True, text=True, timeout=LONG_PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_alert_has_a_case_in_which_it_fires() -> None:
    cases = yaml.safe_load((PROMETHEUS / "tests" / "alerts.yml").read_text())["tests"]
    fired = set(re.findall(r'alertname="(\w+)"', json.dumps(cases).replace("\\", "")))
    assert {alert["alert"] for alert in ALERTS} <= fired


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_says_what_to_do(alert: dict[str, Any]) -> None:
    assert set(alert["annotations"]) == {"summary", "description", "action"}
    assert alert["labels"]["severity"] in ("page", "ticket")
    row = re.search(rf"^\| `{alert['alert']}` \| (.+) \|$", (ROOT / "docs/monitoring.md").read_text(), re.MULTILINE)
    assert row is not None, "no row in docs/monitoring.md"
    expression = " ".join(alert["expr"].split())
    assert row[1] == f"{alert['labels']['severity']} | `{expression}` | {alert.get('for', 'at once')}"


def test_what_an_alert_names_exists() -> None:
    text = (PROMETHEUS / "rules" / "alerts.yml").read_text()
    settings = (ROOT / "docs/settings.md").read_text()
    flags = set(re.findall(r"--[\w-]+", text))
    assert flags
    for flag in flags:
        assert f"`{flag}`" in settings, flag
    for path in re.findall(r"docs/[\w-]+\.md", text):
        assert (ROOT / path).exists(), path


def test_panels_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in panels()]
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)
    assert all(place["x"] + place["w"] <= 24 for place in places)


def test_the_dashboard_is_whole() -> None:
    identities = [panel["id"] for panel in panels()]
    assert len(identities) == len(set(identities))
    for panel in panels():
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert panel["targets"], panel["title"]


def test_grafanas_provisioning_fits_together() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    assert source["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "draftwire.yml").read_text())["providers"]
    assert Path(provider["options"]["path"]).name == DASHBOARDS[0].parent.name
    assert [job["job_name"] for job in config["scrape_configs"]] == ["verifier", "drafter", "gateway"]


@pytest.mark.processes
@needs("promtool")
class TestPromtool:
    def test_prometheus_takes_the_configuration(self) -> None:
        assert "is valid prometheus config" in check("check", "config", "prometheus.yml")

    def test_prometheus_takes_the_rules(self) -> None:
        told = check("check", "rules", *map(str, RULES))
        assert sum(map(int, re.findall(r"(\d+) rules found", told))) == len(rules())

    def test_prometheus_parses_every_query_of_the_dashboard(self, tmp_path: Path) -> None:
        queries = dashboard_queries("1m")
        asked = [{"record": f"query_{index}", "expr": query.expression} for index, query in enumerate(queries)]
        path = tmp_path / "queries.yml"
        path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": asked}]}))
        assert f"{len(queries)} rules found" in check("check", "rules", str(path))


@pytest.mark.slow
@needs("promtool")
class TestAlerts:
    def test_alerts_fire_when_they_should(self) -> None:
        check("test", "rules", "alerts.yml", folder=PROMETHEUS / "tests")

    def test_an_alert_that_does_not_fire_is_found_out(self, tmp_path: Path) -> None:
        """The cases above can fail: with another threshold they do."""
        shutil.copytree(PROMETHEUS, tmp_path / "prometheus")
        alerts = tmp_path / "prometheus" / "rules" / "alerts.yml"
        text = alerts.read_text()
        assert text.count("ratio_rate5m < 0.5") == 1
        alerts.write_text(text.replace("ratio_rate5m < 0.5", "ratio_rate5m < 0.05"))
        done = subprocess.run(
            ["promtool", "test", "rules", "alerts.yml"],
            cwd=tmp_path / "prometheus" / "tests",
            capture_output=True,
            text=True,
            timeout=LONG_PATIENCE,
            check=False,
        )
        assert done.returncode != 0
        assert "DraftwireLowAcceptance" in done.stdout + done.stderr
