/* SPDX-License-Identifier: MIT */
/*
 * quire.h: attention over a KV cache kept in 2 to 8 bits per value.
 *
 * A plan says how each layer is coded, a pool owns the memory, a sequence owns
 * the tokens. A step reserves rows, append encodes them straight into their
 * tiles, attend reads the tiles; no uncompressed copy of the cache exists.
 *
 * Caveats
 *  - Positions are 32-bit; a sequence holds at most 2^31 tokens.
 *  - Head sizes 1 to 1024, layers 1 to 4096, heads 1 to 65535. Head sizes that
 *    are not a multiple of 16 are padded in memory; the plan says so.
 *  - Quantized rows lose information. Encoding never stores NaN or infinity:
 *    NaN becomes 0, what is too large saturates, both are counted.
 *  - Queries and outputs are f32.
 *
 * Threads. The library makes none except those of quire_threads_create(). A
 * sequence, a step, a batch, a profile and a workspace each have one user at a
 * time; different ones may be used at once, also in one pool. Plans, formats
 * and codecs never change after creation and may be shared freely.
 *
 * Errors. A function that can fail returns quire_status; what it gives back
 * goes through out-pointers, which a failure leaves untouched. Nothing prints,
 * aborts or exits. Destructors accept NULL; functions that only look (lengths,
 * sizes, names) take valid objects.
 */
#ifndef QUIRE_QUIRE_H
#define QUIRE_QUIRE_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define QUIRE_API
#elif defined(__GNUC__)
#define QUIRE_API __attribute__((visibility("default")))
#else
#define QUIRE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_VERSION_MAJOR 0
#define QUIRE_VERSION_MINOR 1
#define QUIRE_VERSION_PATCH 0

/* First member of every structure of options: the header the caller was
 * compiled with, so that members can be appended later. 0 is refused; members
 * that a library does not know yet are ignored. */
#define QUIRE_OPTIONS (QUIRE_VERSION_MAJOR * 10000u + QUIRE_VERSION_MINOR * 100u)

/* Tokens in a tile and in a page. Part of every format; it does not change. */
#define QUIRE_PAGE_TOKENS 64u

/* ------------------------------------------------------------------ status */

#define QUIRE_STATUS_LIST(X)                                                    \
    X(OK, "success")                                                            \
    X(EINVAL, "an argument is outside its documented range")                    \
    X(ENOMEM, "memory could not be had from the allocator")                     \
    X(EFULL, "the budget of the pool is used up")                               \
    X(ERANGE, "rows that are needed are no longer held")                        \
    X(EBUSY, "the sequence is part of an open step")                            \
    X(EUNSUPPORTED, "the codec cannot be used that way")                        \
    X(EFORMAT, "the bytes are damaged or not of this format")                   \
    X(EVERSION, "the bytes are of a format version this library does not know") \
    X(EMISMATCH, "the bytes belong to another plan, geometry or profile")       \
    X(EIO, "a read or write callback failed")

typedef enum quire_status {
#define QUIRE_STATUS_ENUM(name, text) QUIRE_##name,
    QUIRE_STATUS_LIST(QUIRE_STATUS_ENUM)
#undef QUIRE_STATUS_ENUM
} quire_status;

QUIRE_API const char *quire_status_name(quire_status status); /* "EINVAL" */
QUIRE_API const char *quire_status_text(quire_status status);
QUIRE_API const char *quire_version(void); /* "0.1.0" */

/* --------------------------------------------------------- instruction sets */

/* Variants of the inner loops: "c", "neon", "avx2", "avxvnni", "avx512",
 * "amx". The best that the machine has is used, or the best up to the one that
 * QUIRE_ISA in the environment names when the library first computes. Stored
 * bytes are the same with all of them; outputs differ by rounding. */
QUIRE_API const char *quire_isa_in_use(void);
QUIRE_API const char *quire_isa_at(uint32_t index); /* those this machine has, "c" first; NULL past the end */
/* For tests and benchmarks, while nothing else computes. NULL: as at the start. EUNSUPPORTED: not on this machine. */
QUIRE_API quire_status quire_isa_use(const char *name);

