"""The account that the manifest makes may read what is asked for."""

from pathlib import Path

import yaml

from detector.telemetry.kubernetes import WORKLOADS

MANIFEST = Path(__file__).parents[2] / "deploy" / "kubernetes" / "rbac.yaml"


def test_every_workload_that_is_looked_up_may_be_read_and_nothing_written() -> None:
    role = next(
        part
        for part in yaml.safe_load_all(MANIFEST.read_text())
        if part["kind"] == "ClusterRole"
    )
    allowed = {name for rule in role["rules"] for name in rule["resources"]}
    verbs = {verb for rule in role["rules"] for verb in rule["verbs"]}
    assert {f"{kind.lower()}s" for kind in WORKLOADS} <= allowed
    assert verbs <= {"get", "list"}
