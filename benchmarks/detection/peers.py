"""Measures the peers; run by the benchmark under the peers' own Python, see ``environment``.

Writes JSON lines: ``{"done", "parts"}`` as it goes on, and one line a peer at the end.
"""

import argparse
import json
import time
from importlib.metadata import version

import numpy as np

from benchmarks.detection.classes import CLASSES, MEAN
from benchmarks.detection.generator import SEEDS, make
from benchmarks.detection.packages import PACKAGES
from benchmarks.detection.peer import Peer, given
from benchmarks.detection.report import figures
from benchmarks.detection.rivals import Jobs, Setting, calibrated
from benchmarks.detection.windows import RULES

PEERS = (*RULES, *PACKAGES)


def main() -> None:
    """Choose each peer's setting, measure it, and say what it costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cheap", type=int, nargs=4, required=True)
    parser.add_argument("--dear", type=int, nargs=4, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--match", default="", help="only peers whose name has one of these")
    options = parser.parse_args()
    names = ("quiet", "change", "test_quiet", "test_change")
    cheap = Jobs(**dict(zip(names, options.cheap, strict=True)))
    dear = Jobs(**dict(zip(names, options.dear, strict=True)))
    peers = {
        peer.name: peer
        for peer in PEERS
        if any(part in peer.name for part in options.match.split(","))
    }
    found = calibrated(
        {name: (peer, dear if peer.dear else cheap, MEAN) for name, peer in peers.items()},
        workers=options.workers,
        on_part=lambda done, parts: _say({"done": done, "parts": parts}),
    )
    for name, (setting, heard) in found.items():
        peer = peers[name]
        _say(
            {
                "peer": name,
                "package": f"{peer.package} {version(peer.package)}" if peer.package else "",
                "setting": f"{', '.join(f'{v:g}' for v in setting.config)}; "
                f"{setting.threshold:g} ({peer.words})",
                "within": setting.within,
                "calibration": [setting.rate.events, setting.rate.exposure],
                "ms_per_1000": _cost_ms(peer, setting),
                "classes": figures(heard),
            }
        )
    _say({"batch": batch_seconds(), "calls": call_seconds()})


def _cost_ms(peer: Peer, setting: Setting) -> float:
    """CPU for 1,000 points of a job at the setting, alone on its core, ms."""
    seen = given(make(CLASSES["quiet"], 0, seed=SEEDS["test"]))
    peer.scores(seen, setting.config)  # its imports are not what it costs
    began = time.process_time()
    peer.scores(seen, setting.config)
    return (time.process_time() - began) * 1e6 / len(seen.values)


def batch_seconds() -> dict[str, float]:
    """CPU of the batch packages for one whole series of 10,000 points, once, seconds."""
    import ruptures
    from otava.analysis import compute_change_points

    seen = given(make(CLASSES["quiet"], 1, seed=SEEDS["test"]))
    values = np.resize(seen.values, 10_000)
    scaled = (values / 0.01).reshape(-1, 1)
    penalty = 30 * np.log(len(values))
    out = {}
    began = time.process_time()
    compute_change_points(values.tolist())
    out["apache-otava"] = time.process_time() - began
    began = time.process_time()
    ruptures.KernelCPD(kernel="linear", min_size=5).fit(scaled).predict(pen=penalty)
    out["ruptures PELT in C (KernelCPD)"] = time.process_time() - began
    began = time.process_time()
    ruptures.Pelt(model="l2", min_size=5).fit(scaled).predict(pen=penalty)
    out["ruptures PELT (Pelt, l2)"] = time.process_time() - began
    return out


def call_seconds(calls: int = 100) -> dict[str, float]:
    """CPU of one look of the batch packages at the last three hours of minutes, seconds."""
    import ruptures
    from otava.analysis import compute_change_points

    minutes = given(make(CLASSES["quiet"], 1, seed=SEEDS["test"])).minutes
    looks = [minutes[k : k + 180] for k in range(calls)]
    out = {}
    began = time.process_time()
    for look in looks:
        compute_change_points(look.tolist())
    out["apache-otava"] = (time.process_time() - began) / calls
    began = time.process_time()
    for look in looks:
        scaled = (look / 0.01).reshape(-1, 1)
        ruptures.KernelCPD(kernel="linear", min_size=5).fit(scaled).predict(pen=100.0)
    out["ruptures PELT in C (KernelCPD)"] = (time.process_time() - began) / calls
    began = time.process_time()
    for look in looks:
        scaled = (look / 0.01).reshape(-1, 1)
        ruptures.Pelt(model="l2", min_size=5).fit(scaled).predict(pen=100.0)
    out["ruptures PELT (Pelt, l2)"] = (time.process_time() - began) / calls
    return out


def _say(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
