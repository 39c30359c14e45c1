"""Rollouts that others sampled, as tables of training rollouts: a file per format."""
