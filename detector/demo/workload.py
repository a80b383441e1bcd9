"""What the GPUs of one made-up job do, and what a collector would write down of it.

A :class:`Workload` holds the physics: tensor activity, clock and SM activity of each GPU, and
the speed of the work. Nuisances and faults change it in place; :func:`observe` measures it,
with gaps and glitches of the meter's own. Everything random comes from the caller's generator.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from detector.series import ContextEvent, FloatArray, IntArray, Interval, Window

BoolArray = npt.NDArray[np.bool_]

# Idle SM clock, MHz. Chosen: what data-centre GPUs of several generations fall to at rest.
IDLE_MHZ = 345.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """Just enough of a GPU to make its counters: maximal and tensor clock, both MHz."""

    name: str
    max_mhz: float
    tensor_mhz: float


# Clocks as in models/gpus.toml, which has their sources; the generator needs no more.
GPU_MODELS = (
    GpuModel(name="H100-SXM", max_mhz=1980.0, tensor_mhz=1830.0),
    GpuModel(name="A100-SXM", max_mhz=1410.0, tensor_mhz=1410.0),
    GpuModel(name="H200", max_mhz=1980.0, tensor_mhz=1830.0),
)


@dataclass(slots=True, kw_only=True)
class Workload:
    """The state of one job over time; made by :func:`healthy`, changed by faults.

    Attributes
    ----------
    times_ms
        Shape ``(n,)``.
    tensor, sm
        Share of cycles in which a GPU's tensor pipe, or any SM, is active. ``(n, g)``.
    clock_mhz
        SM clock. Shape ``(n, g)``.
    reporting
        Whether a GPU's exporter answers. Shape ``(n, g)``.
    speed
        Work done per second over a healthy job's, shape ``(n,)``: what tokens/s and a reported
        MFU follow. Not the same as OFU, which counts cycles and not work.
    tokens_per_second
        At speed 1; None when the job reports none.
    miscount
        Reported MFU over the true one; None when the job reports none.
    phases, events
        What the job went through besides training, and what of it was announced.
    frozen
        Rows in which the exporter repeats the value before them; None when it never does.
    """

    model: GpuModel
    times_ms: IntArray
    tensor: FloatArray
    sm: FloatArray
    clock_mhz: FloatArray
    reporting: BoolArray
    speed: FloatArray
    tokens_per_second: float | None = None
    miscount: float | None = None
    frozen: slice | None = None
    phases: list[ContextEvent] = field(default_factory=list)
    events: list[ContextEvent] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many samples the job has."""
        return int(self.times_ms.size)

    @property
    def gpus(self) -> int:
        """How many GPUs the job runs on."""
        return int(self.tensor.shape[1])

    def ofu(self) -> FloatArray:
        """OFU of each GPU, shape ``(n, g)``."""
        return self.tensor * self.clock_mhz / self.model.max_mhz

    def slow(self, rows: slice, factor: float, *, sm: float) -> None:
        """Slow the job in ``rows``: tensor activity and speed by ``factor``, SMs by ``sm``."""
        self.tensor[rows] *= factor
        self.speed[rows] *= factor
        self.sm[rows] *= sm

    def went_through(self, kind: str, rows: slice, *, announced: bool) -> None:
        """Note a phase, and tell the world if the job is one that marks its phases."""
        last = min(rows.stop, self.rows) - 1
        span = Interval(
            start_ms=int(self.times_ms[rows.start]), end_ms=int(self.times_ms[last])
        )
        phase = ContextEvent(kind=kind, span=span)
        self.phases.append(phase)
        if announced:
            self.events.append(phase)


