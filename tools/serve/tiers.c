/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "serve/tiers.h"

#include "files/secret_file.h"
#include "serve/pages_place.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Of a new directory, if nobody says how large it may be. */
#define USUAL_BYTES (UINT64_C(20) << 30)

static void lose_disk(tiers *t, const char *why)
{
    fprintf(stderr,
            "quire serve: prompts are not kept on disk: %s; start quire serve again when that is mended\n",
            why);
    t->has_lost_disk = true;
    t->o->directory = NULL;
}

static int check_secrets(const tiers *t)
{
    const store_options *o = t->o;
    if (t->has_tenants && o->secret_file)
        return tool_usage("serve", "give --tenants or --secret-file: each tenant has a secret of its own");
    if (o->remote.host && !o->secret_file && !t->has_tenants)
        return tool_usage("serve",
                          "give --secret-file FILE with --remote: servers that share prompts share a secret");
    if (o->seal_disk && !o->secret_file && !t->has_tenants)
        return tool_usage("serve",
                          "give --secret-file FILE with --seal-disk: a key beside the pages opens them");
    return TOOL_OK;
}

/* A new one takes a tenth of the free space at most. false: message says why it cannot be used. */
static bool prepare_directory(tiers *t, char *message, size_t size)
{
    struct statvfs room;
    char index[PLACE_SIZE + 16], key[PLACE_SIZE + 16];
    store_options *o = t->o;
    if (!pages_make(o->directory)) {
        snprintf(message, size, "%s: %s", o->directory, strerror(errno));
        return false;
    }
    snprintf(index, sizeof index, "%s/index", o->directory);
    if (!o->cap_bytes && access(index, F_OK) && !statvfs(o->directory, &room)) {
        uint64_t tenth = (uint64_t)room.f_bavail * room.f_frsize / 10;
        o->cap_bytes = tenth < USUAL_BYTES ? tenth : USUAL_BYTES;
        if (tenth < TIERS_LEAST_BYTES) {
            snprintf(
                message, size,
                "%s: a tenth of the free space is less than the 16 MiB that a store needs: make room, or give --store-size",
                o->directory);
            return false;
        }
    }
    if (o->secret_file || t->has_tenants) return true;
    snprintf(key, sizeof key, "%s/serve.key", o->directory);
    const char *wrong = pages_key(key);
    if (!wrong) wrong = secret_read(key, o->secret);
    if (wrong) snprintf(message, size, "%s: %s", key, wrong);
    o->has_secret = !wrong;
    return !wrong;
}

int tiers_find(tiers *t)
{
    char message[2 * PLACE_SIZE] = "";
    store_options *o = t->o;
    bool is_good = true;
    int code = check_secrets(t);
    if (code) return code;
    if (o->directory && !strcmp(o->directory, "none")) {
        o->directory = NULL;
    } else if (!o->directory) {
        const char *wrong = pages_find(t->directory, sizeof t->directory);
        if (wrong) snprintf(message, sizeof message, "%s", wrong);
        is_good = !wrong;
        o->directory = t->directory;
    }
    if (is_good && o->directory) is_good = prepare_directory(t, message, sizeof message);
    if (!is_good) lose_disk(t, message);
    return TOOL_OK;
}

bool tiers_exist(const tiers *t)
{
    return t->o->directory || t->o->remote.host;
}

int tiers_open(tiers *t, quire_store **out)
{
    char message[512], of_remote[512];
    store_options alone = *t->o;
    if (store_try(t->o, out, message, sizeof message)) return TOOL_OK;
    alone.directory = NULL;
    if (alone.remote.host && !store_try(&alone, out, of_remote, sizeof of_remote))
        return tool_failed("serve", "%s", of_remote); /* so it was not the directory */
    lose_disk(t, message);
    return TOOL_OK;
}
