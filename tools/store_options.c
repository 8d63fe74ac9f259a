/* SPDX-License-Identifier: MIT */
/* store_options: options of `quire store ...`, and what they open. */
#define _POSIX_C_SOURCE 200809L
#include "store_options.h"

#include "child.h"
#include "sha256.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *store_set_file(void *ctx, const char *word)
{
    store_options *o = (store_options *)ctx;
    if (o->file) return "one file too many:";
    o->file = word;
    return NULL;
}

const char *store_set_bytes(const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    double x = strtod(text, &end);
    double unit = 1;
    if (*end == 'K' || *end == 'k') unit = 1024.0;
    if (*end == 'M') unit = 1024.0 * 1024;
    if (*end == 'G') unit = 1024.0 * 1024 * 1024;
    if (*end == 'T') unit = 1024.0 * 1024 * 1024 * 1024;
    if (end == text || errno || x < 0 || x * unit > 1e18 || (unit > 1 ? end[1] : end[0]))
        return "bytes, as 64G or 2T";
    *out = (uint64_t)(x * unit);
    return NULL;
}

static const char *set_cap(void *ctx, const char *value)
{
    return store_set_bytes(value, &((store_options *)ctx)->cap_bytes);
}

static const char *set_remote(void *ctx, const char *value)
{
    store_options *o = (store_options *)ctx;
    const char *colon = strrchr(value, ':');
    uint64_t port = 6379;
    size_t n = colon ? (size_t)(colon - value) : strlen(value);
    if (!n || n >= sizeof o->host || (colon && !tool_number(colon + 1, 0, 1, 65535, &port, NULL)))
        return "HOST or HOST:PORT";
    memcpy(o->host, value, n);
    o->remote.host = o->host;
    o->remote.port = (uint32_t)port;
    return NULL;
}

static const char *set_tls(void *ctx, const char *value)
{
    (void)value;
    ((store_options *)ctx)->remote.tls = 1;
    return NULL;
}

/* The first line of a file, so that a password is in no list of processes. */
static const char *set_password(void *ctx, const char *value)
{
    store_options *o = (store_options *)ctx;
    FILE *f = fopen(value, "r");
    bool read = f && fgets(o->password, sizeof o->password, f);
    if (f) fclose(f);
    if (!read) return "a file that can be read";
    o->password[strcspn(o->password, "\r\n")] = 0;
    o->remote.password = o->password;
    return NULL;
}

static const char *set_scale(void *ctx, const char *value)
{
    return tool_real(value, -1e9, 1e9, &((store_options *)ctx)->adapter_scale) ? NULL : "a number";
}

static const char *set_timeout(void *ctx, const char *value)
{
    return tool_number(value, 0, 1, 3600000, &((store_options *)ctx)->timeout_ms, NULL) ? NULL
                                                                                        : "milliseconds";
}

