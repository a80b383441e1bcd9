"""Jobs as Slurm writes them, in the form of each generation.

Written for these tests after Slurm's own dumpers (openapi v0.0.37, data_parser v0.0.39 to
v0.0.44); only the keys that matter, among some that do not.
"""

from typing import Any

GENERATIONS = ("21.08", "23.02", "23.11", "25.11")
Document = dict[str, Any]


def job(generation: str, **given: Any) -> Document:
    """Return one job; ``given`` has plain values, in the words of the newest generation."""
    of = {
        "job_id": 1, "array_job_id": 0, "array_task_id": None, "array_max_tasks": 0,
        "het_job_id": 0, "het_job_offset": 0, "job_state": ["RUNNING"], "name": "llama",
        "user_name": "ann", "account": "nlp", "partition": "gpu", "qos": "normal",
        "cluster": "east", "nodes": "n1", "gres_detail": ["gpu:h100:8(IDX:0-7)"],
        "tres_alloc_str": "cpu=96,mem=2000G,node=1,billing=8,gres/gpu=8,gres/gpu:h100=8",
        "start_time": 1_000, "end_time": 90_000, "restart_cnt": 0, "exclusive": False,
        "current_working_directory": "/home/ann/llama", "time_limit": 1440,
    } | given  # fmt: skip
    exclusive = of.pop("exclusive")
    new = generation >= "23.02"
    wrapped = {"array_job_id", "array_task_id", "array_max_tasks", "het_job_id",
               "het_job_offset", "time_limit"}  # fmt: skip
    if generation >= "23.11":
        wrapped |= {"start_time", "end_time"}
    else:
        of["job_state"] = of["job_state"][-1]
    for key in wrapped if new else ():
        value = of[key]
        of[key] = {"set": value is not None, "infinite": False, "number": value or 0}
    if not new:
        of["shared"] = "none" if exclusive else None
        of["job_resources"] = {"nodes": of["nodes"], "allocated_nodes": {"0": {"cpus": 96}}}
    elif generation < "25.11":
        of["shared"], of["exclusive"] = [], ["true"] if exclusive else []
        of["job_resources"] = {"nodes": of["nodes"], "allocated_nodes": [{"nodename": "n1"}]}
    else:
        of["shared"], of["exclusive"] = [], ["true"] if exclusive else []
        of["job_resources"] = {
            "nodes": {"count": 1, "list": of["nodes"], "whole": exclusive, "allocation": []}
        }
    return of


def document(generation: str, *jobs: Document, errors: tuple[Document, ...] = ()) -> Document:
    """Return what ``squeue --json`` prints."""
    meta: Document = {"plugin": {"type": "openapi/v0.0.37"}}
    meta["Slurm" if generation < "23.11" else "slurm"] = {"release": f"{generation}.5"}
    return {"meta": meta, "errors": list(errors), "jobs": list(jobs)}


def ended(id: int, *, start: int, end: int, **given: Any) -> Document:
    """Return one job as ``sacct --json`` prints it."""
    unset = {"set": False, "infinite": False, "number": 0}
    array = {"job_id": 0, "task_id": unset, "limits": {"max": {"running": {"tasks": 0}}}}
    return {
        "job_id": id, "name": "llama", "user": "ann", "account": "nlp", "cluster": "east",
        "array": array, "het": {"job_id": 0, "job_offset": unset},
        "time": {"start": start, "end": end, "elapsed": end - start, "submission": start},
        "state": {"current": ["FAILED"], "reason": "None"},
        "working_directory": "/home/ann/llama", "restart_cnt": 0,
        "tres": {"allocated": [{"type": "gres", "name": "gpu", "id": 1001, "count": 8}]},
    } | given  # fmt: skip
