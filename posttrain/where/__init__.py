"""Where a row of data is: every copy of it that the workspace, DVC's cache and git hold, and the runs that read it."""
