/* SPDX-License-Identifier: MIT */
/*
 * quire.h: attention over a KV cache kept in 2 to 8 bits per value.
 *
 * A plan defines how each layer is encoded, a pool owns the memory, a sequence owns the tokens of one conversation.
 * A step reserves rows. Append encodes new rows directly into tiles (64 tokens of one KV head, K or V). Attend reads
 * the tiles. No uncompressed copy of the cache exists at any time.
 *
 * Limits
 *  - Positions are 32-bit; a sequence holds at most 2^31 tokens.
 *  - Head sizes 1 to 1024, layers 1 to 4096, heads 1 to 65535. A head size that is not a multiple of 16 is padded
 *    in memory; the plan reports it.
 *  - Quantized rows lose information. Encoding never stores NaN or infinity: NaN becomes 0, values that are too
 *    large saturate, and both are counted.
 *  - Queries and outputs are f32.
 *
 * Threads. The library creates no threads except those of quire_threads_create(). Only one thread at a time may use a
 * given sequence, step, batch, profile or workspace. Different threads may use different ones at the same time, also
 * when they belong to one pool. Plans, formats and codecs never change after creation and can be shared freely.
 *
 * Errors. A function that can fail returns quire_status. Results go through out-pointers, and a failure leaves these
 * untouched. The library never prints, aborts or exits. Destructors accept NULL. Functions that only read an object
 * (lengths, sizes, names) need a valid object.
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

/* Set the first member, version, of every options structure to this. It tells the library which header you compiled
 * with, so that later versions can append members. 0 is rejected. Members that the library does not know are ignored. */
#define QUIRE_OPTIONS (QUIRE_VERSION_MAJOR * 10000u + QUIRE_VERSION_MINOR * 100u)

/* Tokens in a tile and in a page. The number is part of every stored format and never changes. */
#define QUIRE_PAGE_TOKENS 64u

/* ------------------------------------------------------------------ status */

#define QUIRE_STATUS_LIST(X)                                                    \
    X(OK, "success")                                                            \
    X(EINVAL, "an argument is outside its documented range")                    \
    X(ENOMEM, "memory allocation failed")                                       \
    X(EFULL, "the memory budget of the pool is used up")                        \
    X(ERANGE, "required rows have already been evicted")                        \
    X(EBUSY, "the object is in use, for example by an open step")               \
    X(EUNSUPPORTED, "the codec or the machine does not support this operation") \
    X(EFORMAT, "the data is damaged or not in this format")                     \
    X(EVERSION, "the data has a format version that this library cannot read")  \
    X(EMISMATCH, "the data belongs to a different plan, geometry or profile")   \
    X(EIO, "a read or write failed or timed out")

typedef enum quire_status {
#define QUIRE_STATUS_ENUM(name, text) QUIRE_##name,
    QUIRE_STATUS_LIST(QUIRE_STATUS_ENUM)
#undef QUIRE_STATUS_ENUM
} quire_status;

QUIRE_API const char *quire_status_name(quire_status status); /* "EINVAL" */
QUIRE_API const char *quire_status_text(quire_status status); /* the sentence of the list above */
QUIRE_API const char *quire_version(void);                    /* "0.1.0" */

/* --------------------------------------------------------- instruction sets */

/* The inner loops exist in variants: "c", "neon", "avx2", "avxvnni", "avx512", "amx". The library uses the best one
 * that the machine supports. Set QUIRE_ISA in the environment, before the library first computes, to use nothing better
 * than the variant it names. Encoded bytes are identical with all variants; attention outputs differ by rounding. */
QUIRE_API const char *quire_isa_in_use(void);
QUIRE_API const char *quire_isa_at(uint32_t index); /* supported variants, "c" first; NULL past the end */
/* Selects a variant, for tests and benchmarks; call it while nothing else computes. NULL: the default choice again.
 * EINVAL: unknown name. EUNSUPPORTED: this machine does not have it. */
QUIRE_API quire_status quire_isa_use(const char *name);

/* ----------------------------------------------- memory, threads, callbacks */

