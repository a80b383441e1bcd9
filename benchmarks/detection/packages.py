"""Peers through their own packages; each returns times and scores.

Packages that know no stream are run again every few minutes on the last three hours of minute
medians; their score is the fall at the latest change point of the last half hour.
"""

import numpy as np

from benchmarks.detection.peer import FALLS, Config, Given, Peer
from detector.series import FloatArray, IntArray

_WINDOW = 180
_RECENT = 30
_EVERY = 4


def _fall(values: FloatArray, place: int, before: int = 60) -> float:
    """By how much the level fell at a place: medians of what lies about it."""
    old, new = values[max(0, place - before) : place], values[place:]
    return float(1 - np.median(new) / np.median(old)) if len(old) and len(new) > 2 else -np.inf


def _rerun(
    x: Given, places: "object", *, every: int = _EVERY, recent: int = _RECENT
) -> tuple[IntArray, FloatArray]:
    """Score by the change points of the last minutes that ``places`` finds in the window."""
    assert callable(places)
    at = np.arange(60, len(x.minutes), every)
    scores = np.full(len(at), -np.inf)
    for k, end in enumerate(at):
        values = x.minutes[max(0, end - _WINDOW + 1) : end + 1]
        found = [p for p in places(values) if 0 < len(values) - p <= recent]
        if found:
            scores[k] = max(_fall(values, int(p)) for p in found)
    return x.minute_ms[at], scores


def _scale(values: FloatArray) -> float:
    """Noise of one value, from differences, which no level disturbs."""
    return max(float(np.median(np.abs(np.diff(values)))) / 0.954, 1e-5)


def otava(x: Given, config: Config) -> tuple[IntArray, FloatArray]:
    """E-divisive with the t-test of apache-otava, its own window of 50."""
    from otava.analysis import compute_change_points

    def places(values: FloatArray) -> list[int]:
        points, _ = compute_change_points(values.tolist(), window_len=50, max_pvalue=config[0])
        return [point.index for point in points]

    return _rerun(x, places, every=5)


def pelt(x: Given, config: Config) -> tuple[IntArray, FloatArray]:
    """PELT in C (ruptures.KernelCPD, linear kernel), penalty in units of the noise."""
    import ruptures

    def places(values: FloatArray) -> list[int]:
        scaled = (values / _scale(values)).reshape(-1, 1)
        fitted = ruptures.KernelCPD(kernel="linear", min_size=5).fit(scaled)
        return list(fitted.predict(pen=config[0] * np.log(len(values)))[:-1])

    return _rerun(x, places)


