"""However reads, rolls, failures and restarts follow each other, each entry is met once."""

import numpy as np
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detector.series import Duration
from detector.store.history import History, HistorySettings
from detector.store.keys import Keys

START = 1_764_000_000_000
MINUTE = 60_000
KEYS = Keys()
JOBS = ("a", "b")

steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("write"),
            st.sampled_from(JOBS),
            st.sampled_from([1, 10_000, 10_000, MINUTE, 30 * MINUTE, 100 * MINUTE]),
        ),
        st.tuples(
            st.sampled_from(["read", "read", "lost", "roll", "roll_some", "restart"]),
            st.just(""),
            st.just(0),
        ),
    ),
    max_size=40,
)


class Reader:
    """Reads as a tick does, keeping cursors and what it was given."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.cursors: dict[str, int] = {}
        self.seen: dict[str, list[int]] = {job: [] for job in JOBS}
        self.restart()

    def restart(self) -> None:
        """Begin with nothing but the cursors."""
        day = Duration.parse("1d")
        self.history = History(self.client, KEYS, HistorySettings(slice=16, first_look=day))

    def read(self, now_ms: int, *, taken: bool = True) -> bool:
        """Read once; return whether there is more."""
        batch = self.history.increments(self.cursors, now_ms=now_ms)
        if taken:
            for at, time in zip(batch.job.tolist(), batch.times_ms.tolist(), strict=True):
                self.seen[batch.jobs[at]].append(time)
            last = np.flatnonzero(np.diff(batch.job, append=-1))
            self.cursors.update(zip(batch.jobs, batch.times_ms[last].tolist(), strict=True))
        return batch.more


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(steps)
def test_each_entry_is_read_once_and_in_order(
    redis_client: redis.Redis, plan: list[tuple[str, str, int]]
) -> None:
    redis_client.flushall()
    writer = History(redis_client, KEYS, HistorySettings())
    reader = Reader(redis_client)
    written: dict[str, list[int]] = {job: [] for job in JOBS}
    now = START
    for step, job, length in plan:
        match step:
            case "write":
                now += length
                assert writer.write(job, time_ms=now, ofu=0.5)
                written[job].append(now)
            case "read" | "lost":
                reader.read(now, taken=step == "read")
            case "roll":
                reader.history.roll(reader.history.jobs(), now_ms=now)
            case "roll_some":
                reader.history.roll_some(now)
            case _:
                reader.restart()
    now += MINUTE
    while reader.read(now):
        pass
    assert reader.seen == {
        job: [
            time for time in times if time >= now - 24 * 60 * MINUTE or time in reader.seen[job]
        ]
        for job, times in written.items()
    }
