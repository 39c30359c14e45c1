"""Inspect AI: its logs, written by `posttrain show inspect` and read by `external.rollouts`."""
