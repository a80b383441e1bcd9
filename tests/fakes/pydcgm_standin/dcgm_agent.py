"""The calls below the classes."""

from types import SimpleNamespace

import dcgm_structs
import standin_engine


def dcgmGetGpuInstanceHierarchy(dcgm_handle):
    now = dcgm_handle.ask()
    pair = dcgm_structs.c_dcgmGroupEntityPair_t
    nodes = []
    for one in now.get("instances", ()):
        info = SimpleNamespace(
            gpuUuid=b"", nvmlGpuIndex=one["gpu"], nvmlInstanceId=one["nvml"],
            nvmlComputeInstanceId=0, nvmlMigProfileId=19, nvmlProfileSlices=1,
        )  # fmt: skip
        nodes.append(
            SimpleNamespace(entity=pair(4, one["id"]), parent=pair(1, one["gpu"]), info=info)
        )
        # Its compute instance: a child of the instance, not of the GPU.
        nodes.append(
            SimpleNamespace(entity=pair(5, one["id"]), parent=pair(4, one["id"]), info=info)
        )
    return SimpleNamespace(count=len(nodes), entityList=[*nodes, None, None])


def dcgmEntitiesGetLatestValues(dcgmHandle, entities, fieldIds, flags):
    now, found = dcgmHandle.ask(), []
    for entity in entities:
        for field in fieldIds:
            value = SimpleNamespace(i64=0x7FFFFFFFFFFFFFF2, dbl=0.0, str=b"<<<NOT_FOUND>>>")
            if entity.entityGroupId == 1 and field == 55:
                gpu = next(one for one in now["gpus"] if one["id"] == entity.entityId)
                value.i64 = gpu["minor"]
            if entity.entityGroupId == 4 and field == 50:
                value.str = next(
                    one["profile"] for one in now["instances"] if one["id"] == entity.entityId
                ).encode()
            found.append(SimpleNamespace(status=0, value=value))
    return found


def dcgmProfGetSupportedMetricGroups(dcgmHandle, gpuId):
    now = dcgmHandle.ask()
    if code := now.get("refuse_groups"):
        standin_engine.refuse(code)
    fields = next(one for one in now["gpus"] if one["id"] == gpuId)["prof"]
    if not fields:
        standin_engine.refuse(-36)
    room = [*fields, *[0] * (64 - len(fields))]
    return SimpleNamespace(
        numMetricGroups=1,
        metricGroups=[
            SimpleNamespace(majorId=0, minorId=0, numFieldIds=len(fields), fieldIds=room)
        ],
    )
