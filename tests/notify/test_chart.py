import io
import subprocess
import sys
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from detector.analysis.change import Estimate
from detector.fleet import Job
from detector.notify.chart import Band, draw
from detector.notify.thinning import thinned
from detector.series import ContextEvent, FloatArray, Interval, Window
from tests.notify.incidents import CULPRIT, MINUTE_MS, ONSET_MS, ROSTER, incident, resolved

SMALL = (600, 250)  # for what doesn't depend on where things are: it draws faster
BLUE, RED, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"


def window(values: FloatArray, **more: object) -> Window:
    """Half-minute samples, the middle one at the onset."""
    times = ONSET_MS + (np.arange(len(values), dtype=np.int64) - len(values) // 2) * 30_000
    return Window(times_ms=times, fields={"ofu": values}, **more)  # type: ignore[arg-type]


def fallen(samples: int = 400) -> FloatArray:
    values = np.random.default_rng(7).normal(0.412, 0.005, samples)
    values[samples // 2 :] -= 0.081
    return values


def columns_with(png: bytes, colour: str) -> list[int]:
    """Pixel columns that hold a colour, give or take the rounding of 8 bits."""
    pixels = imread(io.BytesIO(png))[:, :, :3]
    near = (np.abs(pixels - to_rgb(colour)) < 0.01).all(axis=2)
    return np.flatnonzero(near.any(axis=0)).tolist()


def test_the_picture_has_the_size_that_was_asked_for() -> None:
    pixels = imread(io.BytesIO(draw(window(fallen()), size=(900, 400))))
    assert pixels.shape[:2] == (400, 900)


def test_the_same_incident_gives_the_same_bytes() -> None:
    pictures = {draw(window(fallen()), incidents=[incident()], size=SMALL) for _ in range(2)}
    assert len(pictures) == 1


def test_an_svg_is_xml_and_holds_no_date() -> None:
    drawn = draw(window(fallen()), incidents=[incident()], fmt="svg")
    assert ET.fromstring(drawn).tag.endswith("svg")
    assert b"<dc:date>" not in drawn


def test_the_onset_and_the_level_after_are_drawn_with_the_incident_alone() -> None:
    assert columns_with(draw(window(fallen())), RED) == []
    found = columns_with(draw(window(fallen()), incidents=[incident()]), RED)
    assert 550 < min(found) < 650  # the onset is the middle of the history
    assert max(found) > 1_000


def test_the_end_of_an_incident_ends_its_level() -> None:
    over = resolved(resolved_ms=ONSET_MS + 50 * MINUTE_MS).incident
    lasting = draw(window(fallen()), incidents=[incident()])
    ended = draw(window(fallen()), incidents=[over])
    # The right margin, from column 1,090 on, holds the level's label in the same colour.
    last = [max(x for x in columns_with(png, RED) if x < 1_080) for png in (lasting, ended)]
    assert last[1] < last[0] - 100


def test_a_gap_is_shown_as_a_gap_whether_its_values_or_its_samples_are_missing() -> None:
    values = fallen()
    values[100:160] = np.nan
    whole = window(values)
    kept = np.isfinite(values)
    without = Window(times_ms=whole.times_ms[kept], fields={"ofu": values[kept]})
    for shown in (whole, without):
        inside = [x for x in columns_with(draw(shown), BLUE) if 370 < x < 470]
        assert inside == []


def test_a_sample_between_two_gaps_is_still_seen() -> None:
    values = fallen()
    values[100:160] = np.nan
    values[130] = 0.2
    assert any(370 < x < 470 for x in columns_with(draw(window(values)), BLUE))


def test_the_gpu_at_fault_is_drawn_where_the_history_has_it() -> None:
    gpus = np.full((400, len(ROSTER)), 0.41)
    plain = draw(window(fallen(), gpus=gpus[:, :5]), incidents=[incident()])
    assert columns_with(plain, PURPLE) == []
    gpus[200:, ROSTER.index(CULPRIT)] = 0.1
    assert (
        len(columns_with(draw(window(fallen(), gpus=gpus), incidents=[incident()]), PURPLE))
        > 300
    )


def test_phases_and_events_leave_their_mark() -> None:
    calm = draw(window(fallen()), size=SMALL)
    span = Interval(start_ms=ONSET_MS - 60 * MINUTE_MS, end_ms=ONSET_MS - 50 * MINUTE_MS)
    instant = Interval(start_ms=ONSET_MS, end_ms=ONSET_MS)
    events = (
        ContextEvent(kind="checkpoint", span=span),
        ContextEvent(kind="$restart_1$", span=instant),
    )
    shaded = draw(window(fallen()), excluded=[span], size=SMALL)
    announced = draw(window(fallen(), events=events), size=SMALL)
    assert len({calm, shaded, announced}) == 3


def test_a_baseline_band_takes_the_place_of_the_level_before() -> None:
    shown = window(fallen())
    level = np.full(400, 0.41)
    band = Band(times_ms=shown.times_ms, level=level, low=level - 0.02, high=level + 0.02)
    assert columns_with(draw(shown), GREEN) == []
    assert columns_with(draw(shown, band=band), GREEN)


def test_several_incidents_share_one_picture() -> None:
    first = resolved(
        onset_ms=ONSET_MS - 80 * MINUTE_MS, resolved_ms=ONSET_MS - 50 * MINUTE_MS
    ).incident
    both = columns_with(draw(window(fallen()), incidents=[first, incident()]), RED)
    assert min(both) < 300
    assert max(both) > 1_000


@pytest.mark.parametrize(
    "values", [np.empty(0), np.full(50, np.nan), np.array([0.4]), np.array([0.4, np.nan, 0.4])]
)
def test_a_window_with_little_or_nothing_in_it_is_still_a_picture(values: FloatArray) -> None:
    for found in ([], [incident()]):
        for fmt in ("png", "svg"):
            assert draw(window(values), incidents=found, fmt=fmt, size=SMALL)


def test_a_metric_no_history_holds_is_shown_by_what_it_is_derived_from() -> None:
    values = fallen()
    both = Window(times_ms=window(values).times_ms, fields={"ofu": values, "mfu": values * 2})
    divergence = incident(metric="mfu_ratio", family="accounting")
    png = draw(both, incidents=[divergence], metric="mfu_ratio")
    assert len(columns_with(png, PURPLE)) > 500  # the reported MFU
    assert len(columns_with(png, BLUE)) > 500


def test_an_incident_of_unknown_levels_is_drawn_without_them() -> None:
    unknown = Estimate(value=np.nan, low=np.nan, high=np.nan)
    odd = incident(before=unknown, after=unknown, relative_change=np.nan)
    assert draw(window(fallen()), incidents=[odd], size=SMALL)


def test_the_level_before_a_second_incident_begins_after_the_first() -> None:
    first = resolved(
        onset_ms=ONSET_MS - 80 * MINUTE_MS, resolved_ms=ONSET_MS - 50 * MINUTE_MS
    ).incident
    lower = Estimate(value=0.2, low=0.199, high=0.201)
    second = incident(before=lower)
    both = imread(io.BytesIO(draw(window(fallen()), incidents=[first, second])))
    alone = imread(io.BytesIO(draw(window(fallen()), incidents=[second])))
    # Green beneath the curve, in the left fifth of the plot and the lower half of the picture.
    assert [_greenish(png[250:430, 100:300]) for png in (both, alone)] == [False, True]


def _greenish(pixels: FloatArray) -> bool:
    return bool((pixels[:, :, 1] - pixels[:, :, 0] > 0.15).any())


def test_a_standstill_is_drawn_down_to_zero() -> None:
    values = fallen()
    values[200:] = 0.0
    hung = incident(relative_change=-1.0, after=Estimate(value=0.0, low=0.0, high=0.0))
    assert columns_with(draw(window(values), incidents=[hung], size=SMALL), RED)


@settings(max_examples=12, deadline=None)
@given(
    name=st.one_of(
        st.text(st.characters(codec=None), max_size=40),
        st.sampled_from(
            ["$x^2$ $\\frac{1}{2}$", "$", "🔥 <b>\n&", "\ud800", "w" * 10_000, "字" * 99]
        ),
    )
)
def test_a_hostile_name_draws_without_a_warning(name: str) -> None:
    hurt = incident(job=Job(id=name, name=name, roster=ROSTER), kind=name)
    event = ContextEvent(kind=name, span=Interval(start_ms=ONSET_MS, end_ms=ONSET_MS + 1))
    shown = window(fallen(20), events=(event,))
    assert draw(shown, incidents=[hurt], title=name, size=SMALL)


@settings(deadline=None)
@given(data=st.data())
def test_thinning_keeps_the_extremes_the_order_and_the_bound(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 3_000))
    seed = data.draw(st.integers(0, 2**31))
    columns = data.draw(st.integers(1, 50))
    random = np.random.default_rng(seed)
    times = np.cumsum(random.integers(1, 1_000, length)).astype(np.int64)
    values = random.normal(size=length)
    values[random.random(length) < data.draw(st.sampled_from([0.0, 0.3, 1.0]))] = np.nan
    kept_times, kept = thinned(times, values, columns=columns)
    assert len(kept) <= 3 * columns
    assert (np.diff(kept_times) > 0).all()
    assert np.isin(kept_times, times).all()
    known = np.isfinite(values)
    if known.any():
        assert np.nanmin(kept) == np.nanmin(values)
        assert np.nanmax(kept) == np.nanmax(values)
    else:
        assert np.isnan(kept).all()


def test_thinning_keeps_a_gap_that_is_wider_than_a_pixel() -> None:
    times = np.arange(100_000, dtype=np.int64) * 1_000
    values = np.ones(100_000)
    values[40_000:45_000] = np.nan
    kept_times, kept = thinned(times, values, columns=500)
    missing = kept_times[np.isnan(kept)]
    assert 40_000_000 <= missing.min() < 40_400_000
    assert 44_600_000 < missing.max() < 45_000_000


def test_the_module_costs_no_matplotlib_until_something_is_drawn() -> None:
    program = (
        "import sys, numpy as np; from detector.notify import chart, slack;"
        "assert 'matplotlib' not in sys.modules;"
        "from detector.series import Window;"
        "chart.draw(Window(times_ms=np.arange(3), fields={'ofu': np.ones(3)}));"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
