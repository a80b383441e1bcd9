"""Slurm's jobs as JSON, of every generation that has it.

One job has looked like this, from ``squeue --json`` and ``/slurm/<version>/jobs`` alike (21.08
and 22.05 dumped it with the plugins v0.0.37 and v0.0.38, since 23.02 a ``data_parser`` does):

* a number is a number, null, or ``{"set": true, "infinite": false, "number": 7}``;
* ``job_state`` is text until 23.02 and a list of a state with its flags since 23.11;
* ``shared`` is text (``none`` is exclusive) until 22.05, a list since; ``exclusive`` came with
  23.02; ``job_resources.nodes`` was text and is an object with ``whole`` since 24.05;
* ``gres_detail`` lists each node's GRES in the order of the nodes: ``gpu:h100:4(IDX:0-3)``, or
  ``gpu(CNT:4)`` where Slurm does not track single devices; null or "" for a node without.

``sacct --json`` and ``/slurmdb/<version>/jobs`` nest the same (``time.start``,
``array.job_id``, ``het.job_id``) and name no devices.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import islice, product
from typing import Any

from detector.fleet import Job, Placement
from detector.telemetry.scheduler import Census, Run

# Beside RUNNING they say that it does not work: it is stopped, or its nodes are still booting.
_NOT_WORKING = frozenset({"SUSPENDED", "STOPPED", "CONFIGURING"})
_OVER = frozenset({"COMPLETED", "COMPLETING", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL",
                   "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY",
                   "REVOKED"})  # fmt: skip
# It never ran, or waits to run again.
_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT",
                      "RESV_DEL_HOLD"})  # fmt: skip
# Names that say nothing of what runs: sbatch's and srun's own, and shells.
_NO_NAMES = frozenset({"", "wrap", "sbatch", "interactive", "bash", "sh", "zsh", "python",
                       "python3", "jupyter", "test", "job"})  # fmt: skip

_HOSTS = 100_000  # that a list may name; a larger one is no list of hosts
_DEVICES = 1_000
_GPU = re.compile(r"gpu(?::(?P<type>[^:(),]+))?:(?P<count>\d+)(?:\((?P<at>[^)]*)\))?"
                  r"|gpu(?::(?P<type2>[^:(),]+))?\(CNT:(?P<count2>\d+)\)")  # fmt: skip
_TRES_GPU = re.compile(r"(?:^|,)gres/gpu(?::[^=,]+)?=(\d+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def number(value: Any) -> int | None:
    """Return a number of any generation; None where it is not set, infinite or none."""
    if isinstance(value, Mapping):
        if not value.get("set", True) or value.get("infinite", False):
            return None
        value = value.get("number")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if abs(value) < 2**53 else None


def text(value: Any) -> str:
    """Return a text; "" for anything else."""
    return value if isinstance(value, str) else ""


def words(value: Any) -> frozenset[str]:
    """Return states or flags of any generation, in capitals."""
    found = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return frozenset(
        word
        for item in found
        if isinstance(item, str)
        for word in re.split(r"[ ,|+]+", item.upper())
        if word
    )


def hosts(listed: str) -> tuple[str, ...]:
    """Return the hosts of ``gpu[01-03,07],login1``, in order, zeros kept."""
    found: list[str] = []
    for part in _parts(listed):
        pieces = [
            _numbers(piece[1:-1]) if piece.startswith("[") else (piece,)
            for piece in re.findall(r"\[[^\]]*\]|[^\[\]]+", part)
        ]
        found.extend("".join(row) for row in islice(product(*pieces), _HOSTS - len(found)))
    return tuple(found)


def devices(detail: str) -> tuple[tuple[int, ...], int]:
    """Return the numbers of a node's GPUs in one entry of ``gres_detail``, and how many.

    No numbers where Slurm names none, or not as many as it counts.
    """
    at: list[int] = []
    count = 0
    for match in _GPU.finditer(detail):
        count += int(match["count"] or match["count2"])
        where = match["at"] or ""
        if where.startswith("IDX:"):
            at.extend(int(piece) for piece in islice(_numbers(where[4:]), _DEVICES))
    return (tuple(at) if len(at) == count else ()), count


def read_jobs(document: Any, *, cluster: str = "") -> Census:
    """Return who runs where, by ``squeue`` or slurmrestd; what cannot be read is left out.

    Raises
    ------
    ValueError
        When the document has no list of jobs.
    """
    entries = _entries(document)
    placements: list[Placement] = []
    runs: dict[str, Run] = {}
    aliases: dict[str, str] = {}
    for entry in entries:
        found = _read(entry, cluster=cluster)
        if found is None:
            continue
        run, held, names = found
        placements += held
        aliases |= dict.fromkeys(names, run.job.id)
        # Components of a heterogeneous job are one job: what leads says who it is.
        if run.job.id not in runs or number(entry.get("het_job_offset")) == 0:
            runs[run.job.id] = run
    return Census(placements=tuple(placements), runs=tuple(runs.values()), aliases=aliases)


def read_past(document: Any, *, cluster: str = "") -> tuple[Run, ...]:
    """Return runs that began, by ``sacct`` or slurmdbd.

    Raises
    ------
    ValueError
        When the document has no list of jobs.
    """
    found = (_past(entry, cluster=cluster) for entry in _entries(document))
    return tuple(run for run in found if run is not None)


def _entries(document: Any) -> list[Mapping[str, Any]]:
    jobs = document.get("jobs") if isinstance(document, Mapping) else None
    if not isinstance(jobs, list):
        msg = "it has no list of jobs"
        raise ValueError(msg)
    return [entry for entry in jobs if isinstance(entry, Mapping)]


def _read(
    entry: Mapping[str, Any], *, cluster: str
) -> tuple[Run, list[Placement], tuple[str, ...]] | None:
    raw, start = number(entry.get("job_id")), number(entry.get("start_time"))
    states = words(entry.get("job_state"))
    if not raw or not start or states & _WAITING:
        return None
    nodes, details = hosts(text(entry.get("nodes"))), entry.get("gres_detail")
    details = details if isinstance(details, list) else []
    gpus = _TRES_GPU.findall(text(entry.get("tres_alloc_str")))
    if not (gpus or any("gpu" in text(detail) for detail in details)):
        return None
    id = _job(raw, entry)
    over = bool(states & _OVER)
    end = number(entry.get("end_time")) if over else None
    job = Job(
        id=id,
        name=text(entry.get("name")),
        owner=text(entry.get("user_name")),
        team=text(entry.get("account")),
        scheduler="slurm",
        cluster=text(entry.get("cluster")) or cluster,
        start_ms=start * 1000,
        labels=_labels(entry, _array(entry)),
    )
    run = Run(
        job=job,
        end_ms=None if end is None else max(end, start) * 1000,
        key=_key(job, text(entry.get("current_working_directory")), entry),
        serial=str(number(entry.get("restart_cnt")) or 0),
        why="requeued",
    )
    working = over or ("RUNNING" in states and not states & _NOT_WORKING)
    held = _held(run, nodes, details, gpus, exclusive=_exclusive(entry)) if working else []
    return run, held, tuple(name for name in (str(raw), *_names(entry)) if name != id)


def _past(entry: Mapping[str, Any], *, cluster: str) -> Run | None:
    raw, times = number(entry.get("job_id")), entry.get("time")
    if not raw or not isinstance(times, Mapping):
        return None
    start, end = number(times.get("start")), number(times.get("end"))
    if not start:
        return None
    array, het = (
        part if isinstance(part, Mapping) else {}
        for part in (entry.get("array"), entry.get("het"))
    )
    flat = {
        "array_job_id": array.get("job_id"),
        "array_task_id": array.get("task_id"),
        "array_max_tasks": _tasks_at_once(array),
        "het_job_id": het.get("job_id"),
        "het_job_offset": het.get("job_offset"),
    }
    job = Job(
        id=_job(raw, flat),
        name=text(entry.get("name")),
        owner=text(entry.get("user")),
        team=text(entry.get("account")),
        scheduler="slurm",
        cluster=text(entry.get("cluster")) or cluster,
        start_ms=start * 1000,
    )
    return Run(
        job=job,
        end_ms=max(end, start) * 1000 if end else None,
        key=_key(job, text(entry.get("working_directory")), flat),
        serial=str(number(entry.get("restart_cnt")) or 0),
        why="requeued",
    )


def _tasks_at_once(array: Mapping[str, Any]) -> Any:
    limits = array.get("limits")
    for name in ("max", "running"):
        limits = limits.get(name) if isinstance(limits, Mapping) else None
    return limits.get("tasks") if isinstance(limits, Mapping) else None


def _job(raw: int, entry: Mapping[str, Any]) -> str:
    """Return the job's id: the leader's of a heterogeneous job, else what SLURM_JOB_ID says."""
    return str(number(entry.get("het_job_id")) or raw)


def _array(entry: Mapping[str, Any]) -> str:
    job, task = number(entry.get("array_job_id")), number(entry.get("array_task_id"))
    return f"{job}_{task}" if job and task is not None else ""


def _names(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the other names that people and prologs use: ``4711_3``, ``4711+1``."""
    het, offset = number(entry.get("het_job_id")), number(entry.get("het_job_offset"))
    part = f"{het}+{offset}" if het and offset is not None else ""
    return tuple(name for name in (_array(entry), part) if name)


