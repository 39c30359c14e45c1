"""Every key in the configs of TRL 1.16 -> our key and the conversion of its value, or why we have no such key.

docs/reference/trl.md is generated from it (`python -m docs.make.trl`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Theirs(NamedTuple):
    """Our settings for a TRL key, as paths in a run, and how to convert the value."""

    ours: tuple[str, ...]
    note: str = ""


_HERE: Final[Mapping[str, tuple[str, str]]] = {
    "activation_checkpointing": ("activations", "true is recompute"),
    "activation_offloading": ("activations", "true is offload"),
    "adam_beta1": ("optimizer.betas", "the first of the two"),
    "adam_beta2": ("optimizer.betas", "the second of the two"),
    "assistant_only_loss": ("turns", "true is all; the last answer alone is last"),
    "beta": ("kl.beta loss.beta divergence.beta", "GRPO's 0.0 is kl: none"),
    "bf16": ("device.precision", "true is bf16"),
    "center_rewards_coefficient": ("objective.centring", ""),
    "chat_template_kwargs": ("template", ""),
    "chat_template_path": ("chat_template", "in base.folders or base.hub"),
    "cpo_alpha": ("nll", ""),
    "data_seed": ("seed", "one seed for all"),
    "ddp_backend": ("processes", "the backend follows the device"),
    "deepspeed": ("processes shards", "the number of processes; shards says how many hold one copy"),
    "delta": ("surrogate.floor", "surrogate dual_clip, whose floor is TRL's delta"),
    "desirable_weight": ("loss.desirable", ""),
    "distillation_weight": ("teacher_coef", ""),
    "entropy_coef": ("entropy", "a mean over the step's tokens as the row's aggregation"),
    "epsilon": ("surrogate.low surrogate.high", "both"),
    "epsilon_high": ("surrogate.high", "cispo: less 1"),
    "eval_steps": ("watch.every", "in optimizer steps"),
    "eval_strategy": ("watch", "no watch is TRL's no"),
    "fsdp": ("processes shards", "the number of processes; shards says how many hold one copy"),
    "full_determinism": ("device.deterministic", ""),
    "generation_batch_size": ("rollout.prompts", "generation_batch_size / num_generations"),
    "gradient_accumulation_steps": (
        "micro_tokens batch rollout.prompts",
        "a factor of the batch; memory follows micro_tokens",
    ),
    "gradient_checkpointing": ("activations", "true is recompute, false is keep"),
    "importance_sampling_level": ("surrogate", "sequence is surrogate: gspo"),
    "label_smoothing": ("loss.label_smoothing", "algorithm cdpo or robust_dpo"),
    "learning_rate": ("optimizer.lr", ""),
    "lmbda": ("own", ""),
    "load_in_4bit": ("adapter.type", "true is qlora"),
    "load_best_model_at_end": ("watch.keep", "true is best"),
    "log_completions": ("rollouts", "kept without asking"),
    "lora_alpha": ("adapter.alpha", ""),
    "lora_dropout": ("adapter.dropout", ""),
    "lora_r": ("adapter.rank", ""),
    "lora_target_modules": ("adapter.targets", ""),
    "loss_type": (
        "algorithm loss aggregation",
        "dpo's sigmoid is algorithm: dpo, grpo's dr_grpo is algorithm: dr_grpo",
    ),
    "lr_scheduler_type": ("optimizer.schedule", "constant, linear, cosine or warmup_stable_decay"),
    "mask_truncated_completions": ("truncated", "true is mask"),
    "max_completion_length": ("rollout.sampling.max_tokens", ""),
    "max_grad_norm": ("optimizer.clip", ""),
    "max_length": ("max_tokens", "prompt and answer"),
    "max_new_tokens": ("rollout.sampling.max_tokens", ""),
    "max_steps": ("epochs rollout.rounds", "epochs: max_steps * batch / rows; a round is epochs * minibatches steps"),
    "metric_for_best_model": ("watch.metrics watch.keep", "keep: best goes by the held-out loss or reward"),
    "model_name_or_path": ("start", "a name of base.folders or base.hub, or an earlier run"),
    "normalize_advantages": ("whiten", "over the step's tokens"),
    "num_generations": ("rollout.group_size", ""),
    "num_iterations": ("rollout.epochs", ""),
    "num_train_epochs": ("epochs rollout.rounds", "rollout.rounds: num_train_epochs * prompts / rollout.prompts"),
    "per_device_train_batch_size": (
        "batch rollout.prompts",
        "batch: * gradient_accumulation_steps * devices; prompts: * steps_per_generation * devices / num_generations",
    ),
    "ref_model_mixup_alpha": ("renew_reference.keep", "1 - alpha"),
    "ref_model_sync_steps": ("renew_reference.every", "in rounds, not steps"),
    "reward_model_path": ("reward_model", "a run of reward.runs"),
    "reward_weights": ("reward", "the weights are the values: reward: {correct: 1.0}"),
    "router_aux_loss_coef": ("router.balance", ""),
    "sapo_temperature_neg": ("surrogate.tau_neg", ""),
    "sapo_temperature_pos": ("surrogate.tau_pos", ""),
    "save_steps": ("checkpoint_every", "a whole number of optimizer steps"),
    "save_strategy": ("checkpoint_every", "in optimizer steps"),
    "scale_rewards": ("advantage", "group is group_zscore, none is group_centred"),
    "seed": ("seed", ""),
    "simpo_gamma": ("loss.gamma", "the margin itself"),
    "steps_per_generation": ("rollout.minibatches", "steps_per_generation / gradient_accumulation_steps"),
    "sync_ref_model": ("renew_reference", "true is {every: ROUNDS}"),
    "teacher_model_name_or_path": ("teacher", "a name of base.folders or base.hub, or an earlier run"),
    "teacher_model_server_url": ("served.url", ""),
    "teacher_server_urls": ("served.url", ""),
    "teacher_top_k": ("served.top", ""),
    "loss_top_k": ("served.top", ""),
    "temperature": ("rollout.sampling.temperature temperature", "distill: temperature is the divergence's"),
    "top_entropy_quantile": ("surrogate.share", "surrogate top_entropy"),
    "top_k": ("rollout.sampling.top_k", "0 is null"),
    "top_p": ("rollout.sampling.top_p", ""),
    "torch_compile": ("compile", ""),
    "truncation_mode": ("long_rows", "keep_start is cut; the default drops the row"),
    "undesirable_weight": ("loss.undesirable", ""),
    "use_cpu": ("device.device", "true is cpu"),
    "use_dora": ("adapter.type", "true is dora"),
    "use_peft": ("adapter", "true is {type: lora}"),
    "use_rslora": ("adapter.rslora", ""),
    "use_vllm": ("rollout.engine", "true is vllm"),
    "vllm_enable_sleep_mode": ("rollout.engine_args", "sleep"),
    "vllm_gpu_memory_utilization": ("rollout.engine_args", "gpu_memory_utilization"),
    "vllm_importance_sampling_cap": ("correction.high", ""),
    "vllm_importance_sampling_clip_max": ("correction.high", ""),
    "vllm_importance_sampling_clip_min": ("correction.low", ""),
    "vllm_importance_sampling_correction": ("correction", "true is {type: truncate}"),
    "vllm_importance_sampling_mode": (
        "correction.type correction.level",
        "sequence_mask is {type: mask, level: sequence}",
    ),
    "vllm_max_model_length": ("rollout.engine_args", "max_model_len"),
    "vllm_tensor_parallel_size": ("rollout.engine_args", "tensor_parallel_size"),
    "warmup_steps": ("optimizer.warmup", "a fraction of all steps"),
    "weight_decay": ("optimizer.weight_decay", ""),
}
"""TRL's key -> (our paths, how to convert the value)."""
NONE: Final[Mapping[str, str]] = {
    "AdamW or Muon, with torch's constants": "adam_epsilon optim optim_args optim_target_modules lr_scheduler_kwargs",
    "bf16 with float32 weights, or fp32": "fp16 bf16_full_eval fp16_full_eval tf32 dtype cast_lm_head_to_fp32",
    "rows are packed without padding": "packing packing_strategy eval_packing padding_free padding_value pad_token "
    "pad_to_multiple_of auto_find_batch_size train_sampling_strategy length_column_name",
    "the columns are those of the tables in data": "dataset_text_field dataset_kwargs dataset_num_proc label_names "
    "remove_unused_columns completion_only_loss is_encoder_decoder",
    "all rows, shuffled by the seed": "shuffle_dataset dataloader_drop_last dataloader_in_order ignore_data_skip",
    "rows are read in the training process": "dataloader_multiprocessing_context dataloader_num_workers "
    "dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor",
    "the template and the model's files say it": "eos_token model_init_kwargs "
    "teacher_model_init_kwargs attn_implementation use_cache teacher_tokenizer_name_or_path",
    "base.hub names a model's revision": "model_revision teacher_model_revision",
    "code of a model's repository never runs": "trust_remote_code",
    "dropout is off in runs with samples or a reference": "disable_dropout neftune_noise_alpha",
    "cross-entropy is not smoothed": "label_smoothing_factor",
    "batches are cut by micro_tokens": "per_device_eval_batch_size eval_accumulation_steps precompute_ref_batch_size "
    "batch_eval_metrics eval_do_concat_batches eval_use_gather_object",
    "watch and evaluate.runs measure": "do_eval do_predict do_train eval_delay eval_on_start greater_is_better "
    "generate_during_eval num_generations_eval prediction_loss_only include_for_metrics include_num_input_tokens_seen",
    "one denominator per step, over all processes": "average_tokens_across_devices",
    "a run's metrics, plots and report are files, all of them": "report_to logging_first_step logging_nan_inf_filter "
    "logging_steps logging_strategy log_level log_level_replica log_on_each_node disable_tqdm run_name project "
    "trackio_bucket_id trackio_space_id trackio_static_space_id skip_memory_metrics debug log_multimodal "
    "log_unique_prompts wandb_log_unique_prompts num_completions_to_print log_completions_hub_repo "
    "log_completions_steps callbacks diagnostics_flat_tolerance diagnostics_warning_interval",
    "the run's name is the folder, and the command `push` uploads": "output_dir hub_always_push hub_model_id "
    "hub_private_repo hub_revision hub_strategy hub_token push_to_hub",
    "the same command again resumes": "resume_from_checkpoint restore_callback_states_from_checkpoint "
    "save_total_limit save_only_model save_on_each_node enable_jit_checkpoint",
    "processes and shards are all": "accelerator_config parallelism_config fsdp_config ddp_broadcast_buffers "
    "ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph ddp_timeout local_rank ds3_gather_for_generation",
    "compile and activations have no more options": "torch_compile_backend torch_compile_mode torch_empty_cache_steps "
    "gradient_checkpointing_kwargs activation_checkpointing_kwargs use_liger_kernel liger_kernel_config",
    "adapters have rank, alpha, dropout and targets (adapter.type)": "lora_modules_to_save lora_target_parameters "
    "lora_task_type load_in_8bit bnb_4bit_quant_type bnb_4bit_quant_storage use_bnb_nested_quant",
    "samples are drawn by temperature, top_p and top_k": "min_p repetition_penalty generation_kwargs "
    "cache_implementation vllm_structured_outputs_regex max_tool_calling_iterations",
    "`truncated` of the rewards `model`, `endpoint` and `judge` bounds the score": "missing_eos_penalty",
    "prompts are never cut": "max_prompt_length",
    "the engine is started and fed by the run": "vllm_group_port vllm_model_impl vllm_mode "
    "vllm_server_base_url vllm_server_host vllm_server_port "
    "vllm_server_timeout vllm_sync_frequency use_transformers_paged use_transformers_continuous_batching "
    "transformers_continuous_batching_config",
    "rollout.ahead samples one round ahead, no more": "heartbeat_stale_after_s max_inflight_tasks max_staleness "
    "queue_maxsize request_timeout token_budget weight_sync_steps weight_sync_timeout fork_threshold_tokens",
    "entropy is one number": "entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target use_adaptive_entropy",
    "no algorithm here has it": "off_policy_mask_threshold use_bias_correction_kl vespo_k_neg vespo_k_pos "
    "vespo_lambda_neg vespo_lambda_pos discopop_tau f_alpha_divergence_coef f_divergence_type ld_alpha use_weighting "
    "beta1 beta2 filter_all_incorrect num_value_samples tpo_alpha tpo_l_gamma alpha",
    "gdpo is the algorithm that normalises parts first": "multi_objective_aggregation",
    "one loss per run": "loss_weights",
    "log-probs of the reference are computed with each step": "precompute_ref_log_probs",
    "rewards are not clipped": "reward_clip_range",
    "gkd, reverse_kl and context_distill have none": "seq_kd add_tail_bucket loss_add_tail reverse_kl_top_1_mode "
    "teacher_temperature distillation_add_tail distillation_alpha distillation_is_clip distillation_mode "
    "distillation_topk distillation_objective iw_opd_epsilon iw_opd_gamma use_teacher_server teacher_model_kind "
    "teacher_sync_steps teacher_update_rate generate_from_teacher num_loss_tokens_to_skip teacher_prompt_template "
    "dont_reprompt_on_self_success environment_feedback_only_without_solution feedback_template "
    "include_environment_feedback max_reprompt_len remove_thinking_from_demonstration reprompt_template "
    "solution_template success_reward_threshold use_successful_as_teacher use_extended_uld use_uld_loss "
    "uld_crossentropy_weight uld_distillation_weight uld_hybrid_matched_weight uld_hybrid_unmatched_weight "
    "uld_skip_student_eos uld_skip_teacher_eos uld_student_temperature uld_teacher_temperature "
    "uld_token_merge_strategy uld_use_hybrid_loss",
}
"""Why there is no equivalent -> TRL's keys."""
TRL: Final[Mapping[str, Theirs]] = {
    **{name: Theirs((), reason) for reason, names in NONE.items() for name in names.split()},
    **{name: Theirs(tuple(paths.split()), note) for name, (paths, note) in _HERE.items()},
}
"""TRL's key -> its equivalent."""
