"""Prefect's flows over the stages."""

from posttrain.extras import PIPELINE, need_or_exit

need_or_exit(PIPELINE)

import posttrain.pipeline  # noqa: E402, F401  tells the library which variables are secret
