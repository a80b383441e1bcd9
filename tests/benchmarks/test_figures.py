from pathlib import Path

import hiredis
import pytest

from benchmarks.fleet import CADENCE_MS, CHUNK_ROWS, START_MS, Fleet
from benchmarks.report import write
from detector.store.chunks import CHUNK_MS, unpack
from detector.store.keys import Keys

TICKS = 3 * CHUNK_ROWS


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return Fleet(jobs=30, ticks=TICKS, live=CHUNK_ROWS)


def streamed(fleet: Fleet, tick: int) -> dict[str, tuple[int, float]]:
    """Key of each stream -> time and OFU of the entry that it gets at ``tick``."""
    commands, count = fleet.entries(tick)
    reader = hiredis.Reader()
    reader.feed(commands)
    parsed = [reader.gets() for _ in range(count)]
    assert reader.gets() is False
    return {
        key.decode(): (int(entry.partition(b"-")[0]), float(rest[rest.index(b"v") + 1]))
        for _, key, entry, *rest in parsed
    }


def told(hashed: dict[str, bytes]) -> dict[int, float]:
    """Time -> OFU of all entries in a job's chunks."""
    stretches = [unpack(blob, int(name) * 1000) for name, blob in hashed.items()]
    return {
        time_ms: ofu
        for stretch in stretches
        for time_ms, ofu in zip(
            stretch.times_ms.tolist(), stretch.fields["ofu"].tolist(), strict=True
        )
    }


def test_a_job_tells_the_same_in_its_stream_and_in_its_chunks(fleet: Fleet) -> None:
    jobs = [member.id for member in fleet.members]
    packed = {
        job: told(hashed)
        for job, (_, hashed) in zip(jobs, fleet.packed(until=TICKS), strict=True)
    }
    entries = 0
    for tick in range(TICKS):
        for key, (time_ms, ofu) in streamed(fleet, tick).items():
            job = Keys().job_of(key)
            assert job is not None
            assert packed[job].pop(time_ms) == pytest.approx(ofu, abs=1e-5)
            entries += 1
    assert entries > 0.9 * 30 * TICKS
    assert all(not left for left in packed.values())


def test_the_entries_of_a_tick_lie_in_it(fleet: Fleet) -> None:
    for tick in (0, CHUNK_ROWS - 1, TICKS - 1):
        start_ms = START_MS + tick * CADENCE_MS
        for time_ms, _ in streamed(fleet, tick).values():
            assert start_ms <= time_ms < start_ms + CADENCE_MS


def test_a_fleet_begins_with_a_chunk() -> None:
    assert START_MS % CHUNK_MS == 0


def test_a_measured_table_replaces_the_last_one_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- measured: a -->\nold\n<!-- end -->\nafter\n<!-- end -->\n")
    write("a", [("what", "1 s", "below 2 s")], command="make bench", page=page)
    text = page.read_text()
    assert text.startswith("before\n<!-- measured: a -->\n| what | measured | goal |")
    assert "| what | 1 s | below 2 s |" in text
    assert "old" not in text
    assert text.endswith("<!-- end -->\nafter\n<!-- end -->\n")


def test_a_page_without_the_section_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing here")
    with pytest.raises(ValueError, match="measured: a"):
        write("a", [], command="make bench", page=page)
