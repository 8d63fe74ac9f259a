/* SPDX-License-Identifier: MIT */
/*
 * Files of earlier versions, in tests/golden/frozen/VERSION: each must be read as that version read it, value by value. `list` in each
 * folder says what the files hold; the version that wrote them wrote it, so nothing here is compared with itself. Then every byte
 * of each file is changed, and every file is cut at every length: an error, or the same values.
 *
 *   golden_frozen --write folder     writes the files and the list of this version; for a release only (docs/promises.md)
 *   golden_frozen --every 7          changes one byte of 7, and cuts as often
 *
 * The file compiles with every version from 0.1 on, so that files of an old one can be made from its sources: that is why it uses what
 * tests/support/cache_kit.h has had since then, and no structure of the interface.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/cache_kit.h"

#include <inttypes.h>
#include <string.h>

static const char *const versions[] = {"0.1", "0.2"};

/* ----------------------------------------------------------------- recipes */

typedef struct recipe {
    char name[64], policy[256];
    uint32_t heads, d_k, d_v;
    uint32_t max_tokens, sinks, spare; /* ring, or 0 */
    uint32_t n_tokens, trimmed;        /* appended 50 at a time; cut to `trimmed` if that is not 0 */
} recipe;

static const recipe recipes[] = {
    {"affine", "k8v4", 1, 32, 32, 0, 0, 0, 70, 0},
    {"blocks", "q8_0/q4_0,edge=1:q5_1/iq4_nl", 1, 32, 32, 0, 0, 0, 66, 0},
    {"calibrated", "c:r4/r3,window=a3g32/r6", 2, 16, 16, 0, 0, 0, 80, 0},
    {"ring", "tq4/r2", 1, 16, 16, 40, 4, 8, 200, 0},
    {"rows", "r6/r4,window=bf16,sinks=4:f16", 1, 32, 20, 0, 0, 0, 140, 131},
};

/* Their meaning may not change; safe, balanced and small may stand for other codecs, and are not here. */
static const char *const policies[] = {
    "f16",
    "f32/bf16",
    "k8v4",
    "k4v4",
    "r8/r8",
    "r6/r4",
    "r5/r3",
    "tq3/tq2",
    "h:a4g64/h:q4_0",
    "k=r4,v=r3",
    "k8v4,v=r4",
    "a8g32/a4g128,edge=1:f16",
    "r4/r4,window=q8_0/q5_0,sinks=100:f16/r8",
    "q8_0,edge=1:r8/r6,sinks=4:bf16,window=f32",
};

static quire_geometry geometry_of(const recipe *r)
{
    return kit_geometry(r->heads, r->d_k, r->d_v);
}

static bool is_calibrated(const char *policy)
{
    return strstr(policy, "c:") != NULL;
}

static quire_seq *make(const recipe *r, const quire_geometry *g, quire_pool *pool)
{
    quire_seq *seq = kit_seq(pool, r->max_tokens, r->sinks, r->spare);
    while (quire_seq_length(seq) < r->n_tokens) {
        uint32_t left = r->n_tokens - quire_seq_length(seq);
        KIT_REQUIRE(!kit_append(pool, g, seq, left < 50 ? left : 50, 1));
    }
    if (r->trimmed) KIT_REQUIRE(!quire_seq_trim(seq, r->trimmed));
    return seq;
}

/* FNV-1a */
static uint64_t hash_of(const kit_bytes *b)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < b->n; i++) hash = (hash ^ b->data[i]) * 0x100000001b3u;
    return hash;
}

/* ------------------------------------------------------------------- files */

static char folder[1024];

static FILE *open_file(const char *name, const char *mode)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, mode);
    if (!f) fprintf(stderr, "%s cannot be opened; QUIRE_GOLDEN names the folder above frozen\n", path);
    KIT_REQUIRE(f);
    return f;
}

static void read_file(kit_bytes *bytes, const char *name, const char *ending)
{
    char whole[128];
    uint8_t part[4096];
    snprintf(whole, sizeof whole, "%s%s", name, ending);
    FILE *file = open_file(whole, "rb");
    for (size_t n; (n = fread(part, 1, sizeof part, file)) > 0;) kit_write(bytes, part, n);
    fclose(file);
}

static void write_file(const kit_bytes *bytes, const char *name, const char *ending)
{
    char whole[128];
    snprintf(whole, sizeof whole, "%s%s", name, ending);
    FILE *file = open_file(whole, "wb");
    KIT_REQUIRE(fwrite(bytes->data, 1, bytes->n, file) == bytes->n && !fclose(file));
}

