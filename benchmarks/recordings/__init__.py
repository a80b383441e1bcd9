"""Real recordings, as they are and slightly disturbed: is the detector robust or fitted."""
