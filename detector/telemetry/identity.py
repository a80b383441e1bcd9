"""Which job a GPU works for, as the labels of its counters say.

The order is one of trust: what the operator configured, what a scheduler wrote (Slurm's job
id), what the workload's own controller put on its pods, and last the pod itself. Labels that
Prometheus renamed to ``exported_*`` are the workload's own; beside one of those, a plain
``pod`` is the exporter's own (its service monitor keeps ``honorLabels: false``).
"""

import re
from collections.abc import Iterator, Mapping

import msgspec

from detector.series import refuse

# A job that a scheduler names, most specific first. hpc_job: dcgm-exporter's job mapping;
# slurmjobid: slurm-job-exporter; job_id: ROCm's exporter.
_SCHEDULER = ("hpc_job", "slurmjobid", "slurm_job_id", "job_id")

# Labels that a workload's controller puts on its pods: the whole job, not one replica.
CONTROLLER = (
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
    "trainer.kubeflow.org/trainjob-name",
    "ray.io/cluster",
    "volcano.sh/job-name",
    "leaderworkerset.sigs.k8s.io/name",
    "batch.kubernetes.io/job-name",
    "job-name",
)

# Under which keys those come: exporters and Prometheus sanitise them, kube-state-metrics and
# relabelling put a prefix before them.
_CONTROLLER_KEYS = tuple(
    key
    for name in CONTROLLER
    for plain in (re.sub(r"[^a-zA-Z0-9_]", "_", name),)
    for key in (
        name, plain, f"label_{plain}", f"pod_label_{plain}",
        f"exported_{plain}", f"exported_label_{plain}",
    )
)  # fmt: skip

# What prologs and exporters write when there is no job. Slurm's ids begin at 1; its NO_VAL is
# 2^32 - 2.
_NO_JOB = frozenset({"0", "4294967294", "none", "null", "(null)", "n/a", "-"})

# Names of the exporters' own pods and containers (NVIDIA's chart and GPU Operator, ROCm's).
_EXPORTERS = ("dcgm-exporter", "device-metrics-exporter", "gpu-metrics-exporter")


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
    hpc_directory
        The directory in which a scheduler's prolog says which job has which GPU of this host,
        the same that dcgm-exporter reads (``--hpc-job-mapping-dir``); "" for none. For a
        collector on the node itself.
    """

    job_label: str = ""
    replica: str = ""
    hpc_directory: str = ""

    def __post_init__(self) -> None:
        """Refuse a pattern that no pod's name can be held to."""
        refuse(self._wrong())

    def _wrong(self) -> Iterator[str]:
        try:
            re.compile(self.replica)
        except re.error as error:
            yield f"replica is no regular expression: {error}"


_USUAL = IdentitySettings()


def job_of(labels: Mapping[str, str], settings: IdentitySettings = _USUAL) -> str:
    """Return the id of the job that ``labels`` name, ``namespace/name`` for a pod; "" if idle.

    Parameters
    ----------
    labels
        As a source gives them; a key may be lower case.
    """
    if job := scheduler_job_of(labels, settings):
        return job
    namespace, pod = _pod(labels)
    return (
        _under(namespace, _controller(labels) or _without(pod, settings.replica)) if pod else ""
    )


def scheduler_job_of(labels: Mapping[str, str], settings: IdentitySettings = _USUAL) -> str:
    """Return the job that the configured label or a scheduler's names; "" for none."""
    own = settings.job_label
    for key in (f"exported_{own}", own, f"exported_{own}".lower(), own.lower()) if own else ():
        if job := labels.get(key, "").strip():
            return job
    for prefix in ("exported_", ""):
        for name in _SCHEDULER:
            job = labels.get(prefix + name, "").strip()
            if job and job.lower() not in _NO_JOB:
                return job
    return ""


def marks(labels: Mapping[str, str], settings: IdentitySettings = _USUAL) -> dict[str, str]:
    """Return labels by which GPUs are found that may have the same job, with their value.

    In all spellings; which of those GPUs had it, :func:`job_of` says.
    """
    own = settings.job_label
    for name in (own, own.lower(), *_SCHEDULER) if own else _SCHEDULER:
        job = labels.get(f"exported_{name}", "").strip() or labels.get(name, "").strip()
        if job and (name not in _SCHEDULER or job.lower() not in _NO_JOB):
            names = (name, name.upper(), f"exported_{name}", f"exported_{name.upper()}")
            return dict.fromkeys(names, job)
    if pod := _pod(labels)[1]:
        names = ("pod", "exported_pod", "pod_name", "exported_pod_name")
        whole = {key: labels[key] for key in _CONTROLLER_KEYS if labels.get(key)}
        return {**dict.fromkeys(names, pod), **whole}
    return {}


def pod_of(labels: Mapping[str, str]) -> str:
    """Return the pod that works on a GPU, ``namespace/name``; "" when it is idle."""
    namespace, pod = _pod(labels)
    return _under(namespace, pod) if pod else ""


def minor_of(labels: Mapping[str, str]) -> int | None:
    """Return the number of a GPU's device file where a source tells it.

    ``device="nvidia3"`` of dcgm-exporter is not it: there stands DCGM's own number.
    """
    text = labels.get("minor_number", "")
    return int(text) if text.isascii() and text.isdigit() else None


def _pod(labels: Mapping[str, str]) -> tuple[str, str]:
    """Return namespace and name of the workload's pod; the exporter's own pod is none.

    Prometheus gives a series without a pod, of an idle GPU, the labels of the pod it scraped.
    """
    for prefix in ("exported_", ""):
        pod, container, namespace = (
            next(filter(None, (labels.get(prefix + key, "").strip() for key in keys)), "")
            for keys in (("pod", "pod_name"), ("container",), ("namespace", "pod_namespace"))
        )
        if pod and not any(name in text for name in _EXPORTERS for text in (pod, container)):
            return namespace, pod
    return "", ""


def _controller(labels: Mapping[str, str]) -> str:
    """Return what a controller calls the whole job."""
    named = (labels.get(key, "").strip() for key in _CONTROLLER_KEYS)
    return next(filter(None, named), "")


def _under(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name


def _without(pod: str, replica: str) -> str:
    """Cut a pod's name to its job's; all of it when nothing would be left."""
    return (re.sub(replica, "", pod) or pod) if replica else pod