def _labels(entry: Mapping[str, Any], array: str) -> dict[str, str]:
    named = {"partition": entry.get("partition"), "qos": entry.get("qos"), "array": array}
    return {name: text(value) for name, value in named.items() if text(value)}


def _key(job: Job, directory: str, entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the runs of a training have in common.

    Tasks of an array are the runs of one training only where they may not run side by side
    (``--array=1-9%1``); else they are a sweep, each alike to the same task of another array.
    """
    if job.name.lower() in _NO_NAMES or not job.owner or not directory:
        return ()
    task = number(entry.get("array_task_id"))
    alone = task is None or number(entry.get("array_max_tasks")) == 1
    key = (job.cluster, job.owner, job.name, directory)
    return key if alone else (*key, str(task))


def _exclusive(entry: Mapping[str, Any]) -> bool:
    """Whether the job has its nodes for itself."""
    resources = entry.get("job_resources")
    nodes = resources.get("nodes") if isinstance(resources, Mapping) else None
    whole = isinstance(nodes, Mapping) and nodes.get("whole") is True
    return (
        whole or "TRUE" in words(entry.get("exclusive")) or "NONE" in words(entry.get("shared"))
    )


def _held(
    run: Run, nodes: tuple[str, ...], details: list[Any], gpus: list[str], *, exclusive: bool
) -> list[Placement]:
    """Return the job's hold on GPUs, node by node."""
    start = run.job.start_ms or 0
    held: list[Placement] = []

    def hold(host: str, *, minor: int | None = None, gpus: int = 0) -> None:
        held.append(
            Placement(
                job=run.job.id,
                host=host,
                minor=minor,
                gpus=gpus,
                start_ms=start,
                end_ms=run.end_ms,
            )
        )

    told = len(details) == len(nodes)
    each, rest = divmod(sum(map(int, gpus[:1])), len(nodes) or 1)
    for place, host in enumerate(nodes):
        numbers, count = devices(text(details[place])) if told else ((), 0 if rest else each)
        if exclusive and (count or not told):
            hold(host)
        elif numbers or count:
            # Two ways to know them: by device where a source tells it, by count where all are.
            for minor in numbers:
                hold(host, minor=minor)
            hold(host, gpus=count)
    return held


def _parts(listed: str) -> Iterable[str]:
    """Split a list of hosts at the commas outside brackets."""
    return re.findall(r"(?:[^,\[\]\s]|\[[^\]]*\])+", listed)


def _numbers(ranges: str) -> tuple[str, ...]:
    """Return ``01-03,07`` as texts, zeros kept."""
    found: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            continue
        first, last = match[1], match[2] or match[1]
        width = len(first) if first.startswith("0") else 0
        stop = min(int(last), int(first) + _HOSTS)
        found.extend(f"{at:0{width}d}" for at in range(int(first), stop + 1))
    return tuple(found)