/* ----------------------------------------------- memory, threads, callbacks */

/*
 * Where memory comes from. No allocator, or alloc and free both NULL: malloc;
 * reserve, release and discard all NULL: mmap. alloc returns memory aligned to
 * 64 bytes or NULL. reserve returns address space for page memory, aligned to
 * 64 bytes, that reads as zero and costs nothing until it is touched. discard
 * gives the memory of whole OS pages back, keeping the addresses. The callbacks
 * may be called from several threads.
 */
typedef struct quire_allocator {
    void *ctx;
    void *(*alloc)(void *ctx, size_t bytes);
    void (*free)(void *ctx, void *ptr, size_t bytes);
    void *(*reserve)(void *ctx, size_t bytes);
    void (*release)(void *ctx, void *ptr, size_t bytes);
    void (*discard)(void *ctx, void *ptr, size_t bytes);
} quire_allocator;

/*
 * How work is spread. run() calls task(arg, i) once for every i < n_tasks, on
 * any threads, in any order, and returns when all are done; it may be called
 * from several threads at once. n_threads says how many tasks it can run at
 * once. Results never depend on it. run == NULL: the calling thread does
 * everything.
 */
typedef struct quire_executor {
    void *ctx;
    void (*run)(void *ctx, void (*task)(void *arg, uint32_t index), void *arg, uint32_t n_tasks);
    uint32_t n_threads;
} quire_executor;

/* A small team: n_threads - 1 threads that wait for work beside the caller. */
typedef struct quire_threads quire_threads;
QUIRE_API quire_status quire_threads_create(quire_threads **out, uint32_t n_threads);
QUIRE_API void quire_threads_destroy(quire_threads *threads);
QUIRE_API quire_executor quire_threads_executor(quire_threads *threads);

/* Move exactly n bytes; anything but QUIRE_OK stops the caller with QUIRE_EIO. */
typedef quire_status (*quire_write_fn)(void *ctx, const void *bytes, size_t n);
typedef quire_status (*quire_read_fn)(void *ctx, void *bytes, size_t n);

/* ------------------------------------------------------------------ codecs */

typedef enum quire_side { QUIRE_K = 0, QUIRE_V = 1 } quire_side;

enum {
    QUIRE_CODEC_FLOAT = 1,      /* keeps floats, no codes */
    QUIRE_CODEC_ROTATED = 2,    /* the row is rotated before it is coded */
    QUIRE_CODEC_CALIBRATED = 4, /* needs a profile; K only */
    QUIRE_CODEC_MLX = 8,        /* rows convert to MLX's packed arrays without re-coding */
    QUIRE_CODEC_GGML = 16       /* rows convert to ggml's blocks without re-coding */
};

typedef struct quire_codec_info {
    const char *name;    /* "a4g64" */
    const char *summary; /* one line for people */
    uint32_t bits;       /* per code; 16 or 32 for floats */
    uint32_t group;      /* values that share a scale; 0: the whole row */
    uint32_t flags;      /* QUIRE_CODEC_... */
} quire_codec_info;

/* The registry, in a fixed order. The strings live for ever. */
QUIRE_API uint32_t quire_codec_count(void);
QUIRE_API const quire_codec_info *quire_codec_at(uint32_t index);     /* NULL past the end */
QUIRE_API const quire_codec_info *quire_codec_find(const char *name); /* NULL if unknown */
QUIRE_API size_t quire_codec_row_bytes(const char *name, uint32_t d); /* QUIRE_NATIVE; 0: unknown */
QUIRE_API double quire_codec_bits(const char *name, uint32_t d);      /* per value, all included */

/* What was changed while rows were taken in. */
typedef struct quire_counts {
    uint64_t nan;       /* values that were NaN and became 0 */
    uint64_t saturated; /* values or scales that were too large */
    uint64_t recoded;   /* imported rows whose scales do not fit and that were coded anew */
} quire_counts;

/* -------------------------------------------------------------------- rows */

