/* SPDX-License-Identifier: MIT */
/*
 * Random operations on two pools against a model that is an array of rows.
 *
 *   model_random_ops [operations [seed]]      1,000,000 operations; 30,000 with a sanitizer
 *
 * A run is cut into worlds of WORLD_OPS operations with a model shape and plans of their own. The line printed on a
 * failure repeats its world alone.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/cache_kit.h"
#include "support/model_game.h"

#include <string.h>

#define WORLD_OPS 20000u
#define FULL_CHECK 500u
#define LONGEST 500u /* sequences beyond it are trimmed or destroyed */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DEFAULT_OPS 30000u
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define DEFAULT_OPS 30000u
#endif
#endif
#ifndef DEFAULT_OPS
#define DEFAULT_OPS 1000000u
#endif

static uint64_t n_operations = DEFAULT_OPS, first_seed = 1;

_Noreturn void game_fail(const game *g, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "\noperation %u (%s): ", g->op, g->doing);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\nagain with: model_random_ops %u %llu\n", WORLD_OPS, (unsigned long long)g->seed);
    va_end(args);
    fail_msg("operation %u of world %llu differs from the model", g->op, (unsigned long long)g->seed);
    abort();
}

/* ----------------------------------------------------------------- operations */

static model_seq *any_seq(game *g)
{
    model_seq *list[GAME_SEQS + GAME_BATCHES * GAME_MEMBERS];
    uint32_t n = game_list(g, &g->pool[0], list);
    if (!n || rng_below(&g->r, 4) == 0) {
        uint32_t n_second = game_list(g, &g->pool[1], list);
        if (n_second) return list[rng_below(&g->r, n_second)];
        n = game_list(g, &g->pool[0], list);
    }
    return n ? list[rng_below(&g->r, n)] : NULL;
}

static void op_create(game *g)
{
    rng *r = &g->r;
    quire_seq_options ring = {.size = sizeof(quire_seq_options)};
    if (rng_below(r, 3)) {
        ring.sinks = rng_below(r, 2) ? 0 : rng_below(r, rng_below(r, 4) ? 8 : 150);
        /* At least two tokens beside the sinks: with one, a query sees sinks and itself, and there is nothing to trim to. */
        ring.max_tokens = ring.sinks + rng_between(r, 2, rng_below(r, 2) ? 40 : 200);
    }
    if (rng_below(r, 2)) ring.spare_tokens = rng_below(r, rng_below(r, 3) ? 10 : 100);
    model_pool *pool = &g->pool[rng_below(r, 4) == 0];
    model_seq *s = model_seq_create(pool, 0, &ring);
    game_expect_status(g, quire_seq_create(&s->real, pool->real, &ring), QUIRE_OK);
    g->seq[g->n_seqs++] = s;
}

static void op_destroy(game *g)
{
    uint32_t i = rng_below(&g->r, g->n_seqs);
    quire_seq_destroy(g->seq[i]->real);
    model_seq_destroy(&g->world, g->seq[i]);
    g->seq[i] = g->seq[--g->n_seqs];
}

static void op_fork(game *g, const model_seq *s)
{
    model_seq *fork = model_seq_fork(&g->world, s);
    game_expect_status(g, quire_seq_fork(&fork->real, s->real), QUIRE_OK);
    g->seq[g->n_seqs++] = fork;
}

static void op_trim(game *g, model_seq *s)
{
    uint32_t floor = quire_seq_trim_floor(s->real), length = s->length;
    switch (rng_below(&g->r, 8)) {
    case 0: length = rng_below(&g->r, s->length + 1); break;
    case 1: length = floor; break;
    case 2: length = floor ? floor - 1 : 0; break;
    case 3: length = s->length / QUIRE_PAGE_TOKENS * QUIRE_PAGE_TOKENS; break;
    case 4: length = rng_below(&g->r, s->ring.sinks + 2); break;
    default: length -= rng_below(&g->r, 9); break;
    }
    if (length > s->length) {
        game_expect_status(g, quire_seq_trim(s->real, s->length + 1), QUIRE_EINVAL);
        length = s->length;
    }
    if (s->length - length <= s->ring.spare_tokens && s->length > LONGEST)
        length = s->length; /* nothing; long sequences are cut below */
    bool possible = model_can_trim(&g->world, s, length);
    game_expect_status(g, quire_seq_trim(s->real, length), possible ? QUIRE_OK : QUIRE_ERANGE);
    if (possible)
        model_trim(&g->world, s, length);
    else
        g->n_refused_trim++;
}

