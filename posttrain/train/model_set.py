"""The models of a run, and the batch columns that they provide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

from posttrain.distributed import world
from posttrain.distributed.world import shutdown
from posttrain.errors import ModelError
from posttrain.formulas.distill import Divergence, classes, forward_kl, tiled, with_rest
from posttrain.formulas.ragged import Ragged
from posttrain.measure.phases import phase
from posttrain.measure.record import note
from posttrain.models.adapters import Attach, share_tensors, weight_counts
from posttrain.models.device import Runtime
from posttrain.models.files.store import empty_model, load_policy, load_scorer, scorer_of
from posttrain.models.forward.forward import backbone, packed_states, score_rows, score_tokens, value_tokens
from posttrain.models.forward.logp import AnyHead, head_of, module_head_of, token_logp
from posttrain.models.forward.routers import Recording, find_routers
from posttrain.models.master_weights import compute_in_bf16, is_trained_in_bf16, master_of, placed
from posttrain.models.sharded_start import parted
from posttrain.models.sharding import full, gathered, is_divided, is_sharded, mesh_of, own_part, place_of
from posttrain.rollout import TokenRow
from posttrain.text.packing import PackedRows, micro_batches, pack, sent
from posttrain.train.by_all import by_all
from posttrain.train.model_settings import ModelSettings, StartModel
from posttrain.train.sharing import Rounds, Sharing, own_parts, share_out

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from posttrain.train.step import Batch

SCORED_COLUMNS = ("ref_logp", "step_start_logp", "step_start_entropy", "old_value", "recomputed_logp")


@dataclass(frozen=True)
class Teacher:
    """A frozen teacher, local or served, and the divergence between its distribution and the policy's."""

    model: Any | None
    divergence: Divergence
    prompts: Mapping[tuple[int, ...], Sequence[int]] | None = None
    """The teacher's prompt for each prompt (context distillation); None: the same prompt."""
    served: Callable[[Sequence[TokenRow]], tuple[Tensor, Tensor]] | None = None
    """For a served teacher: ids and log-probs [M, K] of its likeliest tokens at each trained token of some rows."""
    share: float = 1.0
    """Its share of the divergence, if there are several teachers."""


