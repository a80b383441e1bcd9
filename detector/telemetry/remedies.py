"""What mends which trouble of collection, for each type of source: a command or a setting."""

from collections.abc import Mapping
from typing import Literal

from detector.analysis.quality import Quality

Kind = Literal["exporter", "prometheus", "dcgm", "nvml"]

# Counter -> its row in dcgm-exporter's list, its DCGM field, and what it is for.
ROWS: Mapping[str, tuple[str, int, str]] = {
    "tensor_active": ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 1004, "OFU"),
    "sm_clock_mhz": ("DCGM_FI_DEV_SM_CLOCK", 100, "OFU"),
    "max_sm_clock_mhz": ("DCGM_FI_DEV_MAX_SM_CLOCK", 113, "OFU"),
    "gr_engine_active": ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1001, "counters stuck at zero"),
    "gpu_util_pct": ("DCGM_FI_DEV_GPU_UTIL", 203, "counters stuck at zero"),
    "sm_active": ("DCGM_FI_PROF_SM_ACTIVE", 1002, "whether it is the host that stalls"),
    "dram_active": ("DCGM_FI_PROF_DRAM_ACTIVE", 1005, "work that waits for memory"),
    "power_w": ("DCGM_FI_DEV_POWER_USAGE", 155, "a power limit"),
    "pcie_rx_bytes": ("DCGM_FI_PROF_PCIE_RX_BYTES", 1010, "starved data loaders"),
    "nvlink_rx_bytes": ("DCGM_FI_PROF_NVLINK_RX_BYTES", 1012, "stalled communication"),
    "clock_event_bits": ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 112, "why a clock is slow"),
}
# Rows whose name is another one before DCGM 4: the list has both, commented out.
_RENAMED: Mapping[str, str] = {
    "clock_event_bits": "DCGM_FI_DEV_CLOCKS_EVENT_REASONS (before DCGM 4 instead of it "
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS: an exporter does not start with the other's name)",
}
NEEDED = ("tensor_active", "sm_clock_mhz")
WISHED = tuple(name for name in ROWS if name not in (*NEEDED, "max_sm_clock_mhz"))

_LIST = "deploy/dcgm-exporter-counters.csv"
_MODULE = (
    "install the profiling module (datacenter-gpu-manager-4-proprietary; DCGM 3 has it in "
    "datacenter-gpu-manager), then systemctl restart nvidia-dcgm; Hopper and later need none: "
    'type = "nvml"'
)
_RESTART: Mapping[Kind, str] = {
    "exporter": "systemctl restart nvidia-dcgm dcgm-exporter, those of them that the host has "
    "(in Kubernetes: delete the exporter's pod)",
    "prometheus": "systemctl restart nvidia-dcgm dcgm-exporter on the host, those of them that "
    "it has (in Kubernetes: delete the exporter's pod)",
    "dcgm": "systemctl restart nvidia-dcgm",
    "nvml": "nvidia-smi --gpu-reset once the GPU is idle, or reboot the node",
}


def export(kind: Kind, counters: tuple[str, ...]) -> str:
    """Return how counters come out of a source that has none of them."""
    rows = ", ".join(_RENAMED.get(name, ROWS[name][0]) for name in counters)
    fields = ",".join(str(ROWS[name][1]) for name in counters)
    match kind:
        case "exporter":
            return f"add to the exporter's list (-f FILE) the rows of {_LIST}: {rows}"
        case "prometheus":
            return (
                f"add to the exporters' list (-f FILE) the rows of {_LIST}: {rows}; if "
                "`ofuwatch collect --once` finds them on an exporter itself, let Prometheus "
                "keep them (metric_relabel_configs)"
            )
        case "dcgm":
            return (
                f"dcgmi dmon -e {fields} -c 3 on the node: what shows N/A there, this GPU or "
                "DCGM does not have"
            )
        case "nvml":
            return (
                "nvidia-smi -q on the node: what shows N/A there, this GPU or driver does not "
                'have; where DCGM has it, use type = "dcgm"'
            )


