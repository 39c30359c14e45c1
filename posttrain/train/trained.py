"""A complete training: its checks, its loop and its results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from posttrain.errors import ParamsError
from posttrain.files import rounded
from posttrain.measure.record import note
from posttrain.models.files.store import save_model
from posttrain.models.memory import byte_count
from posttrain.train import randomness
from posttrain.train.callback import NO_LOG, StepLog
from posttrain.train.checkpoint import CheckpointStore
from posttrain.train.estimate import check_memory, checkpoint_bytes, explained_out_of_memory
from posttrain.train.loop import TrainingRun, training_loop
from posttrain.train.metrics import Recorder
from posttrain.train.model_set import ModelSet


class Trained(list[dict[str, float]]):
    """A list of the metrics of each optimizer step, with the trained models and other results of the run.

    A round of samples is trained in several optimizer steps (`rollout.minibatches` times `rollout.epochs`). `reward`,
    `reward_std`, `length` and `truncated` are computed over the step's own rows: its minibatch and replayed groups.
    `reward` is the weighted sum. `reward_NAME`, `reward_NAME_std` and `reward_NAME_ok` describe one reward without its
    weight, over all samples of the round, so all steps of a round have the same values. `tail("reward", steps)`
    averages over several steps. With `heldout`, the last row is the final evaluation and has no `reward`.

    Example: `train_online(model, tokenizer, prompts, reward, settings={"rollout": {"rounds": 2}})[-1]["reward"]`
    """

    def __init__(self, run: TrainingRun, rows: Sequence[dict[str, float]], last: dict[str, float]) -> None:
        """`last`: the metrics of the final weights on held-out rows, which become the last row."""
        super().__init__([*rows, last] if last else rows)
        self.name, self.params, self.models = run.name, run.params, run.models
        self.steps = len(rows)
        """Optimizer steps."""
        self.kept = run.watch.finish()
        """Measurements of the weights that `watch` chose."""
        self.figures: dict[str, float] = {}
        """Counts over the whole run, as the tokens that a judge used."""
        self.rollouts: StepLog = NO_LOG
        """The run's samples, if it stores them."""

    def gather(self) -> ModelSet:
        """Return the models unsharded. The other processes of the run end here."""
        self.models = self.models.gather_on_rank_zero()
        return self.models

    def save(self, folder: str | Path) -> None:
        """Write the trained model and the files of its start model in the format that `load_model` reads.

        It needs models from `posttrain.load_models`, which remember their folder.
        """
        if self.models.folder == Path():
            fix = "Give the call an `output`, or use model.save_pretrained and tokenizer.save_pretrained"
            raise ParamsError(what="this model was not loaded by load_models", where=str(folder), fix=fix)
        save_model(self.gather().policy, Path(folder), self.models.folder, self.params.save_dtype)

    def tail(self, name: str, count: int) -> float:
        """Return the mean of a metric over the last steps that have it."""
        values = [row[name] for row in self[: self.steps][-count:] if name in row]
        return sum(values) / len(values) if values else float("nan")

    def means(self, names: Sequence[str], count: int = 10) -> dict[str, float]:
        """Return the mean over the last steps for each metric of the last step, with six significant digits."""
        return rounded({name: self.tail(name, count) for name in names if self.steps and name in self[self.steps - 1]})


def run_training(run: TrainingRun, checkpoints: CheckpointStore, recorder: Recorder) -> Trained:
    """Check memory and disk, train or resume, and set the policy to the weights that `watch` chooses."""
    params, models = run.params, run.models
    copies = params.optimizer.copies
    check_memory(models, run.step_tokens, params.activations, params.limits.memory, run.name, copies)
    checkpoints.check_space(checkpoint_bytes(models, copies) + byte_count(run.watch.state_dict().values()))
    run.step_log.open(checkpoints.folder)
    randomness.seed(params.seed)
    note(seed=params.seed)
    with explained_out_of_memory(models, run.step_tokens, params.activations, run.name):
        log = training_loop(run, checkpoints, recorder)
    checkpoints.finish()
    watched = bool(log.rows) and "loss" not in log.rows[-1]
    last = log.rows.pop() if watched else {}
    return Trained(run, log.rows, last)