/*
 * Where memory comes from. Without an allocator, or with alloc and free both NULL, the library uses malloc; with
 * reserve, release and discard all NULL it uses mmap. alloc returns memory aligned to 64 bytes, or NULL. reserve returns
 * address space for pages, aligned to 64 bytes, that reads as zero and uses no memory until it is touched. discard
 * returns the memory of whole OS pages to the system but keeps the addresses. Several threads may call these at once.
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
 * How work is spread over threads. run() calls task(arg, i) once for every i < n_tasks, on any threads and in any order,
 * and returns when all calls have returned. Several threads may call run() at once. n_threads is the number of tasks
 * that can run at the same time; results never depend on it. With run == NULL the calling thread does everything.
 */
typedef struct quire_executor {
    void *ctx;
    void (*run)(void *ctx, void (*task)(void *arg, uint32_t index), void *arg, uint32_t n_tasks);
    uint32_t n_threads;
} quire_executor;

/* A small thread pool: n_threads - 1 threads that work alongside the calling thread. */
typedef struct quire_threads quire_threads;
QUIRE_API quire_status quire_threads_create(quire_threads **out, uint32_t n_threads);
QUIRE_API void quire_threads_destroy(quire_threads *threads);
QUIRE_API quire_executor quire_threads_executor(quire_threads *threads);

/* Transfer exactly n bytes. If a callback returns anything but QUIRE_OK, the function that called it returns QUIRE_EIO. */
typedef quire_status (*quire_write_fn)(void *ctx, const void *bytes, size_t n);
typedef quire_status (*quire_read_fn)(void *ctx, void *bytes, size_t n);

/* ------------------------------------------------------------------ codecs */

/*
 * Codec names; the first number is the bits of a code. r2 to r8 are Quire's own: the row is rotated and has one scale.
 * a2g32 to a8g128 are MLX's affine codes: a4g64 has a scale and a bias for every 64 values. q8_0 to q4_0 and iq4_nl are
 * llama.cpp's blocks, tq2 to tq4 TurboQuant. f32, f16 and bf16 are not quantized. The prefix h:, before an a, q or iq
 * name, rotates the row first. The prefix c:, before an r name, calibrates it with a profile and is for K only. A pair is
 * written K/V: c:r5/r4 keeps K in c:r5 and V in r4. docs/codecs.md lists all.
 */
typedef enum quire_side { QUIRE_K = 0, QUIRE_V = 1 } quire_side;

enum {
    QUIRE_CODEC_FLOAT = 1,      /* keeps floats, no codes */
    QUIRE_CODEC_ROTATED = 2,    /* the row is rotated before it is encoded */
    QUIRE_CODEC_CALIBRATED = 4, /* needs a profile; K only */
    QUIRE_CODEC_MLX = 8,        /* rows convert to MLX's packed arrays without being encoded again */
    QUIRE_CODEC_GGML = 16       /* rows convert to ggml's blocks without being encoded again */
};

typedef struct quire_codec_info {
    const char *name;    /* "a4g64" */
    const char *summary; /* one line of text for users */
    uint32_t bits;       /* per code; 16 or 32 for floats */
    uint32_t group;      /* number of values that share a scale; 0: the whole row */
    uint32_t flags;      /* QUIRE_CODEC_... */
} quire_codec_info;

/* The codec registry, in a fixed order. Its strings stay valid for the life of the process. quire_codec_bits() counts
 * everything that is stored: codes, scales, biases and padding. */
QUIRE_API uint32_t quire_codec_count(void);
QUIRE_API const quire_codec_info *quire_codec_at(uint32_t index);     /* NULL past the end */
QUIRE_API const quire_codec_info *quire_codec_find(const char *name); /* NULL if unknown */
QUIRE_API size_t quire_codec_row_bytes(const char *name, uint32_t d); /* QUIRE_NATIVE form; 0 if unknown */
QUIRE_API double quire_codec_bits(const char *name, uint32_t d);      /* per value, scales included */

/* What the library had to change while it encoded rows. */
typedef struct quire_counts {
    uint64_t nan;       /* values that were NaN and became 0 */
    uint64_t saturated; /* values or scales that were too large */
    uint64_t recoded;   /* imported rows that were encoded again because their scales do not fit the codec */
} quire_counts;

