"""The GPUs of a host engine and their MIG instances: who they are, and whose."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from detector.telemetry.dcgm_bindings import (
    GONE,
    LOST,
    Bindings,
    code_of,
    explain,
    of_code,
)
from detector.telemetry.source import SourceError

GPU, INSTANCE, COMPUTE = 1, 4, 5  # DCGM_FE_GPU, DCGM_FE_GPU_I, DCGM_FE_GPU_CI
# DcgmEntityStatus: lost, and detached. Those that are unsupported (displays) are nobody's loss.
_STATUS = {4: -18, 7: -67}
_LIVE = 1  # DCGM_FV_FLAG_LIVE_DATA: asked now, not from the cache
_NAME, _MINOR = 50, 55  # DCGM_FI_DEV_NAME, DCGM_FI_DEV_MINOR_NUMBER


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """A GPU or an instance of one."""

    group: int
    number: int
    gpu: int
    uuid: str
    model: str = ""
    minor: str = ""
    instance: str = ""
    profile: str = ""

    @property
    def key(self) -> tuple[int, int]:
        """What DCGM knows it by."""
        return self.group, self.number

    @property
    def called(self) -> str:
        """What messages call it."""
        return f"{self.uuid}/{self.instance}" if self.instance else self.uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    dcgm: Bindings
    handle: Any
    system: Any


def entities_of(
    dcgm: Bindings, handle: Any, system: Any
) -> tuple[tuple[Entity, ...], dict[str, str]]:
    """Return GPUs, then instances, as the engine behind ``handle`` knows them.

    Returns
    -------
    tuple
        The entities, and why GPUs are lost by what they are called.

    Raises
    ------
    SourceError
        When there is no GPU: that is never a success.
    """
    asked = _Asked(dcgm=dcgm, handle=handle, system=system)
    supported = system.discovery.GetAllSupportedGpuIds()
    there = system.discovery.GetAllGpuIds()
    if not supported:
        msg = (
            f"DCGM supports none of {len(there)} GPUs here (GeForce has no "
            "counters, a lost GPU none any more); dcgmi discovery -l"
            if there
            else "DCGM has no GPUs: it may have started before the driver; "
            "systemctl restart nvidia-dcgm"
        )
        raise SourceError(msg)
    gpus, lost = {}, {}
    status = getattr(system.discovery, "GetGpuStatus", lambda _: 0)  # DCGM 3 does not tell
    for number in there:
        code = _STATUS.get(status(number)) if number not in supported else None
        if code is not None:
            lost[f"GPU {number}"] = of_code(code)
    for number in supported:
        try:
            gpus[number] = _gpu(asked, number)
        except Exception as error:
            if code_of(error) not in GONE:
                raise
            lost[f"GPU {number}"] = explain(error)
    return (*gpus.values(), *_instances(asked, gpus)), lost


def _gpu(asked: _Asked, number: int) -> Entity:
    told = asked.system.discovery.GetGpuAttributes(number).identifiers
    return Entity(
        group=GPU, number=number, gpu=number, uuid=_text(told.uuid),
        model=_text(told.deviceName), minor=_live(asked, GPU, number, _MINOR),
    )  # fmt: skip


def _instances(asked: _Asked, gpus: Mapping[int, Entity]) -> Iterator[Entity]:
    try:
        tree = asked.dcgm.agent.dcgmGetGpuInstanceHierarchy(asked.handle.handle)
    except Exception as error:
        if code_of(error) is None or code_of(error) in LOST:
            raise
        return  # no MIG here, by whatever code this version says so
    nodes = tree.entityList[: tree.count]
    working = {node.parent.entityId for node in nodes if node.entity.entityGroupId == COMPUTE}
    for node in nodes:
        number, gpu = node.entity.entityId, gpus.get(node.parent.entityId)
        if node.entity.entityGroupId != INSTANCE or gpu is None:
            continue
        # One without a compute instance does no work and has no counters: asked for them, the
        # engine fills its log.
        if working and number not in working:
            continue
        yield Entity(
            group=INSTANCE, number=number, gpu=gpu.number, uuid=gpu.uuid, model=gpu.model,
            minor=gpu.minor, instance=str(node.info.nvmlInstanceId),
            profile=_live(asked, INSTANCE, number, _NAME)
            or f"{node.info.nvmlProfileSlices}g",
        )  # fmt: skip


def _live(asked: _Asked, group: int, number: int, field_id: int) -> str:
    """Return a text or whole number of an entity; "" where there is none: it is a nicety."""
    try:
        pair = asked.dcgm.structs.c_dcgmGroupEntityPair_t(group, number)
        found = asked.dcgm.agent.dcgmEntitiesGetLatestValues(
            asked.handle.handle, [pair], [field_id], _LIVE
        )[0]
    except Exception as error:
        if code_of(error) in LOST:
            raise
        return ""
    if found.status != 0:
        return ""
    if field_id == _MINOR:
        return str(found.value.i64) if 0 <= found.value.i64 < 1024 else ""
    text = _text(found.value.str)
    return "" if text.startswith("<<<") else text


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
