"""Rollouts that TRL and prime-rl sampled: readers of `external.rollouts`."""