/* -------------------------------------------------------------------- rows */

/*
 * A block of rows in the caller's memory: n tokens x heads.
 *   F32 F16 BF16  values
 *   NATIVE        the codec's own bytes (docs/formats/rows.md); for ggml's codecs these are ggml's blocks
 *   MLX           packed words in data; scales and biases in separate arrays of type scale_form
 * Strides are in bytes. A zero stride defaults to dense [token][head] order; for any other layout set all strides.
 * codec names the codec of NATIVE and MLX rows; the call returns EMISMATCH if the layer uses another codec. With NULL
 * nothing is checked, and the caller must make sure that the codec is the right one.
 */
typedef enum quire_form { QUIRE_F32 = 0, QUIRE_F16, QUIRE_BF16, QUIRE_NATIVE, QUIRE_MLX } quire_form;

typedef struct quire_rows {
    quire_form form, scale_form;
    const void *data, *scales, *biases;
    size_t token_stride, head_stride, seq_stride;                   /* of data; seq_stride is for batches */
    size_t scale_token_stride, scale_head_stride, scale_seq_stride; /* of scales and biases */
    const char *codec;
} quire_rows;

typedef struct quire_rows_out { /* the same, for rows that the library writes */
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
    uint32_t window;   /* sliding window in tokens, including the query's own position; 0: full attention */
    uint32_t v_in_k;   /* 1: V is the first d_v channels of K (MLA), and only K is stored. The default scale,
                        * 1 / sqrt(d_k), is rarely right for such a model: set quire_attend_options.scale */
} quire_layer;

/* The shape of the model: either one shape for all layers, or one per layer in layers[]. */
typedef struct quire_geometry {
    uint32_t version; /* QUIRE_OPTIONS */
    uint32_t n_layers;
    uint32_t n_q_heads, n_kv_heads, d_k, d_v, v_in_k; /* of every layer, unless layers is given */
    const uint32_t *windows;                          /* n_layers sliding windows, or NULL */
    const quire_layer *layers;                        /* n_layers shapes, or NULL; used instead of windows */
} quire_geometry;

/* ----------------------------------------------------------------- profile */

/*
 * Statistics of a model's K and Q rows for calibrated codecs ("c:"). Such a codec subtracts the nearest of up to 15
 * means per KV head from a K row and multiplies each channel by a weight before it encodes the row. To make a profile:
 * create it, pass the rows of a few thousand tokens to the observe functions, finish it. quire_profile_observe_k()
 * ignores positions below 4. Until it is finished, a profile holds a sample of up to 4,096 rows in at most 64 MiB.
 */
typedef struct quire_profile quire_profile;

QUIRE_API quire_status quire_profile_create(quire_profile **out, const quire_geometry *geometry,
                                            const quire_allocator *allocator);
/*
 * The means of channels that RoPE rotates slowly depend on the position. If you set the RoPE frequencies of a layer
 * before its first observed row, the profile can serve more positions than it observed. RoPE rotates pair i by the
 * angle frequencies[i] * position.
 */
typedef struct quire_rope {
    uint32_t n_pairs;     /* at most d_k / 2 */
    uint32_t interleaved; /* 1: channels 2i and 2i + 1 are a pair; 0: i and i + n_pairs */
    const float *frequencies;
} quire_rope;

/* The frequencies are copied. EBUSY: the profile has already observed rows of this layer. */
QUIRE_API quire_status quire_profile_set_rope(quire_profile *profile, uint32_t layer, const quire_rope *rope);
/* The profile will serve contexts of up to n_tokens. 0, or a layer without RoPE frequencies: the observed positions. */
QUIRE_API quire_status quire_profile_set_length(quire_profile *profile, uint32_t n_tokens);
/* k: [n_tokens][n_kv_heads][d_k], after RoPE. first: the position of the first token. */
QUIRE_API quire_status quire_profile_observe_k(quire_profile *profile, uint32_t layer, uint32_t first,
                                               const float *k, uint32_t n_tokens);
