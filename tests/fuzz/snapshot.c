/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as a snapshot: as they are; with the hash of every record made right, so that what lies behind the hashes is
 * reached; and as a list of changes to lengths, ring and page tables of a real snapshot. Loading must refuse cleanly or give a sequence that works: finite rows, attention, save
 * and load again, append, trim, fork, convert.
 *
 * QUIRE_SEEDS=folder writes the seeds of corpus/snapshot anew.
 */
#include "support/fuzz.h"

#include "core/core.h"
#include "support/cache_kit.h"
#include "support/peak_alloc.h"
#include "support/snapshot_records.h"

#include <math.h>

#define BUDGET ((size_t)48 << 10)
#define N_PLANS 3u

static struct {
    quire_geometry g;
    struct peak_alloc memory;
    quire_plan *plan[N_PLANS];
    quire_pool *pool;
} world;

static size_t used(void)
{
    quire_pool_stats stats = {.size = sizeof stats};
    quire_pool_stats_get(world.pool, &stats);
    KIT_REQUIRE(stats.resident_bytes <= BUDGET);
    return stats.used_bytes;
}

static const char *const seed_names[] = {"empty",      "short", "two_pages",  "mixed",
                                         "calibrated", "ring",  "ring_floats"};
#define N_SEEDS (sizeof seed_names / sizeof *seed_names)
static kit_bytes seeds[N_SEEDS];

static void keep_seed(uint32_t i, const quire_seq *seq)
{
    const char *folder = getenv("QUIRE_SEEDS");
    char path[1024];
    KIT_REQUIRE(!quire_seq_save(seq, kit_write, &seeds[i]));
    if (!folder) return;
    snprintf(path, sizeof path, "%s/%s", folder, seed_names[i]);
    FILE *file = fopen(path, "wb");
    KIT_REQUIRE(file && fwrite(seeds[i].data, 1, seeds[i].n, file) == seeds[i].n && !fclose(file));
}

static void make_seeds(void)
{
    quire_seq *seq = kit_seq(world.pool, 0, 0, 0), *ring = kit_seq(world.pool, 40, 4, 8);
    keep_seed(0, seq);
    KIT_REQUIRE(!kit_append(world.pool, &world.g, seq, 3, 1));
    keep_seed(1, seq);
    KIT_REQUIRE(!kit_append(world.pool, &world.g, seq, 67, 1));
    keep_seed(2, seq);
    KIT_REQUIRE(!quire_seq_convert(seq, world.plan[1], QUIRE_CONVERT_NEW));
    KIT_REQUIRE(!kit_append(world.pool, &world.g, seq, 70, 1));
    keep_seed(3, seq);
    KIT_REQUIRE(!quire_seq_convert(seq, world.plan[2], 0) && !quire_seq_trim(seq, 130));
    keep_seed(4, seq);
    KIT_REQUIRE(!kit_append(world.pool, &world.g, ring, 300, 2));
    keep_seed(5, ring);
    KIT_REQUIRE(!quire_seq_convert(ring, world.plan[1], 0));
    keep_seed(6, ring);
    quire_seq_destroy(seq);
    quire_seq_destroy(ring);
    for (uint32_t i = 0; i < N_SEEDS; i++) {
        KIT_REQUIRE(!quire_seq_load(&seq, world.pool, kit_read, &seeds[i]));
        quire_seq_destroy(seq);
    }
}

static void open_world(void)
{
    static const char *const policies[N_PLANS] = {"r2,window=r2", "f16/a2g32,window=r3,sinks=4:q4_0",
                                                  "c:r4/tq2,window=q5_1/iq4_nl"};
    static const uint32_t windows[] = {0, 40};
    world.g = (quire_geometry){sizeof(quire_geometry), 2, .n_q_heads = 2, .n_kv_heads = 1, .d_k = 8, .d_v = 4,
                               .windows = windows};
    quire_profile *profile = kit_profile(&world.g, 1, NULL);
    quire_allocator a = peak_allocator(&world.memory);
    for (uint32_t i = 0; i < N_PLANS; i++) world.plan[i] = kit_plan(&world.g, policies[i], profile);
    world.pool = kit_pool(world.plan[0], BUDGET, &a);
    for (uint32_t i = 1; i < N_PLANS; i++) KIT_REQUIRE(!quire_pool_add_plan(world.pool, world.plan[i]));
    quire_profile_destroy(profile);
    quire_seq *seq = kit_seq(world.pool, 0, 0, 0); /* the pool keeps the workspace of its first step */
    KIT_REQUIRE(!kit_append(world.pool, &world.g, seq, 1, 1));
    quire_seq_destroy(seq);
    make_seeds();
}

