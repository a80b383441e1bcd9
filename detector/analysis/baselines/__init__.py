"""What each metric is held to, as folds over panels: one pass equals any cut of it.

A :class:`Model` (one file of ``models/``) names a metric, its baseline and how candidates are
verified. Four baselines exist: :class:`Level` (a job's own usual level and habits),
:class:`Ceiling` (as many as there ever were), :class:`Band` (fixed bounds) and :class:`Peers`
(each GPU against the others of its job). All share these
functions; states go in and new states come out, never changed on the way.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar, assert_never

import msgspec
import numpy as np
from msgspec.structs import replace

from detector.analysis.baselines import band as _band
from detector.analysis.baselines import ceiling as _ceiling
from detector.analysis.baselines import crew as _crew
from detector.analysis.baselines import excursion as _excursion
from detector.analysis.baselines import level as _level
from detector.analysis.baselines import level_fold as _level_fold
from detector.analysis.baselines import lineage as _lineage
from detector.analysis.baselines import peers as _peers
from detector.analysis.baselines import standing as _standing
from detector.analysis.baselines import stretch as _stretch
from detector.analysis.baselines.band import Band, BandState
from detector.analysis.baselines.ceiling import Ceiling, CeilingState
from detector.analysis.baselines.columns import (
    Columns,
    copied,
    joined,
    packed,
    taken,
    unpacked,
    written,
)
from detector.analysis.baselines.crew import LEAST_GPUS, Peers, PeersState
from detector.analysis.baselines.level import Level, LevelState
from detector.analysis.baselines.lineage import Heir, Taught
from detector.analysis.baselines.rows import Answer, Found, walk
from detector.analysis.bounds import Notify, Page
from detector.analysis.change import Candidate, Confirmed, Recovery, Rejected, Shift
from detector.series import Duration, FloatArray, IntArray, Panel

__all__ = [
    "LEAST_GPUS", "Advance", "Band", "Baseline", "Ceiling", "Heir", "Level", "Model", "Peers",
    "State", "Taught", "Verification",
    "accept", "advance", "append", "band_of", "empty", "inherit", "pack", "put", "settle",
    "take", "taught", "unpack",
]  # fmt: skip

Baseline = Level | Ceiling | Band | Peers
State = LevelState | CeilingState | BandState | PeersState
Family = Literal["performance", "capacity", "telemetry", "accounting"]


class Verification(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a candidate of the model is tested on the job's history.

    Attributes
    ----------
    lookback
        How much history before the onset is compared. Chosen: the level's memory.
    min_before, min_after
        Least samples of either side, dips left out.
    min_effect
        Least relative change worth an incident. Chosen: a healthy real series sags by 2.5 %.
    significance
        Greatest p of the mean-shift test. Chosen small because a candidate was picked as the
        most suspicious of very many stretches: 1e-4 of 1,440 minutes is one in a week.
    """

    lookback: Duration = Duration(3_600_000)
    min_before: int = 8
    min_after: int = 3
    min_effect: float = 0.026
    significance: float = 1e-4


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one metric is held to its own past: one file of ``models/``.

    Attributes
    ----------
    metric
        A name of the catalogue, or of a derived metric.
    family
        What a change of it is about; a job has at most one live incident of each family.
    notify, page
        The bounds that it is held to, each with its calibration. Without ``page`` no change of
        the metric wakes anybody.
    """

    name: str
    metric: str
    family: Family
    title: str = ""
    baseline: Baseline
    verify: Verification = Verification()
    notify: Notify = Notify()
    page: Page | None = None

    @property
    def cautious(self) -> Baseline:
        """The baseline as ``notify.caution`` has it: what all detection runs with."""
        return _cautious(self.baseline, self.notify.caution)


def _cautious(baseline: Baseline, by: float) -> Baseline:
    """Return the baseline with its evidence and its waits for what is unknown times ``by``."""
    match baseline:
        case Level():
            return replace(
                baseline,
                evidence=baseline.evidence * by,
                floor=Duration(baseline.floor * by),
                half_floor=Duration(baseline.half_floor * by),
                cap=Duration(baseline.cap * by),
                young_cap=Duration(baseline.young_cap * by),
            )
        case Peers():
            return replace(baseline, evidence=baseline.evidence * by)
        case Ceiling() | Band():
            return replace(baseline, hold_for=Duration(baseline.hold_for * by))
        case _:
            assert_never(baseline)


S = TypeVar("S", bound=Columns)
Verify = Callable[[Sequence[Candidate]], Sequence[Confirmed | Rejected]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """The state after a panel, and what was found on the way.

    Attributes
    ----------
    candidates, recoveries, shifts
        Each column's in the order of its rows; ``column`` is that of the given panel.
    rest
        Unread rows of the columns that stopped at a candidate; None when there are none.
    rest_columns
        Which columns of the given panel those are.
    """

    state: State
    candidates: tuple[Candidate, ...]
    recoveries: tuple[Recovery, ...]
    shifts: tuple[Shift, ...]
    rest: Panel | None
    rest_columns: IntArray


def empty(baseline: Baseline, columns: int) -> State:
    """Return the state of series of which nothing was seen yet."""
    match baseline:
        case Level():
            return _level.blank(columns)
        case Ceiling():
            return _ceiling.blank(columns)
        case Band():
            return _band.blank(baseline, columns)
        case Peers():
            return _crew.blank(columns)
        case _:
            assert_never(baseline)


def take(state: State, columns: IntArray) -> State:
    """Return the state of these columns alone, in this order."""
    return state.taken(columns) if isinstance(state, PeersState) else taken(state, columns)


def put(state: State, columns: IntArray, part: State) -> State:
    """Return ``state`` with these columns replaced by those of ``part``."""
    match state, part:
        case (PeersState(), PeersState()):
            return state.put(columns, part)
        case (PeersState(), _) | (_, PeersState()):
            msg = f"cannot put a {type(part).__name__} into a {type(state).__name__}"
            raise ValueError(msg)
        case _:
            state = copied(state)
            written(state, columns, part)
            return state


def append(state: State, more: State) -> State:
    """Return the columns of ``state`` followed by those of ``more``."""
    match state, more:
        case (LevelState(), LevelState()):
            return joined(state, more)
        case (CeilingState(), CeilingState()):
            return joined(state, more)
        case (BandState(), BandState()):
            return joined(state, more)
        case (PeersState(), PeersState()):
            return state.joined(more)
        case _:
            msg = f"cannot append a {type(more).__name__} to a {type(state).__name__}"
            raise ValueError(msg)


def pack(state: State) -> bytes:
    """Return the state as bytes that :func:`unpack` reads back."""
    return state.packed() if isinstance(state, PeersState) else packed(state, _version(state))


def unpack(baseline: Baseline, blob: bytes) -> State:
    """Return the packed state.

    Raises
    ------
    ValueError
        When it was packed for another baseline or by another version: start cold.
    """
    blank = empty(baseline, 0)
    if isinstance(blank, PeersState):
        return _crew.unpacked_crew(blob)
    return unpacked(blank, _version(blank), blob)


def _version(state: LevelState | CeilingState | BandState) -> int:
    match state:
        case LevelState():
            return _level.VERSION
        case CeilingState():
            return _ceiling.VERSION
        case BandState():
            return _band.VERSION
        case _:
            assert_never(state)


def advance(
    baseline: Baseline, state: State, panel: Panel, verify: Verify | None = None
) -> Advance:
    """Fold the panel's rows; a column stops at a candidate that is not verified at once.

    Rows with time 0, and times that do not increase, are no samples. NaN moves a column's time
    on and teaches nothing.

    Parameters
    ----------
    verify
        Verifies candidates where that can be done on the way, which is left to the baseline.
    """
    match baseline, state:
        case (Level(), LevelState()):
            steps = partial(_level_fold.step, baseline), partial(_stretch.stretch, baseline)
            settled = partial(_standing.settled, baseline)
            return _told(walk(state, panel, *steps, _answer(verify, settled)))
        case (Ceiling(), CeilingState()):
            step, answer = partial(_ceiling.step, baseline), _answer(verify, _ceiling.settled)
            return _told(walk(state, panel, step, _ceiling.stretch, answer))
        case (Band(), BandState()):
            between = partial(_band.step, baseline), partial(_band.stretch, baseline)
            return _told(walk(state, panel, *between, _answer(verify, _band.settled)))
        case (Peers(), PeersState()):
            return _told(_peers.advance(baseline, state, panel))
        case _:
            raise _mismatch(baseline, state)


def _answer(
    verify: Verify | None, settled: Callable[[S, Mapping[int, Confirmed | Rejected]], None]
) -> Answer[S] | None:
    if verify is None:
        return None

    def answer(state: S, raised: Sequence[Candidate], columns: IntArray) -> None:
        settled(state, dict(zip(columns.tolist(), verify(raised), strict=True)))

    return answer


def _told(walked: tuple[State, Found, Panel | None, IntArray]) -> Advance:
    state, found, rest, columns = walked
    return Advance(
        state=state,
        candidates=tuple(found.candidates),
        recoveries=tuple(found.recoveries),
        shifts=tuple(found.shifts),
        rest=rest,
        rest_columns=columns,
    )


def settle(
    baseline: Baseline, state: State, outcomes: Mapping[int, Confirmed | Rejected]
) -> State:
    """Return the state after verification spoke about the columns' candidates."""
    match baseline, state:
        case (Level(), LevelState()):
            level = copied(state)
            _standing.settled(baseline, level, outcomes)
            return level
        case (Ceiling(), CeilingState()):
            ceiling = copied(state)
            _ceiling.settled(ceiling, outcomes)
            return ceiling
        case (Band(), BandState()):
            band = copied(state)
            _band.settled(band, outcomes)
            return band
        case (Peers(), PeersState()):
            return _peers.settled(baseline, state, outcomes)
        case _:
            raise _mismatch(baseline, state)


