"""Prefect's flows over the stages."""

from posttrain.extras import PIPELINE, need_or_exit

need_or_exit(PIPELINE)
