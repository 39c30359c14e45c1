"""Prefect's flows over the stages."""

import posttrain as posttrain  # ends with one line where packages are missing
