"""GPUs that go from job to job while an exporter collects at a pace of its own."""

from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from detector.analysis.aggregate import Part, parts
from detector.analysis.maxclock import MaxClocks
from detector.analysis.ofu import GpuTable
from detector.analysis.quality import NOTHING, judge
from detector.fleet import Placement
from detector.reading import Reading, Scrape
from detector.telemetry.register import Register
from detector.telemetry.scheduler import Census, Run

T = 1_796_000_000_000
CLOCKS = MaxClocks(table=GpuTable(sources={}, gpu=()))
LEVELS = {"a": 0.3, "b": 0.6}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A GPU that works for "a", then rests, then works for "b"; all in seconds.

    Attributes
    ----------
    period, phase
        When the exporter collects means over the time since it did last.
    told
        Who says whose the GPU is: labels, a scheduler that tells ends, or one that does not.
    """

    period: int
    phase: int
    ended: float
    rest: float
    told: str

    def mean(self, start: float, end: float) -> float:
        """Return the tensor activity of a time."""
        a = max(0.0, min(end, self.ended) - start)
        b = max(0.0, end - max(start, self.ended + self.rest))
        return (a * LEVELS["a"] + b * LEVELS["b"]) / (end - start)

    def job(self, at: float) -> str:
        return "a" if at < self.ended else "b" if at >= self.ended + self.rest else ""

    def page(self, at: float) -> Reading:
        """Return what is handed out: the last collection, under the labels of now."""
        collection = (at - self.phase) // self.period
        end = collection * self.period + self.phase
        value = self.mean(end - self.period, end)
        # Two means of one level differ in their last digits.
        value += value and collection * 7919 % 1000 * 1e-6
        values = {
            "tensor_active": value, "gr_engine_active": min(1.0, 1.5 * value),
            "sm_clock_mhz": 1000.0, "max_sm_clock_mhz": 1000.0,
        }  # fmt: skip
        labels = {"hpc_job": self.job(at)} if self.told == "labels" and self.job(at) else {}
        return Reading(
            uuid="G", host="n", index="0", time_ms=T + int(at * 1000), values=values,
            labels=labels,
        )  # fmt: skip


@dataclass
class Scheduler:
    """Tells who runs at a time by a plan."""

    plan: Plan
    name: str = "slurm"
    every_ms: int = 10_000
    keep_ms: int = 600_000

    def look(self, now_ms: int) -> Census:
        at, ended = (now_ms - T) / 1000, T + int(self.plan.ended * 1000)
        held = []
        if at < self.plan.ended or self.plan.told == "ends":
            end_ms = None if at < self.plan.ended else ended
            held.append(Placement(job="a", host="n", start_ms=T - 10**6, end_ms=end_ms))
        if self.plan.job(at) == "b":
            start_ms = ended + int(self.plan.rest * 1000)
            held.append(Placement(job="b", host="n", start_ms=start_ms))
        return Census(placements=tuple(held))

    def past(self, now_ms: int) -> tuple[Run, ...]:
        return ()

    def close(self) -> None:
        """Nothing is open."""


def counted(plan: Plan, jitters: list[float]) -> Iterator[tuple[float, Part]]:
    """Make a round every ten seconds, a little early or late; yield what counts."""
    register = Register([] if plan.told == "labels" else [Scheduler(plan)])
    memory = NOTHING
    for number, jitter in enumerate(jitters):
        at = 10 * number + jitter
        now_ms = T + int(at * 1000)
        register.refresh(now_ms)
        scrape = Scrape(target="n", asked_ms=now_ms, readings=(plan.page(at),))
        judged, memory = judge(
            memory, register.identify([scrape]), now_ms=now_ms, max_clocks=CLOCKS
        )
        yield from ((at, part) for part in parts(judged, time_ms=now_ms) if part.gpus)


@settings(max_examples=150, deadline=None)
@given(
    st.builds(
        Plan,
        period=st.sampled_from([1, 10, 15, 30, 60]),
        phase=st.integers(0, 59),
        ended=st.floats(130, 200),
        rest=st.sampled_from([0.0, 4.0, 25.0, 70.0]),
        told=st.sampled_from(["labels", "ends", "lists"]),
    ),
    st.lists(st.floats(-0.3, 0.3), min_size=50, max_size=50),
)
def test_no_sample_of_a_job_holds_time_of_another_or_of_nobody_whatever_the_exporters_pace(
    plan: Plan, jitters: list[float]
) -> None:
    began: dict[str, float] = {}
    for at, part in counted(plan, jitters):
        assert abs(part.ofu - LEVELS[part.job]) < 2e-3, (at, part)
        began.setdefault(part.job, at)
    # And nobody waits for long: two collections, and the rounds in which they are seen.
    assert began["a"] < 1
    assert began["b"] - plan.ended - plan.rest < max(95, 2 * plan.period + 30)
