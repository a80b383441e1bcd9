"""The demonstration: recordings, a made-up fleet, and receivers on this machine."""