/* A profile must not depend on how profiles are computed today. */
static quire_profile *read_profile(const recipe *r)
{
    kit_bytes bytes = {0};
    quire_profile *profile = NULL;
    if (!is_calibrated(r->policy)) return NULL;
    read_file(&bytes, "calibrated", ".profile");
    quire_status status = quire_profile_load(&profile, kit_read, &bytes, NULL);
    if (status) fail_msg("%s: the profile: %s", r->name, quire_status_name(status));
    kit_bytes_free(&bytes);
    return profile;
}

/* ----------------------------------------------------------------- damage */

static uint64_t snapshot_answer(const quire_geometry *g, quire_pool *pool, kit_bytes *bytes)
{
    quire_seq *seq = NULL;
    bytes->at = 0;
    if (quire_seq_load(&seq, pool, kit_read, bytes)) {
        assert_null(seq);
        return 0;
    }
    uint64_t hash = kit_rows_hash(g, seq);
    quire_seq_destroy(seq);
    return hash;
}

static uint64_t profile_answer(const quire_geometry *g, quire_pool *pool, kit_bytes *bytes)
{
    quire_profile *profile = NULL;
    (void)g, (void)pool;
    bytes->at = 0;
    if (quire_profile_load(&profile, kit_read, bytes, NULL)) {
        assert_null(profile);
        return 0;
    }
    uint64_t digest = quire_profile_digest(profile);
    quire_profile_destroy(profile);
    return digest;
}

typedef uint64_t answer_fn(const quire_geometry *g, quire_pool *pool, kit_bytes *bytes);

static uint32_t every = 1; /* one byte, and one length, of so many */

/* 0 stands for an error. */
static void damage(const char *name, answer_fn *answer, const quire_geometry *g, quire_pool *pool,
                   kit_bytes *bytes, uint64_t right)
{
    static uint64_t done[32]; /* versions share most of their files */
    size_t n = bytes->n, n_done = 0;
    uint32_t n_changed = 0, n_accepted = 0;
    for (; done[n_done]; n_done++)
        if (done[n_done] == hash_of(bytes)) return;
    KIT_REQUIRE(n_done + 1 < sizeof done / sizeof *done);
    done[n_done] = hash_of(bytes);
    for (size_t i = 0; i < n; i += every, n_changed++) {
        uint8_t change = (uint8_t)(i % 16 ? 1u << (i * 5 % 8) : 0xffu);
        bytes->data[i] = (uint8_t)(bytes->data[i] ^ change);
        uint64_t found = answer(g, pool, bytes);
        bytes->data[i] = (uint8_t)(bytes->data[i] ^ change);
        if (found && found != right) fail_msg("%s: byte %zu changed: other values", name, i);
        n_accepted += found != 0;
    }
    for (size_t length = 0; length < n; length += every) {
        bytes->n = length;
        if (answer(g, pool, bytes)) fail_msg("%s: %zu of %zu bytes are accepted", name, length, n);
    }
    bytes->n = n;
    printf("%s: %u of %zu bytes changed: %u accepted with the same values; cut as often: none\n", name,
           n_changed, n, n_accepted);
}

/* -------------------------------------------------------------------- lines */

