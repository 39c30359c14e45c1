"""Start a command as srun starts tasks on one host: python -m tests.pipeline.processes.srun --ntasks=N COMMAND

Each task has SLURM's variables and no others of a scheduler. If one fails, all are ended (--kill-on-bad-exit).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time


def main() -> int:
    """Return the exit code of the first task that failed, or 0."""
    tasks, command = int(sys.argv[1].removeprefix("--ntasks=")), sys.argv[2:]
    step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "3", "SLURM_NTASKS": str(tasks)}
    step |= {"SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_NODELIST": "localhost,other[2-4]"}
    started = [
        subprocess.Popen(command, env=os.environ | step | {"SLURM_PROCID": str(one), "SLURM_LOCALID": str(one)})
        for one in range(tasks)
    ]
    while not any(failed := [task.returncode for task in started if task.poll()]):
        if all(task.returncode == 0 for task in started):
            return 0
        time.sleep(0.05)
    for task in started:
        task.kill()
        task.wait()
    return failed[0]


if __name__ == "__main__":
    sys.exit(main())
