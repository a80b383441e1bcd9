"""Which job a GPU works for, as the labels of its counters say.

The order is one of trust: what the operator configured, what a scheduler wrote (Slurm's job
id), what the workload's own controller put on its pods, and last the pod itself. Labels that
Prometheus renamed to ``exported_*`` are the workload's own; beside one of those, a plain
``pod`` is the exporter's own (its service monitor keeps ``honorLabels: false``).
"""

import re
from collections.abc import Mapping

import msgspec

# A job that a scheduler names, most specific first. hpc_job: dcgm-exporter's job mapping;
# slurmjobid: slurm-job-exporter; job_id: ROCm's exporter.
_SCHEDULER = ("hpc_job", "slurmjobid", "slurm_job_id", "job_id")

# Labels that a workload's controller puts on its pods: the whole job, not one replica.
_CONTROLLER = (
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
    "trainer.kubeflow.org/trainjob-name",
    "ray.io/cluster",
    "volcano.sh/job-name",
    "leaderworkerset.sigs.k8s.io/name",
    "batch.kubernetes.io/job-name",
    "job-name",
)
_NO_LABEL = re.compile(r"[^a-zA-Z0-9_]")


class IdentitySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a job is told from the labels of its GPUs' counters; part of ``[collect]``.

    Attributes
    ----------
    job_label
        A label that holds the job's id, before all others; "" for none.
    replica
        What is cut off a pod's name, so that the pods of one job come together: a regular
        expression, ``-(worker|master|launcher)-[0-9]+$`` or ``-[0-9]+$``. "" keeps each pod a
        job of its own, as exporters name them.
    """

    job_label: str = ""
    replica: str = ""

    def __post_init__(self) -> None:
        """Refuse a pattern that no pod's name can be held to."""
        try:
            re.compile(self.replica)
        except re.error as error:
            msg = f"replica is no regular expression: {error}"
            raise ValueError(msg) from None


_USUAL = IdentitySettings()


def job_of(labels: Mapping[str, str], settings: IdentitySettings = _USUAL) -> str:
    """Return the id of the job that ``labels`` name, ``namespace/name`` for a pod; "" if idle.

    Parameters
    ----------
    labels
        As a source gives them; a key may be lower case.
    """
    for prefix in ("exported_", ""):
        for name in filter(None, (settings.job_label, *_SCHEDULER)):
            if job := labels.get(prefix + name, "").strip():
                return job
    for prefix in ("exported_", ""):
        pod = labels.get(f"{prefix}pod", "").strip()
        namespace = labels.get(f"{prefix}namespace", "").strip()
        if pod:
            return _under(namespace, _controller(labels) or _without(pod, settings.replica))
    return ""


def _controller(labels: Mapping[str, str]) -> str:
    """Return what a controller calls the whole job. Prometheus and exporters sanitise keys."""
    for name in _CONTROLLER:
        plain = _NO_LABEL.sub("_", name)
        for key in (name, plain, f"label_{plain}", f"exported_{plain}"):
            if job := labels.get(key, "").strip():
                return job
    return ""


def _under(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name


def _without(pod: str, replica: str) -> str:
    """Cut a pod's name to its job's; all of it when nothing would be left."""
    return (re.sub(replica, "", pod) or pod) if replica else pod