/*
 * A block of rows in the caller's memory: n tokens x heads.
 *   F32 F16 BF16  values
 *   NATIVE        the codec's own bytes (docs/formats/rows.md); ggml's blocks for ggml's codecs
 *   MLX           packed words in data, scales and biases beside them in scale_form
 * Strides are bytes. Each that is 0 is filled in by itself, for the dense order
 * token after token, heads within a token; if the order is another one, give all.
 * codec names the codec of NATIVE and MLX rows; EMISMATCH if it is not the one
 * they meet. NULL: the caller knows.
 */
typedef enum quire_form { QUIRE_F32 = 0, QUIRE_F16, QUIRE_BF16, QUIRE_NATIVE, QUIRE_MLX } quire_form;

typedef struct quire_rows {
    quire_form form, scale_form;
    const void *data, *scales, *biases;
    size_t token_stride, head_stride, seq_stride;                   /* of data; seq_stride: batches */
    size_t scale_token_stride, scale_head_stride, scale_seq_stride; /* of scales and biases */
    const char *codec;
} quire_rows;

typedef struct quire_rows_out { /* the same, to be written */
    quire_form form, scale_form;
    void *data, *scales, *biases;
    size_t token_stride, head_stride, seq_stride;
    size_t scale_token_stride, scale_head_stride, scale_seq_stride;
    const char *codec;
} quire_rows_out;

/* ---------------------------------------------------------------- geometry */

typedef struct quire_layer {
    uint32_t n_q_heads; /* a multiple of n_kv_heads */
    uint32_t n_kv_heads;
    uint32_t d_k, d_v; /* head sizes */
    uint32_t window;   /* sliding window in tokens, the query's own included; 0: sees everything */
    uint32_t v_in_k;   /* 1: V is the first d_v channels of K (MLA); only K is kept. Mind the scale: the
                         * default 1 / sqrt(d_k) is rarely that of such a model (quire_attend_options) */
} quire_layer;

/* What the model looks like: either one shape for all layers, or layers[]. */
typedef struct quire_geometry {
    uint32_t version; /* QUIRE_OPTIONS */
    uint32_t n_layers;
    uint32_t n_q_heads, n_kv_heads, d_k, d_v, v_in_k; /* every layer, unless layers is given */
    const uint32_t *windows;                          /* n_layers sliding windows, or NULL */
    const quire_layer *layers;                        /* n_layers shapes, or NULL; instead of windows */
} quire_geometry;

/* ----------------------------------------------------------------- profile */

/*
 * Statistics of a model's K and Q rows that calibrated codecs ("c:") take out
 * before coding: weights of channels, and 15 means per KV head of which rows lose
 * the nearest. Gather: create, show rows of a few thousand tokens, finish.
 * Positions below 4 are left out by observe_k. Until finish it holds a sample
 * of up to 4,096 rows, in at most 64 MiB.
 */
typedef struct quire_profile quire_profile;

QUIRE_API quire_status quire_profile_create(quire_profile **out, const quire_geometry *geometry,
                                            const quire_allocator *allocator);
/*
 * Means of channels that RoPE turns slowly depend on the position. If the profile is told the angles before it sees rows of
 * a layer, it can be made for more positions than it saw: pair i is turned by frequencies[i] times the position.
 */
typedef struct quire_rope {
    uint32_t n_pairs;     /* at most d_k / 2 */
    uint32_t interleaved; /* 1: channels 2i and 2i + 1 are a pair; 0: i and i + n_pairs */
    const float *frequencies;
} quire_rope;

QUIRE_API quire_status quire_profile_set_rope(quire_profile *profile, uint32_t layer, const quire_rope *rope);
/* Contexts of up to n_tokens will be served. 0, and layers without angles: the positions that are shown. */
QUIRE_API quire_status quire_profile_set_length(quire_profile *profile, uint32_t n_tokens);
/* k: [n_tokens][n_kv_heads][d_k], after RoPE; first: position of the first token. */
QUIRE_API quire_status quire_profile_observe_k(quire_profile *profile, uint32_t layer, uint32_t first,
                                               const float *k, uint32_t n_tokens);
