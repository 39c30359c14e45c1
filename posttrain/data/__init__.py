"""Rows: kinds of tables, their columns, ids, splits, turns and layouts."""