def healthy(
    rng: np.random.Generator, *, times_ms: IntArray, gpus: int, model: GpuModel
) -> Workload:
    """A job that does nothing but train, at a level, clock and noise of its own.

    OFU lies at 0.2..0.6 with AR(1) noise of 0.3..3 points, coefficient 0..0.8, heavy-tailed in
    three jobs of ten: the range that published training runs span.
    """
    rows = times_ms.size
    level = rng.uniform(0.2, 0.6)
    # Under load the clock stays below its maximum: power, heat. Chosen: 86..99 %.
    clock = model.max_mhz * rng.uniform(0.86, 0.99)
    noise = _ar1(
        rng,
        rows,
        sd=rng.uniform(0.003, 0.03) / level,
        phi=rng.uniform(0.0, 0.8),
        heavy=rng.random() < 0.3,
    )
    own = 1 + 0.01 * rng.standard_normal((1, gpus))  # no two GPUs are quite alike
    jitter = 1 + 0.008 * rng.standard_normal((rows, gpus))
    common = np.clip(1 + noise, 0.05, None)
    tensor = level * model.max_mhz / clock * common[:, None] * own * jitter
    return Workload(
        model=model,
        times_ms=times_ms,
        tensor=tensor,
        sm=np.clip(
            rng.uniform(0.72, 0.92) * (1 + 0.01 * rng.standard_normal((rows, gpus))), 0, 1
        ),
        clock_mhz=clock * (1 + 0.004 * rng.standard_normal((rows, gpus))),
        reporting=np.ones((rows, gpus), dtype=np.bool_),
        speed=common,
    )


def _ar1(rng: np.random.Generator, n: int, *, sd: float, phi: float, heavy: bool) -> FloatArray:
    """AR(1) noise of marginal deviation ``sd``; Student t(4) innovations when heavy."""
    shocks = rng.standard_t(4, n) / np.sqrt(2.0) if heavy else rng.standard_normal(n)
    shocks *= sd * np.sqrt(1 - phi * phi)
    value, out = shocks[0] / np.sqrt(1 - phi * phi), []
    for shock in shocks.tolist():
        value = phi * value + shock
        out.append(value)
    return np.array(out)


def observe(rng: np.random.Generator, workload: Workload, *, glitches: bool = True) -> Window:
    """What a collector that averages over the GPUs that answer writes into the history.

    With ``glitches`` three samples in a thousand are lost, one in a thousand carries no value
    and one in two thousand reads an absurd one.
    """
    seen = np.where(workload.reporting, 1.0, np.nan)
    ofu = np.clip(workload.ofu(), 0, 1) * seen
    answering = workload.reporting.sum(axis=1)
    fields = {
        "ofu": _mean(ofu, answering),
        "gpus": answering.astype(np.float64),
        "tensor": _mean(np.clip(workload.tensor, 0, 1) * seen, answering),
        "clock": _mean(workload.clock_mhz * seen, answering),
        "sm": _mean(np.clip(workload.sm, 0, 1) * seen, answering),
    }
    if workload.tokens_per_second is not None:
        fields["tokens"] = workload.tokens_per_second * workload.speed
    if workload.miscount is not None:
        usual = float(np.nanmedian(fields["ofu"][workload.speed > 0.5]))
        datasheet = usual * workload.model.max_mhz / workload.model.tensor_mhz
        fields["mfu"] = datasheet * workload.miscount * workload.speed
    if workload.frozen is not None and workload.frozen.start > 0:
        for values in (*fields.values(), ofu):
            values[workload.frozen] = values[workload.frozen.start - 1]
    keep = answering > 0
    if glitches:
        chance = rng.random(workload.rows)
        fields["ofu"][chance < 0.001] = np.nan
        fields["ofu"][(chance >= 0.001) & (chance < 0.0015)] = rng.uniform(0, 1)
        keep &= chance < 0.997
    # float32 at the door, five decimals in the text of an entry: what a history keeps.
    return Window(
        times_ms=workload.times_ms[keep],
        fields={name: _stored(values[keep]) for name, values in fields.items()},
        gpus=_stored(ofu[keep]),
        events=tuple(sorted(workload.events, key=lambda event: event.span.start_ms)),
    )


def _mean(values: FloatArray, answering: IntArray) -> FloatArray:
    """Mean over the GPUs that answer; NaN where none does."""
    total: FloatArray = np.nansum(values, axis=1)
    return np.where(answering > 0, total / np.maximum(answering, 1), np.nan)


def _stored(values: FloatArray) -> FloatArray:
    return np.round(values, 5).astype(np.float32).astype(np.float64)
