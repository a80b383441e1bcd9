"""Print what the bindings in a folder have of the contract; run in a process of its own."""

import importlib
import inspect
import json
import sys
from typing import Any

answers, sys.stdout = sys.stdout, sys.stderr  # some versions print when imported
sys.path.append(sys.argv[1])
importlib.import_module("pydcgm")  # first: the others import each other in circles
wanted = json.loads(sys.stdin.read())
found = {}
for path in wanted:
    module, *names = path.split(".")
    thing: Any = importlib.import_module(module)
    for name in names:
        thing = getattr(thing, name)
    found[path] = list(inspect.signature(thing).parameters)

pydcgm, structs, fields = map(
    importlib.import_module, ("pydcgm", "dcgm_structs", "dcgm_fields")
)
lost, module = structs.DCGMError(-21), structs.DCGMError(-33)
pair = structs.c_dcgmGroupEntityPair_t(4, 3)
facts = {
    "front": all(
        hasattr(pydcgm, name)
        for name in ("DcgmHandle", "DcgmSystem", "DcgmGroup", "DcgmFieldGroup", "DcgmException")
    ),
    "error": [type(lost).__name__, lost.value, type(module).__name__, module.value],
    "errors are of one class": isinstance(lost, structs.DCGMError),
    "pair": [pair.entityGroupId, pair.entityId],
    "entities": [fields.DCGM_FE_GPU, fields.DCGM_FE_GPU_I],
    "live": structs.DCGM_FV_FLAG_LIVE_DATA,
}
json.dump({"signatures": found, "facts": facts}, answers)
