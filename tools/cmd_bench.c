/* SPDX-License-Identifier: MIT */
/* quire bench: which configurations there are, and what becomes of their rows. */
#include "commands.h"

#include "bench/options.h"

#include <stdlib.h>
#include <string.h>

#define MAX_CASES 512u

typedef struct bench {
    bench_options o;
    bool default_pairs;
    bench_team team;
    bench_ggml *ggml;
    bench_shape shapes[MAX_CASES];
    bool is_ggml[MAX_CASES];
    bench_case *cases[MAX_CASES];
    size_t n;
    uint32_t *lengths[BENCH_LIST * BENCH_N_OPS]; /* of the shapes */
    size_t n_lengths;
    size_t bytes;
    bench_rows rows;
} bench;

/* ---------------------------------------------------------------- defaults */

static void fill_in(bench *b)
{
    bench_options *o = &b->o;
    if (o->plot && !o->markdown) { /* a plot shows decode */
        static const uint32_t contexts[] = {2048, 4096, 8192, 16384, 32768, 65536, 131072};
        o->ops[BENCH_DECODE] = true;
        if (!o->n_pairs) bench_pairs_add("f16,r8/r4,r5/r4,r4,r3", o->pairs, &o->n_pairs);
        if (!o->n_contexts && !o->n_lengths) {
            memcpy(o->contexts, contexts, sizeof contexts);
            o->n_contexts = sizeof contexts / sizeof contexts[0];
        }
    }
    if (!o->ops[BENCH_PREFILL] && !o->ops[BENCH_APPEND]) o->ops[BENCH_DECODE] = true;
    b->default_pairs = !o->n_pairs;
    if (!o->n_pairs) bench_pairs_add("f16,a8g64,k8v4,a4g64,r5/r3,r4", o->pairs, &o->n_pairs);
    if (!o->n_ggml_pairs) bench_pairs_add("f16,q8_0,q8_0/q4_0,q4_0", o->ggml_pairs, &o->n_ggml_pairs);
    if (!o->n_heads) o->heads[o->n_heads++] = (bench_head){128, 128, false};
    if (!o->n_threads) o->n_threads = 2;
    if (!o->rounds) o->rounds = 20;
    if (o->spread < 0) o->spread = 2;
}

static uint32_t queries_of(const bench_options *o, bench_op op)
{
    if (op == BENCH_PREFILL) return o->n_queries ? o->n_queries : 256;
    return op == BENCH_DECODE && o->n_queries && !o->ops[BENCH_PREFILL] ? o->n_queries : 1;
}

/* ------------------------------------------------------------------ shapes */

static int add_shape(bench *b, const bench_shape *s, bool is_ggml)
{
    char message[256];
    if (b->n == MAX_CASES)
        return tool_usage("bench", "more than %u configurations; use shorter lists", MAX_CASES);
    if (is_ggml && ((s->d % 32 && strchr(s->codecs.k, 'q')) || (s->d_v % 32 && strchr(s->codecs.v, 'q'))))
        return tool_usage("bench", "ggml's %s/%s needs head sizes that are multiples of 32", s->codecs.k,
                          s->codecs.v);
    size_t bytes = is_ggml ? bench_ggml_bytes(s) : bench_attend_bytes(s, message, sizeof message);
    if (!bytes) return tool_usage("bench", "%s", message);
    if (s->op != BENCH_APPEND) b->bytes += bytes;
    b->is_ggml[b->n] = is_ggml;
    b->shapes[b->n++] = *s;
    return TOOL_OK;
}

/* The pairs of one implementation. */
static int add_pairs(bench *b, bench_shape *s, const bench_pair *pairs, size_t n, bool is_ggml,
                     bool is_default)
{
    int code = TOOL_OK;
    for (size_t i = 0; code == TOOL_OK && i < n; i++) {
        s->codecs = pairs[i];
        if (s->v_in_k && strcmp(pairs[i].k, pairs[i].v) != 0) {
            if (is_default) continue;
            return tool_usage(
                "bench",
                "%s/%s cannot be used with --d %u/%u, because V is a part of K and both need the same codec",
                pairs[i].k, pairs[i].v, s->d, s->d_v);
        }
        code = add_shape(b, s, is_ggml);
    }
    return code;
}