/* Every row that is held comes out finite. Positions may go up to 2^31, so by tiles. */
static void read_rows(const quire_seq *seq)
{
    for (uint32_t layer = 0; layer < world.g.n_layers; layer++) {
        quire_tile_ref tile[256];
        uint32_t n = quire_seq_tiles(seq, layer, tile, 256, sizeof(quire_tile_ref));
        KIT_REQUIRE(n <= 256); /* the budget has no room for more */
        for (uint32_t i = 0; i < n; i++) {
            float x[64 * 32];
            quire_rows_out rows = {.size = sizeof(quire_rows_out), .form = QUIRE_F32, .data = x};
            KIT_REQUIRE(tile[i].n_rows >= 1 && tile[i].n_rows <= 64 && tile[i].first % 64 == 0);
            KIT_REQUIRE(tile[i].first + tile[i].n_rows <= quire_seq_length(seq));
            for (uint32_t s = 0; s < 2; s++) {
                uint32_t d = s ? world.g.d_v : world.g.d_k;
                KIT_REQUIRE(!quire_seq_export(seq, layer, s ? QUIRE_V : QUIRE_K, tile[i].first,
                                              tile[i].n_rows, &rows));
                for (uint32_t c = 0; c < tile[i].n_rows * d; c++) KIT_REQUIRE(isfinite(x[c]));
            }
        }
    }
}

static void must_hold(const quire_seq *seq, uint32_t layer, uint32_t position)
{
    float x[32];
    quire_rows_out rows = {.size = sizeof(quire_rows_out), .form = QUIRE_F32, .data = x};
    KIT_REQUIRE(!quire_seq_export(seq, layer, QUIRE_K, position, 1, &rows));
}

/* The ends of what the next query sees: of the sinks, and of the last rows. */
static void rows_in_sight(const quire_seq *seq, const quire_seq_options *ring)
{
    uint32_t next = quire_seq_length(seq), recent = ring->max_tokens - ring->sinks;
    for (uint32_t layer = 0; layer < world.g.n_layers && next; layer++) {
        uint32_t window = world.g.windows[layer], begin = window && next >= window ? next - window + 1 : 0;
        uint32_t from = ring->max_tokens && next >= recent ? next - recent + 1 : 0;
        uint32_t sinks = ring->sinks < next ? ring->sinks : next;
        if (from < begin) from = begin;
        if (begin < sinks) must_hold(seq, layer, begin);
        if (begin < sinks) must_hold(seq, layer, sinks - 1);
        if (from < next) must_hold(seq, layer, from);
        if (from < next) must_hold(seq, layer, next - 1);
        if (from < next) must_hold(seq, layer, from + (next - from) / 2);
    }
}

/* What it is saved as loads again and is saved as the same. */
static void save_again(const quire_seq *seq)
{
    kit_bytes first = {0}, second = {0};
    quire_seq *copy = NULL;
    KIT_REQUIRE(!quire_seq_save(seq, kit_write, &first));
    quire_status status = quire_seq_load(&copy, world.pool, kit_read, &first);
    KIT_REQUIRE(status == QUIRE_OK || status == QUIRE_EFULL);
    if (!status) {
        KIT_REQUIRE(!quire_seq_save(copy, kit_write, &second));
        KIT_REQUIRE(first.n == second.n && !memcmp(first.data, second.data, first.n));
        KIT_REQUIRE(quire_seq_trim_floor(copy) == quire_seq_trim_floor(seq));
        quire_seq_destroy(copy);
    }
    kit_bytes_free(&first);
    kit_bytes_free(&second);
}

static bool may_be_refused(quire_status status)
{
    return !status || status == QUIRE_EFULL || status == QUIRE_EUNSUPPORTED;
}

static void go_on(quire_seq *seq)
{
    quire_seq *fork = NULL;
    KIT_REQUIRE(!quire_seq_fork(&fork, seq));
    if (quire_seq_length(seq) < INT32_MAX - 200) {
        KIT_REQUIRE(may_be_refused(kit_append(world.pool, &world.g, fork, 3, 5)));
        if (quire_seq_length(seq) % 8 == 0)
            KIT_REQUIRE(may_be_refused(kit_append(world.pool, &world.g, fork, 100, 5)));
        read_rows(fork);
    }
    KIT_REQUIRE(may_be_refused(quire_seq_convert(fork, world.plan[quire_seq_length(seq) % N_PLANS], 0)));
    read_rows(fork);
    uint32_t floor = quire_seq_trim_floor(fork);
    KIT_REQUIRE(floor <= quire_seq_length(fork) && !quire_seq_trim(fork, floor));
    read_rows(fork);
    save_again(fork);
    KIT_REQUIRE(!quire_seq_trim(fork, 0) && quire_seq_length(fork) == 0);
    quire_seq_destroy(fork);
    read_rows(seq);
}

