"""Run untrusted programs, isolated by the Linux kernel and judged by another process (docs/rewards.md)."""