QUIRE_API quire_status quire_profile_observe_q(quire_profile *profile, uint32_t layer, uint32_t first,
                                               const float *q,
                                               uint32_t n_tokens); /* [n_tokens][n_q_heads][d_k] */
/* Turns what was seen into the profile; it cannot observe any more after that. Takes a second or so for a model. */
QUIRE_API quire_status quire_profile_finish(quire_profile *profile);
QUIRE_API quire_status quire_profile_save(const quire_profile *profile, quire_write_fn write, void *ctx);
QUIRE_API quire_status quire_profile_load(quire_profile **out, quire_read_fn read, void *ctx,
                                          const quire_allocator *allocator);
QUIRE_API uint64_t quire_profile_digest(const quire_profile *profile); /* 0 until finished */
/* How far a score would be off if that layer's K were kept in a codec: root of the mean square, in units of the exponent.
 * Below 0.1 nothing is seen of it, from 0.35 on texts change (docs/fidelity.md). An estimate from the statistics alone. */
QUIRE_API quire_status quire_profile_score_error(const quire_profile *profile, uint32_t layer,
                                                 const char *codec, double *out);
QUIRE_API void quire_profile_destroy(quire_profile *profile);

/* -------------------------------------------------------------------- plan */

/*
 * policy = (preset | codec[/codec]){,item} | item{,item}
 * item   = k=C | v=C | window=C[/C] | edge=N:C[/C] | sinks=N:C[/C]
 * preset = k8v4 k4v4 (for ever the same) | safe balanced small (may improve)
 *
 * C is a codec name; one C stands for K and V. k= and v= replace that side of a preset or pair; without one
 * both are needed. Every key at most once, no spaces, fewer than 512 characters (docs/policy.md).
 */
typedef struct quire_preset {
    const char *name;
    const char *without, *with_profile; /* what it stands for in a plan without and with a profile */
    const char *summary;
} quire_preset;

QUIRE_API uint32_t quire_preset_count(void);
QUIRE_API const quire_preset *quire_preset_at(uint32_t i); /* NULL: there are not so many */

typedef struct quire_plan quire_plan;

typedef struct quire_plan_options {
    uint32_t version;                 /* QUIRE_OPTIONS */
    const quire_profile *profile;     /* for "c:" codecs; shared, may be destroyed */
    const quire_allocator *allocator; /* copied */
    char *message;                    /* gets one sentence when creation fails, else ""; may be NULL */
    size_t message_size;
} quire_plan_options;

typedef struct quire_plan_layer {
    const char *k, *v;           /* codec names; v is NULL if V is part of K */
    const char *sink_k, *sink_v; /* codecs of the first sink_tokens tokens, or NULL */
    uint32_t sink_tokens;        /* a multiple of 64 */
    uint32_t group;              /* layers of one group share pages */
    uint32_t window;
    double bytes_per_token;
    const char *reason; /* what is out of the ordinary: other codecs, padding, short groups; or NULL */
} quire_plan_layer;

QUIRE_API quire_status quire_plan_create(quire_plan **out, const quire_geometry *geometry, const char *policy,
                                         const quire_plan_options *options /* may be NULL */);
QUIRE_API void quire_plan_destroy(quire_plan *plan);                 /* pools keep what they use */
QUIRE_API const char *quire_plan_policy(const quire_plan *plan);     /* canonical form */
QUIRE_API uint64_t quire_plan_fingerprint(const quire_plan *plan);   /* codecs, geometry, layout, profile */
QUIRE_API double quire_plan_bytes_per_token(const quire_plan *plan); /* full-attention layers */
QUIRE_API uint32_t quire_plan_n_groups(const quire_plan *plan);
/* A page as it lies in memory and in files; of the budget it takes whole OS pages from 256 KiB on. */
QUIRE_API size_t quire_plan_page_bytes(const quire_plan *plan, uint32_t group);
QUIRE_API quire_status quire_plan_layer_info(const quire_plan *plan, uint32_t layer, quire_plan_layer *out);
/* A sentence if the policy is dangerous for the model, judged by the profile, or without one by the bits alone; else NULL. */
QUIRE_API const char *quire_plan_warning(const quire_plan *plan);
/* Text for people: policy, a line per run of equal layers, reasons, bytes per token, the warning. */
QUIRE_API quire_status quire_plan_describe(const quire_plan *plan, quire_write_fn write, void *ctx);