def window(x: Given, config: Config) -> tuple[IntArray, FloatArray]:
    """Sliding windows of ruptures with the L2 cost."""
    import ruptures

    width, penalty = config

    def places(values: FloatArray) -> list[int]:
        scaled = (values / _scale(values)).reshape(-1, 1)
        fitted = ruptures.Window(width=int(width), model="l2", jump=1).fit(scaled)
        return list(fitted.predict(pen=penalty * np.log(len(values)))[:-1])

    # It places nothing nearer to the end than half of its width.
    return _rerun(x, places, every=5, recent=int(width) // 2 + 15)


def _river(x: Given, detector: "object", values: FloatArray) -> FloatArray:
    """Feed a drift detector of river; score the fall about each drift it says."""
    update = getattr(detector, "update")  # noqa: B009
    scores = np.full(len(values), -np.inf)
    for k, value in enumerate(values.tolist()):
        update(value)
        if getattr(detector, "drift_detected"):  # noqa: B009
            old, new = values[max(0, k - 90) : max(0, k - 10)], values[max(0, k - 10) : k + 1]
            if len(old) > 20:
                scores[k] = 1 - np.median(new) / np.median(old)
    return scores


def adwin(x: Given, config: Config) -> tuple[IntArray, FloatArray]:
    """ADWIN of river on minute medians over the first hour's."""
    from river import drift

    values = x.minutes / np.median(x.minutes[:60])
    detector = drift.ADWIN(delta=config[0], clock=1)
    return x.minute_ms, _river(x, detector, values)


def page_hinkley(x: Given, config: Config) -> tuple[IntArray, FloatArray]:
    """Page-Hinkley of river, downwards, on minute medians over the first hour's."""
    from river import drift

    values = x.minutes / np.median(x.minutes[:60])
    delta, threshold = config
    detector = drift.PageHinkley(
        min_instances=30, delta=delta, threshold=threshold, alpha=0.9999, mode="down"
    )
    return x.minute_ms, _river(x, detector, values)


def kswin(x: Given, config: Config) -> tuple[IntArray, FloatArray]:
    """KSWIN of river on minute medians."""
    from river import drift

    alpha, size, recent = config
    detector = drift.KSWIN(alpha=alpha, window_size=int(size), stat_size=int(recent), seed=1)
    return x.minute_ms, _river(x, detector, x.minutes)


def bocpd(x: Given, config: Config) -> tuple[IntArray, FloatArray]:
    """Bayesian online change points (bocd): the fall at the likeliest run's start."""
    from bocd import BayesianOnlineChangePointDetection, ConstantHazard, StudentT

    hazard, spread = config
    scale = _scale(x.minutes[:60]) * spread
    values = (x.minutes - np.median(x.minutes[:60])) / scale
    model = BayesianOnlineChangePointDetection(
        ConstantHazard(hazard), StudentT(mu=0, kappa=0.01, alpha=1, beta=1)
    )
    scores = np.full(len(values), -np.inf)
    for k, value in enumerate(values.tolist()):
        model.update(value)
        run = int(np.argmax(model.belief))
        if 3 <= run <= _RECENT and k - run > 10:
            scores[k] = _fall(x.minutes[: k + 1], k + 1 - run)
    return x.minute_ms, scores


def isolation_forest(x: Given, config: Config) -> tuple[IntArray, FloatArray]:
    """scikit-learn's IsolationForest on medians of 1, 5 and 15 min, fitted anew each hour.

    A score counts when all of the last minutes are at least so odd, and low.
    """
    import pandas as pd
    from sklearn.ensemble import IsolationForest

    series = pd.Series(x.minutes)
    features = np.column_stack(
        [x.minutes] + [series.rolling(m, min_periods=1).median().to_numpy() for m in (5, 15)]
    )
    odd = np.full(len(series), -np.inf)
    for start in range(60, len(series), 60):
        past = features[max(0, start - 360) : start]
        forest = IsolationForest(
            n_estimators=50, max_samples=min(128, len(past)), random_state=1
        ).fit(past)
        rows = slice(start, min(start + 60, len(series)))
        low = features[rows, 1] < np.median(past[:, 0])
        odd[rows] = np.where(low, -forest.score_samples(features[rows]), -np.inf)
    least = pd.Series(odd).rolling(int(config[0]), min_periods=1).min().to_numpy()
    return x.minute_ms, least


PACKAGES = (
    Peer(
        name="Otava (E-divisive)", package="apache-otava", scores=otava,
        configs=((1e-8,), (1e-24,), (1e-32,)), thresholds=FALLS, words="p; fall", dear=True,
    ),
    Peer(
        name="PELT (ruptures, C)", package="ruptures", scores=pelt,
        configs=((3.0,), (10.0,), (30.0,), (100.0,)), thresholds=FALLS,
        words="penalty; fall", dear=True,
    ),
    Peer(
        name="Window (ruptures)", package="ruptures", scores=window,
        configs=((20.0, 10.0), (40.0, 3.0), (40.0, 30.0)), thresholds=FALLS,
        words="width, penalty; fall", dear=True,
    ),
    Peer(
        name="ADWIN (river)", package="river", scores=adwin,
        configs=((0.5,), (0.1,), (0.01,), (1e-4,), (1e-6,)), thresholds=(-1.0, *FALLS),
        words="delta; fall",
    ),
    Peer(
        name="Page-Hinkley (river)", package="river", scores=page_hinkley,
        configs=tuple((d, h) for d in (0.005, 0.02, 0.05) for h in (0.5, 1.0, 2.0, 4.0, 8.0)),
        thresholds=(-1.0, *FALLS), words="delta, lambda; fall",
    ),
    Peer(
        name="KSWIN (river)", package="river", scores=kswin,
        configs=((1e-3, 100, 30), (1e-5, 100, 30), (1e-5, 150, 40), (1e-7, 150, 40)),
        thresholds=(-1.0, *FALLS), words="alpha, window, recent; fall", dear=True,
    ),
    Peer(
        name="BOCPD (bocd)", package="bocd", scores=bocpd,
        configs=((100, 1), (1000, 1), (1000, 4), (100_000, 4)), thresholds=FALLS,
        words="hazard, spread; fall", dear=True,
    ),
    Peer(
        name="IsolationForest (scikit-learn)", package="scikit-learn", scores=isolation_forest,
        configs=((10,), (30,)),
        thresholds=tuple(np.arange(0.40, 0.80, 0.02).round(2).tolist()),
        words="minutes; score", dear=True,
    ),
)  # fmt: skip
