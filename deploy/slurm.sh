#!/bin/bash
# The pipeline, or stages and what they need, as a Slurm job. From the root of the project, on a disk that the nodes share:
#   sbatch deploy/slurm.sh
#   sbatch deploy/slurm.sh evaluate@grpo
# A job that was killed or ran out of time goes on from its last checkpoint when it is submitted again.
#SBATCH --job-name=posttrain
#SBATCH --nodes=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --output=slurm-%j.log
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"
export PATH="$PWD/.venv/bin:$PATH"
export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"
posttrain check
posttrain repair
exec dvc repro --keep-going "$@"