static int add_shapes(bench *b, bench_op op, const bench_head *head, const uint32_t *lengths, uint32_t n_seqs)
{
    const bench_options *o = &b->o;
    bench_shape s = {.op = op,
                     .d = head->d,
                     .d_v = head->d_v,
                     .v_in_k = head->v_in_k,
                     .n_kv_heads = o->n_kv_heads  ? o->n_kv_heads
                                   : head->v_in_k ? 1
                                                  : 8,
                     .n_q_heads = o->n_q_heads   ? o->n_q_heads
                                  : head->v_in_k ? 128
                                                 : 32,
                     .n_queries = queries_of(o, op),
                     .n_seqs = n_seqs,
                     .lengths = lengths,
                     .n_threads = op == BENCH_APPEND ? 1 : o->n_threads,
                     .cold = o->cold && op != BENCH_APPEND,
                     .spread = o->spread,
                     .seed = o->seed};
    for (uint32_t i = 0; i < n_seqs; i++) {
        if (lengths[i] < s.n_queries)
            return tool_usage("bench", "%u queries do not fit into %u tokens", s.n_queries, lengths[i]);
        if (lengths[i] > s.context) s.context = lengths[i];
        s.n_tokens += lengths[i];
    }
    int code = add_pairs(b, &s, o->pairs, o->n_pairs, false, b->default_pairs);
    if (code == TOOL_OK && b->ggml && op != BENCH_APPEND)
        code = add_pairs(b, &s, o->ggml_pairs, o->n_ggml_pairs, true, true);
    return code;
}

/* n_seqs times the same length; kept until the end. */
static const uint32_t *equal_lengths(bench *b, uint32_t length, uint32_t n_seqs)
{
    uint32_t *list = (uint32_t *)malloc(sizeof *list * n_seqs);
    if (!list || b->n_lengths == sizeof b->lengths / sizeof b->lengths[0]) {
        free(list);
        return NULL;
    }
    for (uint32_t i = 0; i < n_seqs; i++) list[i] = length;
    return b->lengths[b->n_lengths++] = list;
}

static int add_op(bench *b, bench_op op)
{
    const bench_options *o = &b->o;
    uint32_t n_seqs = o->n_seqs ? o->n_seqs : 1;
    uint32_t contexts[BENCH_LIST] = {op == BENCH_PREFILL ? 8192 : 32768};
    size_t n = 1;
    if (op == BENCH_APPEND) {
        contexts[0] = QUIRE_PAGE_TOKENS;
        n_seqs = 1;
    } else if (o->n_contexts) {
        memcpy(contexts, o->contexts, sizeof contexts);
        n = o->n_contexts;
    }
    int code = TOOL_OK;
    for (size_t h = 0; h < o->n_heads; h++) {
        if (o->n_lengths && op != BENCH_APPEND) {
            code = add_shapes(b, op, &o->heads[h], o->lengths, (uint32_t)o->n_lengths);
            if (code != TOOL_OK) return code;
            continue;
        }
        for (size_t i = 0; i < n; i++) {
            const uint32_t *lengths = equal_lengths(b, contexts[i], n_seqs);
            if (!lengths) return tool_failed("bench", "too many shapes, or out of memory");
            code = add_shapes(b, op, &o->heads[h], lengths, n_seqs);
            if (code != TOOL_OK) return code;
        }
    }
    return code;
}

/* ---------------------------------------------------------------- measuring */

static int open_team(bench *b)
{
    b->team.n_threads = b->o.n_threads;
    if (quire_threads_create(&b->team.threads, b->o.n_threads))
        return tool_failed("bench", "%u threads could not be started", b->o.n_threads);
    b->team.executor = quire_threads_executor(b->team.threads);
    if (quire_workspace_create(&b->team.workspace, &b->team.executor, NULL))
        return tool_failed("bench", "out of memory");
    return TOOL_OK;
}

