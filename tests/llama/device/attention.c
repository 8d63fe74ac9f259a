/* SPDX-License-Identifier: MIT */
/* FLASH_ATTN_EXT over caches of all declared types and shapes. */
#include "scene.h"
#include "tests.h"

#include <string.h>

typedef struct heads {
    int d_k, d_v, heads;
    bool v_in_k, floats_only;
} heads;

static const heads head_sizes[] = {
    {64, 64, 3, false, false},   {128, 128, 2, false, false}, {40, 40, 2, false, true},
    {96, 96, 2, false, false},   {256, 256, 1, false, false}, {80, 80, 2, false, true},
    {192, 128, 2, false, false}, {72, 72, 1, false, true},    {576, 512, 1, true, false},
};
enum { N_HEADS = sizeof head_sizes / sizeof *head_sizes };

static const int query_counts[] = {1, 7, 33, 2, 200};
static const int gqas[] = {1, 4, 3, 8};
/* cells, n_kv: a step of llama.cpp sees a multiple of 256 cells, or all of them */
static const int cell_counts[][2] = {{256, 256}, {512, 512}, {333, 333}, {512, 256},
                                     {100, 100}, {256, 256}, {700, 512}};

/* Case number i of a pair of types: every option goes round with a period of its own. */
static scene make_case(kit_type k, kit_type v, const heads *h, int i)
{
    scene s = {.s = {.k = k,
                     .v = v,
                     .d_k = h->d_k,
                     .d_v = h->d_v,
                     .heads = h->heads,
                     .v_in_k = h->v_in_k,
                     .layers = 1}};
    s.s.gqa = gqas[i % 4];
    s.n_q = query_counts[(i + i / 5) % 5];
    s.s.cells = cell_counts[i % 7][0];
    s.n_kv = cell_counts[i % 7][1];
    s.s.streams = s.streams = 1;
    if (i % 3 == 1) s.s.streams = 3, s.streams = 3;
    if (i % 6 == 4) s.first_stream = 1, s.streams = 2;
    s.mask = (mask_kind)((i + i / 5) % N_MASKS);
    s.softcap = i % 4 == 3;
    s.sinks = i % 5 == 2;
    s.peaked = i % 3 == 0;
    s.per_head_mask = i % 11 == 6 && s.mask != MASK_NONE;
    if (s.n_q == 200 && s.streams > 1) s.n_q = 70; /* the reference would take too long */
    return s;
}

static int case_number;

static void run_pair(kit_type k, kit_type v)
{
    for (int h = 0; h < N_HEADS; h++) {
        if (head_sizes[h].floats_only && !(kit_is_float(k) && kit_is_float(v))) continue;
        if (head_sizes[h].v_in_k && k != v) continue;
        scene s = make_case(k, v, &head_sizes[h], case_number++);
        kit_seed((uint64_t)case_number);
        kit_label("%s", scene_text(&s));
        play p;
        if (play_open(&p, &s)) play_check(&p, 0);
        play_close(&p);
    }
}

static void run_types(kit_type k, const kit_type *v, int n)
{
    case_number = 13 * (int)k; /* other options with each type */
    for (int i = 0; i < n; i++) run_pair(k, v[i]);
    /* Two layers, the second of other content, and threads that come and go. */
    scene s = make_case(k, v[0], &head_sizes[0], 2);
    s.s.layers = 2;
    kit_seed(77);
    kit_label("two layers, %s", scene_text(&s));
    play p;
    if (play_open(&p, &s)) {
        kit_threads(1);
        play_check(&p, 1);
        kit_threads(3);
        play_check(&p, 0);
        kit_threads(2);
    }
    play_close(&p);
}

#define TYPES(name, k, ...)                           \
    void test_attend_##name(void)                     \
    {                                                 \
        const kit_type v[] = {__VA_ARGS__};           \
        run_types(k, v, (int)(sizeof v / sizeof *v)); \
    }
