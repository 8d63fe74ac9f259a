/* SPDX-License-Identifier: MIT */
/*
 * The public headers of version 0.2 in one, without comments, as programs were compiled with them. It never changes while the library
 * is called 0.2. Defining OLDER_CALLER cuts members off the ends of structures: a program that was compiled before they were added.
 * NEWER_CALLER adds one to each: a program that is newer than the library.
 */
/* clang-format off */
#ifndef QUIRE_TESTS_FROZEN_0_2_H
#define QUIRE_TESTS_FROZEN_0_2_H
#ifdef NEWER_CALLER
#define FUTURE uint64_t future;
#else
#define FUTURE
#endif
#include <stddef.h>
#include <stdint.h>
#define QUIRE_API
#define QUIRE_VERSION_MAJOR 0
#define QUIRE_VERSION_MINOR 2
#define QUIRE_VERSION_PATCH 0
#define QUIRE_PAGE_TOKENS 64u
#define QUIRE_STATUS_LIST(X)                                                                  \
    X(OK, "success")                                                                          \
    X(EINVAL, "an argument is outside its documented range")                                  \
    X(ENOMEM, "memory allocation failed")                                                     \
    X(EFULL, "the memory budget of the pool is used up")                                      \
    X(ERANGE, "required rows have already been evicted")                                      \
    X(EBUSY, "the object is in use, for example by an open step")                             \
    X(EUNSUPPORTED, "the codec, the machine or this version does not support this operation") \
    X(EFORMAT, "the data is damaged or not in this format")                                   \
    X(EVERSION, "the data has a format version that this library cannot read")                \
    X(EMISMATCH, "the data belongs to a different plan, geometry or profile")                 \
    X(EIO, "a read or write failed or timed out")                                             \
    X(ECANCELED, "the caller cancelled the operation")
typedef enum quire_status {
#define QUIRE_STATUS_ENUM(name, text) QUIRE_##name,
    QUIRE_STATUS_LIST(QUIRE_STATUS_ENUM)
#undef QUIRE_STATUS_ENUM
} quire_status;
QUIRE_API const char *quire_status_name(quire_status status);
QUIRE_API const char *quire_status_text(quire_status status);
QUIRE_API const char *quire_version(void);
QUIRE_API const char *quire_isa_in_use(void);
QUIRE_API const char *quire_isa_at(uint32_t index);
QUIRE_API quire_status quire_isa_use(const char *name);
QUIRE_API quire_status quire_isa_use_environment(void);
typedef struct quire_allocator {
    size_t size;
    void *ctx;
    void *(*alloc)(void *ctx, size_t bytes);
    void (*free)(void *ctx, void *ptr, size_t bytes);
#ifndef OLDER_CALLER
    void *(*reserve)(void *ctx, size_t bytes);
    void (*release)(void *ctx, void *ptr, size_t bytes);
    void (*discard)(void *ctx, void *ptr, size_t bytes);
#endif
    FUTURE
} quire_allocator;
typedef struct quire_executor {
    size_t size;
    void *ctx;
    void (*run)(void *ctx, void (*task)(void *arg, uint32_t index), void *arg, uint32_t n_tasks);
#ifndef OLDER_CALLER
    uint32_t n_threads;
    uint32_t reserved;
#endif
    FUTURE
} quire_executor;
typedef struct quire_threads quire_threads;
QUIRE_API quire_status quire_threads_create(quire_threads **out, uint32_t n_threads);
QUIRE_API void quire_threads_destroy(quire_threads *threads);
QUIRE_API quire_status quire_threads_executor(quire_threads *threads, quire_executor *out);
typedef enum quire_log_level { QUIRE_LOG_INFO = 0, QUIRE_LOG_WARNING, QUIRE_LOG_ERROR } quire_log_level;
typedef struct quire_log {
    size_t size;
    void *ctx;
    void (*write)(void *ctx, quire_log_level level, const char *sentence);
    FUTURE
} quire_log;
typedef quire_status (*quire_write_fn)(void *ctx, const void *bytes, size_t n);
typedef quire_status (*quire_read_fn)(void *ctx, void *bytes, size_t n);
typedef enum quire_side { QUIRE_K = 0, QUIRE_V = 1 } quire_side;
enum {
    QUIRE_CODEC_FLOAT = 1,
    QUIRE_CODEC_ROTATED = 2,
    QUIRE_CODEC_CALIBRATED = 4,
    QUIRE_CODEC_MLX = 8,
    QUIRE_CODEC_GGML = 16
};
typedef struct quire_codec_info {
    size_t size;
    const char *name;
    const char *summary;
    uint32_t bits;
    uint32_t group;
    uint32_t flags;
    uint32_t reserved;
} quire_codec_info;
QUIRE_API uint32_t quire_codec_count(void);
QUIRE_API const quire_codec_info *quire_codec_at(uint32_t index);
QUIRE_API const quire_codec_info *quire_codec_find(const char *name);
QUIRE_API size_t quire_codec_row_bytes(const char *name, uint32_t d);
QUIRE_API double quire_codec_bits(const char *name, uint32_t d);
typedef struct quire_counts {
    size_t size;
    uint64_t nan;
    uint64_t saturated;
#ifndef OLDER_CALLER
    uint64_t recoded;
#endif
    FUTURE
} quire_counts;
typedef enum quire_form { QUIRE_F32 = 0, QUIRE_F16, QUIRE_BF16, QUIRE_NATIVE, QUIRE_MLX } quire_form;
typedef struct quire_rows {
    size_t size;
    quire_form form, scale_form;
    const void *data, *scales, *biases;
    size_t token_stride, head_stride, seq_stride;
#ifndef OLDER_CALLER
    size_t scale_token_stride, scale_head_stride, scale_seq_stride;
    const char *codec;
#endif
    FUTURE
} quire_rows;
typedef struct quire_rows_out {
    size_t size;
    quire_form form, scale_form;
    void *data, *scales, *biases;
    size_t token_stride, head_stride, seq_stride;
#ifndef OLDER_CALLER
    size_t scale_token_stride, scale_head_stride, scale_seq_stride;
    const char *codec;
#endif
    FUTURE
} quire_rows_out;
typedef struct quire_layer {
    uint32_t n_q_heads;
    uint32_t n_kv_heads;
    uint32_t d_k, d_v;
    uint32_t window;
    uint32_t v_in_k;
    FUTURE
} quire_layer;
typedef struct quire_geometry {
    size_t size;
    uint32_t n_layers;
    uint32_t n_q_heads, n_kv_heads, d_k, d_v, v_in_k;
    const uint32_t *windows;
#ifndef OLDER_CALLER
    const quire_layer *layers;
    size_t layer_stride;
#endif
    FUTURE
} quire_geometry;
typedef struct quire_profile quire_profile;
QUIRE_API quire_status quire_profile_create(quire_profile **out, const quire_geometry *geometry,
                                            const quire_allocator *allocator);
