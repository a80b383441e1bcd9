"""Delivery: from the durable outbox to people and machines."""