def accept(baseline: Baseline, state: State, columns: IntArray) -> State:
    """Return the state with the present level of these columns as their baseline."""
    match baseline, state:
        case (Level(), LevelState()):
            level = copied(state)
            _standing.accepted(baseline, level, columns)
            return level
        case (Ceiling(), CeilingState()):
            ceiling = copied(state)
            _ceiling.accepted(ceiling, columns)
            return ceiling
        case (Band(), BandState()):
            band = copied(state)
            _band.accepted(band, columns)
            return band
        case (Peers(), PeersState()):
            return _peers.accepted(state, columns)
        case _:
            raise _mismatch(baseline, state)


def taught(state: State, column: int) -> Taught | None:
    """Return what a column leaves to the next run of its job; None where there is nothing.

    Only the level baseline learns what the next run needs: a ceiling, a band and the GPUs'
    places among each other are those of one allocation.
    """
    return _lineage.taught(state, column) if isinstance(state, LevelState) else None


def inherit(heirs: Sequence[Heir]) -> LevelState:
    """Return the columns with which runs begin that earlier ones have taught."""
    return _lineage.begun(heirs)


def band_of(baseline: Baseline, state: State) -> tuple[FloatArray, FloatArray]:
    """Return the expected level of each column and the edge below which it is news.

    NaN where nothing is expected yet. Shapes ``(columns,)``.
    """
    match baseline, state:
        case (Level(), LevelState()):
            expected = np.where(np.isnan(state.held_level), state.level, state.held_level)
            return expected, state.level - _excursion.edge(baseline, state)
        case (Ceiling(), CeilingState()):
            return state.most.copy(), state.most.copy()
        case (Band(), BandState()):
            return state.expected.copy(), _band.bounds(baseline, state)[0]
        case (Peers(), PeersState()):
            # What is expected of each GPU is no level of the job's.
            unknown = np.full(len(state), np.nan)
            return unknown, unknown.copy()
        case _:
            raise _mismatch(baseline, state)


def _mismatch(baseline: Baseline, state: State) -> ValueError:
    return ValueError(f"a {type(state).__name__} is no state of a {type(baseline).__name__}")
