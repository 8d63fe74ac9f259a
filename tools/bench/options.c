/* SPDX-License-Identifier: MIT */
/* bench: the options of `quire bench` and its help. */
#include "bench/options.h"

#include "bench/ggml.h"
#include "common/system.h"

#include <string.h>

#define MAX_TOKENS ((uint64_t)1 << 31)

static bool set_pair(const char *word, bench_pair *pair)
{
    if (strcmp(word, "k8v4") == 0) word = "a8g64/a4g64";
    if (strcmp(word, "k4v4") == 0) word = "a4g64";
    const char *slash = strchr(word, '/');
    size_t n = slash ? (size_t)(slash - word) : strlen(word);
    const char *v = slash ? slash + 1 : word;
    if (n >= sizeof pair->k || strlen(v) >= sizeof pair->v) return false;
    memcpy(pair->k, word, n);
    pair->k[n] = 0;
    memcpy(pair->v, v, strlen(v) + 1);
    return quire_codec_find(pair->k) && quire_codec_find(pair->v);
}

bool bench_pairs_add(const char *list, bench_pair *pairs, size_t *n)
{
    char word[64];
    if (!*list) return false;
    while (*list)
        if (*n == BENCH_LIST || !tool_word(&list, word, sizeof word) || !set_pair(word, &pairs[(*n)++]))
            return false;
    return true;
}

/* A list of numbers, at most cap. */
static bool set_numbers(const char *text, uint64_t min, uint64_t max, uint32_t *list, size_t cap, size_t *n)
{
    uint64_t x;
    do {
        if (*n == cap || !tool_number(text, ',', min, max, &x, &text)) return false;
        list[(*n)++] = (uint32_t)x;
    } while (*text++ == ',');
    return true;
}

static const char *set_ops(void *ctx, const char *value)
{
    bench_options *o = (bench_options *)ctx;
    char word[16];
    while (*value) {
        int op = 0;
        if (!tool_word(&value, word, sizeof word)) return "decode, prefill and append, with commas";
        while (op < BENCH_N_OPS && strcmp(word, bench_op_name((bench_op)op)) != 0) op++;
        if (op == BENCH_N_OPS) return "decode, prefill and append, with commas";
        o->ops[op] = true;
    }
    return NULL;
}

static const char *set_codecs(void *ctx, const char *value)
{
    bench_options *o = (bench_options *)ctx;
    return bench_pairs_add(value, o->pairs, &o->n_pairs) ? NULL
                                                         : "codecs or K/V pairs (quire codecs lists them)";
}

static const char *set_ggml_codecs(void *ctx, const char *value)
{
    bench_options *o = (bench_options *)ctx;
    bool ok = bench_pairs_add(value, o->ggml_pairs, &o->n_ggml_pairs);
    for (size_t i = 0; ok && i < o->n_ggml_pairs; i++)
        ok = bench_ggml_type(o->ggml_pairs[i].k) >= 0 && bench_ggml_type(o->ggml_pairs[i].v) >= 0;
    return ok ? NULL : "ggml types or K/V pairs of them";
}

static const char *set_contexts(void *ctx, const char *value)
{
    bench_options *o = (bench_options *)ctx;
    return set_numbers(value, 1, MAX_TOKENS, o->contexts, BENCH_LIST, &o->n_contexts)
               ? NULL
               : "numbers of tokens such as 4096,32K";
}

static const char *set_lengths(void *ctx, const char *value)
{
    bench_options *o = (bench_options *)ctx;
    return set_numbers(value, 1, MAX_TOKENS, o->lengths, BENCH_MAX_SEQS, &o->n_lengths)
               ? NULL
               : "numbers of tokens such as 2048,4K,500";
}

/* 128, 192:128 or 576/512 */
static bool set_head(const char *word, bench_head *h)
{
    uint64_t d, d_v;
    size_t n = strcspn(word, ":/");
    char mark = word[n];
    if (!tool_number(word, mark, 1, 1024, &d, NULL)) return false;
    d_v = d;
    if (mark && !tool_number(word + n + 1, 0, 1, mark == '/' ? d : 1024, &d_v, NULL)) return false;
    *h = (bench_head){(uint32_t)d, (uint32_t)d_v, mark == '/'};
    return true;
}

static const char *set_d(void *ctx, const char *value)
{
    bench_options *o = (bench_options *)ctx;
    char word[32];
    do
        if (o->n_heads == BENCH_LIST || !tool_word(&value, word, sizeof word) ||
            !set_head(word, &o->heads[o->n_heads++]))
            return "head sizes up to 1024, such as 128, 192:128 or 576/512";
    while (*value);
    return NULL;
}

static const char *set_heads(void *ctx, const char *value)
{
    bench_options *o = (bench_options *)ctx;
    uint64_t kv, q;
    const char *rest;
    if (!tool_number(value, ':', 1, 65535, &kv, &rest) || *rest != ':' ||
        !tool_number(rest + 1, 0, 1, 65535, &q, NULL) || q % kv)
        return "KV:Q, two numbers of heads, Q a multiple of KV";
    o->n_kv_heads = (uint32_t)kv;
    o->n_q_heads = (uint32_t)q;
    return NULL;
}