static const tool_option disk_options[] = {
    {"--json", NULL, "objects, one per line, in place of text", TOOL_FLAG(store_options, json)},
    {"--dir", "DIRECTORY", "the disk tier", TOOL_WORD(store_options, directory)},
};
static const tool_option cap_options[] = {
    {"--cap", "BYTES", "cap on its files (64G); needed to make one, otherwise it stays as it is",
     .set = set_cap},
};
static const tool_option remote_options[] = {
    {"--remote", "HOST:PORT", "the remote tier: a server, or any node of a cluster", .set = set_remote},
    {"--user", "NAME", "its ACL user", TOOL_WORD(store_options, remote.user)},
    {"--password-file", "FILE", "its password is the first line", .set = set_password},
    {"--tls", NULL, "talk TLS", .set = set_tls},
    {"--tls-ca", "FILE", "certificates to trust; without it the system's",
     TOOL_WORD(store_options, remote.tls_ca)},
    {"--tls-cert", "FILE", "a certificate of our own", TOOL_WORD(store_options, remote.tls_cert)},
    {"--tls-key", "FILE", "and its key", TOOL_WORD(store_options, remote.tls_key)},
    {"--tls-name", "NAME", "the name in the certificates of all nodes",
     TOOL_WORD(store_options, remote.tls_name)},
    {"--timeout", "MS", "give up after so long (10000)", .set = set_timeout},
};
static const tool_option identity_options[] = {
    {"--model", "FILE", "the model's file; its SHA-256 is part of every key",
     TOOL_WORD(store_options, model)},
    {"--weights", "TEXT", "in its place: a revision that you keep apart from others yourself",
     TOOL_WORD(store_options, weights)},
    {"--adapter", "TEXT", "revision of the LoRA adapter that is loaded", TOOL_WORD(store_options, adapter)},
    {"--adapter-scale", "X", "and its scale", .set = set_scale},
    {"--rope", "TEXT", "RoPE flags of the server, if it has any (\"model\")", TOOL_WORD(store_options, rope)},
    {"--kv", "TEXT", "what the rows mean beyond their type: QUIRE_KV of the\ndevice, \"stock\" without it",
     TOOL_WORD(store_options, kv)},
    {"--secret-file", "FILE", "32 bytes, or 64 hex digits, that the tenant's servers share",
     TOOL_WORD(store_options, secret_file)},
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

int store_parse(store_options *o, uint32_t groups, const tool_command *about, const tool_option *more,
                size_t n_more, int argc, char **argv)
{
    tool_option all[40];
    tool_command command = *about;
    size_t n = 0;
    const struct {
        uint32_t group;
        const tool_option *options;
        size_t n;
    } lists[] = {{STORE_DISK, disk_options, COUNT(disk_options)},
                 {STORE_CAP, cap_options, COUNT(cap_options)},
                 {STORE_REMOTE, remote_options, COUNT(remote_options)},
                 {STORE_IDENTITY, identity_options, COUNT(identity_options)}};
    for (size_t i = 0; i < n_more; i++) all[n++] = more[i];
    for (size_t i = 0; i < COUNT(lists); i++)
        for (size_t j = 0; j < lists[i].n && groups & lists[i].group; j++) all[n++] = lists[i].options[j];
    command.options = all;
    command.n_options = n;
    *o =
        (store_options){.command = about->name, .timeout_ms = 10000, .n_streams = 1, .max_bytes = UINT64_MAX};
    int code = tool_parse(&command, argc, argv, o);
    if (code >= 0) return code;
    if (!o->directory && !(groups & STORE_REMOTE && o->remote.host))
        return tool_usage(about->name,
                          groups & STORE_REMOTE ? "it needs --dir, --remote or both" : "it needs --dir");
    return -1;
}

int store_open(const store_options *o, quire_store **out)
{
    char message[512] = "";
    quire_store_options options = {
        QUIRE_OPTIONS,       .directory = o->directory, .disk_bytes = o->cap_bytes,
        .remote = o->remote, .message = message,        .message_size = sizeof message};
    quire_status status = quire_store_open(out, &options);
    if (status) return tool_failed(o->command, "%s", *message ? message : quire_status_text(status));
    return TOOL_OK;
}

void store_print_hex(FILE *file, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) fprintf(file, "%02x", bytes[i]);
}

/* ------------------------------------------------------------------ identity */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static bool read_secret(const char *path, uint8_t secret[32])
{
    char bytes[80];
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(bytes, 1, sizeof bytes, f) : 0;
    if (f) fclose(f);
    if (n == 32) {
        memcpy(secret, bytes, 32);
        return true;
    }
    for (size_t i = 0; i < 64; i++)
        if (n < 64 || n > 66 || hex_digit(bytes[i]) < 0) return false;
    for (size_t i = 0; i < 32; i++)
        secret[i] = (uint8_t)(hex_digit(bytes[2 * i]) << 4 | hex_digit(bytes[2 * i + 1]));
    return true;
}

static int digest_model(store_options *o)
{
    uint8_t digest[32];
    char *to = o->weights_digest;
    if (!sha256_file(o->model, digest)) return tool_failed(o->command, "%s: %s", o->model, strerror(errno));
    to += sprintf(to, "sha256:");
    for (int i = 0; i < 32; i++) to += sprintf(to, "%02x", digest[i]);
    o->weights = o->weights_digest;
    return TOOL_OK;
}

int store_identity(store_options *o, quire_identity *out)
{
    if (!o->secret_file) return tool_usage(o->command, "it needs --secret-file");
    if (!o->model == !o->weights) return tool_usage(o->command, "it needs --model or --weights");
    if (!read_secret(o->secret_file, o->secret))
        return tool_failed(o->command, "%s: not 32 bytes and not 64 hex digits", o->secret_file);
    int code = o->model ? digest_model(o) : TOOL_OK;
    if (code) return code;
    *out = (quire_identity){QUIRE_OPTIONS,
                            .weights = o->weights,
                            .tokenizer = o->weights,
                            .adapter = o->adapter ? o->adapter : "",
                            .adapter_scale = o->adapter_scale,
                            .rope = o->rope ? o->rope : "model",
                            .secret = o->secret};
    return TOOL_OK;
}
