/* SPDX-License-Identifier: MIT */
/* store_options: what the commands `quire store ...` share: where the store is, whose pages, opening it. */
#ifndef QUIRE_TOOLS_STORE_OPTIONS_H
#define QUIRE_TOOLS_STORE_OPTIONS_H

#include "common/tool.h"

#include <quire/store.h>

typedef struct store_options {
    const char *command; /* "store stat" */
    bool json;
    const char *directory;
    uint64_t cap_bytes; /* 0: as it is */
    quire_store_remote remote;
    const quire_log *log; /* of the store, or NULL */
    char host[256], password[256];
    /* Identity of slots. */
    const char *model, *weights, *adapter, *rope, *kv, *secret_file;
    double adapter_scale;
    uint8_t secret[32];
    bool has_secret; /* without a file */
    bool seal_disk;  /* pages are encrypted on disk */
    char weights_digest[80], model_name[64];
    /* Of single commands. */
    const char *file, *tokens, *layout, *like, *server;
    uint64_t max_bytes, max_age_s, timeout_ms, n_streams, pid;
    bool yes, computed_from_zero, prometheus, list_long;
    const char *by, *tenant, *root; /* of du, rm and quota */
    uint64_t quota_bytes;
} store_options;

/* The largest size that an option takes. */
#define STORE_MAX_BYTES UINT64_C(1000000000000000000)

/* Options by the group they belong to; a command lists the groups it takes. */
enum {
    STORE_DISK = 1,
    STORE_REMOTE = 2,
    STORE_IDENTITY = 4,
    STORE_CAP = 8,
    STORE_OPTIONAL = 16 /* no tier need be named */
};

/* As tool_parse(): -1 to go on. more: options of this command alone, also in place of one of that name. names: what it takes besides options. */
int store_parse(store_options *o, uint32_t groups, const tool_command *about, const tool_option *more,
                size_t n_more, int argc, char **argv);
/* false: message has one sentence, and *out is NULL. */
bool store_try(const store_options *o, quire_store **out, char *message, size_t size);
/* TOOL_OK, or what tool_failed() and tool_usage() said. */
int store_open(const store_options *o, quire_store **out);
/* Both: -1, and the store is open; or the exit code. */
int store_begin(store_options *o, uint32_t groups, const tool_command *about, const tool_option *more,
                size_t n_more, int argc, char **argv, quire_store **out);
/* Reads the secret and takes the digest of the model. */
int store_identity(store_options *o, quire_identity *out);
/* The files of a model: NAME-00001-of-0000N.gguf stands for N of them. false: the path is too long. */
unsigned store_model_parts(const char *model);
bool store_model_part(const char *model, unsigned i, char *path, size_t size);
/* Only the secret, into o->secret. */
int store_secret(store_options *o);

void store_print_hex(FILE *file, const uint8_t *bytes, size_t n);

/* The sub-commands. argv[0] is the name. */
int store_stat(int argc, char **argv);
int store_ls(int argc, char **argv);
int store_list_remote(const store_options *o); /* ls --remote */
int store_verify(int argc, char **argv);
int store_doctor(int argc, char **argv);
int store_du(int argc, char **argv);
int store_rm(int argc, char **argv);
int store_quota(int argc, char **argv);
int store_gc(int argc, char **argv);
int store_export(int argc, char **argv);
int store_import(int argc, char **argv);
int store_put_slot(int argc, char **argv);
int store_get_slot(int argc, char **argv);

#endif