/* A sequence alone or a whole batch. */
static void op_convert(game *g, model_seq *alone, model_batch *b)
{
    uint32_t plan = rng_below(&g->r, g->world.n_plans), n = b ? b->n : 1;
    uint32_t flags = rng_below(&g->r, 2) ? QUIRE_CONVERT_NEW : 0;
    model_seq *const *seqs = b ? b->seq : &alone;
    model_pool *pool = b ? b->pool : alone->pool;
    const quire_plan *real = g->world.plan[plan];
    if (!b && rng_below(&g->r, 20) == 0)
        game_expect_status(g, quire_seq_convert(alone->real, real, 2), QUIRE_EINVAL);
    size_t bytes = model_convert_bytes(&g->world, seqs, n, plan, flags);
    bool fits = bytes <= pool->budget - pool->used;
    quire_status status =
        b ? quire_batch_convert(b->real, real, flags) : quire_seq_convert(alone->real, real, flags);
    game_expect_status(g, status, fits ? QUIRE_OK : QUIRE_EFULL);
    if (fits)
        model_convert(&g->world, seqs, n, plan, flags);
    else
        g->n_refused_full++;
}

static void op_snapshot(game *g, const model_seq *s)
{
    kit_bytes bytes = {0};
    model_pool *pool = &g->pool[rng_below(&g->r, 2)];
    quire_seq *real = NULL;
    game_expect_status(g, quire_seq_save(s->real, kit_write, &bytes), QUIRE_OK);
    if (rng_below(&g->r, 3) == 0) { /* damaged: refused, whatever the reason */
        size_t at = rng_bits(&g->r) % bytes.n;
        bytes.data[at] ^= (uint8_t)(1u << rng_below(&g->r, 8));
        GAME_EXPECT(g, quire_seq_load(&real, pool->real, kit_read, &bytes), "byte %zu was changed", at);
    } else {
        bool fits = model_seq_bytes(&g->world, s) <= pool->budget - pool->used;
        game_expect_status(g, quire_seq_load(&real, pool->real, kit_read, &bytes),
                           fits ? QUIRE_OK : QUIRE_EFULL);
        if (fits) {
            GAME_EXPECT(g, bytes.at == bytes.n, "%zu of %zu bytes read", bytes.at, bytes.n);
            model_seq *restored = model_seq_restore(&g->world, s, pool);
            restored->real = real;
            model_why why;
            if (!model_check_seq(&g->world, restored, &why)) game_fail(g, "%s", why.text);
            g->seq[g->n_seqs++] = restored;
        } else {
            g->n_refused_full++;
        }
    }
    kit_bytes_free(&bytes);
}

/* -------------------------------------------------------------------- batches */

static void op_merge(game *g, model_pool *pool)
{
    model_seq *list[GAME_SEQS + GAME_BATCHES * GAME_MEMBERS];
    quire_seq *real[GAME_MEMBERS];
    model_batch b = {.pool = pool};
    uint32_t n = game_list(g, pool, list), wanted = rng_below(&g->r, 4);
    for (; b.n < wanted && n; b.n++) { /* the same one twice is allowed */
        const model_seq *s = list[rng_below(&g->r, n)];
        b.seq[b.n] = model_seq_fork(&g->world, s);
        real[b.n] = s->real;
    }
    game_expect_status(g, quire_batch_merge(&b.real, pool->real, real, b.n), QUIRE_OK);
    for (uint32_t i = 0; i < b.n; i++) b.seq[i]->real = quire_batch_seqs(b.real, NULL)[i];
    g->batch[g->n_batches++] = b;
}