typedef struct quire_rope {
    size_t size;
    uint32_t n_pairs;
    uint32_t interleaved;
    const float *frequencies;
    FUTURE
} quire_rope;
QUIRE_API quire_status quire_profile_set_rope(quire_profile *profile, uint32_t layer, const quire_rope *rope);
QUIRE_API quire_status quire_profile_set_length(quire_profile *profile, uint32_t n_tokens);
QUIRE_API quire_status quire_profile_observe_k(quire_profile *profile, uint32_t layer, uint32_t first,
                                               const float *k, uint32_t n_tokens);
QUIRE_API quire_status quire_profile_observe_q(quire_profile *profile, uint32_t layer, uint32_t first,
                                               const float *q,
                                               uint32_t n_tokens);
QUIRE_API quire_status quire_profile_finish(quire_profile *profile);
QUIRE_API quire_status quire_profile_save(const quire_profile *profile, quire_write_fn write, void *ctx);
QUIRE_API quire_status quire_profile_load(quire_profile **out, quire_read_fn read, void *ctx,
                                          const quire_allocator *allocator);
QUIRE_API uint64_t quire_profile_digest(const quire_profile *profile);
QUIRE_API quire_status quire_profile_score_error(const quire_profile *profile, uint32_t layer,
                                                 const char *codec, double *out);
QUIRE_API void quire_profile_destroy(quire_profile *profile);
typedef struct quire_preset {
    size_t size;
    const char *name;
    const char *without, *with_profile;
    const char *summary;
} quire_preset;
QUIRE_API uint32_t quire_preset_count(void);
QUIRE_API const quire_preset *quire_preset_at(uint32_t i);
typedef struct quire_plan quire_plan;
typedef struct quire_plan_options {
    size_t size;
    const quire_profile *profile;
    const quire_allocator *allocator;
#ifndef OLDER_CALLER
    char *message;
    size_t message_size;
#endif
    FUTURE
} quire_plan_options;
typedef struct quire_plan_layer {
    size_t size;
    const char *k, *v;
    const char *sink_k, *sink_v;
    const char *reason;
    double bytes_per_token;
#ifndef OLDER_CALLER
    uint32_t sink_tokens;
    uint32_t group;
    uint32_t group_index;
    uint32_t window;
    uint32_t n_q_heads, n_kv_heads, d_k, d_v, v_in_k;
    uint32_t reserved;
#endif
    FUTURE
} quire_plan_layer;
QUIRE_API quire_status quire_plan_create(quire_plan **out, const quire_geometry *geometry, const char *policy,
                                         const quire_plan_options *options );