def profile(kind: Kind) -> str:
    """Return what to do where there is no profiling counter at all."""
    match kind:
        case "nvml":
            return 'before Hopper the driver has none: use type = "dcgm" on this node'
        case "dcgm":
            return f"dcgmi profile --list -i 0; if that does not list 1004, {_MODULE}"
        case "exporter" | "prometheus":
            return (
                "dcgmi profile --list -i 0 on the host; if that lists 1004, give the exporter "
                f"the list {_LIST} (-f FILE); if not, {_MODULE}"
            )


def blank(kind: Kind, counter: str) -> str:
    """Return what to do where a counter has a value on some GPUs alone."""
    if kind == "nvml":
        return (
            "`ofuwatch collect --once` says of each GPU why; if the driver's answer stays so, "
            f"{_RESTART[kind]}"
        )
    field = ROWS[counter][1]
    paused = "dcgmi profile --resume in case somebody paused it, else " if field > 1000 else ""
    return (
        f"the counter is there, its value is none: dcgmi dmon -e {field} -c 3 on the host; if "
        f"that shows N/A too, {paused}{_RESTART[kind]}"
    )


def naming(kind: Kind) -> str:
    """Return how GPUs at work come by a job."""
    own = {
        "exporter": "Slurm: start the exporter with --hpc-job-mapping-dir, or ",
        "prometheus": "Slurm: start the exporters with --hpc-job-mapping-dir, or ",
        "dcgm": "Slurm: hpc_directory under [collect], or ",
        "nvml": "Slurm: hpc_directory under [collect], or ",
    }[kind]
    slurm = 'via = "squeue" under [slurm]; Kubernetes: '
    if kind in ("exporter", "prometheus"):
        return (
            f"{own}{slurm}DCGM_EXPORTER_KUBERNETES=true, or url under [kubernetes]; a label of "
            "your own: job_label under [collect]"
        )
    return f"{own}{slurm}url under [kubernetes]"


def pace(kind: Kind) -> str:
    """Return how values come as often as they are asked for."""
    match kind:
        case "exporter":
            return (
                "start the exporter with --collect-interval 10000 (its default is 30000 ms), "
                "or raise interval under [collect]"
            )
        case "prometheus":
            return (
                "lower scrape_interval of Prometheus and --collect-interval of the exporters "
                "to 10 s, or raise interval under [collect]"
            )
        case "dcgm" | "nvml":
            return "make interval of the source and interval under [collect] the same"


def bad(kind: Kind, quality: Quality) -> str:
    """Return what mends what makes readings bad."""
    match quality:
        case "stale" | "frozen":
            return _RESTART[kind]
        case "zero_mismatch":
            return f"{_RESTART[kind]}; dmesg | grep Xid tells whether an Xid 31 was the cause"
        case "blank" if kind == "nvml":
            return "dmesg | grep -e Xid -e NVRM on the node, then reboot it"
        case "blank":
            return f"dcgmi profile --resume, in case somebody paused it; else {_RESTART[kind]}"
        case _:
            return _BAD[quality]


_BAD: Mapping[Quality, str] = {
    "unreachable": "see whether the host is up, and its exporter or agent",
    "contention": "end the other profiler (Nsight, ncu) on the host; the counters come back by "
    "themselves",
    "clock_source_changed": "name the maximal clock once: max_clock_mhz under [collect]",
    "out_of_bounds": "the maximal clock is wrong: nvidia-smi -q -d CLOCK tells it, "
    "max_clock_mhz under [collect] sets it",
    "handover": "nothing to mend: the next reading counts for the new job",
}

# How errors of targets begin, and what to do on or about the host.
UNANSWERED: Mapping[str, str] = {
    "connection refused": "start it there: systemctl start dcgm-exporter (in Kubernetes: "
    "kubectl get pods -A -l app=nvidia-dcgm-exporter); its port is 9400, or what -a says",
    "no answer within": "curl -m 30 -sS TARGET shows how long it takes; raise timeout of the "
    "source if it answers, restart the exporter if it does not",
    "there is no": "name a host that DNS knows (getent hosts NAME), or its address",
    "an empty page": "nvidia-smi -L on the host; if it lists GPUs, restart the exporter",
    "no counter of a GPU": "point the target at dcgm-exporter's own port, 9400; if that is it, "
    f"its list of counters (-f FILE) has none of GPUs: {_LIST}",
}