QUIRE_API quire_status quire_profile_observe_q(quire_profile *profile, uint32_t layer, uint32_t first,
                                               const float *q,
                                               uint32_t n_tokens); /* [n_tokens][n_q_heads][d_k] */
/* Computes the profile from the observed rows; after that it accepts no more rows. Takes about a second per model. */
QUIRE_API quire_status quire_profile_finish(quire_profile *profile);
QUIRE_API quire_status quire_profile_save(const quire_profile *profile, quire_write_fn write, void *ctx);
QUIRE_API quire_status quire_profile_load(quire_profile **out, quire_read_fn read, void *ctx,
                                          const quire_allocator *allocator);
QUIRE_API uint64_t quire_profile_digest(const quire_profile *profile); /* 0 until it is finished */
/* Estimates, from the statistics alone, the root-mean-square error of the attention scores (the arguments of exp) if
 * the layer's K is stored in this codec. Below 0.1 the effect is not visible; from 0.35 on generated text changes
 * (docs/fidelity.md). */
QUIRE_API quire_status quire_profile_score_error(const quire_profile *profile, uint32_t layer,
                                                 const char *codec, double *out);
QUIRE_API void quire_profile_destroy(quire_profile *profile);

/* -------------------------------------------------------------------- plan */

/*
 * policy = (preset | codec[/codec]){,item} | item{,item}
 * item   = k=C | v=C | window=C[/C] | edge=N:C[/C] | sinks=N:C[/C]
 * preset = k8v4 k4v4 (never change) | safe balanced small (may stand for better codecs in a later version)
 *
 * C is a codec name; a single C applies to K and V. k= and v= replace one side of the preset or pair; without a preset
 * or pair both are required. Each key at most once, no spaces, fewer than 512 characters (docs/policy.md).
 */
typedef struct quire_preset {
    const char *name;
    const char *without, *with_profile; /* the codecs it stands for in a plan without and with a profile */
    const char *summary;
} quire_preset;

QUIRE_API uint32_t quire_preset_count(void);
QUIRE_API const quire_preset *quire_preset_at(uint32_t i); /* NULL past the end */

typedef struct quire_plan quire_plan;

typedef struct quire_plan_options {
    uint32_t version;                 /* QUIRE_OPTIONS */
    const quire_profile *profile;     /* for "c:" codecs; the plan shares it, so you may destroy yours */
    const quire_allocator *allocator; /* copied */
    char *message;                    /* receives one sentence if creation fails, else ""; may be NULL */
    size_t message_size;
} quire_plan_options;

typedef struct quire_plan_layer {
    const char *k, *v;           /* codec names; v is NULL if V is part of K */
    const char *sink_k, *sink_v; /* codecs of the first sink_tokens tokens, or NULL */
    uint32_t sink_tokens;        /* a multiple of 64 */
    uint32_t group;              /* layers of one group share pages */
    uint32_t window;
    double bytes_per_token;
    const char *reason; /* why this layer is special: other codecs, padding, short groups; or NULL */
} quire_plan_layer;

QUIRE_API quire_status quire_plan_create(quire_plan **out, const quire_geometry *geometry, const char *policy,
                                         const quire_plan_options *options /* may be NULL */);
QUIRE_API void quire_plan_destroy(quire_plan *plan);               /* pools keep what they need of it */
QUIRE_API const char *quire_plan_policy(const quire_plan *plan);   /* the policy in canonical form */
QUIRE_API uint64_t quire_plan_fingerprint(const quire_plan *plan); /* of codecs, geometry, layout, profile */
QUIRE_API double quire_plan_bytes_per_token(const quire_plan *plan); /* of the full-attention layers */
QUIRE_API uint32_t quire_plan_n_groups(const quire_plan *plan);
/* Size of a page in memory and in files. Pages of 256 KiB and more count as whole OS pages in the budget. */
QUIRE_API size_t quire_plan_page_bytes(const quire_plan *plan, uint32_t group);
QUIRE_API quire_status quire_plan_layer_info(const quire_plan *plan, uint32_t layer, quire_plan_layer *out);
/* A sentence if the policy is risky for this model, else NULL. Judged by the profile, or without one by the bits alone. */
QUIRE_API const char *quire_plan_warning(const quire_plan *plan);
/* Writes text for users: the policy, a line per run of equal layers, reasons, bytes per token, the warning. */
QUIRE_API quire_status quire_plan_describe(const quire_plan *plan, quire_write_fn write, void *ctx);