QUIRE_API void quire_plan_destroy(quire_plan *plan);
QUIRE_API const char *quire_plan_policy(const quire_plan *plan);
QUIRE_API uint64_t quire_plan_fingerprint(const quire_plan *plan);
QUIRE_API double quire_plan_bytes_per_token(const quire_plan *plan);
QUIRE_API uint32_t quire_plan_n_groups(const quire_plan *plan);
QUIRE_API size_t quire_plan_page_bytes(const quire_plan *plan, uint32_t group);
QUIRE_API quire_status quire_plan_layer_info(const quire_plan *plan, uint32_t layer, quire_plan_layer *out);
QUIRE_API const char *quire_plan_warning(const quire_plan *plan);
QUIRE_API quire_status quire_plan_describe(const quire_plan *plan, quire_write_fn write, void *ctx);
typedef struct quire_tile_format quire_tile_format;
typedef struct quire_tile_format_options {
    size_t size;
    quire_side side;
    uint32_t d;
    uint32_t d_v;
    uint32_t layer;
#ifndef OLDER_CALLER
    const quire_profile *profile;
    const quire_allocator *allocator;
#endif
    FUTURE
} quire_tile_format_options;
QUIRE_API quire_status quire_tile_format_create(quire_tile_format **out, const char *codec,
                                           const quire_tile_format_options *options);
QUIRE_API void quire_tile_format_destroy(quire_tile_format *format);
QUIRE_API size_t quire_tile_bytes(const quire_tile_format *format);
QUIRE_API uint64_t quire_tile_format_fingerprint(const quire_tile_format *format);
QUIRE_API quire_status quire_tile_encode(const quire_tile_format *format, uint32_t head, void *tile, uint32_t row,
                                         uint32_t n, const quire_rows *rows, quire_counts *counts);
QUIRE_API quire_status quire_tile_decode(const quire_tile_format *format, uint32_t head, const void *tile,
                                         uint32_t row, uint32_t n, const quire_rows_out *rows);
QUIRE_API void quire_tile_clear(const quire_tile_format *format, void *tile, uint32_t row, uint32_t n);
typedef struct quire_tile_ref {
    const void *k, *v;
    size_t k_head_stride, v_head_stride;
    const quire_tile_format *k_format, *v_format;
    uint32_t first;
    uint32_t n_rows;
    FUTURE
} quire_tile_ref;
typedef struct quire_paged_memory {
    size_t size;
    void *k, *v;
    size_t k_block_stride, k_tile_stride, k_head_stride, k_layer_stride;
    size_t v_block_stride, v_tile_stride, v_head_stride, v_layer_stride;
    const quire_tile_format *k_format, *v_format;
    uint32_t n_blocks;
    uint32_t block_tokens;
    uint32_t n_kv_heads;
    uint32_t n_layers;
    FUTURE
} quire_paged_memory;
typedef struct quire_block_table {
    size_t size;
    const quire_paged_memory *memory;
    const int32_t *blocks;
    size_t row_stride;
    const int32_t *lengths;
    uint32_t n_seqs;
    uint32_t reserved;
    FUTURE
} quire_block_table;
typedef struct quire_tile_list quire_tile_list;
QUIRE_API quire_status quire_tile_list_create(quire_tile_list **out, const quire_allocator *allocator);
QUIRE_API void quire_tile_list_destroy(quire_tile_list *list);
QUIRE_API void quire_tile_list_clear(quire_tile_list *list);
QUIRE_API uint32_t quire_tile_list_count(const quire_tile_list *list);
QUIRE_API quire_status quire_tile_list_add_tiles(quire_tile_list *list, const quire_tile_ref *tiles,
                                                 uint32_t n_tiles, size_t tile_stride, uint32_t n_kv_heads);