TYPES(f32, F32, F32, IQ4_NL, F16)
TYPES(f16, F16, F16, Q8_0, BF16, Q4_0)
TYPES(bf16, BF16, BF16, Q5_0)
TYPES(q8_0, Q8_0, Q8_0, Q4_0, F16, Q5_1)
TYPES(q5_1, Q5_1, Q5_1, Q4_1, F32)
TYPES(q5_0, Q5_0, Q5_0, F16, Q8_0)
TYPES(q4_1, Q4_1, Q4_1, BF16, IQ4_NL)
TYPES(q4_0, Q4_0, Q4_0, F32, Q5_0)
TYPES(iq4_nl, IQ4_NL, IQ4_NL, Q8_0, Q4_1)

/* The same graphs as the scheduler of llama.cpp cuts and places them. */
void test_sched(void)
{
    static const kit_type pairs[][2] = {{F16, F16}, {Q8_0, Q8_0}, {Q4_0, F16}, {BF16, Q5_1}, {IQ4_NL, Q4_1}};
    kit.schedule = true;
    case_number = 7;
    for (int i = 0; i < (int)(sizeof pairs / sizeof *pairs); i++) run_pair(pairs[i][0], pairs[i][1]);
    kit.schedule = false;
}

/* -------------------------------------------------------------- invariance */

/* Every query of a batch by itself, every thread count: the same bits. */
static void check_alone(play *p, const float *all)
{
    const scene *s = p->s;
    attention one = p->a;
    size_t heads_q = (size_t)(s->s.heads * s->s.gqa), in = heads_q * (size_t)s->s.d_k,
           out = heads_q * (size_t)s->s.d_v;
    float *got = KIT_NEW(float, out);
    one.n_q = 1;
    one.streams = 1;
    for (int t = 0; t < s->streams; t++) {
        for (int i = 0; i < s->n_q; i += 5) {
            size_t n = (size_t)(t * s->n_q + i);
            one.first_stream = s->first_stream + t;
            one.q = p->q + n * in;
            one.mask = p->mask + n * (size_t)s->n_kv;
            kit_check(cache_step(&p->c, 0, NULL, &one, got) == GG_SUCCESS, "one query fails");
            if (!kit_same(got, all + n * out, out * sizeof(float), "a query alone and in a batch"))
                i = s->n_q;
        }
    }
    free(got);
}

/* Rows that no query sees change, and no output does. */
static void check_foreign(play *p, const float *all, size_t n)
{
    int rows = cache_rows(&p->c), count = 0;
    int64_t *cell = KIT_NEW(int64_t, rows);
    for (int r = 0; r < rows; r++) {
        if (p->position[r] < 0) cell[count++] = r;
    }
    float *k = KIT_NEW(float, count * p->c.row[K]), *v = KIT_NEW(float, count * p->c.row[V]),
          *got = KIT_NEW(float, n);
    for (int i = 0; i < count * p->c.row[K]; i++) k[i] = 100 * kit_normal();
    for (int i = 0; i < count * p->c.row[V]; i++) v[i] = 100 * kit_normal();
    batch b = {.n = count, .cell = cell, .k = k, .v = v};
    kit_check(cache_write(&p->c, 0, &b) == GG_SUCCESS, "SET_ROWS fails");
    kit_check(play_attend(p, 0, got) == GG_SUCCESS, "FLASH_ATTN_EXT fails");
    kit_same(got, all, n * sizeof(float), "after writing masked cells");
    free(cell);
    free(k);
    free(v);
    free(got);
}

void test_invariance(void)
{
    static const kit_type pairs[][2] = {{F16, F16},   {BF16, BF16},   {F32, F32},
                                        {Q8_0, Q8_0}, {Q4_0, Q4_0},   {Q8_0, F16},
                                        {Q5_1, Q5_0}, {Q4_1, IQ4_NL}, {IQ4_NL, Q4_1}};
    for (int i = 0; i < (int)(sizeof pairs / sizeof *pairs); i++) {
        scene s = {.s = {.k = pairs[i][0],
                         .v = pairs[i][1],
                         .d_k = 64,
                         .d_v = 64,
                         .heads = 2,
                         .gqa = 3,
                         .cells = 512,
                         .layers = 1},
                   .n_q = 33,
                   .n_kv = 512,
                   .mask = i % 2 ? MASK_SEQUENCES : MASK_ALIBI};
        s.streams = s.s.streams = i % 3 ? 1 : 2;
        kit_seed(900 + (uint64_t)i);
        kit_label("%s", scene_text(&s));
        play p;
        if (play_open(&p, &s)) {
            size_t n = attention_out(&s.s, &p.a);
            float *all = KIT_NEW(float, n), *again = KIT_NEW(float, n);
            kit_check(play_step(&p, 0, all) == GG_SUCCESS, "FLASH_ATTN_EXT fails");
            for (int threads = 1; threads <= 4; threads++) {
                kit_threads(threads);
                kit_check(play_attend(&p, 0, again) == GG_SUCCESS, "FLASH_ATTN_EXT fails");
                kit_same(again, all, n * sizeof(float), "other number of threads");
            }
            kit_threads(2);
            check_alone(&p, all);
            check_foreign(&p, all, n);
            free(all);
            free(again);
        }
        play_close(&p);
    }
}

