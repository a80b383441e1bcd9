"""HTTP: what jobs report about themselves comes in here."""