static const char *set_isa(void *ctx, const char *value)
{
    bench_options *o = (bench_options *)ctx;
    const char *wish = "instruction sets that this machine supports; quire --version prints the best one";
    while (*value) {
        char word[16];
        uint32_t i = 0;
        if (o->n_isas == BENCH_LIST || !tool_word(&value, word, sizeof word)) return wish;
        while (quire_isa_at(i) && strcmp(quire_isa_at(i), word) != 0 && strcmp("all", word) != 0) i++;
        if (!quire_isa_at(i)) return wish;
        o->isas[o->n_isas++] = quire_isa_at(i);
        if (strcmp("all", word) == 0)
            for (i = 1; quire_isa_at(i) && o->n_isas < BENCH_LIST; i++)
                o->isas[o->n_isas++] = quire_isa_at(i);
    }
    return NULL;
}

static const char *set_spread(void *ctx, const char *value)
{
    return tool_real(value, 0, 100, &((bench_options *)ctx)->spread) ? NULL : "a number from 0 to 100";
}

static const tool_option options[] = {
    {"--op", "LIST", "operations: decode, prefill, append (default: decode)", .set = set_ops},
    {"--codecs", "LIST",
     "codecs: one name for K and V, or a pair K/V; k8v4 is a8g64/a4g64\n(default: f16,a8g64,k8v4,a4g64,r5/r3,r4)",
     .set = set_codecs},
    {"--context", "LIST",
     "tokens in the cache, such as 4096 or 32K\n(default: 32K for decode, 8K for prefill)",
     .set = set_contexts},
    {"--queries", "N",
     "queries per call: of prefill (default: 256), or of decode if prefill\nis not measured (default: 1)",
     TOOL_NUMBER(bench_options, n_queries, 1, 1u << 20)},
    {"--heads", "KV:Q", "numbers of KV heads and query heads (default: 8:32; 1:128 if V is part of K)",
     .set = set_heads},
    {"--d", "LIST",
     "head sizes: 128 for both; 192:128 for K and V; 576/512 if V is the\nfirst 512 channels of K (default: 128)",
     .set = set_d},
    {"--sequences", "N", "sequences of that context in one call (default: 1)",
     TOOL_NUMBER(bench_options, n_seqs, 1, BENCH_MAX_SEQS)},
    {"--lengths", "LIST", "instead of --context: a ragged batch with these numbers of tokens",
     .set = set_lengths},
    {"--cold", NULL, "cycle through at least 1 GiB of caches, so that nothing is in a CPU cache",
     TOOL_FLAG(bench_options, cold)},
    {"--threads", "N", "number of threads (default: 2)", TOOL_NUMBER(bench_options, n_threads, 1, 512)},
    {"--isa", "LIST",
     "instruction sets: c, neon, neon-dotprod, neon-i8mm, avx2, avxvnni,\navx512vnni, avx512vbmi, amx; all means every one that this machine supports (default: the best)",
     .set = set_isa},
    {"--rounds", "N", "number of rounds; each measures every configuration once (default: 20)",
     TOOL_NUMBER(bench_options, rounds, 1, 100000)},
    {"--slow-rounds", "N",
     "number of rounds for configurations that take longer than a second\n(default: --rounds)",
     TOOL_NUMBER(bench_options, slow_rounds, 1, 100000)},
    {"--spread", "X", "standard deviation of a query's scores (default: 2)", .set = set_spread},
    {"--seed", "N", "seed of the random rows (default: 1)", TOOL_NUMBER(bench_options, seed, 0, UINT64_MAX),
     .wish = "a whole number"},
    {"--vs-ggml", "DIR",
     "also measure ggml's FLASH_ATTN_EXT, from libggml-cpu" SYSTEM_LIBRARY_END
     " in DIR\n(scripts/get-llama --ggml prints such a directory)",
     TOOL_WORD(bench_options, ggml), .wish = "a directory"},
    {"--ggml-codecs", "LIST", "ggml types (default: f16,q8_0,q8_0/q4_0,q4_0)", .set = set_ggml_codecs},
    {"--json", NULL, "print one JSON object per line instead of tables", TOOL_FLAG(bench_options, json)},
    {"--markdown", "FILE", "measure nothing; print tables of rows that were saved with --json",
     TOOL_WORD(bench_options, markdown), .wish = "a file"},
    {"--plot", "FILE.svg", "write a plot of decode time against context, and its rows to FILE.jsonl",
     TOOL_WORD(bench_options, plot), .wish = "a file"},
};

static const tool_command command = {
    .name = "bench",
    .usage = "[OPTIONS]",
    .about =
        "Times attention over compressed caches, compares it with the time to read the same bytes, and checks the results\n"
        "against double-precision arithmetic. A round measures every configuration once; the minimum over all rounds is\n"
        "reported, with the median next to it.",
    .examples =
        "  quire bench                                          decode, 32K tokens\n"
        "  quire bench --op prefill --codecs r8,r6/r4           256 queries on 8K tokens\n"
        "  quire bench --context 4K,128K --cold --isa all       every instruction set, data not in a CPU cache\n"
        "  quire bench --d 576/512 --codecs r8,a8g64            V is a part of K\n"
        "  quire bench --lengths 512,2048,30000 --codecs k8v4   a ragged batch\n"
        "  quire bench --op decode,prefill --vs-ggml \"$(scripts/get-llama --ggml)\" --slow-rounds 3 --json >rows.jsonl\n"
        "  quire bench --markdown rows.jsonl\n"
        "  quire bench --plot decode.svg\n",
    TOOL_OPTIONS(options),
};

int bench_options_parse(bench_options *o, int argc, char **argv)
{
    return tool_parse(&command, argc, argv, o);
}
