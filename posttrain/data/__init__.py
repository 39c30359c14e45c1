"""Data rows: kinds of tables, columns, ids, splits, turns and layouts."""