/* -------------------------------------------------------------------- pool */

typedef struct quire_pool quire_pool;

typedef struct quire_pool_options {
    uint32_t version;                 /* QUIRE_OPTIONS */
    size_t budget_bytes;              /* limit of page memory; at least one page of every group */
    const quire_allocator *allocator; /* copied */
    const quire_executor *executor;   /* copied; what ctx points to must outlive the pool */
} quire_pool_options;

typedef struct quire_pool_stats {
    size_t budget_bytes;
    size_t used_bytes;     /* pages in use, and pages reserved for a running conversion */
    size_t resident_bytes; /* pages in use and free pages kept for reuse; never above the budget */
    size_t peak_bytes;     /* largest resident_bytes so far */
    uint64_t n_pages;      /* pages in use now */
    uint64_t n_copies;     /* pages copied because a fork wrote to them */
    quire_counts counts;   /* of everything encoded: appends, imports, conversions */
} quire_pool_stats;

/* Reserves address space for the budget; memory is touched page by page. */
QUIRE_API quire_status quire_pool_create(quire_pool **out, const quire_plan *plan,
                                         const quire_pool_options *options);
/* Registers another plan of the same geometry, so that its snapshots can be loaded. Conversions register theirs. */
QUIRE_API quire_status quire_pool_add_plan(quire_pool *pool, const quire_plan *plan);
QUIRE_API void quire_pool_stats_get(quire_pool *pool, quire_pool_stats *out);
/* Destroy every sequence, batch and step of the pool first. */
QUIRE_API void quire_pool_destroy(quire_pool *pool);

/* ---------------------------------------------------------------- sequence */

typedef struct quire_seq quire_seq;

/*
 * A ring limits what queries see: with max_tokens > 0 the query at position p sees the rows j < sinks and the rows
 * p - (max_tokens - sinks) < j <= p, no matter how the tokens were split into steps. sinks < max_tokens. Positions keep
 * counting, and rows keep the RoPE rotation they came with. A window layer sees only its window: sinks outside the
 * window are invisible to it. Rings and window layers release pages that no later query can see. spare_tokens more rows
 * are kept, with or without a ring, so that you can always trim to that many tokens below the greatest length reached.
 */
typedef struct quire_seq_options {
    uint32_t version; /* QUIRE_OPTIONS */
    uint32_t max_tokens, sinks, spare_tokens;
} quire_seq_options;

/* The most page memory that one sequence needs to reach n_tokens in steps of step_tokens. Window layers and rings hold
 * a whole step while it is open. options: as for quire_seq_create(). EINVAL: the options are not valid, n_tokens are more
 * than a sequence can have, or the result does not fit into size_t. */
QUIRE_API quire_status quire_plan_bytes(const quire_plan *plan, const quire_seq_options *options,
                                        uint32_t n_tokens, uint32_t step_tokens, size_t *out);
QUIRE_API quire_status quire_seq_create(quire_seq **out, quire_pool *pool,
                                        const quire_seq_options *options /* NULL: no ring */);
QUIRE_API void quire_seq_destroy(quire_seq *seq);          /* not while it is part of an open step */
QUIRE_API uint32_t quire_seq_length(const quire_seq *seq); /* tokens appended minus tokens trimmed */
/* Creates a second sequence with the same tokens. Both share pages until one of them writes. */
QUIRE_API quire_status quire_seq_fork(quire_seq **out, const quire_seq *seq);
/* Removes the rows from position length on. ERANGE: rows that would become visible again have been evicted. */
QUIRE_API quire_status quire_seq_trim(quire_seq *seq, uint32_t length);
/* A trim to any length from this one on works. A trim to less works only within the kept sink pages, for example to 0. */
QUIRE_API uint32_t quire_seq_trim_floor(const quire_seq *seq);

