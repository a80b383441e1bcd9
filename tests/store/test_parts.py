"""Hosts' parts become one sample of their job, with each GPU in its place."""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detector.analysis.aggregate import Part
from detector.fleet import Gpu
from detector.series import Interval, Window
from detector.store.entries import decode, pack_gpus
from detector.store.history import History, HistorySettings
from detector.store.inbox import Inbox
from detector.store.keys import Keys
from detector.store.letters import read, written
from detector.store.parts import Parts
from detector.store.settings import InboxSettings

NOW = 1_764_000_000_000
SLOT = 10_000
KEYS = Keys()
NAN = math.nan


class Bench:
    """A collector, the inbox and the histories on one server."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.history = History(client, KEYS, HistorySettings())
        self.inbox = Inbox(client, KEYS, self.history, InboxSettings())
        self.parts = Parts(client, KEYS, self.history)

    def post(self, at: int, hosts: Mapping[str, Part]) -> None:
        """Post parts in slot ``at``."""
        self.parts.post([made(part, host, at) for host, part in hosts.items()])

    def settle(self, at: int) -> int:
        """Drain when slot ``at`` can wait no longer; return how many samples were written."""
        return self.inbox.drain(NOW + at * SLOT + 26_000).written

    def window(self, job: str = "7") -> Window:
        return self.history.window(job, start_ms=0, end_ms=2**60)

    def roster(self) -> list[str]:
        return [gpu.uuid for gpu in self.history.describe("7").roster]

    def events(self) -> list[str]:
        span = Interval(start_ms=0, end_ms=2**60)
        return [event.note for event in self.history.announced(["7"])[0](span)]


@pytest.fixture(name="bench")
def bench_(redis_client: redis.Redis) -> Bench:
    return Bench(redis_client)


def made(part: Part, host: str, at: int) -> Part:
    return Part(
        job="7", host=host, time_ms=NOW + at * SLOT + 137, ofu=part.ofu, gpus=part.gpus,
        fields=part.fields, roster=tuple(
            Gpu(uuid=gpu.uuid, host=host, index=gpu.index) for gpu in part.roster
        ), gpu_ofu=part.gpu_ofu, faults=part.faults, fresh=part.fresh,
    )  # fmt: skip


def of(
    values: Mapping[str, float], *, fresh: bool = True, faults: Mapping[str, int] | None = None
) -> Part:
    """A host's part of these GPUs; NaN is one that is not usable."""
    usable = [value for value in values.values() if not math.isnan(value)]
    unusable = len(values) - len(usable)
    return Part(
        job="7",
        host="",
        time_ms=NOW,
        ofu=math.fsum(usable) / len(usable) if usable else NAN,
        gpus=len(usable),
        roster=tuple(Gpu(uuid=uuid, index=at) for at, uuid in enumerate(values)),
        gpu_ofu=tuple(values.values()),
        faults=faults or ({"stale": unusable} if unusable else {}),
        fresh=fresh,
    )


def mail(client: redis.Redis, entry: str, *fields: object) -> None:
    client.execute_command("XADD", KEYS.inbox, entry, *fields)  # type: ignore[no-untyped-call]


def shown(values: Sequence[float]) -> list[float | None]:
    return [None if math.isnan(value) else round(value, 3) for value in values]


def gpus(window: Window) -> list[list[float | None]]:
    assert window.gpus is not None
    return [shown(row) for row in window.gpus.tolist()]


def test_hosts_gpus_come_together_in_the_order_of_the_roster(bench: Bench) -> None:
    bench.post(0, {"n2": of({"C": 0.2, "D": 0.4}), "n1": of({"A": 0.6, "B": NAN})})
    assert bench.settle(0) == 1
    window = bench.window()
    assert window.times_ms.tolist() == [NOW]
    assert window.fields["ofu"].tolist() == [pytest.approx(0.4)]
    assert window.fields["gpus"].tolist() == [3.0]
    assert window.fields["unusable"].tolist() == [1.0]
    assert bench.roster() == ["A", "B", "C", "D"]
    assert gpus(window) == [[0.6, None, 0.2, 0.4]]
    described = bench.history.describe("7").roster
    assert [(gpu.host, gpu.index) for gpu in described][:2] == [("n1", 0), ("n1", 1)]