QUIRE_API quire_status quire_tile_list_add_blocks(quire_tile_list *list, const quire_block_table *table);
enum {
    QUIRE_ATTEND_BIDIRECTIONAL = 1,
    QUIRE_ATTEND_PARTIAL =
        2
};
typedef struct quire_mask {
    size_t size;
    const void *data;
    size_t query_stride, head_stride;
    quire_form form;
    uint32_t first, n_keys;
    uint32_t reserved;
    FUTURE
} quire_mask;
typedef struct quire_attend_options {
    size_t size;
    uint32_t flags;
    float scale;
    float softcap;
    uint32_t reserved;
#ifndef OLDER_CALLER
    const float *alibi;
    const float *mask_slopes;
    const float *sink_logits;
    int (*cancelled)(void *ctx);
    void *cancelled_ctx;
#endif
    FUTURE
} quire_attend_options;
typedef struct quire_workspace quire_workspace;
QUIRE_API quire_status quire_workspace_create(quire_workspace **out, const quire_executor *executor,
                                              const quire_allocator *allocator);
QUIRE_API void quire_workspace_destroy(quire_workspace *workspace);
typedef struct quire_workspace_stats {
    size_t size;
    uint64_t tiles_read;
#ifndef OLDER_CALLER
    uint64_t tiles_skipped;
#endif
    FUTURE
} quire_workspace_stats;
QUIRE_API quire_status quire_workspace_stats_get(const quire_workspace *workspace,
                                                 quire_workspace_stats *out);
typedef struct quire_attend_job {
    const quire_tile_list *list;
    uint32_t list_seq, list_layer;
    const quire_tile_ref *tiles;
    size_t tile_stride;
    uint32_t n_tiles, n_q_heads, n_kv_heads;
    uint32_t d_k, d_v;
    uint32_t n_queries, first_query;
    uint32_t window;
    uint32_t ring_tokens, ring_sinks;
    quire_form q_form, out_form;
    const void *q;
    size_t q_token_stride, q_head_stride;
    void *out;
    size_t out_token_stride, out_head_stride;
#ifndef OLDER_CALLER
    float *max, *sum;
    const quire_mask *mask;
#endif
    FUTURE
} quire_attend_job;
QUIRE_API quire_status quire_attend(quire_workspace *workspace, const quire_attend_options *options,
                                    const quire_attend_job *jobs, uint32_t n_jobs, size_t job_stride);
QUIRE_API void quire_attend_merge(float *acc, float *max, float *sum, const float *acc2, const float *max2,
                                  const float *sum2, uint32_t n_rows, uint32_t d_v);
QUIRE_API void quire_attend_finish(float *acc, const float *max, const float *sum, uint32_t n_rows,
                                   uint32_t d_v, const float *sink_logits, uint32_t n_heads);
typedef struct quire_scatter_rows {
    size_t size;
    const quire_paged_memory *memory;
    const quire_rows *k, *v;
    const int64_t *slots;
    uint32_t n_tokens;
    uint32_t layer;
    quire_counts *counts;
    FUTURE
} quire_scatter_rows;
QUIRE_API quire_status quire_scatter(quire_workspace *workspace, const quire_scatter_rows *rows);
typedef struct quire_pool quire_pool;
typedef struct quire_pool_options {
    size_t size;
    size_t budget_bytes;
    const quire_allocator *allocator;
#ifndef OLDER_CALLER
    const quire_executor *executor;
#endif
    FUTURE
} quire_pool_options;
typedef struct quire_pool_stats {
    size_t size;
    size_t budget_bytes;
    size_t used_bytes;
    size_t resident_bytes;
    size_t peak_bytes;
    uint64_t n_pages;
#ifndef OLDER_CALLER
    uint64_t n_copies;
    uint64_t nan, saturated, recoded;
#endif
    FUTURE
} quire_pool_stats;
QUIRE_API quire_status quire_pool_create(quire_pool **out, const quire_plan *plan,
                                         const quire_pool_options *options);
QUIRE_API quire_status quire_pool_add_plan(quire_pool *pool, const quire_plan *plan);
QUIRE_API quire_status quire_pool_stats_get(quire_pool *pool, quire_pool_stats *out);
QUIRE_API void quire_pool_destroy(quire_pool *pool);
typedef struct quire_seq quire_seq;
typedef struct quire_seq_options {
    size_t size;
#ifndef OLDER_CALLER
    uint32_t max_tokens, sinks, spare_tokens;
    uint32_t reserved;
#endif
    FUTURE
} quire_seq_options;
QUIRE_API quire_status quire_plan_bytes(const quire_plan *plan, const quire_seq_options *options,
                                        uint32_t n_tokens, uint32_t step_tokens, size_t *out);
QUIRE_API quire_status quire_seq_create(quire_seq **out, quire_pool *pool,
                                        const quire_seq_options *options );
