"""Which job a GPU works for, by its labels."""

import pytest

from detector.telemetry.identity import IdentitySettings, job_of, minor_of


@pytest.mark.parametrize(
    ("labels", "job"),
    [
        ({}, ""),
        ({"pod": "", "namespace": ""}, ""),
        ({"hpc_job": "48213"}, "48213"),
        ({"hpc_job": " 48213 "}, "48213"),
        ({"job_id": "7", "job_user": "ann", "job_partition": "gpu"}, "7"),
        ({"hpc_job": "991", "pod": "slurmd-0", "namespace": "slurm"}, "991"),
        ({"namespace": "ml", "pod": "llm-worker-3"}, "ml/llm-worker-3"),
        ({"pod": "llm-worker-3"}, "llm-worker-3"),
        # honorLabels false: pod and namespace are the exporter's own.
        (
            {
                "namespace": "gpu-operator",
                "pod": "dcgm-exporter-x",
                "exported_namespace": "ml",
                "exported_pod": "llm-0",
            },
            "ml/llm-0",
        ),
        (
            {"namespace": "ml", "pod": "w-1", "training_kubeflow_org_job_name": "bert"},
            "ml/bert",
        ),
        ({"namespace": "ml", "pod": "w-1", "label_ray_io_cluster": "rc"}, "ml/rc"),
        ({"namespace": "ml", "pod": "w-1", "pod_label_ray_io_cluster": "rc"}, "ml/rc"),
        ({"namespace": "ml", "pod": "w-1", "exported_label_ray_io_cluster": "rc"}, "ml/rc"),
        # The old namespace's spelling.
        ({"pod_name": "llm-0", "pod_namespace": "ml"}, "ml/llm-0"),
        # What a prolog leaves when there is no job is none.
        ({"hpc_job": "0"}, ""),
        ({"slurmjobid": "(null)"}, ""),
        ({"slurmjobid": "4294967294"}, ""),
        ({"hpc_job": "0", "namespace": "ml", "pod": "llm-0"}, "ml/llm-0"),
        # An idle GPU's series get the labels of the exporter's own pod from Prometheus.
        ({"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-7x9"}, ""),
        ({"namespace": "ops", "pod": "gpu-7x9", "container": "dcgm-exporter"}, ""),
    ],
)
def test_a_job_is_told_from_labels_in_the_order_of_trust(
    labels: dict[str, str], job: str
) -> None:
    assert job_of(labels) == job


def test_a_configured_label_comes_first() -> None:
    settings = IdentitySettings(job_label="run")
    assert job_of({"hpc_job": "1", "run": "x"}, settings) == "x"
    assert job_of({"hpc_job": "1", "exported_run": "y"}, settings) == "y"
    assert job_of({"hpc_job": "1"}, settings) == "1"


def test_a_configured_label_comes_before_a_renamed_one_of_the_scheduler() -> None:
    settings = IdentitySettings(job_label="Run")
    assert job_of({"exported_hpc_job": "1", "Run": "x"}, settings) == "x"
    assert job_of({"exported_hpc_job": "1", "run": "x"}, settings) == "x"


def test_a_device_number_is_read_where_it_is_one_and_nowhere_else() -> None:
    assert minor_of({"minor_number": "3"}) == 3
    assert minor_of({"minor_number": "x"}) is None
    assert minor_of({"device": "nvidia3"}) is None


def test_pods_of_one_job_come_together_where_a_replica_is_known() -> None:
    settings = IdentitySettings(replica=r"-(worker|master)-[0-9]+$")
    assert job_of({"namespace": "ml", "pod": "llm-worker-3"}, settings) == "ml/llm"
    assert job_of({"namespace": "ml", "pod": "-worker-3"}, settings) == "ml/-worker-3"


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="replica is no regular expression"):
        IdentitySettings(replica="(")
