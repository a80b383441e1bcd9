"""What a made job shows of its own truth, whichever generator made it."""

import numpy as np

from benchmarks.detection.generator import Made
from detector.series import FloatArray


def clean_mean(made: Made, start_ms: int, end_ms: int) -> float:
    """Clean samples over the undisturbed level, between two times."""
    times_ms = made.window.times_ms
    use = made.clean & (times_ms > start_ms) & (times_ms <= end_ms)
    return float(
        np.nanmean(made.window.fields["ofu"][use] / (made.expected * made.warmth)[use])
    )


def change_at_onset(made: Made) -> float:
    """The clean level of the two hours after the onset over that of the two before."""
    onset_ms = made.truth.onset_ms
    assert onset_ms is not None
    before = clean_mean(made, onset_ms - 7_200_000, onset_ms)
    return clean_mean(made, onset_ms + 600_000, onset_ms + 7_200_000) / before


def level_after_transient(made: Made) -> float:
    """The clean level once what ends after 20 minutes has ended."""
    onset_ms = made.truth.onset_ms
    assert onset_ms is not None
    return clean_mean(made, onset_ms + 1_260_000, onset_ms + 5_000_000)


def gpus_changes(made: Made) -> FloatArray:
    """By which factor each GPU changed at the onset, against the median of all."""
    onset_ms, gpus = made.truth.onset_ms, made.window.gpus
    assert onset_ms is not None
    assert gpus is not None
    read = (gpus > 0.02).all(axis=1)
    over = gpus[read] / np.median(gpus[read], axis=1, keepdims=True)
    after = made.window.times_ms[read] > onset_ms
    return np.asarray(np.median(over[after], axis=0) / np.median(over[~after], axis=0))
