/* SPDX-License-Identifier: MIT */
/*
 * bench: timed attention. A *case* is one implementation with one shape, its codecs and its own memory; a *lane* is a
 * case on one instruction set. A round measures every lane once, in turn, so that what disturbs the machine for a
 * moment disturbs all of them. A *row* is what comes out for a lane.
 */
#ifndef QUIRE_TOOLS_BENCH_H
#define QUIRE_TOOLS_BENCH_H

#include <quire/quire.h>

#include "common/tool.h"

#define BENCH_LIST 64
#define BENCH_MAX_SEQS 1024u

typedef enum bench_op { BENCH_DECODE, BENCH_PREFILL, BENCH_APPEND, BENCH_N_OPS } bench_op;

typedef struct bench_pair {
    char k[24], v[24];
} bench_pair;

/* ----------------------------------------------------------------- shape */

typedef struct bench_shape {
    bench_op op;
    bench_pair codecs;
    uint32_t d, d_v;
    bool v_in_k; /* V is the first d_v channels of K */
    uint32_t n_kv_heads, n_q_heads;
    uint32_t n_queries; /* per sequence: the last n_queries positions */
    uint32_t n_seqs;
    const uint32_t *lengths; /* n_seqs */
    uint32_t context;        /* the longest */
    uint64_t n_tokens;       /* the sum */
    uint32_t n_threads;
    bool cold;
    double spread; /* standard deviation of a query's scores */
    uint64_t seed;
} bench_shape;

const char *bench_op_name(bench_op op);
uint32_t bench_n_tiles(uint32_t length);
/* Caches that the rounds go round: at least 1 GiB of them if they shall be cold, else one. */
uint32_t bench_n_layers(const bench_shape *s, size_t layer_bytes);

/* ------------------------------------------------------------------- rows */

/* What is not known is NAN. */
typedef struct bench_row {
    char impl[16], op[12], k[24], v[24], isa[16];
    uint32_t d, dv, kv_heads, q_heads, context, queries, sequences, threads, runs;
    bool cold, v_in_k;
    double ms, read_ms, err;
    double median_ms, bytes, tokens, spread, tile_cycles;
    double ns_per_row, k_ns, v_ns, page_ns; /* append */
    double huge;                            /* share of the memory that lies on huge pages */
    char team[12];                          /* bench_team_text(); empty: not known */
} bench_row;

typedef struct bench_rows {
    bench_row *row;
    size_t n, cap;
} bench_rows;

bench_row *bench_rows_add(bench_rows *rows); /* NULL: no memory */
void bench_rows_free(bench_rows *rows);
/* To the digits that JSON gives, so that tables and plots of measured rows and of read ones are the same. */
void bench_rows_round(bench_rows *rows);
void bench_rows_print(const bench_rows *rows, FILE *file); /* JSON, one object per line */
int bench_rows_read(bench_rows *rows, const char *path);   /* exit code, 0: all right */
void bench_rows_markdown(const bench_rows *rows, FILE *file);
int bench_rows_plot(const bench_rows *rows, const char *path);

/* "32K", "1000" */
const char *bench_tokens_text(double tokens, char *text, size_t size);
/* "a8g64/a4g64", or one name if both are the same */
const char *bench_codec_text(const bench_row *row, char *text, size_t size);
/* Whether two rows answer the same question: everything but implementation, codecs, instruction set and context. */
bool bench_same_work(const bench_row *a, const bench_row *b);

/* ------------------------------------------------------------------ cases */

typedef struct bench_team {
    quire_threads *threads;
    quire_executor executor;
    quire_workspace *workspace;
    uint32_t n_threads;
} bench_team;

typedef struct bench_case bench_case;
typedef struct bench_reference bench_reference;

enum { BENCH_PART_K, BENCH_PART_V, BENCH_PART_PAGE, BENCH_N_PARTS };

/* Seconds; NAN before the call. */
typedef struct bench_times {
    double all;                 /* if the call leaves it, the time that it took */
    double part[BENCH_N_PARTS]; /* append: per row */
} bench_times;

typedef struct bench_impl {
    const char *name;
    bool (*run)(bench_case *c, uint32_t layer, bench_times *times); /* the measured call */
    void (*before)(bench_case *c); /* outside the measured time; NULL: nothing to do */
    void (*after)(bench_case *c);
    /* What err says of the call on layer 0 that came before. */
    bool (*check)(bench_case *c, double *err);
    /* For bench_check_attention: the 64 rows of a tile of layer 0 as floats, [64][d] and [64][d_v] ... */
    bool (*fetch)(bench_case *c, uint32_t seq, uint32_t head, uint32_t tile, float *k, float *v);
    /* ... and the output of layer 0, [query][head][d_v]. */
    const float *(*output)(bench_case *c, uint32_t seq);
    void (*destroy)(bench_case *c);
} bench_impl;

