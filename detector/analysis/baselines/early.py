"""Falls that are asked about early: what was announced may tell what the series cannot yet."""

import numpy as np

from detector.analysis.baselines.excursion import CLEAR, edge, habit_ms
from detector.analysis.baselines.level import EARLY, RING, Level, LevelState, raise_candidate
from detector.analysis.baselines.rows import Found, places
from detector.analysis.baselines.standing import suspect_runs
from detector.series import FloatArray, IntArray


def raise_early(
    baseline: Level, state: LevelState, times_ms: IntArray, values: FloatArray, found: Found
) -> None:
    """Raise an early candidate where a fall has outlasted what comes unannounced.

    Asking changes nothing else, so that a job in which it does not help is judged as if nobody
    had asked.
    """
    ripe = (state.dip_ms > 0) & (state.dip_low >= baseline.min_samples)
    ripe &= (times_ms - state.dip_ms >= baseline.early) & (times_ms >= state.ask_ms)
    ripe &= times_ms >= state.mute_ms
    ripe &= (state.part_count >= 3) & (state.part_off == 0) & (state.raised == 0)
    # A sample on its way back is neither low nor back.
    ripe &= values < state.level - edge(baseline, state)
    # A younger job has not shown yet what it does.
    ripe &= state.dip_ms - state.first_ms >= baseline.met
    at = places(ripe)
    if not len(at):
        return
    level, part, now = state.level[at], state.part_level[at], times_ms[at]
    highest = np.maximum(values[at], state.ring[at, (state.count[at] - 2) % RING])
    still = highest < baseline.still * level
    # The last of a warm-up climbs, and so does what ends by itself.
    early = float(baseline.early)
    clear = (now - state.part_ms[at] >= early) & (now - state.steady_ms[at] >= 0.5 * early)
    clear &= ~state.dip_still[at] & (level - part >= CLEAR * state.scale[at])
    clear &= ~suspect_runs(state)[at]
    clear &= (now >= state.quiet_ms[at]) | (part < state.quiet_level[at])
    clear &= now >= state.phase_ms[at]
    relative = np.where(still, 0.0, part / state.dip_level[at])
    known = habit_ms(baseline, state, at, relative=relative, of=state.dip_level[at],
                     factor=baseline.habit_margin)  # fmt: skip
    for place in np.flatnonzero(still | clear):
        k = at[place]
        raise_candidate(
            state, k, found, raised=EARLY, onset_ms=state.dip_ms[k], time_ms=times_ms[k],
            after=0.0 if still[place] else state.part_level[k], known_ms=known[place],
        )  # fmt: skip
