"""Pages as exporters, Prometheus and accidents write them."""

import pytest

from detector.reading import Reading
from detector.telemetry.exposition import Page, parse
from detector.telemetry.layout import MOST_DROPPED

CLOCK, TENSOR, UTIL = (
    "DCGM_FI_DEV_SM_CLOCK",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "DCGM_FI_DEV_GPU_UTIL",
)


def read(*lines: str, end: str = "\n", host: str = "") -> Page:
    return parse("".join(line + end for line in lines).encode(), time_ms=5, host=host)


def only(page: Page) -> Reading:
    (reading,) = page.readings
    return reading


@pytest.mark.parametrize(
    "line",
    [
        '{name}{{gpu="0",UUID="GPU-1"}} 1755',
        '{name}{{gpu="0", UUID="GPU-1"}} 1755',
        '{name}{{ gpu = "0" , uuid = "GPU-1" , }} 1755',
        '{name} {{gpu="0",UUID="GPU-1"}}\t1755',
        '  {name}{{gpu="0",UUID="GPU-1"}} 1755  ',
        '{name}{{gpu="0",UUID="GPU-1"}}1755',
        '{name}{{gpu="0",gpu_uuid="GPU-1"}} 1.755e3',
        '{name}{{gpu="0",UUID="GPU-1"}} +1755.0',
        '{name}{{UUID="GPU-1",pod="a \\"quoted\\" \\\\ name, with }} and {{",gpu="0"}} 1755',
        '{name}_total{{gpu="0",UUID="GPU-1"}} 1755',
        '{name}{{gpu="0",UUID="GPU-1"}} 1755 # {{trace_id="a"}} 1.0 1700000000.5',
    ],
)
@pytest.mark.parametrize("name", [CLOCK, "dcgm_sm_clock", "dcgm_fi_dev_sm_clock"])
def test_a_clock_is_read_whatever_the_spelling(line: str, name: str) -> None:
    page = read(line.format(name=name))
    assert page.dropped == ()
    assert (only(page).uuid, only(page).index) == ("GPU-1", "0")
    assert only(page).values == {"sm_clock_mhz": 1755.0}


@pytest.mark.parametrize("old", ["Hostname", "hostname", "HOSTNAME"])
def test_the_host_is_read_in_both_spellings_and_asked_for_where_none_is(old: str) -> None:
    said = read(f'{CLOCK}{{gpu="0",UUID="GPU-1",{old}="n1"}} 1755', host="target")
    silent = read(f'{CLOCK}{{gpu="0",UUID="GPU-1"}} 1755', host="target")
    assert (only(said).host, only(silent).host) == ("n1", "target")


def test_the_names_of_three_generations_may_stand_on_one_page() -> None:
    gpu = '{gpu="0",UUID="GPU-1"}'
    page = read(
        f"DCGM_FI_DEV_SM_CLOCK_HERTZ{gpu} 1837500000",
        f"DCGM_FI_DEV_MAX_SM_CLOCK{gpu} 1965",
        f"DCGM_FI_PROF_TENSOR_UTIL_RATIO{gpu} 0.5",
        f"DCGM_FI_DEV_GPU_UTIL_RATIO{gpu} 97",
        f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu} 5000",
        f"dcgm_power_usage{gpu} 600.5",
    )
    assert only(page).values == {
        "sm_clock_mhz": 1837.5,
        "max_sm_clock_mhz": 1965.0,
        "tensor_active": 0.5,
        "gpu_util_pct": 97.0,
        "energy_j": 5.0,
        "power_w": 600.5,
    }


def test_one_counter_under_two_names_is_read_once_and_nobody_is_told() -> None:
    gpu = '{gpu="0",UUID="GPU-1"}'
    page = read(f"DCGM_FI_DEV_SM_CLOCK{gpu} 1755", f"DCGM_FI_DEV_SM_CLOCK_HERTZ{gpu} 1e9")
    assert only(page).values == {"sm_clock_mhz": 1755.0}
    assert page.dropped == ()