enum { QUIRE_CONVERT_NEW = 1 }; /* re-encode only the unfinished page; finished pages stay as they are */
/*
 * Switches the sequence to another plan of the same geometry and re-encodes its pages. Pages that already have the right
 * codecs stay as they are, so a second call changes nothing. The conversion needs no more budget than before plus the
 * growth of the new pages. Pages shared with other sequences stay theirs unchanged: to keep sharing between forks,
 * convert them together with quire_batch_convert().
 */
QUIRE_API quire_status quire_seq_convert(quire_seq *seq, const quire_plan *plan, uint32_t flags);
QUIRE_API const quire_plan *quire_seq_plan(const quire_seq *seq);
QUIRE_API quire_seq_options quire_seq_ring(const quire_seq *seq); /* as created or loaded */

/* Writes rows [first, first + n) of one layer. NATIVE and MLX need every page to have that codec. ERANGE: evicted rows. */
QUIRE_API quire_status quire_seq_export(const quire_seq *seq, uint32_t layer, quire_side side, uint32_t first,
                                        uint32_t n, const quire_rows_out *rows);

/* Writes a snapshot of a sequence: header, page table, pages, checksums (docs/formats/snapshot.md). */
QUIRE_API quire_status quire_seq_save(const quire_seq *seq, quire_write_fn write, void *ctx);
/* EMISMATCH: the pool does not have the plan of the snapshot; quire_snapshot_read_info() tells you which plan that is. */
QUIRE_API quire_status quire_seq_load(quire_seq **out, quire_pool *pool, quire_read_fn read, void *ctx);

typedef struct quire_snapshot_info {
    char policy[512]; /* in canonical form, of the plan that new rows use */
    uint64_t plan_fingerprint;
    uint32_t length;
    uint32_t max_tokens, sinks, spare_tokens;
} quire_snapshot_info;

/* Reads and checks the header of a snapshot. To load the snapshot afterwards, read it from its beginning again. */
QUIRE_API quire_status quire_snapshot_read_info(quire_snapshot_info *out, quire_read_fn read, void *ctx);

/* ----------------------------------------------------------- attend options */

enum {
    QUIRE_ATTEND_BIDIRECTIONAL = 1, /* queries also see all later positions, even in window layers */
    QUIRE_ATTEND_PARTIAL = 2 /* out is the sum before division; needs max and sum, ignores sink_logits */
};

/* Additive mask of one sequence. The value for query i, head h and key j is
 * data[i*query_stride + h*head_stride + (j - first)], strides in elements. -inf and NaN hide the row. Keys outside
 * [first, first + n_keys) get 0. n_keys 0: no mask. */
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
    const float *sink_logits; /* per query head: one more term in the softmax denominator, without a value */
} quire_attend_options;

/* -------------------------------------------------------------------- step */

typedef struct quire_step quire_step;

/*
 * Reserves n_tokens[i] rows in sequence i, in all layers. Window layers and rings also hold all of these rows until the
 * step ends. EFULL or ENOMEM: nothing has changed. EBUSY: a sequence is in another open step or is listed twice.
 */
QUIRE_API quire_status quire_step_begin(quire_step **out, quire_pool *pool, quire_seq *const *seqs,
                                        const uint32_t *n_tokens, uint32_t n_seqs);
/* Encodes the rows of one layer. k: [all tokens][n_kv_heads][d_k], one sequence after the other; v: the same with d_v,
 * NULL if V is part of K. */
QUIRE_API quire_status quire_step_append(quire_step *step, uint32_t layer, const float *k, const float *v);
/* The same for one sequence and any form of rows. Rows in the layer's own codec are stored without re-encoding. */
QUIRE_API quire_status quire_step_append_rows(quire_step *step, uint32_t layer, uint32_t seq_index,
                                              const quire_rows *k, const quire_rows *v);
