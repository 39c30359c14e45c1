"""Readers for `external.rollouts`: rollouts that TRL and prime-rl sampled."""
