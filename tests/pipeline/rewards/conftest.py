"""The endpoint of the tests of judges, for rewards that ask a server too."""

from tests.pipeline.rewards.judge.conftest import _endpoint, endpoint  # noqa: F401
