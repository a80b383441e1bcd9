"""Sources of counters: exporters, Prometheus, DCGM, the driver; and who runs where."""