static void op_extract(game *g, const model_batch *b)
{
    quire_seq *real = NULL;
    game_expect_status(g, quire_batch_extract(&real, b->real, b->n), QUIRE_EINVAL);
    if (!b->n) return;
    uint32_t i = rng_below(&g->r, b->n);
    model_seq *fork = model_seq_fork(&g->world, b->seq[i]);
    game_expect_status(g, quire_batch_extract(&fork->real, b->real, i), QUIRE_OK);
    g->seq[g->n_seqs++] = fork;
}

static void op_add(game *g, model_batch *b, const model_seq *s)
{
    if (b->pool != s->pool) {
        game_expect_status(g, quire_batch_add(b->real, s->real), QUIRE_EINVAL);
    } else if (b->n < GAME_MEMBERS) {
        game_expect_status(g, quire_batch_add(b->real, s->real), QUIRE_OK);
        b->seq[b->n++] = model_seq_fork(&g->world, s);
    }
}

/* Any order, some of them several times, some not at all. */
static void op_filter(game *g, model_batch *b)
{
    uint32_t index[GAME_MEMBERS + 1], n = b->n ? rng_below(&g->r, GAME_MEMBERS + 1) : 0;
    model_seq *kept[GAME_MEMBERS];
    for (uint32_t i = 0; i < n; i++) index[i] = rng_below(&g->r, b->n);
    index[n] = b->n;
    game_expect_status(g, quire_batch_filter(b->real, index, n + 1), QUIRE_EINVAL);
    game_expect_status(g, quire_batch_filter(b->real, index, n), QUIRE_OK);
    for (uint32_t i = 0; i < n; i++) kept[i] = model_seq_fork(&g->world, b->seq[index[i]]);
    for (uint32_t i = 0; i < b->n; i++) model_seq_destroy(&g->world, b->seq[i]);
    memcpy(b->seq, kept, sizeof *kept * n);
    b->n = n;
}

static void op_extend(game *g, model_batch *b, const model_batch *other)
{
    if (b->pool != other->pool) {
        game_expect_status(g, quire_batch_extend(b->real, other->real), QUIRE_EINVAL);
        return;
    }
    if (b->n + other->n > GAME_MEMBERS) return;
    game_expect_status(g, quire_batch_extend(b->real, other->real), QUIRE_OK);
    for (uint32_t i = 0; i < other->n; i++) b->seq[b->n++] = model_seq_fork(&g->world, other->seq[i]);
}

static void op_batch(game *g, const model_seq *s)
{
    uint32_t kind = rng_below(&g->r, 10);
    model_pool *pool = &g->pool[rng_below(&g->r, 4) == 0];
    g->doing = "merge, import";
    if (g->n_batches < GAME_BATCHES && (!g->n_batches || kind < 4)) {
        if (kind % 2)
            game_import(g, pool);
        else
            op_merge(g, pool);
        return;
    }
    uint32_t i = rng_below(&g->r, g->n_batches);
    model_batch *b = &g->batch[i];
    switch (kind) {
    case 0:
        g->doing = "batch destroy";
        quire_batch_destroy(b->real);
        for (uint32_t k = 0; k < b->n; k++) model_seq_destroy(&g->world, b->seq[k]);
        *b = g->batch[--g->n_batches];
        return;
    case 1:
    case 2:
        g->doing = "filter";
        op_filter(g, b);
        break;
    case 3:
        g->doing = "add";
        op_add(g, b, s);
        break;
    case 4:
        g->doing = "extend";
        if (g->n_batches == 2) op_extend(g, b, &g->batch[1 - i]);
        break;
    case 5:
    case 6:
        g->doing = "extract";
        if (g->n_seqs < GAME_SEQS) op_extract(g, b);
        break;
    default: g->doing = "padded export"; game_export(g, b);
    }
    uint32_t n;
    quire_seq *const *real = quire_batch_seqs(b->real, &n);
    GAME_EXPECT(g, n == b->n, "%u sequences, not %u", n, b->n);
    for (uint32_t k = 0; k < n; k++) b->seq[k]->real = real[k];
}

