"""GPU models and precisions as the calculators' options name them."""

import difflib
from pathlib import Path

from detector.analysis import ofu
from detector.analysis.ofu import GpuModel, GpuTable, Precision
from detector.cli import fail
from detector.content import GPUS, shipped
from detector.tables import ContentErrors, read


def gpu_table(path: Path | None) -> GpuTable:
    """Return the table of a file, the shipped one without; leave with its errors."""
    try:
        file = read(shipped() / "models" / GPUS if path is None else path)
    except ContentErrors as error:
        fail(str(error))
    table = file.convert(GpuTable)
    if table is None:
        fail(str(ContentErrors(file.problems)))
    return table


def gpu_named(gpus: GpuTable, name: str) -> GpuModel:
    """Return the one model of that name; leave with the nearest ones when there is none."""
    model = gpus.find(name)
    if model is None:
        names = {known.name.lower(): known.name for known in gpus.gpu}
        asked = name.lower().removeprefix("nvidia ").removeprefix("tesla ")
        family = [known for lower, known in names.items() if lower.startswith(f"{asked}-")]
        near = family or [names[found] for found in difflib.get_close_matches(asked, names)]
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        fail(f"--gpu {name!r} is no single model of the table; {hint}(--list-gpus lists them)")
    return model


def precision_of(text: str) -> Precision:
    """Return the precision of that name; leave with those there are when it is none."""
    name = ofu.precision_named(text)
    if name is None:
        fail(f"--precision {text!r} is unknown; there are {', '.join(ofu.PRECISIONS)}")
    return name
