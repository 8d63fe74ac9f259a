/* SPDX-License-Identifier: MIT */
/* Profiles from files. */
#include "common/tool.h"

static quire_status read_bytes(void *ctx, void *bytes, size_t n)
{
    return fread(bytes, 1, n, ctx) == n ? QUIRE_OK : QUIRE_EIO;
}

quire_status tool_load_profile(quire_profile **out, const char *path)
{
    FILE *in = fopen(path, "rb");
    quire_status status = in ? quire_profile_load(out, read_bytes, in, NULL) : QUIRE_EIO;
    if (in) fclose(in);
    return status;
}
