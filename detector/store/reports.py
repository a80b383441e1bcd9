"""What jobs report of themselves, joined to the scrapes it belongs to.

A job that counts its own tokens writes entries without OFU between those of its collectors:
``XADD ofu:{<job>}:s * tokens 123``. Such a report belongs to the scrape of its very time, or to
the next one after it, since a sample's time is the end of what it stands for. It is no scrape
that lacks OFU.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from detector.analysis.derived import REPORTED, reports
from detector.series import FloatArray, IntArray
from detector.store.batch import BoolArray

# A report waits so long for its scrape. Chosen: a scrape comes every 30 s, and the inbox waits
# for late hosts; it stands by itself then.
JOIN_MS = 120_000


class Joined(NamedTuple):
    """Entries with reports where they belong.

    Attributes
    ----------
    fields
        As they were given, with what was reported at the scrapes it belongs to.
    taken
        Which rows are reports that have gone into a scrape. Shape ``(m,)``.
    alone
        Which are reports that no scrape has followed in time.
    """

    fields: dict[str, FloatArray]
    taken: BoolArray
    alone: BoolArray


def joined(
    number: IntArray, times_ms: IntArray, fields: Mapping[str, FloatArray]
) -> Joined | None:
    """Return the entries with their reports joined; None where there is no report.

    What a scrape carries itself stays; of several reports the last one counts.

    Parameters
    ----------
    number
        Which job each entry is of; a job's entries stand together in the order of time.
    """
    report = reports(fields)
    if not report.any():
        return None
    rows = np.flatnonzero(report)
    scrapes = np.flatnonzero(~report)
    target = np.full(len(rows), -1)
    if len(scrapes):
        place = np.searchsorted(scrapes, rows)
        for at, usable in ((place, place < len(scrapes)), (place - 1, place > 0)):
            one = scrapes[np.where(usable, at, 0)]
            apart = times_ms[one] - times_ms[rows]
            fits = usable & (number[one] == number[rows]) & (apart >= 0) & (apart <= JOIN_MS)
            target = np.where(
                fits, one, target
            )  # one of the very same time goes before the next
    found = target >= 0
    told = dict(fields)
    for name in REPORTED:
        if name in fields:
            column = fields[name].copy()
            news = found & np.isfinite(fields[name][rows]) & np.isnan(column[target])
            column[target[news]] = fields[name][rows[news]]
            told[name] = column
    taken, alone = np.zeros_like(report), np.zeros_like(report)
    taken[rows[found]] = True
    alone[rows[~found]] = True
    return Joined(fields=told, taken=taken, alone=alone)
