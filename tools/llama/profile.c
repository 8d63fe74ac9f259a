/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "llama/profile.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static quire_status read_bytes(void *ctx, void *bytes, size_t n)
{
    return fread(bytes, 1, n, ctx) == n ? QUIRE_OK : QUIRE_EIO;
}

quire_status profile_load(quire_profile **out, const char *path)
{
    FILE *in = fopen(path, "rb");
    quire_status status = in ? quire_profile_load(out, read_bytes, in, NULL) : QUIRE_EIO;
    if (in) fclose(in);
    return status;
}

const char *profile_fault(const char *path, quire_status status)
{
    return access(path, R_OK) ? strerror(errno) : quire_status_text(status);
}

profile_found profile_find_beside(quire_profile **out, char path[PLACE_SIZE], const model *m,
                                  const char *model_path)
{
    quire_profile *profile;
    if (!model_profile_path(path, PLACE_SIZE, model_path) || access(path, R_OK)) return PROFILE_NONE;
    if (profile_load(&profile, path)) return PROFILE_UNREADABLE;
    if (!model_profile_fits(m, profile)) {
        quire_profile_destroy(profile);
        return PROFILE_OF_ANOTHER_MODEL;
    }
    *out = profile;
    return PROFILE_FITS;
}
