"""Servers of vLLM on other hosts, which ssh starts, feeds and ends."""
