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
        # Its compute instances: children of the instance, not of the GPU.
        nodes += [
            SimpleNamespace(entity=pair(5, one["id"]), parent=pair(4, one["id"]), info=info)
            for _ in range(one.get("compute", 1))
        ]
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
    gpu = next(one for one in now["gpus"] if one["id"] == gpuId)
    groups = gpu.get("groups", [{"major": 0, "minor": 0, "fields": gpu["prof"]}])
    if not any(one["fields"] for one in groups):
        standin_engine.refuse(-36)
    return SimpleNamespace(
        numMetricGroups=len(groups),
        metricGroups=[
            SimpleNamespace(
                majorId=one["major"], minorId=one["minor"], numFieldIds=len(one["fields"]),
                fieldIds=[*one["fields"], *[0] * (64 - len(one["fields"]))],
            )
            for one in groups
        ],
    )  # fmt: skip
