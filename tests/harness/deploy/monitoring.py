"""The Prometheus queries in deploy/prometheus and deploy/grafana."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import yaml

from tests.harness.checkout import ROOT

DEPLOY = ROOT / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
RULES = sorted((PROMETHEUS / "rules").glob("*.yml"))
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))


class Query(NamedTuple):
    """An expression and the place it is used."""

    place: str
    expression: str


def rules() -> list[dict[str, Any]]:
    """Returns all rules, recording and alerting ones."""
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """Returns all panels of all dashboards."""
    return [panel for path in DASHBOARDS for panel in json.loads(path.read_text())["panels"]]


def dashboard_queries(rate_interval: str) -> list[Query]:
    """Returns all queries of the dashboards, for all verifiers."""
    return [
        Query(
            f"{panel['title']}: {target['legendFormat']}",
            target["expr"].replace("$__rate_interval", rate_interval).replace("$verifier", ".*"),
        )
        for panel in panels()
        for target in panel.get("targets", ())
    ]
