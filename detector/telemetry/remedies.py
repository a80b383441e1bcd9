"""What mends which trouble of collection: the command or the setting."""

from collections.abc import Mapping

from detector.analysis.quality import Quality

# Counter -> its row in dcgm-exporter's list, and what is not told without it.
WISHED: Mapping[str, tuple[str, str]] = {
    "gr_engine_active": ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "counters stuck at zero"),
    "gpu_util_pct": ("DCGM_FI_DEV_GPU_UTIL", "counters stuck at zero"),
    "sm_active": ("DCGM_FI_PROF_SM_ACTIVE", "a stall on the host from one in communication"),
    "dram_active": ("DCGM_FI_PROF_DRAM_ACTIVE", "work that waits for memory"),
    "power_w": ("DCGM_FI_DEV_POWER_USAGE", "a power limit"),
    "pcie_rx_bytes": ("DCGM_FI_PROF_PCIE_RX_BYTES", "starved data loaders"),
    "nvlink_rx_bytes": ("DCGM_FI_PROF_NVLINK_RX_BYTES", "stalled communication"),
    "clock_event_bits": ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "why a clock is slow"),
}

PROFILE = (
    "dcgmi profile --list -i 0 on the host; if that lists 1004, give the exporter "
    "deploy/dcgm-exporter-counters.csv (-f FILE); if not, install "
    "datacenter-gpu-manager-4-proprietary and restart nvidia-dcgm"
)

BAD: Mapping[Quality, str] = {
    "stale": "restart the host engine or exporter there: systemctl restart nvidia-dcgm",
    "frozen": "restart the host engine or exporter there: systemctl restart nvidia-dcgm",
    "blank": "see the exporter's log for what it could not read; then restart it",
    "zero_mismatch": "systemctl restart nvidia-dcgm (in Kubernetes: delete the exporter's "
    "pod); an Xid 31 before it is the usual cause: dmesg | grep Xid",
    "contention": "end the other profiler (Nsight, ncu) on the host; "
    "the counters come back by themselves",
    "clock_source_changed": "name the maximal clock once: max_clock_mhz under [collect]",
    "out_of_bounds": "the maximal clock is wrong: name the right one with max_clock_mhz "
    "under [collect]; nvidia-smi -q -d CLOCK tells it",
    "handover": "nothing to mend: the next reading counts for the new job",
}

FAILING: Mapping[str, str] = {
    "no_profiling": "install the profiling module (datacenter-gpu-manager-4-proprietary), then "
    'systemctl restart nvidia-dcgm; Hopper and later need none: use type = "nvml"',
    "contention": BAD["contention"],
    "paused": "dcgmi profile --resume",
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
    "its list of counters (-f FILE) has none of GPUs: deploy/dcgm-exporter-counters.csv",
}
