"""Trains a finished run again on its stored rollouts. `stages` sets the CPU instructions before torch is imported."""

import stages  # noqa: F401
