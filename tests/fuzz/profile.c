/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as a profile, once as they are and once with the hash at the end made right. Loading must refuse cleanly, in
 * memory that follows the bytes that are there, or give a profile that codes rows.
 *
 * QUIRE_SEEDS=folder writes the seeds of corpus/profile anew, except v1_*, which are files of version 1, and the two with a wrong
 * number of means.
 */
#include "support/fuzz.h"

#include "core/core.h"
#include "support/cache_kit.h"
#include "support/peak_alloc.h"

#include <math.h>

static void save_seed(const char *folder, const char *name, const quire_geometry *g)
{
    char path[1024];
    kit_bytes bytes = {0};
    quire_profile *profile = kit_profile(g, 7, NULL);
    KIT_REQUIRE(!quire_profile_save(profile, kit_write, &bytes));
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    KIT_REQUIRE(file && fwrite(bytes.data, 1, bytes.n, file) == bytes.n && !fclose(file));
    kit_bytes_free(&bytes);
    quire_profile_destroy(profile);
}

static void write_seeds(const char *folder)
{
    static const quire_layer uneven[] = {{2, 1, 8, 8, 0, 0}, {4, 2, 20, 8, 0, 0}};
    quire_geometry small = {sizeof(quire_geometry), 1, .n_q_heads = 1, .n_kv_heads = 1, .d_k = 2, .d_v = 2};
    quire_geometry two = {sizeof(quire_geometry), 2, .layer_stride = sizeof(quire_layer), .layers = uneven},
                   usual = kit_geometry(1, 32, 32);
    save_seed(folder, "small", &small);
    save_seed(folder, "uneven", &two);
    save_seed(folder, "usual", &usual);
}

/* Where the hash should be, by the shapes; 0: the bytes end before. */
static size_t hash_at(const uint8_t *data, size_t size)
{
    size_t at = 16;
    if (size < at) return 0;
    size_t head = quire_load32(data + 8) == 1 ? 8 : 12; /* version 1 has one mean and does not say so */
    for (uint32_t i = 0, n = quire_load32(data + 12); i < n; i++) {
        if (size - at < head) return 0;
        uint64_t vectors = head == 8 ? 3 : (uint64_t)quire_load32(data + at + 8) + 2;
        uint64_t channels = (uint64_t)quire_load32(data + at) * quire_load32(data + at + 4);
        at += head;
        if (channels && vectors > size / channels) return 0;
        uint64_t floats = channels * vectors;
        if (floats > (size - at) / 4) return 0;
        at += (size_t)floats * 4;
    }
    return size - at < 8 ? 0 : at;
}

/* A row through a codec calibrated by layer 0. */
static void code_a_row(const quire_profile *profile, uint32_t d)
{
    quire_tile_format_options options = {sizeof(quire_tile_format_options), .side = QUIRE_K, .d = d,
                                         .profile = profile};
    quire_tile_format *format = NULL;
    KIT_REQUIRE(!quire_tile_format_create(&format, "c:r4", &options));
    void *tile = aligned_alloc(64, quire_tile_bytes(format));
    float x[1024], y[1024];
    quire_rows in = {.size = sizeof(quire_rows), .form = QUIRE_F32, .data = x};
    quire_rows_out out = {.size = sizeof(quire_rows_out), .form = QUIRE_F32, .data = y};
    KIT_REQUIRE(tile);
    memset(tile, 0, quire_tile_bytes(format));
    kit_row(3, 0, QUIRE_K, 0, x, d);
    KIT_REQUIRE(!quire_tile_encode(format, 0, tile, 5, 1, &in, NULL));
    KIT_REQUIRE(!quire_tile_decode(format, 0, tile, 5, 1, &out));
    for (uint32_t i = 0; i < d; i++) KIT_REQUIRE(isfinite(y[i]));
    free(tile);
    quire_tile_format_destroy(format);
}

static void try_bytes(const uint8_t *data, size_t size)
{
    union {
        const uint8_t *in;
        uint8_t *out;
    } bytes = {data}; /* it is only read */
    kit_bytes b = {.data = bytes.out, .n = size}, saved = {0};
    struct peak_alloc memory = {0};
    quire_allocator a = peak_allocator(&memory);
    quire_profile *profile = NULL, *again = NULL;
    quire_status status = quire_profile_load(&profile, kit_read, &b, &a);
    /* A table of at most 4,096 layers; vectors that grow by half as their bytes come, old and new for a moment. */
    KIT_REQUIRE(memory.peak <= ((size_t)512 << 10) + 4 * size);
    if (status) {
        KIT_REQUIRE(!profile && memory.blocks == 0 && memory.bytes == 0);
        return;
    }
    KIT_REQUIRE(quire_profile_digest(profile));
    KIT_REQUIRE(!quire_profile_save(profile, kit_write, &saved));
    if (quire_load32(data + 8) == 1) /* saved as version 2 */
        KIT_REQUIRE(saved.n == b.at + 4 * (size_t)quire_load32(data + 12));
    else
        KIT_REQUIRE(saved.n == b.at && !memcmp(saved.data, data, saved.n));
    KIT_REQUIRE(!quire_profile_load(&again, kit_read, &saved, NULL));
    KIT_REQUIRE(quire_profile_digest(again) == quire_profile_digest(profile));
    code_a_row(profile, quire_load32(data + 20));
    quire_profile_destroy(again);
    quire_profile_destroy(profile);
    KIT_REQUIRE(memory.blocks == 0 && memory.bytes == 0);
    kit_bytes_free(&saved);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool seeds_written;
    if (!seeds_written && getenv("QUIRE_SEEDS")) write_seeds(getenv("QUIRE_SEEDS"));
    seeds_written = true;
    try_bytes(data, size);
    size_t at = hash_at(data, size);
    if (!at) return 0;
    uint8_t *copy = (uint8_t *)malloc(size);
    KIT_REQUIRE(copy);
    memcpy(copy, data, size);
    quire_hash h;
    quire_hash_begin(&h);
    quire_hash_add(&h, copy, at);
    uint64_t hash = quire_hash_end(&h);
    quire_store64(copy + at, hash ? hash : 1);
    try_bytes(copy, size);
    free(copy);
    return 0;
}
