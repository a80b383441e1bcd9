"""Kubernetes: which pods have GPUs, and which job their owners are.

A list of the pods each round is enough: a pod that changed in between says itself when it
began and ended. Owners are followed upwards (Pod, Job, JobSet, TrainJob; Pod, RayCluster,
RayJob) as far as they are workloads, and remembered by their UID.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from detector.fleet import Job, Placement
from detector.telemetry.identity import CONTROLLER
from detector.telemetry.pods import (
    began,
    controller,
    ended,
    full_name,
    listed,
    metadata,
    table,
    text,
)
from detector.telemetry.rest import Rest, json_of, secret
from detector.telemetry.scheduler import Census, Run, SchedulerError
from detector.telemetry.scheduler_settings import KubernetesSettings

# Where a pod finds its own credentials.
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PAGE = 500  # pods a page, the size that the API's own clients ask for
_PAGES = 400  # 200,000 pods: above what one cluster is built for
# Owners looked up in one round, so that a first look at a large cluster is not one storm.
_OWNERS = 200

# Kinds that are a whole workload; a pod's owners are followed into these and no further. Not
# CronJob, Experiment or Workflow: theirs are many jobs.
WORKLOADS = frozenset({
    "Job", "JobSet", "TrainJob", "PyTorchJob", "TFJob", "MPIJob", "XGBoostJob", "PaddleJob",
    "JAXJob", "RayCluster", "RayJob", "RayService", "StatefulSet", "ReplicaSet", "Deployment",
    "LeaderWorkerSet",
})  # fmt: skip
_OWNER = ("owner", "user", "app.kubernetes.io/created-by")
_TEAM = ("team", "kueue.x-k8s.io/queue-name", "volcano.sh/queue-name")
_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"


class Kubernetes:
    """The scheduler Kubernetes."""

    name = "kubernetes"

    def __init__(
        self,
        settings: KubernetesSettings,
        *,
        cluster: str = "",
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        url, self._token_file, ca_file = settings.url, settings.token_file, settings.ca_file
        if url == "in-cluster":
            host = environ.get("KUBERNETES_SERVICE_HOST", "")
            host = f"[{host}]" if ":" in host else host
            url = (
                f"https://{host}:{environ.get('KUBERNETES_SERVICE_PORT', '443')}"
                if host
                else ""
            )
            self._token_file = self._token_file or f"{ACCOUNT}/token"
            ca_file = ca_file or f"{ACCOUNT}/ca.crt"
        self._rest = Rest(url, ca_file=ca_file, timeout_ms=settings.timeout) if url else None
        self._owners: dict[str, Mapping[str, Any]] = {}
        self._blind: set[str] = set()

    @property
    def every_ms(self) -> int:
        """How often it is asked."""
        return self._settings.interval

    @property
    def keep_ms(self) -> int:
        """How long its last answer counts."""
        return self._settings.keep

    def look(self, now_ms: int) -> Census:
        """Return who runs where.

        Raises
        ------
        SchedulerError
            When the pods cannot be listed, or their owners not be asked for.
        """
        pods = [pod for pod in self._pods() if self._gpus(pod)]
        lookups = [_OWNERS]
        met: set[str] = set()
        holds: dict[tuple[str, str, int | None], Placement] = {}
        aliases: dict[str, str] = {}
        runs: dict[str, Run] = {}
        for pod in pods:
            top = None if began(pod) is None else self._top(pod, lookups, met)
            if top is None:  # nobody's yet: any other name would be another job's
                aliases[full_name(pod)] = ""
                continue
            run = self._run(pod, top)
            aliases[full_name(pod)] = run.job.id
            self._hold(holds, pod, run.job.id)
            runs[run.job.id] = _joined(runs.get(run.job.id), run)
        self._owners = {uid: it for uid, it in self._owners.items() if uid in met}
        self._blind &= met
        return Census(
            placements=tuple(holds.values()), runs=tuple(runs.values()), aliases=aliases
        )

    def past(self, now_ms: int) -> tuple[Run, ...]:
        """Return nothing: the API keeps no past."""
        return ()

    def close(self) -> None:
        """Let go of the connection."""
        if self._rest is not None:
            self._rest.close()

    def _pods(self) -> list[Mapping[str, Any]]:
        """List the pods page by page; a list that expired on the way is begun again, once."""
        place = f"/namespaces/{self._settings.namespace}" if self._settings.namespace else ""
        found: list[Mapping[str, Any]] = []
        token, again = "", False
        for _ in range(_PAGES):
            query: dict[str, str | int] = {"limit": _PAGE} | (
                {"continue": token} if token else {}
            )
            status, document = self._get(f"/api/v1{place}/pods", query)
            if status == 410 and not again:
                found, token, again = [], "", True
                continue
            if status != 200:
                raise SchedulerError(self._refusal(status, document))
            items = table(document).get("items")
            if not isinstance(items, list):
                msg = f"{self._where} answered with no list of pods; is url the API server's?"
                raise SchedulerError(msg)
            found += [item for item in items if isinstance(item, Mapping)]
            token = text(table(table(document).get("metadata")).get("continue"))
            if not token:
                return found
        msg = f"{self._where} lists more than {_PAGES * _PAGE} pods; set namespace"
        raise SchedulerError(msg)

    def _top(
        self, pod: Mapping[str, Any], lookups: list[int], met: set[str]
    ) -> Mapping[str, Any] | None:
        """Return the topmost owner of a pod that is a workload; the pod itself for none.

        None where it is not known yet.
        """
        thing = pod
        for _ in range(8):  # no chain is longer; a loop of owners is somebody's mistake
            owner = controller(thing)
            if not owner or (thing is not pod and owner.get("kind") not in WORKLOADS):
                return thing
            met.add(text(owner.get("uid")))
            read = self._read(owner, metadata(pod), lookups)
            if read is None:
                return None
            thing = read
        return thing

    def _read(
        self, owner: Mapping[str, Any], pod: Mapping[str, Any], lookups: list[int]
    ) -> Mapping[str, Any] | None:
        """Return an owner as the API has it; what may not be read is known by its reference.

        None where this round has asked for enough. What cannot be read once is not asked for
        again, so that a job keeps its name.
        """
        uid, namespace = text(owner.get("uid")), text(pod.get("namespace"))
        if uid in self._owners:
            return self._owners[uid]
        kind, version = text(owner.get("kind")), text(owner.get("apiVersion"))
        bare = {"kind": kind, "metadata": {"name": owner.get("name"), "uid": uid}}
        if uid in self._blind or kind not in WORKLOADS:
            return bare
        if lookups[0] <= 0:
            return None
        lookups[0] -= 1
        root = "/api" if "/" not in version else "/apis"
        path = f"{root}/{version}/namespaces/{namespace}/{kind.lower()}s/{owner.get('name')}"
        status, document = self._get(path, {})
        # One of the same name that was made since is another: its owners are not this one's.
        if status == 200 and metadata(table(document)).get("uid") == uid:
            self._owners[uid] = {"kind": kind, "metadata": metadata(table(document))}
            return self._owners[uid]
        self._blind.add(uid)
        return bare

    def _run(self, pod: Mapping[str, Any], top: Mapping[str, Any]) -> Run:
        meta, own = metadata(top), metadata(pod)
        namespace, labels = text(own.get("namespace")), table(own.get("labels"))
        name = text(meta.get("name"))
        # Where the chain stops at what may not be read, the pod's labels may say what is above.
        if "creationTimestamp" not in meta or top is pod:
            name = next((text(labels.get(key)) for key in CONTROLLER if labels.get(key)), name)
        told = {**labels, **table(meta.get("labels"))}
        job = Job(
            id=f"{namespace}/{name}",
            name=name,
            owner=next((text(told[key]) for key in _OWNER if told.get(key)), ""),
            team=next((text(told[key]) for key in _TEAM if told.get(key)), namespace),
            scheduler="kubernetes",
            cluster=self._cluster,
            start_ms=began(pod),
            labels={"kind": text(top.get("kind")) or "Pod", "namespace": namespace},
        )
        above, stem = controller(top), text(meta.get("generateName"))
        series = text(above.get("name")) or stem
        kind = text(top.get("kind"))
        attempt = text(
            table(own.get("labels")).get(_ATTEMPT)
            or table(own.get("annotations")).get(_ATTEMPT)
        )
        return Run(
            job=job,
            end_ms=ended(pod),
            key=(namespace, kind, series) if series and top is not pod else (),
            serial=f"{text(meta.get('uid'))}{'+' + attempt if attempt else ''}",
            why="restarted" if attempt not in ("", "0") else "recreated",
        )

    def _hold(
        self,
        holds: dict[tuple[str, str, int | None], Placement],
        pod: Mapping[str, Any],
        job: str,
    ) -> None:
        """File a pod's GPUs with its job's others of the host: together they may be all.

        The API does not say which they are; of MIG instances not even that counts.
        """
        host = text(table(pod.get("spec")).get("nodeName"))
        start_ms, end_ms, gpus = began(pod) or 0, ended(pod), self._gpus(pod, whole=True)
        if not gpus:
            return
        before = holds.get((job, host, end_ms))
        holds[job, host, end_ms] = Placement(
            job=job,
            host=host,
            gpus=gpus + (0 if before is None else before.gpus),
            start_ms=max(start_ms, 0 if before is None else before.start_ms),
            end_ms=end_ms,
        )

    def _gpus(self, pod: Mapping[str, Any], *, whole: bool = False) -> int:
        """Return how many GPUs, or instances of them, the pod's containers have."""
        spec = table(pod.get("spec"))
        count = 0
        for container in listed(spec.get("containers")):
            limits = table(table(table(container).get("resources")).get("limits"))
            for name, amount in limits.items():
                counts = str(name).startswith(self._settings.resources)
                if counts and str(amount).isdecimal() and not (whole and "mig-" in str(name)):
                    count += int(amount)
        return count if spec.get("nodeName") else 0

    @property
    def _where(self) -> str:
        return "Kubernetes" if self._rest is None else self._rest.where

    def _get(self, path: str, query: Mapping[str, str | int]) -> tuple[int, Any]:
        if self._rest is None:
            msg = "url is in-cluster, but this is no pod; set url to the API server's address"
            raise SchedulerError(msg)
        token = secret(file=self._token_file, env="", environ={}, what="kubernetes: token_file")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = self._rest.get(path, query=query, headers=headers)
        good = answer.status == 200
        return answer.status, json_of(answer, self._where) if good else _status(answer.body)

    def _refusal(self, status: int, document: Any) -> str:
        told = text(table(document).get("message")).replace("\n", " ")[:200]
        told = f": {told}" if told else ""
        do = {
            401: "the token is not accepted; see token_file",
            403: "this account may not list pods; apply deploy/kubernetes/rbac.yaml",
            404: "there are no pods here; is url the API server's, and is namespace there?",
            410: "the list expired twice on the way; is the API server overloaded?",
            429: "the API server wants fewer questions; make interval longer",
        }.get(status, "the API server cannot answer now" if status >= 500 else "see url")
        return f"{self._where} answered {status}: {do}{told}"


def _joined(before: Run | None, run: Run) -> Run:
    """Bring the pods of one job together: it began with the first and ends with the last."""
    if before is None:
        return run
    starts = [at for at in (before.job.start_ms, run.job.start_ms) if at is not None]
    newest = max(before, run, key=lambda one: (one.end_ms is None, one.job.start_ms or 0))
    ends = [before.end_ms, run.end_ms]
    # Pods of an earlier object of the same name may still be listed beside the new one's.
    same = before.serial == run.serial
    start = min(starts) if same and starts else newest.job.start_ms
    return Run(
        job=msgspec.structs.replace(newest.job, start_ms=start),
        end_ms=None if None in ends else max(at for at in ends if at is not None),
        key=newest.key,
        serial=newest.serial,
        why=newest.why,
    )


def _status(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return {}