def test_a_blank_under_one_name_leaves_the_value_under_the_other() -> None:
    gpu = '{gpu="0",UUID="GPU-1"}'
    page = read(
        f"DCGM_FI_DEV_SM_CLOCK{gpu} 9223372036854775792",
        f"DCGM_FI_DEV_SM_CLOCK_HERTZ{gpu} 1755000000",
    )
    assert only(page).values == {"sm_clock_mhz": 1755.0}
    assert [line.line for line in page.dropped] == [1]


def test_labels_of_the_first_namespace_mean_the_workload_beside_those_of_the_exporter() -> None:
    page = read(
        f'{CLOCK}{{gpu="0",UUID="GPU-1",pod="exporter-x",namespace="monitoring",'
        'pod_name="train-0",pod_namespace="ml",container_name="main"}} 1755'.replace("}}", "}")
    )
    assert only(page).labels == {"pod": "train-0", "namespace": "ml", "container": "main"}


def test_labels_are_kept_as_they_are_but_for_those_that_say_nothing() -> None:
    page = read(
        f'{CLOCK}{{gpu="0",UUID="GPU-1",modelName="NVIDIA H100",exported_pod="p",pod="",'
        'DCGM_FI_DRIVER_VERSION="580",label_team="a",HPC_JOB="7"} 1755'
    )
    assert only(page).model == "NVIDIA H100"
    assert only(page).labels == {
        "exported_pod": "p",
        "DCGM_FI_DRIVER_VERSION": "580",
        "label_team": "a",
        "hpc_job": "7",
    }


def test_a_name_of_a_label_may_stand_in_quotes() -> None:
    page = read(f'{CLOCK}{{gpu="0",UUID="GPU-1","ray.io/cluster"="r","pod"="p"}} 1755')
    assert only(page).labels == {"ray.io/cluster": "r", "pod": "p"}


def test_what_the_last_xid_was_is_no_other_job() -> None:
    page = read(
        f'{CLOCK}{{gpu="0",UUID="GPU-1",hpc_job="7"}} 1755',
        'DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-1",hpc_job="7",err_code="43",'
        'err_msg="GPU stopped processing"} 43',
    )
    assert only(page).labels == {"hpc_job": "7"}
    assert only(page).sharing == ()


def test_a_counter_without_job_labels_takes_no_job_from_its_gpu() -> None:
    page = read(
        f'{UTIL}{{gpu="0",UUID="GPU-1"}} 90',
        f'{CLOCK}{{gpu="0",UUID="GPU-1",pod="p",namespace="n"}} 1755',
    )
    assert only(page).labels == {"pod": "p", "namespace": "n"}
    assert only(page).sharing == ()


def test_a_gpu_that_three_jobs_share_is_one_reading_with_all_three() -> None:
    page = read(*(f'{CLOCK}{{gpu="0",UUID="GPU-1",hpc_job="{j}"}} 1755' for j in (7, 8, 9)))
    assert [only(page).labels, *only(page).sharing] == [
        {"hpc_job": "7"},
        {"hpc_job": "8"},
        {"hpc_job": "9"},
    ]
    assert [line.line for line in page.dropped] == [2, 3]


def test_a_series_that_comes_twice_counts_once() -> None:
    line = f'{CLOCK}{{gpu="0",UUID="GPU-1"}}'
    page = read(f"{line} 1755", f"{line} 1200")
    assert only(page).values == {"sm_clock_mhz": 1755.0}
    assert [(d.line, d.raw) for d in page.dropped] == [(2, "1200")]


def test_instances_of_one_gpu_are_readings_of_their_own_and_so_is_the_whole() -> None:
    page = read(
        f'{TENSOR}{{gpu="0",UUID="GPU-1",GPU_I_PROFILE="3g.40gb",GPU_I_ID="0"}} 0.25',
        f'{TENSOR}{{gpu="0",UUID="GPU-1",GPU_I_PROFILE="3g.40gb",GPU_I_ID="1"}} 0.5',
        f'{CLOCK}{{gpu="0",UUID="GPU-1"}} 1755',
    )
    assert [reading.entity for reading in page.readings] == ["GPU-1/0", "GPU-1/1", "GPU-1"]


