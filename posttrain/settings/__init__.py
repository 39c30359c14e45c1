"""Typed settings: checked values, choices out of tables, and the user's own code by import path."""
