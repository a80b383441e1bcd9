"""Redis and files: histories, state, incidents and the outbox. The only home of `redis`."""