QUIRE_API void quire_seq_destroy(quire_seq *seq);
QUIRE_API uint32_t quire_seq_length(const quire_seq *seq);
QUIRE_API quire_status quire_seq_fork(quire_seq **out, const quire_seq *seq);
QUIRE_API quire_status quire_seq_trim(quire_seq *seq, uint32_t length);
QUIRE_API uint32_t quire_seq_trim_floor(const quire_seq *seq);
enum { QUIRE_CONVERT_NEW = 1 };
QUIRE_API quire_status quire_seq_convert(quire_seq *seq, const quire_plan *plan, uint32_t flags);
QUIRE_API const quire_plan *quire_seq_plan(const quire_seq *seq);
QUIRE_API quire_status quire_seq_options_get(const quire_seq *seq, quire_seq_options *out);
QUIRE_API quire_status quire_seq_export(const quire_seq *seq, uint32_t layer, quire_side side, uint32_t first,
                                        uint32_t n, const quire_rows_out *rows);
QUIRE_API quire_status quire_seq_save(const quire_seq *seq, quire_write_fn write, void *ctx);
QUIRE_API quire_status quire_seq_load(quire_seq **out, quire_pool *pool, quire_read_fn read, void *ctx);
typedef struct quire_snapshot_info {
    size_t size;
    uint64_t plan_fingerprint;
#ifndef OLDER_CALLER
    uint32_t length;
    uint32_t max_tokens, sinks, spare_tokens;
    char policy[512];
#endif
    FUTURE
} quire_snapshot_info;
QUIRE_API quire_status quire_snapshot_read_info(quire_snapshot_info *out, quire_read_fn read, void *ctx);
typedef struct quire_step quire_step;
QUIRE_API quire_status quire_step_begin(quire_step **out, quire_pool *pool, quire_seq *const *seqs,
                                        const uint32_t *n_tokens, uint32_t n_seqs);
QUIRE_API quire_status quire_step_append(quire_step *step, uint32_t layer, const float *k, const float *v);
QUIRE_API quire_status quire_step_append_rows(quire_step *step, uint32_t layer, uint32_t seq_index,
                                              const quire_rows *k, const quire_rows *v);
QUIRE_API quire_status quire_step_attend(quire_step *step, uint32_t layer, const float *q, float *out);
typedef struct quire_step_queries {
    size_t size;
    quire_form q_form, out_form;
    const void *q;
    size_t q_token_stride, q_head_stride;
    void *out;
    size_t out_token_stride, out_head_stride;
#ifndef OLDER_CALLER
    float *max, *sum;
    const quire_attend_options *options;
    const quire_mask *masks;
    size_t mask_stride;
#endif
    FUTURE
} quire_step_queries;
QUIRE_API quire_status quire_step_attend_with(quire_step *step, uint32_t layer,
                                              const quire_step_queries *queries);
QUIRE_API quire_status quire_step_commit(quire_step *step);
QUIRE_API void quire_step_abort(quire_step *step);
typedef struct quire_batch quire_batch;
QUIRE_API quire_status quire_batch_merge(quire_batch **out, quire_pool *pool, quire_seq *const *seqs,
                                         uint32_t n);
QUIRE_API quire_status quire_batch_add(quire_batch *batch, const quire_seq *seq);
QUIRE_API quire_status quire_batch_extract(quire_seq **out, const quire_batch *batch, uint32_t index);
QUIRE_API quire_status quire_batch_filter(quire_batch *batch, const uint32_t *indices, uint32_t n);
QUIRE_API quire_status quire_batch_extend(quire_batch *batch, const quire_batch *other);
QUIRE_API quire_status quire_batch_convert(quire_batch *batch, const quire_plan *plan, uint32_t flags);
QUIRE_API quire_seq *const *quire_batch_seqs(const quire_batch *batch, uint32_t *n);
QUIRE_API void quire_batch_destroy(quire_batch *batch);
QUIRE_API quire_status quire_batch_import(quire_batch **out, quire_pool *pool, uint32_t n_seqs,
                                          uint32_t n_columns, const uint32_t *left_padding,
                                          const quire_rows *k, const quire_rows *v, size_t rows_stride);
QUIRE_API quire_status quire_batch_export(const quire_batch *batch, uint32_t layer, quire_side side,
                                          uint32_t n_columns, uint32_t *left_padding,
                                          const quire_rows_out *rows);
QUIRE_API uint32_t quire_seq_tiles(const quire_seq *seq, uint32_t layer, quire_tile_ref *tiles, uint32_t cap,
                                   size_t stride);
QUIRE_API quire_status quire_tile_list_add_seq(quire_tile_list *list, const quire_seq *seq, uint32_t group);
#endif
