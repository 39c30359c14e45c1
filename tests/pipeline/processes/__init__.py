"""Runs that several processes share."""