def test_what_was_wrong_is_not_told_of_a_job_that_is_well(bench: Bench) -> None:
    bench.post(0, {"n1": of({"A": 0.6})})
    bench.settle(0)
    assert bench.window().fields["unusable"].tolist() == [0.0]
    batch = bench.history.increments({}, now_ms=NOW + 60_000)
    assert batch.rejects == ()


def test_a_gpu_that_is_replaced_leaves_its_place_empty_and_the_new_one_comes_last(
    bench: Bench,
) -> None:
    bench.post(0, {"n1": of({"A": 0.6, "B": 0.5}), "n2": of({"C": 0.4})})
    bench.settle(0)
    bench.post(1, {"n1": of({"A": 0.6, "X": 0.3}), "n2": of({"C": 0.4})})
    bench.settle(1)
    assert bench.roster() == ["A", "B", "C", "X"]
    assert gpus(bench.window()) == [[0.6, 0.5, 0.4, None], [0.6, None, 0.4, 0.3]]
    # The tick knows the longer roster, and takes the older, shorter values too.
    batch = bench.history.increments({}, now_ms=NOW + 60_000)
    assert batch.rejects == ()
    assert batch.gpu_counts is not None
    assert batch.gpu_counts.tolist() == [3, 4]


def test_a_roster_that_people_wrote_keeps_its_order_and_its_text(bench: Bench) -> None:
    bench.client.hset(KEYS.about("7"), "gpus", "C,A")
    bench.post(0, {"n1": of({"A": 0.6, "B": 0.5}), "n2": of({"C": 0.4})})
    bench.settle(0)
    assert bench.roster() == ["C", "A", "B"]
    assert bench.client.hget(KEYS.about("7"), "gpus") == b"C,A"
    assert gpus(bench.window()) == [[0.4, 0.6, 0.5]]


def test_two_writers_never_give_one_place_twice(bench: Bench) -> None:
    other = History(bench.client, KEYS, HistorySettings())
    bench.history.enrol("7", [Gpu(uuid="A", host="n1"), Gpu(uuid="B", host="n1")])
    other.enrol("7", [Gpu(uuid="C", host="n2"), Gpu(uuid="A", host="n2")])
    bench.history.enrol("7", [Gpu(uuid="D", host="n1", index=7)])
    assert bench.roster() == ["A", "B", "C", "D"]
    assert bench.history.describe("7").roster[3] == Gpu(uuid="D", host="n1", index=7)


def test_a_description_of_another_type_costs_the_gpus_alone(bench: Bench) -> None:
    bench.client.set(KEYS.about("7"), "x")
    bench.post(0, {"n1": of({"A": 0.6})})
    assert bench.settle(0) == 1
    assert bench.window().gpus is None
    assert bench.window().fields["ofu"].tolist() == [pytest.approx(0.6)]


def test_instances_of_a_gpu_have_places_of_their_own(bench: Bench) -> None:
    bench.post(0, {"n1": of({"GPU-1/3": 0.6, "GPU-1/4": 0.2})})
    bench.settle(0)
    assert bench.roster() == ["GPU-1/3", "GPU-1/4"]


def test_values_without_names_are_those_of_the_hosts_gpus_in_the_roster(bench: Bench) -> None:
    roster = '[{"uuid":"A","host":"n2"},{"uuid":"B","host":"n1"},{"uuid":"C","host":"n2"}]'
    bench.client.hset(KEYS.about("7"), "gpus", roster)
    two, one = (np.array(values) for values in ([0.1, 0.3], [0.2]))
    for host, v, values in (("n2", 0.2, two), ("n1", 0.2, one)):
        fields = ["job", "7", "host", host, "v", v, "ts", NOW, "g", pack_gpus(values)]
        mail(bench.client, "*", *fields)
    bench.settle(0)
    assert gpus(bench.window()) == [[0.1, 0.2, 0.3]]


