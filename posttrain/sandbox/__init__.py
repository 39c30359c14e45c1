"""Runs programs that nobody has read: isolated by the Linux kernel, judged by another process (docs/rewards.md)."""
