"""Groups of fields."""

import itertools

import standin_engine

_numbers = itertools.count(1)


class DcgmFieldGroup:
    def __init__(self, dcgmHandle, name="", fieldIds=None, fieldGroupId=None):
        dcgmHandle.handle.ask()
        dcgmHandle.handle.name("fields:" + name)
        if any(not standin_engine.known(field) for field in fieldIds):
            standin_engine.refuse(-13)
        self._link, self.name = dcgmHandle.handle, name
        self.number, self.fieldIds = next(_numbers), list(fieldIds)

    def Delete(self):
        self._link.ask()
        self._link.names.discard("fields:" + self.name)
