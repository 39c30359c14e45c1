"""Processes started by torchrun, srun or another scheduler. Variables tell each process its number in the run."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from typing import Final

from posttrain.errors import ParamsError, PipelineError
from posttrain.pipeline.params.stage_table import group_named, group_of
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.workspace import PARAMS_FILE

RANK, SIZE, LOCAL = "RANK", "WORLD_SIZE", "LOCAL_RANK"
"""Variables of each process of a run: its number, the number of processes, and its number on this host."""
ADDRESS, PORT = "MASTER_ADDR", "MASTER_PORT"
"""Where processes connect if a scheduler starts them: the host of rank 0 and a free port there."""
MEETING: Final = "POSTTRAIN_RENDEZVOUS"
"""The file through which processes connect if the stage's own process starts them."""
LAUNCH: Final = "POSTTRAIN_LAUNCH"
"""The command with which a stage starts its processes elsewhere. {processes} is their number."""
GLOO: Final = "GLOO_SOCKET_IFNAME"
"""The variable with the network interface for torch's gloo."""
FIRST_NODE: Final = re.compile(r"([^\[,]+)(?:\[(\d+)[^\]]*\])?([^\[,]*)")


def is_ranked() -> bool:
    """Tell whether another process started this process as one of several."""
    return RANK in os.environ and os.environ.get(SIZE, "") not in ("", "1")


def is_worker() -> bool:
    """Tell whether this is a process of a run other than its first."""
    return is_ranked() and os.environ[RANK] != "0"


def is_scheduled() -> bool:
    """Tell whether a scheduler has started this process as one of several."""
    return is_ranked() and MEETING not in os.environ


def read_slurm() -> None:
    """Copy srun's variables to the names that torch reads, but not in a batch script, which is not a task of a step.

    Neither is a process that will start its own with POSTTRAIN_LAUNCH, e.g. in a shell opened by srun.
    """
    if RANK in os.environ or os.environ.get(LAUNCH) or "SLURM_STEP_ID" not in os.environ:
        return
    job, step = (int(os.environ.get(f"SLURM_{name}_ID", "0")) for name in ("JOB", "STEP"))
    needed = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_NODELIST")
    if missing := [name for name in needed if not os.environ.get(name)]:
        raise PipelineError(
            what=f"SLURM_STEP_ID is set but {missing[0]} is not",
            where="environment",
            fix="Start it with srun, which sets both, or unset SLURM_STEP_ID",
        )
    os.environ |= {RANK: os.environ["SLURM_PROCID"], SIZE: os.environ["SLURM_NTASKS"]}
    os.environ[LOCAL] = os.environ["SLURM_LOCALID"]
    os.environ.setdefault(ADDRESS, first_node(os.environ.get("SLURM_STEP_NODELIST", os.environ["SLURM_JOB_NODELIST"])))
    os.environ.setdefault(PORT, str(15_000 + (job + step) % 15_000))


def first_node(nodes: str) -> str:
    """Return the first host in a SLURM list: `gpu[07-09,12],cpu1` -> gpu07."""
    match = FIRST_NODE.match(nodes)
    return "".join(part or "" for part in match.groups()) if match else nodes


def check_size(stage: str, processes: int) -> None:
    """Reject a world size that differs from the run's `processes`, or that lacks the address of the first process."""
    if not is_scheduled():
        return
    if os.environ[SIZE] != str(processes):
        what = f"{stage} has processes = {processes}, but {SIZE} = {os.environ[SIZE]}"
        raise ParamsError(
            what=what, where=PARAMS_FILE, fix="Start as many processes as the run has, or change one of the numbers"
        )
    for name in (ADDRESS, PORT):
        if not os.environ.get(name):
            raise PipelineError(
                what=f"{SIZE} is set but {name} is not", where=stage, fix=f"Set {name}, or unset {SIZE}"
            )


def processes_of(stage: str) -> int:
    """Return the `processes` of a stage's run in params.yaml; 1 if it has none."""
    name, _, run = stage.partition("@")
    settings = group_of(read_yaml(PARAMS_FILE), group_named(name) or "").get(run)
    processes = settings.get("processes") if isinstance(settings, Mapping) else None
    return processes if isinstance(processes, int) else 1


def network() -> dict[str, str]:
    """Return the environment variables that make gloo use this host's network interface to rank 0."""
    import psutil

    try:
        family, *_, address = socket.getaddrinfo(os.environ[ADDRESS], int(os.environ[PORT]))[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing
            own_address = probe.getsockname()[0].partition("%")[0]
    except OSError:  # torch waits until the name is known
        return {}
    names = (
        name
        for name, addresses in psutil.net_if_addrs().items()
        if own_address in [entry.address for entry in addresses]
    )
    name = os.environ.get(GLOO) or next(names, "lo")
    return {} if name.startswith("lo") else {GLOO: name}
