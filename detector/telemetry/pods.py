"""What a Kubernetes object says, as far as it says it: nothing in it is taken for granted."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any


def began(pod: Mapping[str, Any]) -> int | None:
    """Return when the pod's containers began, ms; None before they did."""
    states = [
        table(table(one).get("state"))
        for one in listed(table(pod.get("status")).get("containerStatuses"))
    ]
    times = [
        _ms(table(state.get(word)).get("startedAt"))
        for state in states
        for word in ("running", "terminated")
    ]
    known = [at for at in times if at is not None]
    phase = table(pod.get("status")).get("phase")
    if phase == "Pending":
        return None
    # A container that was started again has held the GPU meanwhile: the pod's own time counts.
    restarted = any(
        table(one).get("restartCount")
        for one in listed(table(pod.get("status")).get("containerStatuses"))
    )
    own = _ms(table(pod.get("status")).get("startTime"))
    return own if restarted or not known else min(known)


def ended(pod: Mapping[str, Any]) -> int | None:
    """Return when a pod that is over ended, ms; None while it runs."""
    status = table(pod.get("status"))
    if status.get("phase") not in ("Succeeded", "Failed"):
        return None
    times = [
        _ms(table(table(table(one).get("state")).get("terminated")).get("finishedAt"))
        for one in listed(status.get("containerStatuses"))
    ]
    known = [at for at in times if at is not None]
    return max(known) if known else began(pod)


def controller(thing: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the owner that controls a thing; {} for none."""
    owners = [table(one) for one in listed(metadata(thing).get("ownerReferences"))]
    return next((one for one in owners if one.get("controller") is True), {})


def full_name(pod: Mapping[str, Any]) -> str:
    """Return ``namespace/name``."""
    return f"{text(metadata(pod).get('namespace'))}/{text(metadata(pod).get('name'))}"


def metadata(thing: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an object's metadata."""
    return table(thing.get("metadata"))


def table(value: Any) -> Mapping[str, Any]:
    """Return an object; {} for anything else."""
    return value if isinstance(value, Mapping) else {}


def listed(value: Any) -> Sequence[Any]:
    """Return a list; nothing for anything else."""
    return value if isinstance(value, list) else ()


def text(value: Any) -> str:
    """Return a text; "" for anything else."""
    return value if isinstance(value, str) else ""


def _ms(value: Any) -> int | None:
    try:
        return round(datetime.fromisoformat(text(value)).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