/* -------------------------------------------------------------------- pool */

typedef struct quire_pool quire_pool;

typedef struct quire_pool_options {
    uint32_t version;                 /* QUIRE_OPTIONS */
    size_t budget_bytes;              /* ceiling of page memory; at least one page of every group */
    const quire_allocator *allocator; /* copied */
    const quire_executor *executor;   /* copied; what ctx points to must outlive the pool */
} quire_pool_options;

typedef struct quire_pool_stats {
    size_t budget_bytes;
    size_t used_bytes;     /* pages in use, promised ones included */
    size_t resident_bytes; /* pages in use and pages kept for reuse; never above the budget */
    size_t peak_bytes;     /* largest resident_bytes */
    uint64_t n_pages;      /* in use now */
    uint64_t n_copies;     /* pages copied because a fork wrote to them */
    quire_counts counts;   /* of everything encoded: appends, imports, conversions */
} quire_pool_stats;

/* Reserves address space for the budget; memory is touched page by page. */
QUIRE_API quire_status quire_pool_create(quire_pool **out, const quire_plan *plan,
                                         const quire_pool_options *options);
/* Makes the pages of another plan of the same geometry known, so that its snapshots can be loaded. A conversion does
 * this by itself. */
QUIRE_API quire_status quire_pool_add_plan(quire_pool *pool, const quire_plan *plan);
QUIRE_API void quire_pool_stats_get(quire_pool *pool, quire_pool_stats *out);
/* Every sequence, batch and step of the pool must be gone. */
QUIRE_API void quire_pool_destroy(quire_pool *pool);

/* ---------------------------------------------------------------- sequence */

typedef struct quire_seq quire_seq;

/*
 * A ring: with max_tokens > 0 the query at position p sees the rows j < sinks and
 * the rows p - (max_tokens - sinks) < j <= p, whatever the chunking. Positions
 * go on counting; rows keep the rotation they were given. sinks < max_tokens.
 * A window layer sees its window only, so not the sinks. In rings and window
 * layers pages that nobody will see are released; spare_tokens more rows are
 * kept, ring or not, so that a trim to that many tokens below the greatest
 * length reached always works.
 */
typedef struct quire_seq_options {
    uint32_t version; /* QUIRE_OPTIONS */
    uint32_t max_tokens, sinks, spare_tokens;
} quire_seq_options;

/* Page memory that one sequence needs at most to reach n_tokens in steps of step_tokens: window layers and rings hold
 * a whole step while it is open. options as in quire_seq_create(). */
QUIRE_API size_t quire_plan_bytes(const quire_plan *plan, const quire_seq_options *options, uint32_t n_tokens,
                                  uint32_t step_tokens);
QUIRE_API quire_status quire_seq_create(quire_seq **out, quire_pool *pool,
                                        const quire_seq_options *options /* NULL: no ring */);
QUIRE_API void quire_seq_destroy(quire_seq *seq);          /* not while it is part of an open step */
QUIRE_API uint32_t quire_seq_length(const quire_seq *seq); /* tokens ever appended and not trimmed */
/* A second sequence with the same tokens. Pages are shared until one of them writes. */
QUIRE_API quire_status quire_seq_fork(quire_seq **out, const quire_seq *seq);
/* Forget the rows from length on. ERANGE: rows that would be visible again are gone. */
QUIRE_API quire_status quire_seq_trim(quire_seq *seq, uint32_t length);
/* Every length from here on works; a shorter one only if it lies within the kept sink pages, as 0 does. */
QUIRE_API uint32_t quire_seq_trim_floor(const quire_seq *seq);

