"""Kubernetes' API on loopback: pods, their owners, and what it refuses."""

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from detector.reading import Reading, Scrape
from detector.telemetry.kubernetes import Kubernetes
from detector.telemetry.register import Register
from detector.telemetry.scheduler import SchedulerError
from detector.telemetry.scheduler_settings import KubernetesSettings
from tests.telemetry.api import Asked, Reply, serving

NOW = 1_700_000_000_000  # 2023-11-14T22:13:20Z
Thing = dict[str, Any]
GROUPS = {
    "Job": "batch/v1", "JobSet": "jobset.x-k8s.io/v1alpha2", "CronJob": "batch/v1",
    "TrainJob": "trainer.kubeflow.org/v1alpha1", "PyTorchJob": "kubeflow.org/v1",
    "MPIJob": "kubeflow.org/v2beta1", "RayCluster": "ray.io/v1", "RayJob": "ray.io/v1",
    "StatefulSet": "apps/v1", "Workflow": "argoproj.io/v1alpha1",
}  # fmt: skip


def owned(kind: str, name: str, uid: str = "") -> Thing:
    return {
        "kind": kind, "apiVersion": GROUPS[kind], "name": name, "uid": uid or f"{kind}/{name}",
        "controller": True,
    }  # fmt: skip


def thing(kind: str, name: str, owner: Thing | None = None, **meta: Any) -> Thing:
    return {
        "kind": kind,
        "metadata": {
            "name": name, "namespace": "ml", "uid": f"{kind}/{name}",
            "creationTimestamp": "2023-11-14T20:00:00Z",
            "ownerReferences": [owner] if owner else [],
        } | meta,
    }  # fmt: skip


def pod(name: str, owner: Thing | None = None, *, node: str = "n1", gpus: str = "8",
        ended: str = "", **meta: Any) -> Thing:  # fmt: skip
    started = "2023-11-14T20:01:00Z"
    state = (
        {"terminated": {"startedAt": started, "finishedAt": ended}}
        if ended
        else {"running": {"startedAt": started}}
    )
    return thing("Pod", name, owner, **meta) | {
        "spec": {
            "nodeName": node,
            "containers": [{"resources": {"limits": {"nvidia.com/gpu": gpus, "cpu": "8"}}}],
        },
        "status": {
            "phase": "Succeeded" if ended else "Running",
            "startTime": "2023-11-14T20:00:30Z",
            "containerStatuses": [{"state": state, "restartCount": 0}],
        },
    }


class Cluster:
    """What an API server has, and how it answers."""

    def __init__(self, *pods: Thing, things: tuple[Thing, ...] = ()) -> None:
        self.pods, self.things = list(pods), list(things)
        self.refuse: dict[str, int] = {}
        self.expire = 0

    def __call__(self, asked: Asked) -> Reply:
        parts = urlsplit(asked.path)
        query = parse_qs(parts.query)
        for path, status in self.refuse.items():
            if path in parts.path:
                return status, {"kind": "Status", "message": f"no {path} for you\nat all"}
        if parts.path.endswith("/pods"):
            first, limit = int(query.get("continue", ["0"])[0]), int(query["limit"][0])
            if first and self.expire:
                self.expire -= 1
                return 410, {"kind": "Status", "reason": "Expired", "message": "too old"}
            more = str(first + limit) if first + limit < len(self.pods) else ""
            return 200, {
                "items": self.pods[first : first + limit],
                "metadata": {"continue": more},
            }
        for one in self.things:
            group, meta = GROUPS[one["kind"]], one["metadata"]
            plural = f"{one['kind'].lower()}s"
            if parts.path == f"/apis/{group}/namespaces/ml/{plural}/{meta['name']}":
                return 200, one
        return 404, {"kind": "Status", "message": "not found"}


def kubernetes(url: str, **given: Any) -> Kubernetes:
    return Kubernetes(KubernetesSettings(url=url, **given), cluster="east", environ={})