@dataclass(frozen=True)
class ModelSet:
    """The models of a run. The policy and the critic are trained; the others are frozen."""

    policy: Any
    runtime: Runtime
    reference: Any | None = None
    critic: Any | None = None
    old: Any | None = None
    teachers: Sequence[Teacher] = ()
    temperature: float = 1.0
    micro_tokens: int = 16_384
    remake: Callable[[], Any] | None = None
    """Creates the unsharded policy; None if the policy is not sharded."""
    folder: Path = Path()  # where the policy was loaded from, with the tokenizer

    def __post_init__(self) -> None:
        teachers = [teacher.model for teacher in self.teachers]
        for model in (self.reference, self.old, *teachers):
            if model is not None:
                model.requires_grad_(requires_grad=False)
        for model in (self.policy, self.reference, self.critic, self.old, *teachers):
            if model is not None and not is_sharded(model) and self.runtime.bf16_for(model):
                compute_in_bf16(model)

    @classmethod
    def load(
        cls,
        runtime: Runtime,
        folder: Path,
        needs: frozenset[str],
        settings: ModelSettings,
        *,
        temperature: float = 1.0,
        teachers: Sequence[Teacher] = (),
    ) -> ModelSet:
        """Return the models that the objective needs. All start from the folder's weights."""

        def start(*, scores: bool = False, empty: bool = False) -> Any:
            if empty:
                return empty_model(settings.critic_start or folder if scores else folder, scores=scores)
            if scores and settings.critic_start is not None:
                return load_scorer(settings.critic_start)
            return (load_scorer if scores else load_policy)(folder)

        attach = settings.attach(folder)
        divided = world.count() > 1 and settings.divides_models
        mesh = mesh_of(runtime.device, settings.shards) if divided else None
        place = partial(placed, runtime=runtime)
        moves = settings.reference_moves
        models = cls.of(start, runtime, needs, attach, reference_moves=moves, mesh=mesh, place=place)
        if attach is not None:
            models.report_adapter()
        models = replace(models, temperature=temperature, teachers=teachers, folder=folder)
        return replace(models, micro_tokens=settings.micro_tokens)

    @classmethod
    def of(
        cls,
        start: StartModel,
        runtime: Runtime,
        needs: frozenset[str],
        attach: Attach | None,
        *,
        reference_moves: bool,
        mesh: DeviceMesh | None = None,
        place: Callable[[Any], Any] = lambda model: model,
    ) -> ModelSet:
        """Return the models that the objective needs, created by `start`.

        With an adapter, they share its frozen weights, and the reference is the policy without the adapter.
        `reference_moves`: the reference changes during the run. `mesh`: the processes that shard the models. The old
        policy is computed inside the policy's scope and stays whole. `place`: moves a finished model to its precision
        and device. Start models are created in host memory.
        """
        if mesh is not None:
            return cls._divided(start, runtime, needs, attach, mesh, place, reference_moves=reference_moves)
        policy = start(scores="score" in needs)
        runtime.suit(policy)
        if attach is not None:
            attach.freeze(policy)
        else:
            policy = place(policy)

        def copied(*, adapted: bool = True, scores: bool = False) -> Any:
            if attach is None:
                return place(start(scores=scores).requires_grad_(scores))
            same = share_tensors(policy)
            same = scorer_of(same, type(policy).__name__) if scores else same
            return attach.add(same) if adapted else same

        reference = copied(adapted=reference_moves) if "ref_logp" in needs else None
        critic = copied(scores=True) if "value" in needs else None
        old = copied() if "kl_old" in needs else None
        if attach is not None:  # peft gives an adapter its layer's number format, so they are rounded at last
            policy = place(attach.add(policy))
            reference, old = (model and place(model.requires_grad_(requires_grad=False)) for model in (reference, old))
            critic = critic and place(critic)
        return cls(policy, runtime, reference, critic, old)

    @classmethod
    def _divided(
        cls,
        start: StartModel,
        runtime: Runtime,
        needs: frozenset[str],
        attach: Attach | None,
        mesh: DeviceMesh,
        place: Callable[[Any], Any],
        *,
        reference_moves: bool,
    ) -> ModelSet:
        """Return the sharded models, created one after the other. Each has its own frozen weights under an adapter.

        Only the first process loads values. The others get their rows from it.
        """

        def made(*, adapted: bool = True, scores: bool = False, trained: bool = True, empty: bool = False) -> Any:
            model = start(scores=scores, empty=empty)
            if attach is not None:
                attach.freeze(model)
                model = attach.add(model) if adapted else model
            return model if trained else model.requires_grad_(requires_grad=False)

        policy = partial(made, scores="score" in needs)
        reference = (
            parted(partial(made, adapted=reference_moves, trained=False), runtime, mesh)
            if "ref_logp" in needs
            else None
        )
        critic = parted(partial(made, scores=True), runtime, mesh) if "value" in needs else None
        old = place(made(trained=False)) if "kl_old" in needs else None
        return cls(parted(policy, runtime, mesh), runtime, reference, critic, old, remake=policy)

    @property
    def sharded(self) -> bool:
        """True if the trained models are sharded."""
        return is_sharded(self.policy)

    @property
    def divided_by(self) -> int:
        """The number of processes that shard a trained model; 1 if it is whole."""
        part = next(self.policy.parameters())
        return place_of(part)[1] if is_divided(part) else 1

    def gather_on_rank_zero(self) -> ModelSet:
        """Return the first process's models, with the whole policy in host memory. The other processes end here."""
        if world.count() == 1:
            return self
        policy = self.policy
        if self.sharded and self.remake is not None:
            policy = self.remake() if world.is_rank_zero() else None
            parameters = {} if policy is None else dict(policy.named_parameters())
            for name, part in self.policy.named_parameters():
                whole = full(part)
                if name in parameters:
                    with torch.no_grad():
                        parameters[name].copy_(whole)
        shutdown()
        models = replace(self, policy=policy, reference=None, critic=None, remake=None)
        models.policy.to(self.runtime.device)  # of weights in bf16 not the masters
        return models

    @property
    def trained(self) -> dict[str, Any]:
        """The trained models by name."""
        return {"policy": self.policy} | ({"critic": self.critic} if self.critic is not None else {})

    def trained_parameters(self) -> dict[str, Tensor]:
        """Return the trained weights, or their masters, by name."""
        return {
            f"{kind}.{name}": master_of(parameter)
            for kind, model in self.trained.items()
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }

    def report_adapter(self) -> None:
        """Print how many weights of the policy are trained, and store it in the run's record."""
        trained, frozen = weight_counts(self.policy)
        print(f"adapter: {trained:,} weights are trained, {frozen:,} are frozen", flush=True)
        note(trained_weights=trained, frozen_weights=frozen)

    def own_parameters(self, model: Any, prefix: str = "") -> dict[str, Parameter]:
        """Return the weights of a frozen model that it does not share with the policy."""
        shared = set(self.policy.parameters())
        frozen = {name for name, part in self.policy.named_parameters(prefix=prefix) if not part.requires_grad}
        named = model.named_parameters(prefix=prefix)
        return {name: part for name, part in named if part not in shared and name not in frozen}

    def micro_batches(self, batch: Batch) -> Iterator[Batch]:
        """Yield parts of the batch that fit into memory. Items are not split."""
        sizes = [len(row) for row in batch.rows]
        for rows in micro_batches(sizes, batch.columns.items.tolist(), self.micro_tokens):
            yield batch.select(rows) if len(rows) < len(batch) else batch

    def shared_out(self, batch: Batch) -> Rounds:
        """Return the rows of the batch for each process, pass by pass. All processes get the same answer."""
        return share_out(batch.rows, batch.columns.items.tolist(), self.micro_tokens, world.count(), self._width)

    def add_sharing(self, sharing: Sharing, batch: Batch) -> None:
        """Record how evenly the processes share a step's batch."""
        sharing.add(batch.rows, self.shared_out(batch), self._width)

    @property
    def _width(self) -> int:
        return int(backbone(self.policy).config.get_text_config().hidden_size)

    def own_micro_batches(self, batch: Batch) -> Iterator[tuple[Batch, bool]]:
        """Yield this process's parts of the batch, each with a flag: True if it counts.

        All processes get the same number.
        """
        for rows, counts in own_parts(self.shared_out(batch), world.rank()):
            yield (batch.select(rows) if len(rows) < len(batch) else batch), counts

    def head(self, model: Any) -> AnyHead:
        """Return the model's head: its matrix if fused gradients are allowed, else its module."""
        return head_of(model) if self.runtime.fused else module_head_of(model)

    def packed(self, micro: Batch) -> PackedRows:
        """Return a micro-batch as the input of a forward pass."""
        return pack(micro.rows).to(self.runtime.device)

    def forward(self, micro: Batch, needs: frozenset[str], packed: PackedRows | None = None) -> Ragged:
        """Return the columns of the micro-batch and of the trained models' forward passes, with gradient."""
        packed = packed or self.packed(micro)
        columns = on_device(micro.columns, self.runtime.device)
        if "score" in needs:
            return columns.with_rows(score=gathered(self.policy, lambda: score_rows(self.policy, packed)))
        computed = gathered(self.policy, lambda: self._policy_columns(micro, needs, packed))
        if "value" in needs:
            computed["value"] = gathered(self.critic, lambda: value_tokens(self.critic, packed))
        return columns.with_tokens(**computed)

    def _policy_columns(self, micro: Batch, needs: frozenset[str], packed: PackedRows) -> dict[str, Tensor]:
        """Return the columns that need the policy's hidden states and head."""
        hidden_MD = packed_states(self.policy, packed).index_select(0, packed.source_M)
        head = self.head(self.policy)
        wanted = "entropy" in needs
        logp, entropy = token_logp(hidden_MD, head, packed.target_M, self.temperature, packed.kept, entropy=wanted)
        computed = {"logp": logp, "entropy": entropy} if wanted else {"logp": logp}
        if "kl_old" in needs:
            computed["kl_old"] = self._kl_old(packed, hidden_MD)
        for teacher in self.teachers:
            part = teacher.share * self._teacher_divergence(teacher, packed, hidden_MD, micro)
            computed["teacher_kl"] = computed["teacher_kl"] + part if "teacher_kl" in computed else part
        return computed

    @torch.no_grad()
    def copy_policy(self, model: Any, keep: float = 0.0) -> None:
        """Replace a frozen model by the current policy. `keep`: the weight of the old model in the average."""
        both = zip(model.parameters(), self.policy.parameters(), strict=True)
        pairs = [
            (weight, policy_weight)
            for weight, policy_weight in both
            if weight is not policy_weight and policy_weight.requires_grad
        ]
        rounded = is_trained_in_bf16(self.policy) or any(own_part(weight).dtype != torch.float32 for weight, _ in pairs)
        if keep and rounded:
            what = "an average of bfloat16 weights would not change, because its steps are smaller than the rounding"
            raise ModelError(what=what, where="renew_reference.keep", fix="Use device.precision: fp32, or keep: 0")
        sharded = is_sharded(model)
        for weight, policy_weight in pairs:
            target, source = (own_part(weight), own_part(policy_weight)) if sharded else (weight, full(policy_weight))
            target.copy_(source if not keep else keep * target + (1 - keep) * source)

    def _kl_old(self, packed: PackedRows, now_MD: Tensor) -> Tensor:
        """Return KL(old || policy) over the vocabulary at each token.

        Unlike `exact_kl`, it does not keep all logits.
        """
        with torch.no_grad():
            before = packed_states(self.old, packed)[packed.source_M]
        kl = partial(forward_kl, temperature=self.temperature)
        return tiled(kl, now_MD, self.head(self.policy).logits, before, self.head(self.old).logits)

    def _teacher_divergence(self, teacher: Teacher, packed: PackedRows, student_MD: Tensor, micro: Batch) -> Tensor:
        """Return the divergence from the teacher over the vocabulary at each token."""
        rows, teacher_packed = micro.rows, packed
        if teacher.prompts is not None:
            rows = [replace(row, prompt=teacher.prompts[tuple(row.prompt)], experts=None) for row in rows]
            teacher_packed = pack(rows).to(self.runtime.device)
        student = self.head(self.policy).logits
        if teacher.served is not None:
            ids_MK, logps_MK = (part.to(self.runtime.device) for part in teacher.served(rows))
            theirs_MC, index_M = with_rest(logps_MK), torch.arange(len(ids_MK), device=ids_MK.device)

            def divergence(logits_TV: Tensor, index_T: Tensor) -> Tensor:
                return teacher.divergence(classes(logits_TV, ids_MK[index_T]), theirs_MC[index_T])

            return tiled(divergence, student_MD, student, index_M, lambda index_T: index_T)
        with torch.no_grad():
            teacher_MD = packed_states(teacher.model, teacher_packed)[teacher_packed.source_M]
        frozen = self.head(teacher.model).logits
        return tiled(teacher.divergence, student_MD, student, teacher_MD, frozen)

    @phase("reference")
    @torch.no_grad()
    def add_scored_columns(self, batch: Batch, needs: frozenset[str]) -> Batch:
        """Return the batch with the columns of frozen models and the current policy that `prepare` needs."""
        for model in self.trained.values():
            model.eval()  # without dropout
        needed = [name for name in SCORED_COLUMNS if name in needs or (name == "old_value" and "value" in needs)]
        for name in needed:
            if name not in batch.columns.tokens:
                sizes = batch.columns.lengths_B.tolist()
                [column] = by_all(self, batch, partial(self._scores, name), sizes)
                batch = batch.with_columns(batch.columns.with_tokens(**{name: column}))
        return batch

    def _scores(self, name: str, micro: Batch) -> list[Tensor]:
        """Return one of the scored columns for a part of a batch."""
        return [self._score(name, micro)]

    def _score(self, name: str, micro: Batch) -> Tensor:
        packed = self.packed(micro)
        if name == "old_value":
            return gathered(self.critic, lambda: value_tokens(self.critic, packed))
        model = self.reference if name == "ref_logp" else self.policy
        wanted = name == "step_start_entropy"
        replays = name != "ref_logp" and packed.experts_NLK is not None
        with Recording(model, find_routers(self.policy) if replays else (), packed):
            logp, entropy = gathered(
                model, lambda: score_tokens(model, packed, self.temperature, self.head(model), entropy=wanted)
            )
        return entropy if wanted else logp


def on_device(columns: Ragged, device: torch.device) -> Ragged:
    """Return the columns on this device."""
    if device.type == "cpu":
        return columns
    return Ragged(
        sent(columns.lengths_B, device),
        {name: sent(part, device) for name, part in columns.rows.items()},
        {name: sent(part, device) for name, part in columns.tokens.items()},
        None if columns.item_B is None else sent(columns.item_B, device),
        columns,
    )
