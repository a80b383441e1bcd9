"""Incidents: what people and machines are told, and the life of it. Pure."""