enum { QUIRE_CONVERT_NEW = 1 }; /* re-code only the unfinished page; finished pages stay as they are */
/*
 * Go on with another plan of the same geometry. Pages that have the right codecs stay as they are, so a second call
 * changes nothing. Never needs more of the budget than before plus what the new pages are larger. Pages shared with
 * other sequences are left to them: convert forks together (quire_batch_convert) or they stop sharing.
 */
QUIRE_API quire_status quire_seq_convert(quire_seq *seq, const quire_plan *plan, uint32_t flags);
QUIRE_API const quire_plan *quire_seq_plan(const quire_seq *seq);
QUIRE_API quire_seq_options quire_seq_ring(const quire_seq *seq); /* as created or loaded */

/* Rows [first, first + n) of one layer. NATIVE and MLX need every page to have that codec. */
QUIRE_API quire_status quire_seq_export(const quire_seq *seq, uint32_t layer, quire_side side, uint32_t first,
                                        uint32_t n, const quire_rows_out *rows);

/* A sequence as bytes: header, page table, pages, checksums (docs/formats/snapshot.md). */
QUIRE_API quire_status quire_seq_save(const quire_seq *seq, quire_write_fn write, void *ctx);
/* EMISMATCH: no plan of the pool is the one it was saved with; quire_snapshot_read_info() tells which. */
QUIRE_API quire_status quire_seq_load(quire_seq **out, quire_pool *pool, quire_read_fn read, void *ctx);

typedef struct quire_snapshot_info {
    char policy[512]; /* canonical, of the plan that new rows use */
    uint64_t plan_fingerprint;
    uint32_t length;
    uint32_t max_tokens, sinks, spare_tokens;
} quire_snapshot_info;

/* Reads and checks the head of a snapshot; to load it, read from its beginning again. */
QUIRE_API quire_status quire_snapshot_read_info(quire_snapshot_info *out, quire_read_fn read, void *ctx);

/* ----------------------------------------------------------- attend options */

enum {
    QUIRE_ATTEND_BIDIRECTIONAL = 1, /* queries see all later positions too, windows or not */
    QUIRE_ATTEND_PARTIAL = 2 /* out is the sum before division; needs max and sum, ignores sink_logits */
};

/* Additive mask of one sequence: value of key j for query i and head h at
 * data[i*query_stride + h*head_stride + (j - first)], strides in elements. -inf and
 * NaN hide the row. Keys outside [first, first + n_keys) get 0; n_keys 0: no mask. */
typedef struct quire_mask {
    quire_form form; /* F32, F16 or BF16 */
    const void *data;
    size_t query_stride, head_stride; /* head_stride 0: one mask for all heads */
    uint32_t first, n_keys;
} quire_mask;

typedef struct quire_attend_options {
    uint32_t version; /* QUIRE_OPTIONS */
    uint32_t flags;
    float scale;              /* 0: 1 / sqrt(d_k) */
    float softcap;            /* 0: none; else cap * tanh(score / cap), before any bias */
    const float *alibi;       /* per query head: score += alibi[h] * (j - p); NULL: none */
    const float *mask_slopes; /* per query head: factor of the mask; NULL: 1 */
    const float *sink_logits; /* per query head: one more term of the denominator, without a value */
} quire_attend_options;

/* -------------------------------------------------------------------- step */

typedef struct quire_step quire_step;

/*
 * Reserve n_tokens[i] rows in sequence i, in all layers; window layers and rings too
 * hold all of them until the step ends. EFULL or ENOMEM: nothing has changed.
 * EBUSY: a sequence is in another open step or named twice.
 */
QUIRE_API quire_status quire_step_begin(quire_step **out, quire_pool *pool, quire_seq *const *seqs,
                                        const uint32_t *n_tokens, uint32_t n_seqs);
/* k: [all tokens][n_kv_heads][d_k], v likewise with d_v (NULL if V is part of K); sequence after sequence. */
QUIRE_API quire_status quire_step_append(quire_step *step, uint32_t layer, const float *k, const float *v);
/* The same for one sequence and any form of rows; rows of the layer's own codec are taken as they are. */
QUIRE_API quire_status quire_step_append_rows(quire_step *step, uint32_t layer, uint32_t seq_index,
                                              const quire_rows *k, const quire_rows *v);