static void check_snapshot(const char *line)
{
    recipe r = {0};
    uint64_t fingerprint, rows;
    assert_int_equal(sscanf(line,
                            "%63s %255s %" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNu32
                            " %" SCNu32 " %" SCNu32 " %" SCNx64 " %" SCNx64,
                            r.name, r.policy, &r.heads, &r.d_k, &r.d_v, &r.max_tokens, &r.sinks, &r.spare,
                            &r.n_tokens, &r.trimmed, &fingerprint, &rows),
                     12);
    quire_geometry g = geometry_of(&r);
    kit_bytes bytes = {0}, again = {0}, anew = {0};
    read_file(&bytes, r.name, ".snapshot");
    quire_profile *profile = read_profile(&r);
    quire_plan *plan = kit_plan(&g, r.policy, profile);
    quire_pool *pool = kit_pool(plan, 4 << 20, NULL);
    if (quire_plan_fingerprint(plan) != fingerprint) fail_msg("%s: another fingerprint", line);
    if (snapshot_answer(&g, pool, &bytes) != rows) fail_msg("%s: other rows, or none", line);
    quire_seq *seq = NULL;
    bytes.at = 0;
    assert_int_equal(quire_seq_load(&seq, pool, kit_read, &bytes), QUIRE_OK);
    assert_int_equal(quire_seq_length(seq), r.trimmed ? r.trimmed : r.n_tokens);
    assert_int_equal(quire_seq_save(seq, kit_write, &again), QUIRE_OK);
    if (again.n != bytes.n || memcmp(again.data, bytes.data, bytes.n))
        fail_msg("%s: saved again: other bytes", line);
    quire_seq_destroy(seq);
    /* A program that goes on with old files and one that begins with new ones must agree. */
    seq = make(&r, &g, pool);
    assert_int_equal(quire_seq_save(seq, kit_write, &anew), QUIRE_OK);
    if (anew.n != bytes.n || memcmp(anew.data, bytes.data, bytes.n))
        fail_msg("%s: made anew: other bytes", line);
    quire_seq_destroy(seq);
    damage(r.name, snapshot_answer, &g, pool, &bytes, rows);
    kit_pool_is_empty(pool);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
    quire_profile_destroy(profile);
    kit_bytes_free(&bytes);
    kit_bytes_free(&again);
    kit_bytes_free(&anew);
}

static void check_profile(const char *line)
{
    char name[64];
    uint64_t digest;
    kit_bytes bytes = {0};
    assert_int_equal(sscanf(line, "%63s %" SCNx64, name, &digest), 2);
    read_file(&bytes, name, ".profile");
    if (profile_answer(NULL, NULL, &bytes) != digest) fail_msg("%s: another digest, or an error", line);
    damage(name, profile_answer, NULL, NULL, &bytes, digest);
    kit_bytes_free(&bytes);
}

/* Rows of every codec, as the bytes of a snapshot of three tokens. */
static void codec_hashes(const char *codec, const quire_profile *profile, uint64_t out[3])
{
    recipe r = {.heads = 1, .d_k = 64, .d_v = 32, .n_tokens = 3};
    kit_bytes bytes = {0};
    snprintf(r.policy, sizeof r.policy, "%s/%s", codec, is_calibrated(codec) ? "r4" : codec);
    quire_geometry g = geometry_of(&r);
    quire_plan *plan = kit_plan(&g, r.policy, is_calibrated(codec) ? profile : NULL);
    quire_pool *pool = kit_pool(plan, 4 << 20, NULL);
    quire_seq *seq = make(&r, &g, pool);
    KIT_REQUIRE(!quire_seq_save(seq, kit_write, &bytes));
    out[0] = quire_plan_fingerprint(plan), out[1] = hash_of(&bytes), out[2] = kit_rows_hash(&g, seq);
    quire_seq_destroy(seq);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
    kit_bytes_free(&bytes);
}

static quire_profile *codec_profile(void)
{
    kit_bytes bytes = {0};
    quire_profile *profile = NULL;
    read_file(&bytes, "codecs", ".profile");
    KIT_REQUIRE(!quire_profile_load(&profile, kit_read, &bytes, NULL));
    kit_bytes_free(&bytes);
    return profile;
}

static void check_codec(const char *line, const quire_profile *profile)
{
    char name[64];
    uint64_t wanted[3], found[3];
    assert_int_equal(
        sscanf(line, "%63s %" SCNx64 " %" SCNx64 " %" SCNx64, name, &wanted[0], &wanted[1], &wanted[2]), 4);
    if (!quire_codec_find(name)) fail_msg("codec %s is gone", name);
    codec_hashes(name, profile, found);
    for (int i = 0; i < 3; i++)
        if (found[i] != wanted[i])
            fail_msg("codec %s: another %s", name,
                     i == 0   ? "fingerprint"
                     : i == 1 ? "encoding"
                              : "decoded row");
}

static uint64_t policy_fingerprint(const char *policy)
{
    quire_geometry g = kit_geometry(2, 64, 64);
    quire_plan *plan = kit_plan(&g, policy, NULL);
    uint64_t fingerprint = quire_plan_fingerprint(plan);
    /* The canonical form is a policy with the same meaning. */
    quire_plan *again = kit_plan(&g, quire_plan_policy(plan), NULL);
    KIT_REQUIRE(quire_plan_fingerprint(again) == fingerprint);
    quire_plan_destroy(plan);
    quire_plan_destroy(again);
    return fingerprint;
}

