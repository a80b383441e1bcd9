"""How well changes are found, against peers: ``python -m benchmarks.detection``."""