/* q: [all tokens][n_q_heads][d_k]. out: [all tokens][n_q_heads][d_v]. A query that sees no row gives zeros. */
QUIRE_API quire_status quire_step_attend(quire_step *step, uint32_t layer, const float *q, float *out);
/* max, sum: [all tokens][n_q_heads] or NULL, without sink_logits. masks: one per sequence, or NULL. */
QUIRE_API quire_status quire_step_attend_with(quire_step *step, uint32_t layer, const float *q, float *out,
                                              float *max, float *sum, const quire_attend_options *options,
                                              const quire_mask *masks);
/* Keeps the rows and ends the step. EINVAL: a layer was not appended; the step stays open. */
QUIRE_API quire_status quire_step_commit(quire_step *step);
QUIRE_API void quire_step_abort(quire_step *step); /* discards the rows and ends the step */

/* ------------------------------------------------------------------- batch */

/*
 * An ordered list of sequences that the batch owns. Rows are never copied or padded: merge, add, extract and extend
 * create forks, and the sequences they fork from remain the caller's.
 */
typedef struct quire_batch quire_batch;

QUIRE_API quire_status quire_batch_merge(quire_batch **out, quire_pool *pool, quire_seq *const *seqs,
                                         uint32_t n);
QUIRE_API quire_status quire_batch_add(quire_batch *batch, const quire_seq *seq); /* at the end */
QUIRE_API quire_status quire_batch_extract(quire_seq **out, const quire_batch *batch, uint32_t index);
/* Keeps the sequences with these indices, in this order. An index may appear several times (beam search): forks. */
QUIRE_API quire_status quire_batch_filter(quire_batch *batch, const uint32_t *indices, uint32_t n);
QUIRE_API quire_status quire_batch_extend(quire_batch *batch, const quire_batch *other);
/* Like quire_seq_convert() for all sequences of the batch; pages that they share stay shared. */
QUIRE_API quire_status quire_batch_convert(quire_batch *batch, const quire_plan *plan, uint32_t flags);
/* The sequences, for quire_step_begin(), quire_seq_trim() and so on. Valid until the batch changes. */
QUIRE_API quire_seq *const *quire_batch_seqs(const quire_batch *batch, uint32_t *n);
QUIRE_API void quire_batch_destroy(quire_batch *batch); /* none of its sequences may be in an open step */

/*
 * The left-padded form that other engines use: n_columns columns, with sequence i in columns left_padding[i] to
 * n_columns - 1. Import reads k[layer] and v[layer]. Export fills the padding with zeros; n_columns must be at least
 * the longest length.
 */
QUIRE_API quire_status quire_batch_import(quire_batch **out, quire_pool *pool, uint32_t n_seqs,
                                          uint32_t n_columns, const uint32_t *left_padding,
                                          const quire_rows *k, const quire_rows *v);
QUIRE_API quire_status quire_batch_export(const quire_batch *batch, uint32_t layer, quire_side side,
                                          uint32_t n_columns, uint32_t *left_padding,
                                          const quire_rows_out *rows);

/* ------------------------- tiles: for hosts that keep their own page tables */

/* A codec for one side and one head size. It defines where each code lies in a tile. */
typedef struct quire_format quire_format;

typedef struct quire_format_options {
    uint32_t version; /* QUIRE_OPTIONS */
    quire_side side;
    uint32_t d;                       /* head size */
    uint32_t d_v;                     /* for side K whose first d_v channels are V; else 0 */
    const quire_profile *profile;     /* for "c:" codecs; the format shares it, so you may destroy yours */
    uint32_t layer;                   /* the layer of the profile to use */
    const quire_allocator *allocator; /* copied */
} quire_format_options;

QUIRE_API quire_status quire_format_create(quire_format **out, const char *codec,
                                           const quire_format_options *options);
QUIRE_API void quire_format_destroy(quire_format *format);
QUIRE_API size_t quire_tile_bytes(const quire_format *format); /* a multiple of 64 */
QUIRE_API uint64_t quire_format_fingerprint(const quire_format *format);
/*
 * Encode, decode or clear rows [row, row + n) in the tile of one KV head. rows points at that head's first row. A new
 * tile must be zeroed and aligned to 64 bytes. Rows are independent of each other, but two threads must not write to one
 * tile at once. counts may be NULL.
 */