/* q: [all tokens][n_q_heads][d_k]; out: [all tokens][n_q_heads][d_v]. A row that sees nothing gives zeros. */
QUIRE_API quire_status quire_step_attend(quire_step *step, uint32_t layer, const float *q, float *out);
/* max, sum: [all tokens][n_q_heads] or NULL, without sink_logits; masks: one per sequence or NULL. */
QUIRE_API quire_status quire_step_attend_with(quire_step *step, uint32_t layer, const float *q, float *out,
                                              float *max, float *sum, const quire_attend_options *options,
                                              const quire_mask *masks);
/* Keep the rows. EINVAL, step still open: a layer was not appended. */
QUIRE_API quire_status quire_step_commit(quire_step *step);
QUIRE_API void quire_step_abort(quire_step *step); /* forget them */

/* ------------------------------------------------------------------- batch */

/*
 * An ordered set of sequences that the batch owns. Rows are never copied or
 * padded: merge, add, extract and extend fork, and what they fork from stays
 * the caller's.
 */
typedef struct quire_batch quire_batch;

QUIRE_API quire_status quire_batch_merge(quire_batch **out, quire_pool *pool, quire_seq *const *seqs,
                                         uint32_t n);
QUIRE_API quire_status quire_batch_add(quire_batch *batch, const quire_seq *seq); /* at the end */
QUIRE_API quire_status quire_batch_extract(quire_seq **out, const quire_batch *batch, uint32_t index);
/* Keep these, in this order. An index may come again (beam search): a fork. */
QUIRE_API quire_status quire_batch_filter(quire_batch *batch, const uint32_t *indices, uint32_t n);
QUIRE_API quire_status quire_batch_extend(quire_batch *batch, const quire_batch *other);
/* As quire_seq_convert() for all of them; pages they share stay shared. */
QUIRE_API quire_status quire_batch_convert(quire_batch *batch, const quire_plan *plan, uint32_t flags);
/* For step_begin, trim and the like; valid until the batch changes. */
QUIRE_API quire_seq *const *quire_batch_seqs(const quire_batch *batch, uint32_t *n);
QUIRE_API void quire_batch_destroy(quire_batch *batch); /* none of them in an open step */

/*
 * The left-padded form other engines use: n_columns columns, sequence i in columns
 * left_padding[i] to n_columns - 1. Import takes k[layer] and v[layer]. Export
 * fills the padding with zeros; n_columns must be at least the longest length.
 */
QUIRE_API quire_status quire_batch_import(quire_batch **out, quire_pool *pool, uint32_t n_seqs,
                                          uint32_t n_columns, const uint32_t *left_padding,
                                          const quire_rows *k, const quire_rows *v);
QUIRE_API quire_status quire_batch_export(const quire_batch *batch, uint32_t layer, quire_side side,
                                          uint32_t n_columns, uint32_t *left_padding,
                                          const quire_rows_out *rows);

/* ------------------------- tiles: for hosts that keep their own page tables */

/* A codec bound to a side and a shape; knows where each code of a tile lies. */
typedef struct quire_format quire_format;

typedef struct quire_format_options {
    uint32_t version; /* QUIRE_OPTIONS */
    quire_side side;
    uint32_t d;                       /* head size */
    uint32_t d_v;                     /* side K whose first d_v channels are V; else 0 */
    const quire_profile *profile;     /* for "c:" codecs; shared, may be destroyed */
    uint32_t layer;                   /* of the profile */
    const quire_allocator *allocator; /* copied */
} quire_format_options;

QUIRE_API quire_status quire_format_create(quire_format **out, const char *codec,
                                           const quire_format_options *options);
QUIRE_API void quire_format_destroy(quire_format *format);
QUIRE_API size_t quire_tile_bytes(const quire_format *format); /* a multiple of 64 */
QUIRE_API uint64_t quire_format_fingerprint(const quire_format *format);
/*
 * Rows [row, row + n) of the tile of one KV head; rows points at that head's first
 * row. A tile begins as zeros and is aligned to 64 bytes. Rows do not depend on
 * each other; two threads must not write to one tile at once. counts may be NULL.
 */
