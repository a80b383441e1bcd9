"""How bounds are set: quiet jobs, their false alarms, the setting that keeps a rate."""