static void check_policy(const char *line)
{
    char policy[256];
    uint64_t wanted;
    assert_int_equal(sscanf(line, "%255s %" SCNx64, policy, &wanted), 2);
    if (policy_fingerprint(policy) != wanted) fail_msg("policy %s: another plan", policy);
}

static void check_version(const char *version)
{
    const char *golden = getenv("QUIRE_GOLDEN");
    char line[1024], kind[32];
    uint32_t n_lines = 0;
    int begin;
    snprintf(folder, sizeof folder, "%s/frozen/%s", golden ? golden : "tests/golden", version);
    FILE *list = open_file("list", "r");
    quire_profile *profile = codec_profile();
    while (fgets(line, sizeof line, list)) {
        line[strcspn(line, "\n")] = 0;
        if (*line == '#') continue;
        assert_int_equal(sscanf(line, "%31s %n", kind, &begin), 1);
        n_lines++;
        if (!strcmp(kind, "snapshot"))
            check_snapshot(line + begin);
        else if (!strcmp(kind, "profile"))
            check_profile(line + begin);
        else if (!strcmp(kind, "codec"))
            check_codec(line + begin, profile);
        else if (!strcmp(kind, "policy"))
            check_policy(line + begin);
        else
            fail_msg("a line of another kind: %s", line);
    }
    printf("%s: %" PRIu32 " lines\n", version, n_lines);
    assert_true(n_lines > 80); /* 66 codecs, 14 policies, files */
    quire_profile_destroy(profile);
    fclose(list);
}

static void frozen(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) check_version(versions[i]);
}

/* ------------------------------------------------------------------- write */

static quire_profile *write_profile(FILE *list, const char *name, const quire_geometry *g, uint64_t seed)
{
    quire_profile *profile = kit_profile(g, seed, NULL);
    kit_bytes bytes = {0};
    KIT_REQUIRE(!quire_profile_save(profile, kit_write, &bytes));
    write_file(&bytes, name, ".profile");
    fprintf(list, "profile %s %016" PRIx64 "\n", name, quire_profile_digest(profile));
    kit_bytes_free(&bytes);
    return profile;
}

static void write_snapshot(FILE *list, const recipe *r)
{
    quire_geometry g = geometry_of(r);
    kit_bytes bytes = {0};
    quire_profile *profile = is_calibrated(r->policy) ? write_profile(list, r->name, &g, 1) : NULL;
    quire_plan *plan = kit_plan(&g, r->policy, profile);
    quire_pool *pool = kit_pool(plan, 4 << 20, NULL);
    quire_seq *seq = make(r, &g, pool);
    KIT_REQUIRE(!quire_seq_save(seq, kit_write, &bytes));
    write_file(&bytes, r->name, ".snapshot");
    fprintf(list, "snapshot %s %s %u %u %u %u %u %u %u %u %016" PRIx64 " %016" PRIx64 "\n", r->name,
            r->policy, r->heads, r->d_k, r->d_v, r->max_tokens, r->sinks, r->spare, r->n_tokens, r->trimmed,
            quire_plan_fingerprint(plan), kit_rows_hash(&g, seq));
    quire_seq_destroy(seq);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
    quire_profile_destroy(profile);
    kit_bytes_free(&bytes);
}

static int write_all(const char *to)
{
    snprintf(folder, sizeof folder, "%s", to);
    FILE *list = open_file("list", "w");
    fprintf(list, "# Written by golden_frozen --write of version %s; tests/golden/frozen.c reads it.\n",
            quire_version());
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) write_snapshot(list, &recipes[i]);
    quire_geometry g = kit_geometry(1, 64, 32);
    quire_profile *profile = write_profile(list, "codecs", &g, 2);
    for (uint32_t i = 0; i < quire_codec_count(); i++) {
        uint64_t hashes[3];
        codec_hashes(quire_codec_at(i)->name, profile, hashes);
        fprintf(list, "codec %s %016" PRIx64 " %016" PRIx64 " %016" PRIx64 "\n", quire_codec_at(i)->name,
                hashes[0], hashes[1], hashes[2]);
    }
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++)
        fprintf(list, "policy %s %016" PRIx64 "\n", policies[i], policy_fingerprint(policies[i]));
    quire_profile_destroy(profile);
    return fclose(list) != 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--write")) return write_all(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "--every") && atoi(argv[2]) > 0) every = (uint32_t)atoi(argv[2]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(frozen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