static void try_bytes(const uint8_t *data, size_t size)
{
    union {
        const uint8_t *in;
        uint8_t *out;
    } bytes = {data}; /* it is only read */
    kit_bytes b = {.data = bytes.out, .n = size};
    quire_seq *seq = NULL;
    quire_snapshot_info info = {.size = sizeof info};
    size_t blocks = world.memory.blocks, before = world.memory.bytes;
    bool has_info = !quire_snapshot_read_info(&info, kit_read, &b);
    if (has_info) KIT_REQUIRE(memchr(info.policy, 0, sizeof info.policy) && info.length <= INT32_MAX);
    b.at = 0;
    world.memory.peak = before;
    quire_status status = quire_seq_load(&seq, world.pool, kit_read, &b);
    KIT_REQUIRE(world.memory.peak - before <= BUDGET);
    if (status) {
        KIT_REQUIRE(!seq);
    } else {
        KIT_REQUIRE(has_info && info.length == quire_seq_length(seq));
        quire_seq_options ring = {sizeof(quire_seq_options), info.max_tokens, info.sinks, info.spare_tokens,
                                  0};
        read_rows(seq);
        rows_in_sight(seq, &ring);
        (void)kit_attend_hash(&world.g, seq, &ring, 3); /* finds every output finite */
        save_again(seq);
        go_on(seq);
        quire_seq_destroy(seq);
    }
    KIT_REQUIRE(used() == 0 && world.memory.blocks == blocks && world.memory.bytes == before);
}

static void add_to(uint8_t *at, int32_t change)
{
    quire_store32(at, quire_load32(at) + (uint32_t)change);
}

/* Three bytes are one change: what, by how much, where. */
static void edit(uint8_t *b, size_t *size, const uint8_t *change)
{
    snapshot_record r[64];
    size_t n = snapshot_records(b, *size, r, 64), k = n ? change[2] % n : 0;
    int32_t by = (int8_t)change[1];
    if (change[0] & 0x80) by *= 64; /* pages */
    if (!n) return;
    switch (change[0] % 8) {
    case 0: add_to(b + 32, by); break; /* length */
    case 1: add_to(b + 36, by); break; /* ring */
    case 2: add_to(b + 40, by); break;
    case 3: add_to(b + 44, by); break;
    case 4:
    case 5: /* of a group: pages, pages before the hole, pages in it */
        if (r[k].kind == 'g') add_to(b + r[k].at + 4 * (change[2] / n % 3), (int8_t)change[1]);
        break;
    case 6: /* a page goes, with its hash */
        if (r[k].kind != 'p') break;
        memmove(b + r[k].at, b + r[k].at + r[k].bytes + 8, *size - r[k].at - r[k].bytes - 8);
        *size -= r[k].bytes + 8;
        break;
    default: /* a page comes twice */
        if (r[k].kind != 'p') break;
        memmove(b + r[k].at + r[k].bytes + 8, b + r[k].at, *size - r[k].at);
        *size += r[k].bytes + 8;
    }
}

#define MOST_EDITS 12u
#define LARGEST_PAGE 8192u

static void try_edits(const uint8_t *data, size_t size)
{
    if (size < 4) return;
    const kit_bytes *seed = &seeds[data[0] % N_SEEDS];
    size_t n = seed->n;
    uint8_t *b = (uint8_t *)malloc(n + MOST_EDITS * LARGEST_PAGE);
    KIT_REQUIRE(b);
    memcpy(b, seed->data, n);
    for (size_t i = 1; i + 3 <= size && i < 3 * MOST_EDITS; i += 3) edit(b, &n, data + i);
    snapshot_fix_hashes(b, n);
    try_bytes(b, n);
    free(b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!world.pool) open_world();
    try_bytes(data, size);
    uint8_t *copy = (uint8_t *)malloc(size ? size : 1);
    KIT_REQUIRE(copy);
    memcpy(copy, data, size);
    snapshot_fix_hashes(copy, size);
    try_bytes(copy, size);
    free(copy);
    try_edits(data, size);
    return 0;
}
