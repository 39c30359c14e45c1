"""Typed settings: checked values, choices from tables, and the user's code by import path."""