QUIRE_API quire_status quire_tile_encode(const quire_format *format, uint32_t head, void *tile, uint32_t row,
                                         uint32_t n, const quire_rows *rows, quire_counts *counts);
QUIRE_API quire_status quire_tile_decode(const quire_format *format, uint32_t head, const void *tile,
                                         uint32_t row, uint32_t n, const quire_rows_out *rows);
QUIRE_API void quire_tile_clear(const quire_format *format, void *tile, uint32_t row, uint32_t n);

/*
 * The K and V tiles of 64 or fewer tokens, all KV heads, aligned to 64 bytes; head h
 * is h * head_stride bytes on (0: tile after tile). A host whose cells hold tokens in any order sets
 * first to the number of the first cell and QUIRE_ATTEND_BIDIRECTIONAL, and leaves everything to the mask.
 */
typedef struct quire_tile_ref {
    const void *k, *v; /* v NULL: V is part of K, whose format has d_v */
    size_t k_head_stride, v_head_stride;
    const quire_format *k_format, *v_format;
    uint32_t first; /* position of row 0, and its column in the mask */
    uint32_t n_rows;
} quire_tile_ref;

/* The tiles that a sequence holds of a layer, oldest first. Returns how many there are; writes at most cap. Valid until
 * the sequence changes. */
QUIRE_API uint32_t quire_seq_tiles(const quire_seq *seq, uint32_t layer, quire_tile_ref *tiles, uint32_t cap);

typedef struct quire_attend_job {
    const quire_tile_ref *tiles;
    uint32_t n_tiles, n_q_heads, n_kv_heads;
    uint32_t d_k, d_v;
    uint32_t n_queries, first_query;  /* query i stands at position first_query + i */
    uint32_t window;                  /* 0: none */
    uint32_t ring_tokens, ring_sinks; /* as in quire_seq_options; 0: none */
    const float *q;                   /* strides in floats; 0: dense [query][head][d] */
    size_t q_stride, q_head_stride;
    float *out;
    size_t out_stride, out_head_stride;
    float *max, *sum; /* [n_queries][n_q_heads] or NULL: largest score, sum of exp(score - max) */
    const quire_mask *mask;
} quire_attend_job;

/* Scratch for attend: about two tiles per thread and the partial results in flight. */
typedef struct quire_workspace quire_workspace;
QUIRE_API quire_status quire_workspace_create(quire_workspace **out, const quire_executor *executor,
                                              const quire_allocator *allocator);
QUIRE_API void quire_workspace_destroy(quire_workspace *workspace);

/* Of all calls so far. A tile counts once for each KV head and block of queries that it stands before. */
typedef struct quire_workspace_stats {
    uint64_t tiles_read;
    uint64_t tiles_skipped; /* no query of the block sees a row of it: not touched */
} quire_workspace_stats;

QUIRE_API void quire_workspace_stats_get(const quire_workspace *workspace, quire_workspace_stats *out);

/*
 * Attention of all jobs. Bit-identical whatever the executor, the other jobs
 * and the number of queries per call. ENOMEM: scratch could not grow, nothing written.
 */
QUIRE_API quire_status quire_attend(quire_workspace *workspace, const quire_attend_options *options,
                                    const quire_attend_job *jobs, uint32_t n_jobs);
/* Join two partial results over n_rows rows of d_v values into the first. */
QUIRE_API void quire_attend_merge(float *acc, float *max, float *sum, const float *acc2, const float *max2,
                                  const float *sum2, uint32_t n_rows, uint32_t d_v);
/* Divide: partial to final. sink_logits: one per row modulo n_heads, or NULL. */
QUIRE_API void quire_attend_finish(float *acc, const float *max, const float *sum, uint32_t n_rows,
                                   uint32_t d_v, const float *sink_logits, uint32_t n_heads);

#ifdef __cplusplus
}
#endif
#endif