static int make_cases(bench *b)
{
    char message[256];
    size_t available = bench_free_memory();
    if (b->bytes > available / 10 * 9)
        return tool_failed("bench", "the caches need %.1f GiB, but only %.1f GiB of memory are free",
                           (double)b->bytes / (1 << 30), (double)available / (1 << 30));
    for (size_t i = 0; i < b->n; i++) {
        const bench_shape *s = &b->shapes[i];
        if (b->is_ggml[i])
            b->cases[i] = bench_ggml_create(b->ggml, s, &b->team, message, sizeof message);
        else if (s->op == BENCH_APPEND)
            b->cases[i] = bench_append_create(s, &b->team, message, sizeof message);
        else
            b->cases[i] = bench_attend_create(s, &b->team, message, sizeof message);
        if (!b->cases[i]) return tool_failed("bench", "%s", message);
    }
    return TOOL_OK;
}

static int measure(bench *b)
{
    const bench_options *o = &b->o;
    char message[512];
    if (o->ggml && !(b->ggml = bench_ggml_open(o->ggml, o->n_threads, message, sizeof message)))
        return tool_failed("bench", "%s", message);
    for (int op = 0; op < BENCH_N_OPS; op++) {
        int code = o->ops[op] ? add_op(b, (bench_op)op) : TOOL_OK;
        if (code != TOOL_OK) return code;
    }
    int code = open_team(b);
    if (code == TOOL_OK) code = make_cases(b);
    if (code != TOOL_OK) return code;
    code = bench_measure(&(bench_plan){.cases = b->cases,
                                       .n_cases = b->n,
                                       .isas = b->o.isas,
                                       .n_isas = o->n_isas,
                                       .rounds = o->rounds,
                                       .slow_rounds = o->slow_rounds},
                         &b->rows);
    bench_rows_round(&b->rows);
    return code;
}

/* ------------------------------------------------------------------ output */

/* decode.svg gives decode.jsonl. */
static int write_beside(const bench *b)
{
    char path[4096];
    size_t n = strlen(b->o.plot);
    if (n > 4 && strcmp(b->o.plot + n - 4, ".svg") == 0) n -= 4;
    if (snprintf(path, sizeof path, "%.*s.jsonl", (int)n, b->o.plot) >= (int)sizeof path)
        return tool_failed("bench", "the file name is too long");
    FILE *file = fopen(path, "w");
    if (!file) return tool_failed("bench", "%s cannot be written", path);
    bench_rows_print(&b->rows, file);
    bool wrong = ferror(file);
    if (fclose(file) || wrong) return tool_failed("bench", "%s cannot be written", path);
    return TOOL_OK;
}

static int show(const bench *b)
{
    if (b->o.json)
        bench_rows_print(&b->rows, stdout);
    else
        bench_rows_markdown(&b->rows, stdout);
    int code = tool_finish("bench");
    if (b->o.plot && code == TOOL_OK) code = bench_rows_plot(&b->rows, b->o.plot);
    if (b->o.plot && !b->o.markdown && code == TOOL_OK) code = write_beside(b);
    return code;
}

static void clean_up(bench *b)
{
    for (size_t i = 0; i < b->n; i++) bench_case_destroy(b->cases[i]);
    bench_ggml_close(b->ggml);
    quire_workspace_destroy(b->team.workspace);
    quire_threads_destroy(b->team.threads);
    for (size_t i = 0; i < b->n_lengths; i++) free(b->lengths[i]);
    bench_rows_free(&b->rows);
    free(b);
}

int cmd_bench(int argc, char **argv)
{
    bench *b = (bench *)calloc(1, sizeof *b);
    if (!b) return tool_failed("bench", "out of memory");
    b->o.spread = -1; /* 0 is a spread */
    b->o.seed = 1;
    int code = bench_options_parse(&b->o, argc, argv);
    if (code < 0 && b->o.n_contexts && b->o.n_lengths)
        code = tool_usage("bench", "--context and --lengths cannot be combined");
    if (code < 0 && b->o.n_seqs && b->o.n_lengths)
        code = tool_usage("bench", "--sequences and --lengths cannot be combined");
    if (code < 0) {
        fill_in(b);
        code = b->o.markdown ? bench_rows_read(&b->rows, b->o.markdown) : measure(b);
        if (code == TOOL_OK) code = show(b);
    }
    clean_up(b);
    return code;
}