def test_an_instance_takes_from_its_gpu_what_only_the_whole_has_and_never_its_power() -> None:
    lines = [
        f'{TENSOR}{{gpu="0",UUID="GPU-1",GPU_I_PROFILE="3g.40gb",GPU_I_ID="1"}} 0.25',
        f'{CLOCK}{{gpu="0",UUID="GPU-1",GPU_I_PROFILE="3g.40gb",GPU_I_ID="2"}} 1500',
        f'{TENSOR}{{gpu="0",UUID="GPU-1"}} 0.75',
        f'{CLOCK}{{gpu="0",UUID="GPU-1"}} 1755',
        'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-1"} 600',
    ]
    for page in (read(*lines), read(*lines, f'{CLOCK}{{gpu="1",UUID="GPU-2"}} NaN')):
        values = {one.entity: one.values for one in page.readings}
        assert values["GPU-1/1"] == {"tensor_active": 0.25, "sm_clock_mhz": 1755.0}
        assert values["GPU-1/2"] == {"sm_clock_mhz": 1500.0}
        assert values["GPU-1"]["tensor_active"] == 0.75


@pytest.mark.parametrize(
    "line",
    [
        'DCGM_FI_DEV_GPU_TEMP{nvswitch="0",hostname="n"} 40',
        'DCGM_FI_DEV_GPU_TEMP{nvlink="3",gpu="0",gpu_uuid="GPU-1"} 40',
        'DCGM_FI_DEV_POWER_USAGE{cpu="0",hostname="n"} 100',
        'DCGM_FI_DEV_POWER_USAGE{cpucore="3",cpu="0"} 100',
        'DCGM_EXP_XID_ERRORS_COUNT{gpu="0",UUID="GPU-1",window_size_in_ms="300000"} 1',
        'DCGM_EXP_CLOCK_EVENTS_COUNT{gpu="0",UUID="GPU-1",clock_event="gpu_idle"} 1',
        'DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-1"} 9223372036854775794',
        'DCGM_FI_DEV_SM_CLOCK{gpu="0"} 1755',
        "DCGM_FI_DEV_SM_CLOCK 1755",
        'go_gc_duration_seconds{quantile="0"} 3.3e-05',
        "process_open_fds 12",
        'up{instance="a"} NaN',
        "# a comment",
        "#",
        "",
        "   ",
    ],
)
def test_what_is_of_no_gpu_or_not_used_is_left_out_silently(line: str) -> None:
    page = read(line)
    assert (page.readings, page.dropped) == ((), ())


@pytest.mark.parametrize("time", ["1700000000123", "1700000000.123", "1.700000000123e9"])
def test_a_time_on_the_line_is_the_readings_own_in_milliseconds_or_seconds(time: str) -> None:
    reading = only(read(f'{CLOCK}{{gpu="0",UUID="GPU-1"}} 1755 {time}'))
    assert (reading.time_ms, reading.own_clock) == (1_700_000_000_123, True)


def test_without_a_time_on_the_line_the_time_of_asking_holds() -> None:
    reading = only(read(f'{CLOCK}{{gpu="0",UUID="GPU-1"}} 1755'))
    assert (reading.time_ms, reading.own_clock) == (5, False)


def test_of_a_series_with_two_times_the_newer_value_counts() -> None:
    line = f'{CLOCK}{{gpu="0",UUID="GPU-1"}}'
    page = read(f"{line} 1200 1700000000000", f"{line} 1755 1700000001000")
    assert only(page).values == {"sm_clock_mhz": 1755.0}
    assert [d.line for d in page.dropped] == [1]


def test_a_value_much_older_than_its_gpus_newest_is_dropped() -> None:
    gpu = '{gpu="0",UUID="GPU-1"}'
    page = read(f"{TENSOR}{gpu} 0.5 1700000000000", f"{CLOCK}{gpu} 1755 1700000090000")
    assert set(only(page).values) == {"sm_clock_mhz"}
    assert page.dropped[0].reason == "90 s older than its GPU's newest"


