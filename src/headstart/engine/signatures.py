"""What the engine uses of llama.h and mtmd.h. Written by scripts/make_binding.py."""

VERSION = "0.5.0-dev"  # expected result of llama_version()
RELEASE = "0.3.36"  # the release that contains it

STRUCTURES = {
    "llama_batch": """
        int32 n_tokens, int32* token, float* embd, int32* pos, int32* n_seq_id, int32** seq_id,
        int8* logits
    """,
    "llama_chat_message": """
        char* role, char* content
    """,
    "llama_sampler_seq_config": """
        int32 seq_id, void* sampler
    """,
    "llama_context_params": """
        uint32 n_ctx, uint32 n_batch, uint32 n_ubatch, uint32 n_seq_max, uint32 n_rs_seq, uint32
        n_outputs_max, uint32 n_outputs_max_per_seq, int32 n_threads, int32 n_threads_batch, int32
        ctx_type, int32 rope_scaling_type, int32 pooling_type, int32 attention_type, int32
        flash_attn_type, float rope_freq_base, float rope_freq_scale, float yarn_ext_factor, float
        yarn_attn_factor, float yarn_beta_fast, float yarn_beta_slow, uint32 yarn_orig_ctx, float
        defrag_thold, void* cb_eval, void* cb_eval_user_data, int32 type_k, int32 type_v, void*
        abort_callback, void* abort_callback_data, bool embeddings, bool offload_kqv, bool
        no_perf, bool op_offload, bool swa_full, bool kv_unified, llama_sampler_seq_config*
        samplers, uint64 n_samplers, void* ctx_other
    """,
    "llama_model_kv_override_value": """
        int64 val_i64, double val_f64, bool val_bool, char[128] val_str
    """,
    "llama_model_kv_override": """
        int32 tag, char[128] key, llama_model_kv_override_value value
    """,
    "llama_model_params": """
        void* devices, void* tensor_buft_overrides, int32 n_gpu_layers, int32 split_mode, int32
        load_mode, int32 lazy_mode, int32 main_gpu, float* tensor_split, llama_progress_callback
        progress_callback, void* progress_callback_user_data, llama_model_kv_override*
        kv_overrides, bool vocab_only, bool check_tensors, bool use_extra_bufts, bool no_host,
        bool no_alloc, bool load_mtp
    """,
    "llama_perf_context_data": """
        double t_start_ms, double t_load_ms, double t_p_eval_ms, double t_eval_ms, int32 n_p_eval,
        int32 n_eval, int32 n_reused
    """,
    "llama_token_data": """
        int32 id, float logit, float p
    """,
    "llama_token_data_array": """
        llama_token_data* data, uint64 size, int64 selected, bool sorted
    """,
    "llama_sampler_chain_params": """
        bool no_perf
    """,
    "mtmd_context_params": """
        bool use_gpu, void* device, bool print_timings, int32 n_threads, char* image_marker, char*
        media_marker, int32 flash_attn_type, bool warmup, int32 image_min_tokens, int32
        image_max_tokens, void* cb_eval, void* cb_eval_user_data, int32 batch_max_tokens,
        llama_progress_callback progress_callback, void* progress_callback_user_data
    """,
    "mtmd_helper_bitmap_wrapper": """
        void* bitmap, void* video_ctx
    """,
    "mtmd_helper_video_init_params": """
        float fps_target, char* ffmpeg_bin_dir, int64 timestamp_interval_ms
    """,
    "mtmd_helper_init_opt": """
        mtmd_helper_video_init_params video_params
    """,
    "mtmd_decoder_pos": """
        uint32 t, uint32 x, uint32 y, uint32 z
    """,
    "mtmd_input_text": """
        char* text, uint64 text_len, bool add_special, bool parse_special
    """,
}