/* ------------------------------------------------------------------------ run */

static void operate(game *g)
{
    uint32_t kind = rng_below(&g->r, 1000);
    model_seq *s = any_seq(g);
    bool room = g->n_seqs < GAME_SEQS;
    if (!s || (kind < 30 && room)) {
        g->doing = "create";
        op_create(g);
    } else if (s->length > LONGEST && model_can_trim(&g->world, s, 0)) {
        g->doing = "cut";
        game_expect_status(g, quire_seq_trim(s->real, 0), QUIRE_OK);
        model_trim(&g->world, s, 0);
    } else if (kind < 600) {
        g->doing = "step";
        game_step(g, s->pool);
    } else if (kind < 760) {
        g->doing = "trim";
        op_trim(g, s);
    } else if (kind < 830 && room) {
        g->doing = "fork";
        op_fork(g, s);
    } else if (kind < 842) {
        g->doing = "convert";
        bool whole = g->n_batches && rng_below(&g->r, 4) == 0;
        op_convert(g, s, whole ? &g->batch[rng_below(&g->r, g->n_batches)] : NULL);
    } else if (kind < 852 && room) {
        g->doing = "snapshot";
        op_snapshot(g, s);
    } else if (kind < 900) {
        op_batch(g, s);
    } else if (g->n_seqs > 2) {
        g->doing = "destroy";
        op_destroy(g);
    } else {
        g->doing = "step";
        game_step(g, s->pool);
    }
}

static void check(game *g, bool everything)
{
    model_why why;
    for (uint32_t i = 0; i < GAME_POOLS; i++)
        if (!model_check_pool(&g->pool[i], &why)) game_fail(g, "%s", why.text);
    if (everything) {
        model_seq *list[GAME_SEQS + GAME_BATCHES * GAME_MEMBERS];
        for (uint32_t i = 0; i < GAME_POOLS; i++)
            for (uint32_t n = game_list(g, &g->pool[i], list); n--;)
                if (!model_check_seq(&g->world, list[n], &why)) game_fail(g, "full check: %s", why.text);
        return;
    }
    for (uint32_t i = 0; i < 2; i++) {
        const model_seq *s = any_seq(g);
        if (!s) return;
        if (!model_check_shape(&g->world, s, &why)) game_fail(g, "%s", why.text);
        if (!s->length) continue;
        uint32_t layer = rng_below(&g->r, g->world.n_layers);
        uint32_t first = rng_below(&g->r, s->length), most = s->length - first < 5 ? s->length - first : 5;
        quire_side side = rng_below(&g->r, 2) ? QUIRE_V : QUIRE_K;
        if (!model_check_rows(&g->world, s, layer, side, first, rng_between(&g->r, 1, most), &why))
            game_fail(g, "%s", why.text);
    }
}

static void random_ops(void **state)
{
    (void)state;
    static game g;
    uint64_t full = 0, trim = 0, attended = 0, nodes = 0;
    for (uint64_t done = 0, seed = first_seed; done < n_operations; seed++) {
        game_create(&g, seed);
        for (g.op = 1; g.op <= WORLD_OPS && done < n_operations; g.op++, done++) {
            operate(&g);
            check(&g, g.op % FULL_CHECK == 0);
        }
        full += g.n_refused_full;
        trim += g.n_refused_trim;
        attended += g.n_attended;
        nodes += g.world.n_nodes;
        game_destroy(&g);
    }
    print_message(
        "%llu operations from seed %llu: %llu refused for the budget, %llu trims refused, %llu steps attended, "
        "%llu different rows\n",
        (unsigned long long)n_operations, (unsigned long long)first_seed, (unsigned long long)full,
        (unsigned long long)trim, (unsigned long long)attended, (unsigned long long)nodes);
    assert_true(n_operations < 5 * WORLD_OPS || (full && trim && attended));
}

int main(int argc, char **argv)
{
    if (argc > 1) n_operations = strtoull(argv[1], NULL, 10);
    if (argc > 2) first_seed = strtoull(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_ops)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
