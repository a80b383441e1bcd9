"""Groups of entities, and their watches."""

import itertools

import standin_engine
from dcgm_field_helpers import DcgmFieldValueEntityCollection
from dcgm_structs import DCGM_GROUP_EMPTY

_numbers = itertools.count(1)


class DcgmGroupSamples:
    def __init__(self, dcgmHandle, groupId, dcgmGroup):
        self._link, self._group = dcgmHandle.handle, dcgmGroup

    def WatchFields(self, fieldGroup, updateFreq, maxKeepAge, maxKeepSamples):
        now = self._link.ask()
        entities, fields = self._group.entities, fieldGroup.fieldIds
        profiling = [field for field in fields if 1000 < field < 1100]
        if profiling and now.get("refuse_profiling"):
            standin_engine.refuse(now["refuse_profiling"])
        if profiling and len(profiling) > now.get("most_profiling", 99):
            standin_engine.refuse(-38)
        for group, number in entities:
            gpu = number if group == 1 else standin_engine.owner(now, number)
            if next(one for one in now["gpus"] if one["id"] == gpu).get("lost"):
                standin_engine.refuse(-18)
        standin_engine.note(
            "watch", self._group.name, entities, fields, updateFreq, maxKeepAge, maxKeepSamples
        )
        keep = (self._group.number, fieldGroup.number)
        self._link.watches[keep] = {
            "keep": keep, "entities": list(entities), "fields": list(fields),
            "start": now["now_us"], "every": updateFreq, "age": maxKeepAge,
            "samples": maxKeepSamples or 10**6,
        }  # fmt: skip

    def UnwatchFields(self, fieldGroup):
        self._link.ask()
        self._link.watches.pop((self._group.number, fieldGroup.number), None)

    def GetLatest_v2(self, fieldGroup):
        found = DcgmFieldValueEntityCollection(self._link, self._group)
        found.GetLatestValues(fieldGroup)
        return found

    def GetAllSinceLastCall_v2(self, dfvec, fieldGroup):
        # The first call gives the latest alone; the second all of the cache, from the
        # beginning; one with nothing new the latest again.
        if dfvec is None:
            return self.GetLatest_v2(fieldGroup)
        dfvec.GetAllSinceLastCall(fieldGroup)
        if not dfvec.values:
            dfvec.GetLatestValues(fieldGroup)
        return dfvec


class DcgmGroup:
    def __init__(self, dcgmHandle, groupId=None, groupName=None, groupType=DCGM_GROUP_EMPTY):
        dcgmHandle.handle.ask()
        dcgmHandle.handle.name(groupName)
        self._link, self.name = dcgmHandle.handle, groupName
        self.number, self.entities = next(_numbers), []
        self.samples = DcgmGroupSamples(dcgmHandle, self.number, self)

    def AddEntity(self, entityGroupId, entityId):
        self._link.ask()
        self.entities.append((entityGroupId, entityId))

    def Delete(self):
        self._link.ask()
        standin_engine.note("delete", self.name)
        self._link.names.discard(self.name)