# "void*" is any pointer whose target the engine does not look into
FUNCTIONS = """
uint64 llama_adapter_get_alora_n_invocation_tokens(void*)
void* llama_adapter_lora_init(void*, char*)
int32 llama_adapter_meta_val_str(void*, char*, char*, uint64)
void llama_backend_init()
void llama_batch_free(llama_batch)
llama_batch llama_batch_get_one(int32*, int32)
llama_batch llama_batch_init(int32, int32, int32)
int32 llama_chat_apply_template(char*, llama_chat_message*, uint64, bool, char*, int32)
int32 llama_chat_builtin_templates(char**, uint64)
llama_context_params llama_context_default_params()
int32 llama_decode(void*, llama_batch)
int32 llama_encode(void*, llama_batch)
void llama_free(void*)
char* llama_ftype_name(int32)
float* llama_get_embeddings(void*)
float* llama_get_embeddings_seq(void*, int32)
float* llama_get_logits(void*)
void* llama_get_memory(void*)
uint32 llama_get_sampled_candidates_count_ith(void*, int32)
int32* llama_get_sampled_candidates_ith(void*, int32)
float* llama_get_sampled_logits_ith(void*, int32)
void* llama_init_from_model(void*, llama_context_params)
void llama_log_callback(int32, char*, void*)
void llama_log_set(llama_log_callback, void*)
uint64 llama_max_devices()
bool llama_memory_can_shift(void*)
void llama_memory_clear(void*, bool)
void llama_memory_seq_add(void*, int32, int32, int32, int32)
void llama_memory_seq_cp(void*, int32, int32, int32, int32)
int32 llama_memory_seq_pos_max(void*, int32)
int32 llama_memory_seq_pos_min(void*, int32)
bool llama_memory_seq_rm(void*, int32, int32, int32)
char* llama_model_chat_template(void*, char*)
llama_model_params llama_model_default_params()
void llama_model_free(void*)
int32 llama_model_ftype(void*)
void* llama_model_get_vocab(void*)
bool llama_model_has_decoder(void*)
bool llama_model_has_encoder(void*)
void* llama_model_init_from_user(void*, llama_model_set_tensor_data_t, void*, llama_model_params)
bool llama_model_is_diffusion(void*)
bool llama_model_is_hybrid(void*)
bool llama_model_is_recurrent(void*)
void* llama_model_load_from_file(char*, llama_model_params)
int32 llama_model_meta_count(void*)
int32 llama_model_meta_key_by_index(void*, int32, char*, uint64)
int32 llama_model_meta_val_str(void*, char*, char*, uint64)
int32 llama_model_meta_val_str_by_index(void*, int32, char*, uint64)
uint32 llama_model_n_cls_out(void*)
int32 llama_model_n_ctx_train(void*)
int32 llama_model_n_embd(void*)
int32 llama_model_n_embd_inp(void*)
int32 llama_model_n_embd_out(void*)
int32 llama_model_n_layer(void*)
int32 llama_model_n_layer_nextn(void*)
uint64 llama_model_n_params(void*)
int32 llama_model_n_swa(void*)
void llama_model_set_tensor_data_t(void*, void*)
uint64 llama_model_size(void*)
uint32 llama_n_ctx_seq(void*)
uint32 llama_n_rs_seq(void*)
void llama_numa_init(int32)
llama_perf_context_data llama_perf_context(void*)
int32 llama_pooling_type(void*)
char* llama_print_system_info()
bool llama_progress_callback(float, void*)
void llama_sampler_accept(void*, int32)
void llama_sampler_apply(void*, llama_token_data_array*)
void llama_sampler_chain_add(void*, void*)
llama_sampler_chain_params llama_sampler_chain_default_params()
void* llama_sampler_chain_init(llama_sampler_chain_params)
void* llama_sampler_clone(void*)
void llama_sampler_free(void*)
void* llama_sampler_init_dry(void*, float, float, int32, int32, char**, uint64)
void* llama_sampler_init_infill(void*)
void* llama_sampler_init_min_p(float, uint64)
void* llama_sampler_init_penalties(int32, int32, float, float, float)
void* llama_sampler_init_temp_ext(float, float, float)
void* llama_sampler_init_top_k(int32)
void* llama_sampler_init_top_n_sigma(float)
void* llama_sampler_init_top_p(float, uint64)
void* llama_sampler_init_typical(float, uint64)
void* llama_sampler_init_xtc(float, float, uint64, uint32)
int32 llama_set_adapter_cvec(void*, float*, uint64, int32, int32, int32)
int32 llama_set_adapters_lora(void*, void*, uint64, float*)
void llama_set_causal_attn(void*, bool)
void llama_set_embeddings(void*, bool)
uint64 llama_state_seq_get_data_ext(void*, uint8*, uint64, int32, uint32)
uint64 llama_state_seq_get_size_ext(void*, int32, uint32)
uint64 llama_state_seq_load_file(void*, char*, int32, int32*, uint64, uint64*)
uint64 llama_state_seq_save_file(void*, char*, int32, int32*, uint64)
uint64 llama_state_seq_set_data_ext(void*, uint8*, uint64, int32, uint32)
bool llama_supports_rpc()
int32 llama_token_to_piece(void*, int32, char*, int32, int32, bool)
int32 llama_tokenize(void*, char*, int32, int32*, int32, bool, bool)
char* llama_version()
int32 llama_vocab_bos(void*)
int32 llama_vocab_eos(void*)
int32 llama_vocab_eot(void*)
int32 llama_vocab_fim_mid(void*)
int32 llama_vocab_fim_pre(void*)
int32 llama_vocab_fim_rep(void*)
int32 llama_vocab_fim_sep(void*)
int32 llama_vocab_fim_suf(void*)
bool llama_vocab_get_add_bos(void*)
bool llama_vocab_get_add_eos(void*)
bool llama_vocab_get_add_sep(void*)
int32 llama_vocab_get_attr(void*, int32)
char* llama_vocab_get_text(void*, int32)
bool llama_vocab_is_control(void*, int32)
bool llama_vocab_is_eog(void*, int32)
int32 llama_vocab_mask(void*)
int32 llama_vocab_n_tokens(void*)
int32 llama_vocab_sep(void*)
int32 llama_vocab_type(void*)
void mtmd_bitmap_free(void*)
void* mtmd_bitmap_init(uint32, uint32, uint8*)
mtmd_context_params mtmd_context_params_default()
bool mtmd_decode_use_mrope(void*)
bool mtmd_decode_use_non_causal(void*, void*)
int32 mtmd_encode_chunk(void*, void*)
void mtmd_free(void*)
float* mtmd_get_output_embd(void*)
mtmd_helper_bitmap_wrapper mtmd_helper_bitmap_init_from_buf(void*, uint8*, uint64, bool, mtmd_helper_init_opt)
mtmd_helper_init_opt mtmd_helper_init_opt_default()
void mtmd_helper_log_set(llama_log_callback, void*)
mtmd_decoder_pos mtmd_image_tokens_get_decoder_pos(void*, int32, uint64)
void* mtmd_init_from_file(char*, void*, mtmd_context_params)
void* mtmd_input_chunk_copy(void*)
void mtmd_input_chunk_free(void*)
int32 mtmd_input_chunk_get_n_pos(void*)
uint64 mtmd_input_chunk_get_n_tokens(void*)
void* mtmd_input_chunk_get_tokens_image(void*)
int32* mtmd_input_chunk_get_tokens_text(void*, uint64*)
int32 mtmd_input_chunk_get_type(void*)
void mtmd_input_chunks_free(void*)
void* mtmd_input_chunks_get(void*, uint64)
void* mtmd_input_chunks_init()
uint64 mtmd_input_chunks_size(void*)
bool mtmd_support_audio(void*)
bool mtmd_support_vision(void*)
int32 mtmd_tokenize(void*, void*, mtmd_input_text*, void*, uint64)
"""  # noqa: E501
