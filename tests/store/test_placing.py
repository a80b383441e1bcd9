"""A job's own reports get their place in its stream, each once, and cost no scrape its own."""

from collections.abc import Sequence
from typing import cast

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detector.store.history import History, HistorySettings
from detector.store.inbox import Inbox
from detector.store.keys import Keys
from detector.store.settings import InboxSettings

NOW = 1_764_000_000_000
KEYS = Keys()
Entry = tuple[bytes, dict[bytes, bytes]]


class Job:
    """One job's stream, with the inbox that reports come by; times in ms from ``NOW``."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.history = History(client, KEYS, HistorySettings())
        self.inbox = Inbox(client, KEYS, self.history, InboxSettings())
        self.began = 0

    def scrape(self, at: int) -> None:
        """Write as a collector does that knows nothing of reports; refused, it raises."""
        self.client.xadd(KEYS.samples("j"), {"v": 0.4, "n": 8}, id=f"{NOW + at}-0")

    def report(self, at: int, **fields: float) -> None:
        flat = {"job": "j", "ts": str(NOW + at)} | {k: f"{v:g}" for k, v in fields.items()}
        self.client.xadd(KEYS.inbox, dict(flat.items()))

    def drain(self, at: int) -> None:
        self.inbox.drain(NOW + at)

    def restart(self) -> None:
        self.inbox = Inbox(self.client, KEYS, self.history, InboxSettings())

    def entries(self) -> list[tuple[int, dict[str, str]]]:
        found = cast("list[Entry]", self.client.xrange(KEYS.samples("j")))
        return [
            (int(id.split(b"-")[0]) - NOW, {k.decode(): v.decode() for k, v in flat.items()})
            for id, flat in found
        ]

    def reports(self, name: str = "tokens") -> list[tuple[int, float]]:
        """Own time and value of each report that is stored, in the order of the stream."""
        return [
            (int(given["at"]) - NOW if "at" in given else at, float(given[name]))
            for at, given in self.entries()
            if name in given
        ]

    def scrapes(self) -> list[int]:
        return [at for at, given in self.entries() if "v" in given]

    def told(self, at: int) -> list[str]:
        rejects = self.history.increments({}, now_ms=NOW + at).rejects
        return [reject.reason for reject in rejects]


@pytest.fixture
def job(redis_client: redis.Redis) -> Job:
    return Job(redis_client)


@pytest.mark.parametrize("phase", [0, 1, 5, 9])
@pytest.mark.parametrize("every", [10, 15, 30])
def test_every_report_between_scrapes_of_others_is_stored_and_joins_the_next_one(
    job: Job, every: int, phase: int
) -> None:
    sent = []
    for second in range(151):
        if second % every == 0:
            job.scrape(second * 1_000)
        if second % 10 == phase:
            sent.append((second * 1_000, 1_000.0 + second))
            job.report(second * 1_000, tokens=1_000 + second)
        if second % 10 == 3:  # the tick
            job.drain(second * 1_000)
    job.drain(154_000)
    # What came before the first scrape was seen waits for nothing else.
    assert job.reports() == sent
    assert job.scrapes() == list(range(0, 151_000, every * 1_000))
    window = job.history.window("j", start_ms=0, end_ms=NOW + 145_000)
    joined = window.fields["tokens"][window.times_ms > NOW + 20_000]
    assert (joined > 0).sum() == len(joined)
    assert job.told(300_000) == []


def test_a_job_without_scrapes_has_its_reports_at_their_own_times(job: Job) -> None:
    for at in range(0, 90_000, 10_000):
        job.report(at, tokens=at)
        job.drain(at + 500)
    for at in (90_000, 100_000, 110_000):
        job.drain(at)
    assert job.entries() == [(at, {"tokens": f"{at}"}) for at in range(0, 90_000, 10_000)]


def test_a_collector_that_begins_behind_reports_and_half_a_minute_late_is_not_kept_out(
    job: Job,
) -> None:
    for at in range(0, 300_000, 10_000):
        job.report(at, tokens=at + 1)
        job.drain(at + 500)
        if at >= 100_000:
            job.scrape(at - 29_000)
    assert job.scrapes() == list(range(71_000, 271_000, 10_000))


def hour(count: int = 60) -> list[int]:
    return list(range(-10_000 * count, 0, 10_000))


def test_what_a_log_reader_catches_up_with_lands_at_its_own_times_and_only_once(
    job: Job,
) -> None:
    for round in (0, 12_000, 24_000, 300_000):
        for at in hour(360):
            job.report(at, tokens=1_000 - at)
        job.drain(round)
        job.drain(round + 40_000)
    assert job.entries() == [(at, {"tokens": f"{1_000 - at}"}) for at in hour(360)]
    assert job.told(400_000) == []


def test_old_reports_behind_a_newer_one_are_told_and_not_stored_at_a_wrong_time(
    job: Job,
) -> None:
    job.report(0, tokens=7)
    job.drain(40_000)
    for _ in range(2):
        for at in hour():
            job.report(at, tokens=1)
        job.drain(60_000)
    assert job.reports() == [(0, 7.0)]
    assert job.told(60_000) == ["went_back"] * 120
    assert not job.client.xlen(KEYS.inbox)


def test_old_reports_behind_scrapes_are_kept_in_their_order_and_the_last_one_counts(
    job: Job,
) -> None:
    job.scrape(0)
    for _ in range(2):
        for at in hour():
            job.report(at, tokens=-at)
        job.drain(5_000)
    job.scrape(10_000)
    assert job.reports() == [(at, float(-at)) for at in hour()]
    window = job.history.window("j", start_ms=NOW, end_ms=2**60)
    assert window.times_ms.tolist() == [NOW, NOW + 10_000]
    assert window.fields["tokens"].tolist()[1] == 10_000.0


def test_two_reporters_of_one_job_do_not_keep_each_other_out(job: Job) -> None:
    job.scrape(0)
    for at in range(10_000, 60_000, 10_000):
        job.report(at, tokens=5)
        job.report(at, tokens=5)  # sent twice
        job.report(at, mfu=0.3)  # of the same second
        job.report(at - 7_000, mfu=0.2)  # read from a log, later
        job.drain(at + 1_000)
        job.scrape(at + 2_000)
    own = range(10_000, 60_000, 10_000)
    assert job.reports() == [(at, 5.0) for at in own]
    assert [at for at, value in job.reports("mfu") if value > 0.25] == list(own)
    assert [at for at, value in job.reports("mfu") if value < 0.25] == [
        at - 7_000 for at in own
    ]


def test_a_report_of_a_scrape_that_holds_nothing_new_is_kept(job: Job) -> None:
    for at in range(0, 60_000, 10_000):
        part = {"job": "j", "host": "a", "v": "0.4", "n": "8", "ts": str(NOW + at)}
        part |= {} if at % 30_000 == 0 else {"held": "1"}
        job.client.xadd(KEYS.inbox, dict(part.items()))
        job.report(at + 3_000, tokens=at)
        job.drain(at + 4_000)
    job.drain(100_000)
    assert job.scrapes() == [0, 30_000]
    assert job.reports() == [(at + 3_000, float(at)) for at in range(0, 60_000, 10_000)]


def test_of_scrapes_and_reports_that_are_caught_up_with_each_has_its_own(job: Job) -> None:
    for at in range(0, 300_000, 10_000):
        part = {"job": "j", "host": "a", "v": "0.4", "n": "8", "ts": str(NOW + at)}
        job.client.xadd(KEYS.inbox, dict(part.items()), id=f"{NOW + at}-0")
        for later in (2_000, 7_000):
            flat = {"job": "j", "ts": str(NOW + at + later), "tokens": str(at + later)}
            job.client.xadd(KEYS.inbox, dict(flat.items()), id=f"{NOW + at + later}-0")
    job.drain(400_000)
    window = job.history.window("j", start_ms=0, end_ms=2**60)
    assert window.times_ms.tolist() == list(range(NOW, NOW + 300_000, 10_000))
    assert window.fields["tokens"].tolist() == list(range(7_000, 307_000, 10_000))


def test_an_entry_without_host_that_says_that_no_gpu_is_usable_is_a_scrape(job: Job) -> None:
    job.client.xadd(KEYS.inbox, {"job": "j", "n": 0, "ts": NOW})
    job.drain(1_000)
    assert job.entries() == [(0, {"n": "0"})]


@pytest.mark.parametrize("at", ["\u00b2", "9" * 5_000, "-1", "", "\udcff"])
def test_a_time_that_is_none_in_an_entry_of_others_stops_no_report(job: Job, at: str) -> None:
    text = at.encode("utf-8", "surrogateescape")
    job.client.xadd(KEYS.samples("j"), {"v": 0.4, "n": 8, "at": text}, id=f"{NOW}-0")
    job.report(10_000, tokens=7)
    job.drain(11_000)
    job.client.xadd(KEYS.samples("j"), {"v": 0.4, "n": 8}, id=f"{NOW + 20_000}-0")
    window = job.history.window("j", start_ms=0, end_ms=2**60)
    assert window.times_ms.tolist() == [NOW, NOW + 20_000]
    assert window.fields["tokens"].tolist()[1] == 7.0


def test_a_scrape_that_only_counts_broken_gpus_is_written_once_behind_reports(job: Job) -> None:
    for at in (1_000, 2_000):
        job.client.xadd(KEYS.samples("j"), {"tokens": 5}, id=f"{NOW + at}-0")
        told = {"job": "j", "bad": "3", "ts": str(NOW)}
        job.client.xadd(KEYS.inbox, dict(told.items()))
        job.drain(at + 500)
    assert [given["bad"] for _, given in job.entries() if "bad" in given] == ["3"]


def test_rolled_up_reports_stand_in_their_scrapes_and_need_no_rows(job: Job) -> None:
    start = -7_200_000
    for at in range(start, start + 900_000, 10_000):
        job.scrape(at)
        job.client.xadd(KEYS.samples("j"), {"tokens": 5}, id=f"{NOW + at + 3_000}-0")
    before = job.history.window("j", start_ms=0, end_ms=2**60)
    for _ in range(20):
        batch = job.history.increments({}, now_ms=NOW)
        if not batch.more:
            break
    job.history.roll(["j"], now_ms=NOW)
    after = job.history.window("j", start_ms=0, end_ms=2**60)
    assert after.times_ms.tolist() == before.times_ms.tolist()
    assert after.fields["tokens"].tolist()[1:] == before.fields["tokens"].tolist()[1:]
    sizes = [
        len(blob)
        for blob in cast("dict[bytes, bytes]", job.client.hgetall(KEYS.chunks("j"))).values()
    ]
    assert max(sizes) < 600  # 30 rows of a time, v, n and tokens


STEPS = st.lists(
    st.sampled_from(["scrape", "report", "late", "again", "drain", "crash"]),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_whatever_happens_a_report_is_stored_once_or_told_and_no_scrape_is_lost(
    redis_client: redis.Redis, steps: Sequence[str]
) -> None:
    redis_client.flushall()
    job = Job(redis_client)
    sent: dict[int, int] = {}
    scraped: list[int] = []
    at = 0
    for number, step in enumerate(steps):
        at += 3_000
        if step == "scrape":
            job.scrape(at)
            scraped.append(at)
        elif step == "report":
            job.report(at, tokens=number)
            sent[at] = number
        elif step == "late":
            job.report(at - 100_000, tokens=number)
            sent[at - 100_000] = number
        elif step == "again":
            for own, value in sent.items():
                job.report(own, tokens=value)
        elif step == "drain":
            job.drain(at)
        elif step == "crash":  # after writing, before deleting
            kept = cast("list[Entry]", redis_client.xrange(KEYS.inbox))
            job.drain(at)
            redis_client.delete(KEYS.inbox)
            for id, flat in kept:
                redis_client.xadd(KEYS.inbox, dict(flat.items()), id=id)
            job.restart()
    for later in (10_000, 60_000, 120_000):
        job.drain(at + later)
    stored = job.reports()
    assert len(set(stored)) == len(stored)
    assert [own for own, _ in stored] == sorted(own for own, _ in stored)
    told = job.told(at + 500_000)
    missing = {own: value for own, value in sent.items() if (own, value) not in stored}
    assert set(stored) <= {(own, float(value)) for own, value in sent.items()}
    assert bool(missing) <= ("went_back" in told)
    assert job.scrapes() == scraped
