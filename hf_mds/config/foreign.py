"""Keys of axolotl that mean nothing here: those that may be left out of account, and those that must not be.

A key that changes what is learned is refused, unless it is switched off; one that does not is listed as ignored.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["IGNORED", "IGNORED_OF_DATASETS", "REFUSED", "REFUSED_OF_DATASETS"]


def _table(reasons: Mapping[str, str]) -> dict[str, str]:
    return {key: reason for reason, keys in reasons.items() for key in keys.split()}


IGNORED = _table({
    "data are streamed, and nothing is prepared ahead": """
        dataset_prepared_path dataset_processes dataset_num_proc dataset_keep_in_memory dataset_shard_num
        dataset_shard_idx num_dataset_shards_to_save push_dataset_to_hub preprocess_iterable is_preprocess
        skip_prepare_dataset total_num_tokens total_supervised_tokens shuffle_before_merging_datasets
        streaming_multipack_buffer_size pretrain_multipack_buffer_size pretrain_multipack_attn
        pretraining_sample_concatenation max_packed_sequence_len""",
    "packing is best-fit decreasing, in the plan or by trl": """
        sample_packing_bin_size sample_packing_eff_est sample_packing_group_size sample_packing_mp_start_method
        sample_packing_sequentially multipack_real_batches batch_flattening pad_to_sequence_len pad_to_multiple_of""",
    "set report_to, and the service's own environment variables": """
        use_wandb wandb_project wandb_entity wandb_mode wandb_name wandb_run_id wandb_watch wandb_log_model use_mlflow
        mlflow_tracking_uri mlflow_experiment_name mlflow_run_name hf_mlflow_log_artifacts use_comet comet_api_key
        comet_workspace comet_project_name comet_experiment_key comet_mode comet_online comet_experiment_config
        use_tensorboard use_trackio trackio_project_name trackio_run_name trackio_space_id use_otel_metrics
        otel_metrics_host otel_metrics_port profiler_steps profiler_steps_start include_tkps
        include_tokens_per_second eval_table_size eval_max_new_tokens eval_causal_lm_metrics do_causal_lm_eval
        do_bench_eval bench_dataset bench_split generate_samples num_generation_samples generation_max_new_tokens
        generation_temperature generation_top_p generation_top_k generation_prompt_ratio generation_do_sample""",
    "`accelerate launch` and torchrun say it": """
        local_rank world_size ddp ddp_timeout ddp_bucket_cap_mb ddp_broadcast_buffers ddp_find_unused_parameters
        accelerator_config device device_map max_memory gpu_memory_limit use_ray ray_run_name ray_num_workers
        resources_per_worker""",
    "it is a matter of speed or memory; set attn_implementation for kernels of attention": """
        flash_attention flash_attn_cross_entropy flash_attn_rms_norm flash_attn_fuse_mlp flash_optimum flash_attn_d512
        xformers_attention sdp_attention sdpa_varlen flex_attention flex_attn_compile_kwargs eager_attention
        sage_attention fused_attn_kernel gemma4_hybrid_attn_impl experts_implementation lora_mlp_kernel
        lora_qkv_kernel lora_o_kernel lora_embedding_kernel chunked_cross_entropy chunked_cross_entropy_num_chunks
        tiled_mlp tiled_mlp_num_shards tiled_mlp_use_original_mlp activation_offloading layer_offloading
        selective_checkpointing use_kernels large_head_attention low_cpu_mem_usage lora_on_cpu gc_steps
        gc_collect_steps torch_empty_cache_steps torch_compile_backend torch_compile_mode torch_compile_options
        deepcompile ple_cpu_offload qlora_sharded_model_loading experimental_skip_move_to_device
        embeddings_skip_upcast heads_k_stride ring_attn_func group_by_length curriculum_sampling""",
    "transformers finds it out from the model": """
        model_type type_of_model tokenizer_type base_model_config tokenizer_legacy tokenizer_use_fast
        tokenizer_save_jinja_files is_falcon_derived_model is_llama_derived_model is_mistral_derived_model
        is_qwen_derived_model hf_use_auth_token save_safetensors torchdistx_path""",
    "there is nothing of the kind here": """
        plugins strict axolotl_config_path gradio_title gradio_share gradio_server_name gradio_server_port
        gradio_max_new_tokens gradio_temperature hub_model_id hub_strategy hub_revision vllm merge_lora merge_method
        save_first_step early_stopping_patience loss_watchdog_threshold loss_watchdog_patience metric_for_best_model
        greater_is_better dynamic_checkpoint remove_unused_columns dataloader_drop_last evaluation_strategy""",
})  # fmt: skip
"""Keys that change nothing of what is learned, and why they are not used."""

REFUSED = _table({
    "give micro_batch_size and gradient_accumulation_steps": "batch_size auto_find_batch_size",
    "start with `accelerate launch --config_file`, which knows it": """
        deepspeed fsdp fsdp_config fsdp_version fsdp_final_state_dict_type dp_shard_size dp_replicate_size""",
    "give mds.replication, and start with `accelerate launch --config_file`": """
        tensor_parallel_size context_parallel_size sequence_parallel_degree""",
    "this trains by supervised examples; see trl's other trainers": """
        rl rl_beta trl dpo_beta dpo_use_weighting dpo_label_smoothing dpo_norm_loss dpo_padding_free
        dpo_generate_during_eval dpo_loss_type dpo_loss_weights dpo_use_liger_kernel dpo_use_logits_to_keep orpo_alpha
        cpo_alpha simpo_gamma rpo_alpha kto_desirable_weight kto_undesirable_weight reward_model process_reward_model
        center_rewards_coefficient num_labels max_prompt_len precompute_ref_log_probs ebft trainer_cls""",
    "the model is trained as it is loaded; quantize it before, or use axolotl": """
        load_in_8bit load_in_4bit bnb_config_kwargs gptq quantization qat model_quantization_config
        model_quantization_config_kwargs quantize_moe_experts fp8 fp8_config fp8_enable_fsdp_float8_all_gather
        use_onebitllms peft""",
    "give bf16 or fp16": "bfloat16 float16 float32 fp32_norms fp32_norm_classes",
    "it changes the model or its adapter in a way that is not supported; use axolotl": """
        lora_model_dir lora_target_parameters lora_rank_pattern lora_alpha_pattern loraplus_lr_ratio
        loraplus_lr_embedding peft_layers_to_transform peft_layers_pattern peft_layer_replication
        peft_init_lora_weights peft_trainable_token_indices peft_autocast_adapter_dtype peft_ensure_weight_tying relora
        relora_prune_ratio relora_prune_method relora_cpu_offload jagged_restart_steps jagged_restart_warmup_steps
        jagged_restart_anneal_steps unfrozen_parameters freeze_mm_modules reinit_weights shrink_embeddings
        mean_resizing_embeddings resize_token_embeddings_to_32x added_tokens_overrides fix_untrained_tokens
        overrides_of_model_config overrides_of_model_kwargs cls_model_config rope_scaling noisy_embedding_alpha
        s2_attention scaling_softmax scaling_softmax_factor scaling_softmax_bias llama4_linearized_experts
        lisa_n_layers lisa_step_interval lisa_layers_attribute use_pose pose_max_context_len pose_num_chunks
        pose_split_on_token_ids processor_type processor_kwargs image_size image_resize_algorithm
        tokenizer_use_mistral_common""",
    "it changes the optimizer in a way that is not supported; use lr_scheduler_kwargs and optim_args": """
        cosine_min_lr_ratio cosine_constant_lr_ratio lr_div_factor lr_quadratic_warmup lr_groups embedding_lr
        embedding_lr_scale adam_beta3 adam_epsilon2 optim_target_modules dion_lr dion_momentum dion_rank_fraction
        dion_rank_multiple_of qgalore_rank qgalore_update_proj_gap qgalore_scale qgalore_proj_type qgalore_proj_quant
        qgalore_proj_bits qgalore_proj_group_size qgalore_cos_threshold qgalore_gamma_proj qgalore_queue_size
        use_eaft eaft_alpha eaft_k""",
    "prepare the data so before: hf-mds convert": """
        dataset_exact_deduplication min_sample_len excess_length_strategy eval_sequence_len""",
    "give it in the chat template: chat_template_jinja": """
        default_system_message chat_template_kwargs eot_tokens role_boundaries""",
})  # fmt: skip
"""Keys that would change what is learned, and what to do instead."""

IGNORED_OF_DATASETS = _table({
    "streams have no shards of this kind": "shards shards_idx preprocess_shards",
    "datasets runs no code of a dataset": "trust_remote_code",
    "chats are not converted; give roles and message_property_mappings": "conversation",
})  # fmt: skip
REFUSED_OF_DATASETS = _table({
    "which tokens are trained on is told by the chat template": """
        train_on_eos train_on_eot message_field_training message_field_training_detail split_thinking
        field_thinking template_thinking_key drop_system_message""",
    "give message_property_mappings": "message_field_role message_field_content",
    "prepare the data so before: hf-mds convert": "input_format input_transform field_human field_model skip",
    "this trains by supervised examples": "logprobs_field temperature",
})  # fmt: skip
