"""The fixture that starts a run of several processes, for the tests of this folder."""

from tests.pipeline.processes.test_launch import start  # noqa: F401
