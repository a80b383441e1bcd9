"""Values as the bindings hand them on."""

import math

import standin_engine


class DcgmFieldValue:
    def __init__(self, fieldId, ts, status, value):
        self.fieldId, self.ts = fieldId, ts
        self.fieldType = "i" if fieldId in standin_engine.INTEGERS else "d"
        self.value, self.isBlank = (value, False) if status == 0 else (None, True)
        if status == 0 and not (isinstance(value, float) and math.isnan(value)):
            # As the bindings: not for NaN, and not for a 32-bit blank in a wide field.
            limit = 0x7FFFFFFFFFFFFFF0 if isinstance(value, int) else 2.0**47
            self.isBlank = value >= limit


class DcgmFieldValueTimeSeries:
    def __init__(self):
        self.values = []

    def __len__(self):
        return len(self.values)

    def __getitem__(self, key):
        return self.values[key]


class DcgmFieldValueEntityCollection:
    def __init__(self, handle, groupId):
        self.values = {}
        self._link, self._group = handle, groupId
        self._since = 0

    def _take(self, fieldGroup, *, only_last):
        link = self._link
        now, taken, newest = link.ask(), 0, self._since
        for entity in self._group.entities:
            rows = {}
            for row in standin_engine.samples(
                link, now, entity, fieldGroup.fieldIds, (self._group.number, fieldGroup.number)
            ):
                rows.setdefault(row[0], []).append(row)
            for field in fieldGroup.fieldIds:
                found = rows.get(field, [])
                if only_last:
                    # Before the first sample an entry is there: time 0, no value.
                    found = found[-1:] or [(field, 0, -14, None)]
                else:
                    found = [row for row in found if row[1] >= self._since]
                for row in found:
                    series = self.values.setdefault(entity[0], {}).setdefault(entity[1], {})
                    series.setdefault(field, DcgmFieldValueTimeSeries()).values.append(
                        DcgmFieldValue(*row)
                    )
                    newest, taken = max(newest, row[1] + 1), taken + 1
        if not only_last:
            self._since = newest
        return taken

    def GetLatestValues(self, fieldGroup):
        self._take(fieldGroup, only_last=True)

    def GetAllSinceLastCall(self, fieldGroup):
        return self._take(fieldGroup, only_last=False)