/* ------------------------------------------------------------------ selected */

/* The most cells that any row of the mask shows. */
static int most_visible(const play *p)
{
    const scene *s = p->s;
    int n_rows = s->streams * p->a.mask_heads * s->n_q, most = 0;
    for (int i = 0; i < n_rows; i++) {
        int n = 0;
        for (int j = 0; j < s->n_kv; j++) n += p->mask[(size_t)i * (size_t)s->n_kv + (size_t)j] != 0xfc00;
        if (n > most) most = n;
    }
    return most;
}

/* Told how many cells a query sees, the device may copy those: exact as before, and as near to what it says untold. False:
 * not a bit is different, so it did not. */
static bool check_told(play *p)
{
    size_t n = attention_out(&p->s->s, &p->a);
    float *untold = KIT_NEW(float, n), *told = KIT_NEW(float, n);
    play_check(p, 0);
    kit_check(play_attend(p, 0, untold) == GG_SUCCESS, "FLASH_ATTN_EXT fails");
    p->a.most = most_visible(p);
    play_check(p, 0);
    kit_check(play_attend(p, 0, told) == GG_SUCCESS, "FLASH_ATTN_EXT fails");
    double e = kit_nmse_f(told, untold, n);
    kit_check(e < tolerance(&p->s->s), "error %.3e of copied rows against tiles", e);
    bool copied = memcmp(told, untold, n * sizeof(float));
    /* A bound that is too low is not believed. */
    p->a.most = p->a.most / 2 + 1;
    kit_check(play_attend(p, 0, told) == GG_SUCCESS, "FLASH_ATTN_EXT fails");
    kit_same(told, untold, n * sizeof(float), "with a bound that is too low");
    free(untold);
    free(told);
    return copied;
}

void test_selected(void)
{
    static const kit_type pairs[][2] = {{F16, F16},   {Q8_0, Q8_0}, {Q4_0, Q4_0},
                                        {Q8_0, Q4_0}, {BF16, Q5_1}, {IQ4_NL, F16}};
    static const heads sizes[] = {
        {128, 128, 2, false, false}, {576, 512, 1, true, false}, {192, 128, 1, false, false}};
    int n_copied = 0;
    for (int i = 0; i < 18; i++) {
        const kit_type *t = pairs[i % 6];
        const heads *h = &sizes[i / 6];
        if (h->v_in_k && t[0] != t[1]) continue;
        if (kit.policy && !(kit_is_float(t[0]) && kit_is_float(t[1]))) continue;
        scene s = make_case(t[0], t[1], h, i);
        s.s.gqa = i % 2 ? 8 : 24;
        s.n_q = i % 3 == 2 ? 40 : 1 + i % 3 * 2;
        s.s.cells = 700;
        s.n_kv = i % 4 ? 700 : 512;
        s.mask = i % 5 == 3 ? MASK_WEIGHED : MASK_SELECTED;
        s.per_head_mask = i == 4;
        kit_seed(4000 + (uint64_t)i);
        kit_label("%s", scene_text(&s));
        play p;
        if (play_open(&p, &s)) n_copied += check_told(&p);
        play_close(&p);
    }
    kit_label("selected");
    kit_check(n_copied > (kit.policy ? 0 : 8), "rows were copied in %d cases only", n_copied);
}
