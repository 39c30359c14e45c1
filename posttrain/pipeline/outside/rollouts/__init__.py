"""Rollouts that other libraries sampled, as tables of training rollouts. Each format has a file."""