@pytest.mark.parametrize(
    ("chain", "job", "kind"),
    [
        ([("Job", "llm")], "ml/llm", "Job"),
        ([("Job", "llm-w-0"), ("JobSet", "llm")], "ml/llm", "JobSet"),
        ([("Job", "t-node-0"), ("JobSet", "t"), ("TrainJob", "t")], "ml/t", "TrainJob"),
        ([("PyTorchJob", "bert")], "ml/bert", "PyTorchJob"),
        ([("Job", "mpi-launcher"), ("MPIJob", "mpi")], "ml/mpi", "MPIJob"),
        ([("RayCluster", "r-raycluster-x7"), ("RayJob", "r")], "ml/r", "RayJob"),
        ([("RayCluster", "rc")], "ml/rc", "RayCluster"),
        ([("StatefulSet", "s")], "ml/s", "StatefulSet"),
        # Many jobs are made by one of these: each is its own.
        ([("Job", "nightly-28"), ("CronJob", "nightly")], "ml/nightly-28", "Job"),
        ([("PyTorchJob", "trial-3"), ("Workflow", "sweep")], "ml/trial-3", "PyTorchJob"),
        ([("Workflow", "sweep")], "ml/sweep", "Workflow"),
        ([], "ml/alone-0", "Pod"),
    ],
)
def test_a_pod_is_of_the_job_that_its_owners_are(
    chain: list[tuple[str, str]], job: str, kind: str
) -> None:
    things = (
        tuple(
            thing(*one, owned(*above) if above else None)
            for one, above in zip(chain, [*chain[1:], None], strict=True)
        )
        if chain
        else ()
    )
    cluster = Cluster(pod("alone-0", owned(*chain[0]) if chain else None), things=things)
    with serving(cluster) as api:
        census = kubernetes(api.url).look(NOW)
    (run,) = census.runs
    assert (run.job.id, run.job.labels["kind"], run.job.scheduler) == (job, kind, "kubernetes")
    assert census.aliases == {"ml/alone-0": job}
    (hold,) = census.placements
    assert (hold.host, hold.gpus, hold.end_ms) == ("n1", 8, None)
    assert run.job.start_ms == hold.start_ms == NOW - 8_000_000 + 60_000


def test_pages_are_followed_and_an_expired_list_is_begun_again() -> None:
    cluster = Cluster(*(pod(f"p-{k}", node=f"n{k}") for k in range(1_200)))
    cluster.expire = 1
    with serving(cluster) as api:
        asked = kubernetes(api.url)
        assert len(asked.look(NOW).aliases) == 1_200
        cluster.expire = 2
        with pytest.raises(SchedulerError, match="410: the list expired twice"):
            asked.look(NOW)


def test_an_owner_is_read_once_and_one_that_may_not_be_read_is_known_by_the_labels() -> None:
    labels = {"jobset.sigs.k8s.io/jobset-name": "llm"}
    pods = [
        pod(f"llm-w-0-{k}", owned("Job", "llm-w-0"), labels=labels, gpus="4") for k in (0, 1)
    ]
    cluster = Cluster(*pods)
    cluster.refuse = {"/jobs/": 403}
    with serving(cluster) as api:
        asked = kubernetes(api.url)
        assert {run.job.id for run in asked.look(NOW).runs} == {"ml/llm"}
        asked.look(NOW)
        assert sum("/jobs/" in one.path for one in api.asked) == 1
        (hold,) = asked.look(NOW).placements
    assert hold.gpus == 8


def told(register: Register, at: int, *pods: str) -> list[tuple[str, ...]]:
    """Return whose GPUs are, each labelled with its pod."""
    register.refresh(NOW + at * 1_000)
    readings = tuple(
        Reading(
            uuid=f"GPU-{name}",
            time_ms=NOW + at * 1_000,
            values={"tensor_active": 0.3 + at / 1_000},
            labels={"namespace": "ml", "pod": name},
        )
        for name in pods
    )
    (scrape,) = register.identify([Scrape(target="n1", asked_ms=0, readings=readings)])
    return [one.jobs or tuple(f"-{job}" for job in one.handover) for one in scrape.readings]


def test_a_gpu_counts_for_nobody_until_its_pod_has_begun_and_never_under_the_pods_name() -> (
    None
):
    waiting = pod("llm-0", owned("Job", "llm")) | {"status": {"phase": "Pending"}}
    cluster = Cluster(waiting, things=(thing("Job", "llm"),))
    with serving(cluster) as api:
        register = Register([kubernetes(api.url)])
        found = [told(register, 0, "llm-0")]
        cluster.pods = [pod("llm-0", owned("Job", "llm"))]
        found += [told(register, at, "llm-0") for at in (10, 20)]
        cluster.pods = []  # the job is over and deleted; its last values are still handed out
        found += [told(register, 30, "llm-0")]
        cluster.refuse = {"pods": 500}
        found += [told(register, 40, "llm-0")]
    assert found == [[()], [("-ml/llm",)], [("ml/llm",)], [("ml/llm",)], [("ml/llm",)]]


def test_pods_whose_owners_were_not_asked_for_yet_are_nobodys_rather_than_other_jobs() -> None:
    names = [f"j{n}" for n in range(250)]
    cluster = Cluster(
        *(pod(f"{name}-0", owned("Job", name)) for name in names),
        things=(
            *(thing("Job", name, owned("JobSet", "all")) for name in names),
            thing("JobSet", "all"),
        ),
    )
    with serving(cluster) as api:
        asked = kubernetes(api.url)
        first, second = (set(asked.look(NOW + at).aliases.values()) for at in (0, 10_000))
    assert (first, second) == ({"", "ml/all"}, {"ml/all"})


