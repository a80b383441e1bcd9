"""Pure analysis: from samples to findings. No Redis, HTTP, clock, logging or randomness."""
