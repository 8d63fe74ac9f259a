/* SPDX-License-Identifier: MIT */
/*
 * Snapshots of version 1, kept for ever: they must load, hold the rows they held, and be made again byte for byte. With
 * them the layout of tiles and pages, the codecs' bytes and every fingerprint stay as they are.
 *
 *   golden_snapshot_v1 --write folder     writes the files and prints the table below; for a new version only
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/cache_kit.h"

#include <string.h>

typedef struct frozen {
    const char *name, *policy;
    uint32_t n_layers, d_k, d_v, window; /* window: of the last layer, 0 for none */
    uint32_t max_tokens, sinks, spare;   /* ring, or 0 */
    uint32_t n_tokens, trimmed;          /* appended 50 at a time; cut to `trimmed` if that is not 0 */
    uint64_t fingerprint, rows_hash;     /* of the plan, of all rows held */
} frozen;

static const frozen files[] = {
    {"k8v4", "k8v4", 2, 32, 32, 0, 0, 0, 0, 80, 0, 0xc2f2f87e22e31ba0, 0x0a3ebda12e7778c2},
    {"r5_r3", "r5/r3", 2, 32, 20, 0, 0, 0, 0, 70, 66, 0x24f8565427a578f9, 0x8a7d6ce13be9a75d},
    {"q8_0_q4_0", "q8_0/q4_0", 1, 64, 32, 0, 0, 0, 0, 100, 0, 0x42d923d24f6dbf40, 0x4482ad47f0323298},
    {"f16_ring", "f16", 1, 16, 16, 0, 40, 4, 0, 300, 0, 0xaf2da53fc1262a03, 0x8fe86509f5bc4507},
    {"c_r4_window", "c:r4/tq2,window=a3g32/r6,sinks=4:bf16", 2, 16, 32, 70, 0, 0, 0, 150, 0,
     0x10815a7375cfa2a0, 0xedaa6d77221a8070},
};
#define N_FILES (sizeof files / sizeof *files)

typedef struct scene {
    quire_geometry geometry;
    uint32_t windows[4];
    quire_profile *profile;
    quire_plan *plan;
    quire_pool *pool;
} scene;

static void open_scene(scene *s, const frozen *f, const char *policy)
{
    *s = (scene){
        .geometry = {sizeof(quire_geometry), .n_layers = f->n_layers, .n_q_heads = 2, .n_kv_heads = 1}};
    s->geometry.d_k = f->d_k;
    s->geometry.d_v = f->d_v;
    s->windows[f->n_layers - 1] = f->window;
    s->geometry.windows = s->windows;
    s->profile = kit_profile(&s->geometry, 1, NULL);
    s->plan = kit_plan(&s->geometry, policy, s->profile);
    s->pool = kit_pool(s->plan, 1 << 20, NULL);
}

static void close_scene(scene *s)
{
    kit_pool_is_empty(s->pool);
    quire_pool_destroy(s->pool);
    quire_plan_destroy(s->plan);
    quire_profile_destroy(s->profile);
}

/* The sequence that the file was made from. */
static quire_seq *make(const scene *s, const frozen *f)
{
    quire_seq *seq = kit_seq(s->pool, f->max_tokens, f->sinks, f->spare);
    while (quire_seq_length(seq) < f->n_tokens) {
        uint32_t left = f->n_tokens - quire_seq_length(seq);
        KIT_REQUIRE(!kit_append(s->pool, &s->geometry, seq, left < 50 ? left : 50, 1));
    }
    if (f->trimmed) KIT_REQUIRE(!quire_seq_trim(seq, f->trimmed));
    return seq;
}

static void path_of(char *path, size_t size, const char *folder, const frozen *f)
{
    snprintf(path, size, "%s/%s.snapshot", folder, f->name);
}

static void read_file(kit_bytes *bytes, const frozen *f)
{
    char folder[1024], path[1100];
    uint8_t part[4096];
    const char *golden = getenv("QUIRE_GOLDEN");
    snprintf(folder, sizeof folder, "%s/snapshot", golden ? golden : "tests/golden");
    path_of(path, sizeof path, folder, f);
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s cannot be read; QUIRE_GOLDEN names the folder", path);
    for (size_t n; (n = fread(part, 1, sizeof part, file)) > 0;) kit_write(bytes, part, n);
    fclose(file);
}

static void check(const frozen *f)
{
    scene s;
    kit_bytes bytes = {0}, again = {0}, anew = {0};
    quire_snapshot_info info = {.size = sizeof info};
    quire_seq *loaded = NULL;
    read_file(&bytes, f);
    assert_int_equal(quire_snapshot_read_info(&info, kit_read, &bytes), QUIRE_OK);
    open_scene(&s, f, info.policy);
    if (quire_plan_fingerprint(s.plan) != f->fingerprint || info.plan_fingerprint != f->fingerprint)
        fail_msg("%s: the plan has another fingerprint", f->name);
    bytes.at = 0;
    quire_status status = quire_seq_load(&loaded, s.pool, kit_read, &bytes);
    if (status) fail_msg("%s: %s", f->name, quire_status_name(status));
    if (kit_rows_hash(&s.geometry, loaded) != f->rows_hash) fail_msg("%s: other rows", f->name);
    assert_int_equal(quire_seq_save(loaded, kit_write, &again), QUIRE_OK);
    if (again.n != bytes.n || memcmp(again.data, bytes.data, bytes.n))
        fail_msg("%s: saved again it is other bytes", f->name);
    quire_seq *seq = make(&s, f);
    assert_int_equal(quire_seq_save(seq, kit_write, &anew), QUIRE_OK);
    if (anew.n != bytes.n) fail_msg("%s: made anew it has %zu bytes, not %zu", f->name, anew.n, bytes.n);
    for (size_t i = 0; i < bytes.n; i++)
        if (anew.data[i] != bytes.data[i]) fail_msg("%s: made anew it differs from byte %zu on", f->name, i);
    quire_seq_destroy(loaded);
    quire_seq_destroy(seq);
    close_scene(&s);
    kit_bytes_free(&bytes);
    kit_bytes_free(&again);
    kit_bytes_free(&anew);
}

static void snapshots(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FILES; i++) check(&files[i]);
}

static int write_files(const char *folder)
{
    for (size_t i = 0; i < N_FILES; i++) {
        scene s;
        kit_bytes bytes = {0};
        char path[1100];
        open_scene(&s, &files[i], files[i].policy);
        quire_seq *seq = make(&s, &files[i]);
        KIT_REQUIRE(!quire_seq_save(seq, kit_write, &bytes));
        path_of(path, sizeof path, folder, &files[i]);
        FILE *file = fopen(path, "wb");
        KIT_REQUIRE(file && fwrite(bytes.data, 1, bytes.n, file) == bytes.n && !fclose(file));
        printf("%-12s %6zu bytes  0x%016llx, 0x%016llx\n", files[i].name, bytes.n,
               (unsigned long long)quire_plan_fingerprint(s.plan),
               (unsigned long long)kit_rows_hash(&s.geometry, seq));
        quire_seq_destroy(seq);
        close_scene(&s);
        kit_bytes_free(&bytes);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--write")) return write_files(argv[2]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(snapshots)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
