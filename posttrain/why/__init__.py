"""Where a figure comes from: its rows, weights, settings, code and sources; and which figures a source row touched."""