def test_once_known_hosts_have_reported_nobody_else_is_waited_for(bench: Bench) -> None:
    both = {"n1": of({"A": 0.6}), "n2": of({"B": 0.4})}
    bench.post(0, both)
    assert bench.inbox.drain(NOW + 1_000).written == 0
    bench.settle(0)
    bench.post(3, both)
    assert bench.inbox.drain(NOW + 31_000).written == 1


def test_a_host_that_is_gone_is_waited_for_a_minute_and_no_longer(bench: Bench) -> None:
    bench.post(0, {"n1": of({"A": 0.6}), "n2": of({"B": 0.4})})
    bench.settle(0)
    at_once = []
    for at in range(3, 12):
        bench.post(at, {"n1": of({"A": 0.6})})
        at_once.append(bench.inbox.drain(NOW + at * SLOT + 1_000).written)
        bench.settle(at)
    assert at_once == [0, 0, 0, 0, 1, 1, 1, 1, 1]


def test_a_host_that_came_late_is_waited_for_next_time(bench: Bench) -> None:
    bench.post(0, {"n1": of({"A": 0.6})})
    bench.settle(0)
    bench.post(3, {"n1": of({"A": 0.6})})
    assert bench.inbox.drain(NOW + 31_000).written == 1
    bench.post(3, {"n2": of({"B": 0.4})})
    assert bench.inbox.drain(NOW + 32_000).rejected == 1
    bench.post(4, {"n1": of({"A": 0.6})})
    assert bench.inbox.drain(NOW + 41_000).written == 0
    bench.post(4, {"n2": of({"B": 0.4})})
    assert bench.inbox.drain(NOW + 42_000).written == 1


def test_parts_that_are_posted_twice_change_nothing(bench: Bench) -> None:
    for _ in range(2):
        bench.post(0, {"n1": of({"A": 0.6}), "n2": of({"B": 0.4})})
    bench.settle(0)
    window = bench.window()
    assert window.fields["gpus"].tolist() == [2.0]
    assert gpus(window) == [[0.6, 0.4]]


def test_a_slot_of_repeats_is_no_sample_and_nothing_waits_for_it(bench: Bench) -> None:
    bench.post(0, {"n1": of({"A": 0.6})})
    bench.post(1, {"n1": of({"A": 0.6}, fresh=False)})
    bench.post(2, {"n1": of({"A": 0.6}, fresh=False)})
    bench.post(3, {"n1": of({"A": 0.5})})
    bench.settle(3)
    assert bench.window().times_ms.tolist() == [NOW, NOW + 3 * SLOT]
    assert bench.client.xlen(KEYS.inbox) == 0