QUIRE_API quire_status quire_tile_encode(const quire_format *format, uint32_t head, void *tile, uint32_t row,
                                         uint32_t n, const quire_rows *rows, quire_counts *counts);
QUIRE_API quire_status quire_tile_decode(const quire_format *format, uint32_t head, const void *tile,
                                         uint32_t row, uint32_t n, const quire_rows_out *rows);
QUIRE_API void quire_tile_clear(const quire_format *format, void *tile, uint32_t row, uint32_t n);

/*
 * The K and V tiles of 64 or fewer tokens, for all KV heads, aligned to 64 bytes. The tile of head h starts h *
 * head_stride bytes after that of head 0 (stride 0: tiles follow each other directly). A host whose cells hold tokens in
 * any order sets first to the index of the first cell, sets QUIRE_ATTEND_BIDIRECTIONAL, and controls what is visible
 * with the mask.
 */
typedef struct quire_tile_ref {
    const void *k, *v; /* v NULL: V is part of K, whose format has d_v */
    size_t k_head_stride, v_head_stride;
    const quire_format *k_format, *v_format;
    uint32_t first; /* position of row 0, and its column in the mask */
    uint32_t n_rows;
} quire_tile_ref;

/* The tiles that a sequence holds of a layer, oldest first. Returns their number and writes at most cap of them. Valid
 * until the sequence changes. */
QUIRE_API uint32_t quire_seq_tiles(const quire_seq *seq, uint32_t layer, quire_tile_ref *tiles, uint32_t cap);

typedef struct quire_attend_job {
    const quire_tile_ref *tiles;
    uint32_t n_tiles, n_q_heads, n_kv_heads;
    uint32_t d_k, d_v;
    uint32_t n_queries, first_query;  /* query i is at position first_query + i */
    uint32_t window;                  /* 0: none */
    uint32_t ring_tokens, ring_sinks; /* max_tokens and sinks of quire_seq_options; 0: none */
    const float *q;                   /* strides in floats; 0: dense [query][head][d] */
    size_t q_stride, q_head_stride;
    float *out;
    size_t out_stride, out_head_stride;
    float *max, *sum; /* [n_queries][n_q_heads] or NULL: largest score, sum of exp(score - max) */
    const quire_mask *mask;
} quire_attend_job;

/* Scratch memory of attend: about two tiles per thread and the partial results in flight. */
typedef struct quire_workspace quire_workspace;
QUIRE_API quire_status quire_workspace_create(quire_workspace **out, const quire_executor *executor,
                                              const quire_allocator *allocator);
QUIRE_API void quire_workspace_destroy(quire_workspace *workspace);

/* Totals of all calls so far. A tile counts once for each KV head and each block of queries that it is offered to. */
typedef struct quire_workspace_stats {
    uint64_t tiles_read;
    uint64_t tiles_skipped; /* not touched, because no query of the block sees any of its rows */
} quire_workspace_stats;

QUIRE_API void quire_workspace_stats_get(const quire_workspace *workspace, quire_workspace_stats *out);

/*
 * Computes attention for all jobs. The result has the same bits whatever the executor, the other jobs and the number of
 * queries per call. options may be NULL. ENOMEM: the scratch memory could not grow; nothing was written.
 */
QUIRE_API quire_status quire_attend(quire_workspace *workspace, const quire_attend_options *options,
                                    const quire_attend_job *jobs, uint32_t n_jobs);
/* Merges the second partial result into the first, for n_rows rows of d_v values. */
QUIRE_API void quire_attend_merge(float *acc, float *max, float *sum, const float *acc2, const float *max2,
                                  const float *sum2, uint32_t n_rows, uint32_t d_v);
/* Turns a partial result into the final one by dividing. Row i uses sink_logits[i % n_heads]; NULL: no sinks. */
QUIRE_API void quire_attend_finish(float *acc, const float *max, const float *sum, uint32_t n_rows,
                                   uint32_t d_v, const float *sink_logits, uint32_t n_heads);

#ifdef __cplusplus
}
#endif
#endif