def test_an_owner_that_cannot_be_read_once_leaves_the_job_its_name() -> None:
    cluster = Cluster(
        pod("w-0", owned("Job", "w")),
        things=(thing("Job", "w", owned("JobSet", "all")), thing("JobSet", "all")),
    )
    cluster.refuse = {"jobs": 500}
    with serving(cluster) as api:
        asked = kubernetes(api.url)
        names = [asked.look(NOW).aliases["ml/w-0"]]
        cluster.refuse = {}
        names += [asked.look(NOW + 10_000).aliases["ml/w-0"]]
    assert names == ["ml/w", "ml/w"]


def test_who_a_job_is_comes_from_its_labels() -> None:
    labels = {"owner": "ann", "team": "nlp"}
    top = thing("PyTorchJob", "bert", labels=labels)
    with serving(Cluster(pod("bert-0", owned("PyTorchJob", "bert")), things=(top,))) as api:
        (run,) = kubernetes(api.url).look(NOW).runs
    assert (run.job.owner, run.job.team, run.job.cluster) == ("ann", "nlp", "east")


def test_pods_without_gpus_or_a_node_are_nobodys_concern() -> None:
    waiting = pod("waiting-0")
    waiting["spec"]["nodeName"] = ""
    with serving(Cluster(pod("web-0", gpus="0"), waiting)) as api:
        census = kubernetes(api.url).look(NOW)
    assert (census.runs, census.placements) == ((), ())


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (401, "token is not accepted"), (403, "apply deploy/kubernetes/rbac.yaml"),
        (404, "is url the API server's"), (429, "make interval longer"),
        (500, "cannot answer now"), (503, "cannot answer now"),
    ],
)  # fmt: skip
def test_a_refusal_is_one_line_that_says_what_to_do(status: int, told: str) -> None:
    cluster = Cluster()
    cluster.refuse = {"/pods": status}
    with serving(cluster) as api, pytest.raises(SchedulerError) as error:
        kubernetes(api.url).look(NOW)
    assert told in str(error.value)
    assert f"answered {status}" in str(error.value)
    assert "\n" not in str(error.value)


def test_the_token_is_sent_and_read_anew(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    with serving(Cluster()) as api:
        asked = kubernetes(api.url, token_file=str(token))
        asked.look(NOW)
        token.write_text("two\n")
        asked.look(NOW)
        told = [one.headers["authorization"] for one in api.asked]
    assert told == ["Bearer one", "Bearer two"]


def test_outside_of_a_cluster_there_is_no_in_cluster() -> None:
    with pytest.raises(SchedulerError, match="but this is no pod"):
        kubernetes("in-cluster").look(NOW)
    with pytest.raises(ValueError, match="url must be"):
        KubernetesSettings(url="kube")


@pytest.mark.parametrize(
    "strange", [b"", b"<html>", {"items": 3}, [], {"items": [3, {}, None]}]
)
def test_an_answer_that_is_none_breaks_nothing(strange: object) -> None:
    with serving(lambda _: (200, strange)) as api:
        try:
            assert kubernetes(api.url).look(NOW).runs == ()
        except SchedulerError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either way is right


def test_an_object_made_again_under_its_name_is_the_same_job_restarted() -> None:
    job = thing("PyTorchJob", "bert")
    cluster = Cluster(pod("bert-0", owned("PyTorchJob", "bert")), things=(job,))
    with serving(cluster) as api:
        register = Register([kubernetes(api.url)])
        register.refresh(NOW)
        assert register.restarts() == ()
        again = thing("PyTorchJob", "bert", uid="new")
        cluster.things = [again]
        cluster.pods = [pod("bert-0", owned("PyTorchJob", "bert", "new"))]
        register.refresh(NOW + 60_000)
        ((id, event),) = register.restarts()
    assert (id, event.kind, event.note) == ("ml/bert", "restart", "recreated by kubernetes")


def test_the_runs_of_a_cron_job_continue_each_other() -> None:
    first = thing("Job", "nightly-1", owned("CronJob", "nightly"))
    cluster = Cluster(
        pod("nightly-1-x", owned("Job", "nightly-1"), ended="2023-11-14T20:30:00Z"),
        things=(first, thing("Job", "nightly-2", owned("CronJob", "nightly"))),
    )
    later = pod("nightly-2-x", owned("Job", "nightly-2"))
    later["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] = (
        "2023-11-14T21:00:00Z"
    )
    cluster.pods.append(later)
    with serving(cluster) as api:
        register = Register([kubernetes(api.url)])
        register.refresh(NOW)
        assert register.describe(["ml/nightly-2"])[0].lineage == ("ml/nightly-1",)
