/* SPDX-License-Identifier: MIT */
/* A profile gathered from the K and Q rows of a run (QUIRE_PROFILE_RECORD). */
#include "kv.h"
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct recorder {
    quire_profile *profile;
    uint64_t n_rows; /* of K, all layers */
};

struct recorder *recorder_create(const quire_geometry *geometry)
{
    struct recorder *r = calloc(1, sizeof *r);
    if (r && !quire_profile_create(&r->profile, geometry, NULL)) return r;
    say_trouble("no memory to record a profile");
    free(r);
    return NULL;
}

void recorder_k(struct recorder *r, uint32_t layer, uint32_t position, const float *k, uint32_t n)
{
    if (!quire_profile_observe_k(r->profile, layer, position, k, n)) r->n_rows += n;
}

void recorder_q(struct recorder *r, uint32_t layer, const float *q, uint32_t n)
{
    quire_profile_observe_q(r->profile, layer, q, n);
}

static quire_status write_bytes(void *ctx, const void *bytes, size_t n)
{
    return fwrite(bytes, 1, n, ctx) == n ? QUIRE_OK : QUIRE_EIO;
}

/* Beside the file first, so that a half-written one never has its name. */
static bool save(const quire_profile *profile, const char *path)
{
    size_t n = strlen(path) + 8;
    char *part = malloc(n);
    if (!part) return false;
    snprintf(part, n, "%s.part", path);
    FILE *f = fopen(part, "wb");
    bool right = f && !quire_profile_save(profile, write_bytes, f);
    if (f && fclose(f)) right = false;
    if (right) right = !rename(part, path);
    if (!right && f) remove(part);
    free(part);
    return right;
}

void recorder_finish(struct recorder *r)
{
    if (!r) return;
    if (quire_profile_finish(r->profile))
        say_trouble("profile: nothing was recorded");
    else if (!save(r->profile, config.profile_record))
        say_trouble("profile: %s: %s", config.profile_record, strerror(errno));
    else
        say_info("profile of %llu rows of K written to %s", (unsigned long long)r->n_rows,
                 config.profile_record);
    quire_profile_destroy(r->profile);
    free(r);
}