def test_hosts_that_collect_at_different_times_make_a_sample_when_most_have_news(
    bench: Bench,
) -> None:
    # Three hosts that collect every 30 s, each in a slot of its own.
    for at in range(12):
        bench.post(at, {f"n{k}": of({f"G{k}": 0.5}, fresh=at % 3 == k) for k in range(3)})
        bench.settle(at)
    assert [int(time - NOW) // SLOT for time in bench.window().times_ms] == [1, 3, 5, 7, 9, 11]


def test_a_new_reading_outlives_a_repeat_in_the_same_slot(bench: Bench) -> None:
    bench.post(0, {"n1": of({"A": 0.6})})
    bench.post(0, {"n1": of({"A": 0.6}, fresh=False)})
    assert bench.settle(0) == 1


def test_a_collector_that_cannot_reach_a_host_takes_nothing_from_one_that_does(
    bench: Bench,
) -> None:
    good, missing = of({"a": 0.4}, fresh=False), of({"a": NAN}, faults={"unreachable": 1})
    for first, second in ((good, missing), (missing, good)):
        bench.post(0, {"n1": of({"A": 0.3}), "n2": first, "n3": of({"B": 0.5})})
        bench.post(0, {"n2": second})
    bench.settle(0)
    assert bench.window().fields["ofu"] == pytest.approx([0.4])
    assert bench.window().fields["gpus"].tolist() == [3.0]


def test_a_job_without_a_usable_gpu_has_an_entry_that_says_so(bench: Bench) -> None:
    for at in range(9):
        bench.post(at, {"n1": of({"A": NAN, "B": NAN}, faults={"zero_mismatch": 2})})
        bench.settle(at)
    window = bench.window()
    assert len(window.times_ms) == 9
    assert np.isnan(window.fields["ofu"]).all()
    assert window.fields["gpus"].tolist() == [0.0] * 9
    assert window.fields["unusable"].tolist() == [2.0] * 9
    batch = bench.history.increments({}, now_ms=NOW + 120_000)
    assert len(batch.job) == 9
    assert batch.rejects == ()


def test_gpus_that_stay_unusable_are_announced_once_with_host_and_reason(bench: Bench) -> None:
    broken = of({"A": 0.4, "B": NAN, "C": NAN}, faults={"zero_mismatch": 2})
    well = of({"A": 0.4, "B": 0.4, "C": 0.4})
    for at in range(20):
        bench.post(at, {"n1": well if at < 2 or at >= 15 else broken})
        bench.settle(at)
    told = bench.events()
    assert len(told) == 2  # as it lasts, and with its end when it is over
    assert told[0] == told[1]
    assert told[0].startswith("zero_mismatch: 2 GPUs of n1 (")
    (announced,) = bench.history.announced(["7"])
    spans = announced(Interval(start_ms=0, end_ms=2**60))
    assert {event.span.start_ms for event in spans} == {NOW + 2 * SLOT}
    assert max(event.span.end_ms for event in spans) == NOW + 15 * SLOT


def test_gpus_that_are_unusable_for_a_moment_are_announced_to_nobody(bench: Bench) -> None:
    for at in range(12):
        bench.post(at, {"n1": of({"A": 0.4, "B": NAN if at == 4 else 0.3})})
        bench.settle(at)
    assert bench.events() == []


def test_reports_of_the_job_join_its_hosts_scrape(bench: Bench) -> None:
    bench.post(0, {"n1": of({"A": 0.6})})
    for at, tokens in ((1_000, 100), (7_000, 120)):
        bench.client.xadd(KEYS.inbox, {"job": "7", "ts": NOW + at, "tokens": tokens})
    bench.settle(0)
    window = bench.window()
    assert window.times_ms.tolist() == [NOW]
    assert window.fields["tokens"].tolist() == [120.0]
    assert window.fields["ofu"].tolist() == [pytest.approx(0.6)]


def test_a_host_whose_clock_is_a_minute_slow_is_filed_by_arrival_and_named(
    bench: Bench,
) -> None:
    for at in range(12):
        arrived = NOW + at * SLOT + 400
        for host, behind in (("n1", 0), ("n2", 57_000)):
            flat = [*written([made(of({host: 0.5}), host, at)])[0], "ts", arrived - behind]
            entry = f"{arrived}-{behind + 1}"
            mail(bench.client, entry, *flat)
        bench.inbox.drain(arrived + 100)
    bench.settle(12)
    counts = bench.window().fields["gpus"].tolist()
    assert counts[-8:] == [2.0] * 8
    rejects = bench.history.increments({}, now_ms=NOW + 200_000).rejects
    off = [reject.detail for reject in rejects if reject.reason == "clock_off"]
    assert off == ["host n2: -57 s"]


def test_a_backlog_that_is_worked_off_is_no_wrong_clock(bench: Bench) -> None:
    for at in range(30):
        (flat,) = written([made(of({"A": 0.5}), "n1", at)])
        entry = f"{NOW + 300_000 + at}-1"
        mail(bench.client, entry, *flat)
    bench.inbox.drain(NOW + 301_000)
    bench.inbox.drain(NOW + 316_000)
    assert len(bench.window().times_ms) == 30
    bench.settle(60)
    rejects = bench.history.increments({}, now_ms=NOW + 700_000).rejects
    assert rejects == ()


def test_an_id_that_no_key_can_be_made_of_is_told_and_costs_no_other(bench: Bench) -> None:
    good = made(of({"A": 0.5}), "n1", 0)
    bench.parts.post([msgspec.structs.replace(good, job="x" * 513), good])
    bench.settle(0)
    assert bench.window().fields["ofu"].tolist() == [0.5]
    (told,) = bench.history.increments({}, now_ms=NOW + 30_000).rejects
    assert (told.reason, told.detail[:3]) == ("no_job", "xxx")


def test_hosts_that_were_kept_from_reporting_are_brought_together_in_their_own_time(
    bench: Bench,
) -> None:
    """The server was away for five minutes; each host then posts what it kept."""
    back = NOW + 300_000
    for host, late, uuid in (("n1", 200, "A"), ("n2", 9_000, "B")):
        for at in range(30):
            (flat,) = written([made(of({uuid: 0.5}), host, at)])
            mail(bench.client, f"{back + late}-{at}", *flat)
        bench.inbox.drain(back + late + 300)
    bench.inbox.drain(back + 16_000)
    window = bench.window()
    assert window.times_ms.tolist() == [NOW + at * SLOT for at in range(30)]
    assert set(window.fields["gpus"].tolist()) == {2.0}
    assert bench.history.increments({}, now_ms=back + 20_000).rejects == ()


names = st.text(st.characters(codec="utf-8", exclude_characters=","), min_size=1, max_size=8)
values = st.floats(0, 1, width=32) | st.just(NAN)


@settings(deadline=None)
@given(
    st.dictionaries(names.filter(lambda name: not name[0].isdigit()), values, max_size=5),
    st.dictionaries(st.sampled_from(["stale", "blank"]), st.integers(1, 9), max_size=2),
    st.booleans(),
)
def test_a_part_reads_as_it_was_written(
    gpus: Mapping[str, float], faults: Mapping[str, int], fresh: bool
) -> None:
    part = made(of(gpus, fresh=fresh, faults=faults), "n1", 0)
    flat = [text if isinstance(text, bytes) else text.encode() for text in written([part])[0]]
    decoded = decode([b"1-0"], [flat])
    letter = read(
        b"1-0",
        dict(zip(flat[::2], flat[1::2], strict=True)),
        job="7",
        time_ms=part.time_ms,
        fields={name: column[0] for name, column in decoded.fields.items()},
        packed=decoded.packed[0],
    )
    again = letter.part(())
    assert again.roster == part.roster
    assert again.faults == part.faults
    assert (again.gpus, again.fresh, again.host) == (part.gpus, part.fresh, part.host)
    assert again.ofu == pytest.approx(part.ofu, abs=1e-6, nan_ok=True)
    assert again.gpu_ofu == pytest.approx(part.gpu_ofu, abs=1e-5, nan_ok=True)


@settings(
    max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(["n1", "n2"]), st.sampled_from("ABCD")),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 90_000),
)
def test_a_crash_in_between_changes_no_place_and_no_sample(
    redis_client: redis.Redis, arrivals: Sequence[tuple[int, str, str]], crash_ms: int
) -> None:
    def run(*, crashes: bool) -> tuple[list[str], list[list[float | None]]]:
        redis_client.flushall()
        bench = Bench(redis_client)
        for at, host, uuid in sorted(arrivals):
            bench.post(at, {host: of({uuid: 0.5})})
        bench.inbox.drain(NOW + crash_ms)
        if crashes:
            bench = Bench(redis_client)
        bench.settle(10)
        return bench.roster(), gpus(bench.window())

    assert run(crashes=True) == run(crashes=False)