struct bench_case {
    const bench_impl *impl;
    void *self;
    bench_team *team;
    bench_shape shape;
    const char *isa; /* of a foreign implementation; NULL: quire's, chosen by the lane */
    float *q;        /* sequence after sequence: [query][head][d] */
    /* What a call reads of the cache: layer_bytes in n_pieces pieces, [layer][piece]. NULL: nothing. */
    const uint8_t *const *pieces;
    size_t layer_bytes, piece_bytes;
    uint32_t n_layers, n_pieces;
    bench_reference *reference;
};

/* What the memory of a case takes, to be known before it is touched. 0: the codecs do not fit the shape. */
size_t bench_attend_bytes(const bench_shape *s, char *message, size_t size);
bench_case *bench_attend_create(const bench_shape *s, bench_team *team, char *message, size_t size);
bench_case *bench_append_create(const bench_shape *s, bench_team *team, char *message, size_t size);
/* For these three: a case with self_bytes zeros of its own. *message says that memory is missing, until something else is. */
bench_case *bench_case_begin(const bench_impl *impl, size_t self_bytes, const bench_shape *s,
                             bench_team *team, char *message, size_t size);
void bench_case_destroy(bench_case *c);

bool bench_is_calibrated(const bench_shape *s);
/* A profile with plausible statistics, for calibrated codecs; NULL: no memory. */
quire_profile *bench_profile(const bench_shape *s);
/* K and V formats; v is NULL if V is in K. False: *message says why. */
bool bench_formats(const bench_shape *s, quire_tile_format **k, quire_tile_format **v, char *message,
                   size_t size);
/* n rows of one head in one side, [n][d] */
void bench_fill_rows(const bench_shape *s, quire_side side, uint32_t head, uint64_t salt, float *rows,
                     uint32_t n);
float *bench_make_queries(const bench_shape *s); /* of all sequences */

/* --------------------------------------------------------------- reference */

/* The worst of a sample of output rows, against double arithmetic over the decoded rows: L2 norm of the difference by
 * that of the row. What is computed once is kept in the case. */
bool bench_check_attention(bench_case *c, double *err);
void bench_reference_destroy(bench_reference *r);

/* -------------------------------------------------------------------- ggml */

typedef struct bench_ggml bench_ggml;
bench_ggml *bench_ggml_open(const char *directory, uint32_t n_threads, char *message, size_t size);
void bench_ggml_close(bench_ggml *g);
size_t bench_ggml_bytes(const bench_shape *s);
bench_case *bench_ggml_create(bench_ggml *g, const bench_shape *s, bench_team *team, char *message,
                              size_t size);

/* ----------------------------------------------------------------- machine */

double bench_now(void); /* seconds */
/* Waits until the threads of the process sleep; at most a quarter of a second. */
void bench_wait_quiet(void);
/* Keeps all threads of the team busy for a moment: cores that slept need a while until they run as fast as they can. */
#define BENCH_WAKE_SECONDS 2e-3
void bench_wake(bench_team *team);
void *bench_map(size_t bytes); /* zeros on huge pages, aligned to 2 MiB; NULL: no memory */
void bench_unmap(void *memory, size_t bytes);
size_t bench_free_memory(void); /* bytes that can be had without swapping; SIZE_MAX: unknown */
/* Reads n pieces with all threads of the team as fast as it goes; seconds. */
double bench_read(bench_team *team, const uint8_t *const *pieces, uint32_t n, size_t piece_bytes);
/* Share of the pieces' memory that lies on huge pages; NAN: not known. */
double bench_huge_share(const uint8_t *const *pieces, size_t n, size_t piece_bytes);
/* "pinned": each thread of the team can run on one processor only, and no two on the same; "shared": there are more threads than
 * processors; else "unpinned". */
const char *bench_team_text(bench_team *team);
/* Cycles of a bare AMX tile product of 16 rows now; NAN without AMX. */
double bench_tile_cycles(void);

uint64_t bench_random(uint64_t *state);
void bench_gauss(uint64_t *state, float *x, size_t n); /* mean 0, deviation 1 */

/* ------------------------------------------------------------------ rounds */

typedef struct bench_plan {
    bench_case **cases;
    size_t n_cases;
    const char **isas; /* for quire's cases; n_isas 0: the one in use */
    size_t n_isas;
    uint32_t rounds, slow_rounds;
} bench_plan;

int bench_measure(const bench_plan *plan, bench_rows *rows); /* exit code */

#endif