GOOD = f'{CLOCK}{{gpu="1",UUID="GPU-2"}} 1755'


@pytest.mark.parametrize(
    "broken",
    [
        "this line is not exposition text",
        f'{CLOCK}{{gpu="0",UUID="GPU-1" 1755',
        f'{CLOCK}{{gpu="0",UUID="GPU-1}} 1755',
        f'{CLOCK}{{gpu="0",UUID=GPU-1}} 1755',
        f'{CLOCK}{{gpu="0",UUID="GPU-1"}}',
        f'{CLOCK}{{gpu="0",UUID="GPU-1"}} ERROR - FAILED TO CONVERT TO STRING',
        f'{CLOCK}{{gpu="0",UUID="GPU-1"}} 1_755',
        f'{CLOCK}{{gpu="0",UUID="GPU-1"}} ١٧٥٥',
        f'{CLOCK}{{gpu="0",UUID="GPU-1"}} 0x6DB',
        f'{CLOCK}{{gpu="0",UUID="GPU-1"}} 17\x0055',
        f'{CLOCK}{{gpu="0",UUID="GPU-1"}} NaN',
        f'{CLOCK}{{gpu="0",UUID="GPU-1"}} +Inf',
        f'{CLOCK}{{gpu="0",UUID="GPU-1"}} <<<NULL>>>',
        f'{CLOCK}{{gpu="0",UUID="GPU-1"}} 1755,1755',
        f'{CLOCK}{{gpu="0",UUID="GPU-1"}} 1755],[1',
        f'{CLOCK}{{gpu="0",UUID="GPU-1"}} 1755 then something else',
        "\x00\x00\x00",
        "}{",
        "x" * 10_000_000,
        f'{CLOCK}{{a="' + "x" * 10_000_000,
        f'{CLOCK}{{gpu="0",UUID="GPU-1"}} ' + "9" * 10_000_000,
    ],
    ids=lambda line: line[:40].replace("\x00", "0"),
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_broken_line_is_told_with_its_number_and_costs_nothing_else(
    broken: str, end: str
) -> None:
    page = read("# TYPE a gauge", broken, GOOD, end=end)
    assert [line.line for line in page.dropped] == [2]
    assert len(page.dropped[0].raw) <= 60
    assert {r.uuid: r.values for r in page.readings if r.values} == {
        "GPU-2": {"sm_clock_mhz": 1755.0}
    }
    again = parse(f"# TYPE a gauge{end}{broken}{end}{GOOD}{end}".encode(),
                  time_ms=5, layout=page.layout)  # fmt: skip
    assert (again.readings, again.dropped) == (page.readings, page.dropped)


def test_a_gpu_of_which_only_blanks_came_is_a_reading_without_values() -> None:
    assert only(read(f'{CLOCK}{{gpu="0",UUID="GPU-1"}} 9223372036854775792')).values == {}


@pytest.mark.parametrize("cut", range(1, len(GOOD)))
def test_a_page_cut_off_in_its_last_line_gives_no_part_of_that_line(cut: int) -> None:
    before = f'{TENSOR}{{gpu="1",UUID="GPU-2"}} 0.5\n'
    page = parse((before + GOOD[:cut]).encode(), time_ms=5)
    assert only(page).values == {"tensor_active": 0.5}
    assert [line.line for line in page.dropped] == [2]
    assert page.layout is None


def test_a_last_line_whose_value_is_seen_to_be_whole_needs_no_line_feed() -> None:
    page = parse(f'{TENSOR}{{gpu="1",UUID="GPU-2"}} 0.512345'.encode(), time_ms=5)
    assert only(page).values == {"tensor_active": 0.512345}


def test_an_openmetrics_page_ends_with_its_mark() -> None:
    page = read(GOOD, "# EOF")
    unended = parse(f"{GOOD}\n# EOF".encode(), time_ms=5)
    assert only(page).values == only(unended).values == {"sm_clock_mhz": 1755.0}
    assert page.dropped == unended.dropped == ()


def test_a_byte_order_mark_belongs_to_no_line() -> None:
    assert only(parse(b"\xef\xbb\xbf" + GOOD.encode() + b"\n", time_ms=5)).uuid == "GPU-2"


def test_labels_of_other_scripts_survive_and_bytes_of_none_do_no_harm() -> None:
    line = f'{CLOCK}{{gpu="0",UUID="GPU-1",hpc_job="é-\udcff"}} 1755\n'
    page = parse(line.encode(errors="surrogateescape"), time_ms=5)
    assert only(page).labels == {"hpc_job": "é-\ufffd"}
    assert only(page).values == {"sm_clock_mhz": 1755.0}


@pytest.mark.parametrize("page", [b"", b"\n", b"\r\n\r\n", b"\x00" * 1000, b"\xff\xfe" * 9])
def test_a_page_of_nothing_has_no_readings(page: bytes) -> None:
    assert parse(page, time_ms=5).readings == ()


def test_a_page_of_garbage_is_told_of_up_to_a_bound() -> None:
    page = parse(b"garbage {\n" * 5_000, time_ms=5)
    assert len(page.dropped) == MOST_DROPPED + 1
    assert page.dropped[-1].reason == "4000 more lines could not be read"


AMD = (
    'gpu_id="0",serial_number="69224",card_model="AMD Instinct MI300X",hostname="amd-1",'
    'gpu_partition_id="0",gpu_compute_partition_type="spx",job_id="77",job_user="u"'
)


@pytest.mark.parametrize("kind", ["{}", "GPU_CLOCK_TYPE_{}"])
@pytest.mark.parametrize("prefix", ["", "amd_"])
def test_counters_of_rocms_exporter_are_mapped_to_the_same_catalogue(
    prefix: str, kind: str
) -> None:
    system, memory = (kind.format(name if kind == "{}" else name.upper())
                      for name in ("system", "memory"))  # fmt: skip
    page = read(
        f"{prefix}gpu_prof_tensor_active_percent{{{AMD}}} 42.5",
        f'{prefix}gpu_clock{{{AMD},clock_index="0",clock_type="{system}"}} 2000',
        f'{prefix}gpu_clock{{{AMD},clock_index="1",clock_type="{system}"}} 2100',
        f'{prefix}gpu_clock{{{AMD},clock_index="8",clock_type="{memory}"}} 900',
        f'{prefix}gpu_max_clock{{{AMD},clock_index="0",clock_type="{system}"}} 2100',
        f"{prefix}gpu_gfx_activity{{{AMD}}} 99",
        f"{prefix}gpu_power_usage{{{AMD}}} 700",
        f"{prefix}gpu_memory_temperature{{{AMD}}} 4294967295",
    )
    reading = only(page)
    assert (reading.uuid, reading.host, reading.index) == ("69224", "amd-1", "0")
    assert reading.model == "AMD Instinct MI300X"
    assert reading.labels["job_id"] == "77"
    assert reading.values == {
        "tensor_active": 0.425,
        "sm_clock_mhz": 2050.0,
        "max_sm_clock_mhz": 2100.0,
        "gpu_util_pct": 99.0,
        "power_w": 700.0,
    }
    assert [line.line for line in page.dropped] == [8]


def test_partitions_of_an_amd_gpu_are_instances() -> None:
    labels = 'gpu_uuid="U",gpu_id="9",gpu_partition_id="3",gpu_compute_partition_type="cpx"'
    reading = only(read(f"gpu_prof_tensor_active_percent{{{labels}}} 10"))
    assert (reading.entity, reading.profile) == ("U/3", "cpx")


def test_plain_names_of_other_exporters_are_not_taken_for_amds() -> None:
    assert read('gpu_power_usage{gpu_id="0",uuid="GPU-1"} 100').readings == ()
