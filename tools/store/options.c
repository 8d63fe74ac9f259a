/* SPDX-License-Identifier: MIT */
/* store_options: options of `quire store ...`, and what they open. */
#define _POSIX_C_SOURCE 200809L
#include "store/options.h"

#include "files/private_file.h"
#include "files/secret_file.h"
#include "store/digest.h"
#include "store/sha256.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *set_remote(void *ctx, const char *value)
{
    static const char form[] = "HOST or HOST:PORT, for IPv6 [ADDRESS]:PORT";
    store_options *o = (store_options *)ctx;
    bool in_brackets = *value == '[';
    const char *host = value + in_brackets;
    size_t n = strcspn(host, in_brackets ? "]" : ":");
    const char *rest = host + n;
    uint64_t port = 6379;
    if (!n || n >= sizeof o->host || (in_brackets && *rest++ != ']')) return form;
    if (*rest && (*rest != ':' || !tool_number(rest + 1, 0, 1, 65535, &port, NULL))) return form;
    memcpy(o->host, host, n);
    o->host[n] = 0;
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
    bool is_shared = f && private_is_shared(fileno(f)), read = f && fgets(o->password, sizeof o->password, f);
    if (f) fclose(f);
    if (is_shared) return "a file that only you can read and change (chmod 600)";
    if (!read) return "a readable file";
    o->password[strcspn(o->password, "\r\n")] = 0;
    o->remote.password = o->password;
    return NULL;
}

static const char *set_scale(void *ctx, const char *value)
{
    return tool_real(value, -1e9, 1e9, &((store_options *)ctx)->adapter_scale) ? NULL : "a number";
}

static const tool_option disk_options[] = {
    {"--json", NULL, "print JSON, one object per line, instead of text", TOOL_FLAG(store_options, json)},
    {"--dir", "DIRECTORY", "directory of the disk tier", TOOL_WORD(store_options, directory)},
};
static const tool_option cap_options[] = {
    {"--cap", "BYTES",
     "size limit of its files, such as 64G; needed for a new directory\n(default: the limit the directory has)",
     TOOL_BYTES(store_options, cap_bytes, 0, STORE_MAX_BYTES)},
};
static const tool_option remote_options[] = {
    {"--remote", "HOST:PORT",
     "the remote tier, through which machines share pages: a Valkey or Redis server, or any node\nof a cluster; for IPv6 [ADDRESS]:PORT (default port: 6379)",
     .set = set_remote},
    {"--user", "NAME", "ACL user of the remote", TOOL_WORD(store_options, remote.user)},
    {"--password-file", "FILE", "file whose first line is the password of the remote", .set = set_password},
    {"--tls", NULL, "use TLS", .set = set_tls},
    {"--tls-ca", "FILE", "trusted certificates (default: those of the system)",
     TOOL_WORD(store_options, remote.tls_ca)},
    {"--tls-cert", "FILE", "client certificate", TOOL_WORD(store_options, remote.tls_cert)},
    {"--tls-key", "FILE", "private key of the client certificate", TOOL_WORD(store_options, remote.tls_key)},
    {"--tls-name", "NAME", "name expected in the certificates of all nodes",
     TOOL_WORD(store_options, remote.tls_name)},
    {"--timeout", "MS", "give up after this time (default: 10000)",
     TOOL_NUMBER(store_options, timeout_ms, 1, 3600000),
     .wish = "a number of milliseconds from 1 to 3600000"},
};
static const tool_option identity_options[] = {
    {"--model", "FILE",
     "model file; its SHA-256 becomes part of every key (remembered while the\nfile does not change); of several, NAME-00001-of-0000N.gguf, that of all",
     TOOL_WORD(store_options, model)},
    {"--weights", "TEXT", "instead of --model: a revision name that you keep unique yourself",
     TOOL_WORD(store_options, weights)},
    {"--adapter", "TEXT", "revision of the loaded LoRA adapter", TOOL_WORD(store_options, adapter)},
    {"--adapter-scale", "X", "scale of the adapter", .set = set_scale},
    {"--rope", "TEXT", "RoPE flags of the server, if it has any (default: model)",
     TOOL_WORD(store_options, rope)},
    {"--kv", "TEXT",
     "how the rows were encoded: the value of QUIRE_KV if the server uses\nQuire's device (default: stock)",
     TOOL_WORD(store_options, kv)},
    {"--secret-file", "FILE",
     "32 bytes or 64 hex digits, the same on all servers of the tenant;\nonly you may be able to read it",
     TOOL_WORD(store_options, secret_file)},
    {"--seal-disk", NULL,
     "encrypt pages on disk with a key made from the secret; those that are there\nand not encrypted are "
     "replaced or removed. Give it with a directory of\nquire serve --seal-disk: without it new pages are "
     "written as they are",
     TOOL_FLAG(store_options, seal_disk)},
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static bool has_option(const tool_option *options, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(options[i].name, name)) return true;
    return false;
}

/* Options that would mean nothing, and whose giver believes that they mean something: that the connection is encrypted, for one. */
static int check_together(const store_options *o)
{
    const quire_store_remote *r = &o->remote;
    bool has_tls_file = r->tls_ca || r->tls_cert || r->tls_key || r->tls_name;
    if (has_tls_file && !r->tls)
        return tool_usage(o->command,
                          "give --tls with --tls-ca, --tls-cert, --tls-key and --tls-name: without "
                          "it nothing is encrypted");
    if (!r->host && (r->user || r->password || r->tls))
        return tool_usage(
            o->command, "give --remote HOST:PORT with --user, --password-file and --tls, which are about it");
    if (o->seal_disk && !o->directory)
        return tool_usage(o->command, "give --dir DIRECTORY with --seal-disk, which is about that directory: "
                                      "what goes to --remote is always encrypted");
    return TOOL_OK;
}

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
        for (size_t j = 0; j < lists[i].n && groups & lists[i].group; j++)
            if (!has_option(more, n_more, lists[i].options[j].name)) all[n++] = lists[i].options[j];
    command.options = all;
    command.n_options = n;
    *o = (store_options){.command = about->name,
                         .timeout_ms = 10000,
                         .n_streams = 1,
                         .max_bytes = UINT64_MAX,
                         .quota_bytes = UINT64_MAX,
                         .remote = {.size = sizeof(quire_store_remote)}};
    int code = tool_parse(&command, argc, argv, o);
    if (code >= 0) return code;
    code = check_together(o);
    if (code) return code;
    if (!(groups & STORE_OPTIONAL) && !o->directory && !(groups & STORE_REMOTE && o->remote.host))
        return tool_usage(about->name, groups & STORE_REMOTE
                                           ? "give --dir DIRECTORY, --remote HOST:PORT or both"
                                           : "give --dir DIRECTORY");
    return -1;
}

bool store_try(const store_options *o, quire_store **out, char *message, size_t size)
{
    quire_store_options options = {sizeof(quire_store_options), .directory = o->directory,
                                   .disk_bytes = o->cap_bytes,  .remote = &o->remote,
                                   .message = message,          .message_size = size};
    options.seal_disk = o->seal_disk;
    options.log = o->log;
    *message = 0;
    *out = NULL;
    quire_status status = quire_store_open(out, &options);
    if (status && !*message) snprintf(message, size, "%s", quire_status_text(status));
    return !status;
}

int store_open(const store_options *o, quire_store **out)
{
    char message[512];
    return store_try(o, out, message, sizeof message) ? TOOL_OK : tool_failed(o->command, "%s", message);
}

int store_begin(store_options *o, uint32_t groups, const tool_command *about, const tool_option *more,
                size_t n_more, int argc, char **argv, quire_store **out)
{
    int code = store_parse(o, groups, about, more, n_more, argc, argv);
    if (code >= 0) return code;
    code = store_open(o, out);
    return code ? code : -1;
}

void store_print_hex(FILE *file, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) fprintf(file, "%02x", bytes[i]);
}

/* ------------------------------------------------------------------ identity */

/* NAME-00001-of-0000N.gguf: N, and how long NAME is. 1: one file. */
static unsigned count_parts(const char *path, size_t *n_name)
{
    static const char form[] = "-00001-of-#####.gguf";
    size_t n = strlen(path), k = sizeof form - 1;
    unsigned n_parts = 0;
    if (n < k) return 1;
    for (size_t i = 0; i < k; i++) {
        char c = path[n - k + i];
        if (form[i] == '#' ? c < '0' || c > '9' : c != form[i]) return 1;
        if (form[i] == '#') n_parts = 10 * n_parts + (unsigned)(c - '0');
    }
    *n_name = n - k;
    return n_parts > 1 ? n_parts : 1;
}

unsigned store_model_parts(const char *model)
{
    size_t n_name;
    return count_parts(model, &n_name);
}

bool store_model_part(const char *model, unsigned i, char *path, size_t size)
{
    size_t n_name = 0;
    unsigned n = count_parts(model, &n_name);
    int length = n == 1 ? snprintf(path, size, "%s", model)
                        : snprintf(path, size, "%.*s-%05u-of-%05u.gguf", (int)n_name, model, i + 1, n);
    return length >= 0 && (size_t)length < size;
}

/* That of a model in one file is its own; that of several is the digest of theirs. */
static int digest_parts(const store_options *o, uint8_t digest[32])
{
    unsigned n = store_model_parts(o->model);
    char part[4096];
    int code = TOOL_OK;
    if (n == 1)
        return digest_file(o->model, digest) ? TOOL_OK
                                             : tool_failed(o->command, "%s: %s", o->model, strerror(errno));
    uint8_t(*parts)[32] = (uint8_t(*)[32])malloc(32 * (size_t)n);
    if (!parts) return tool_failed(o->command, "out of memory");
    for (unsigned i = 0; !code && i < n; i++) {
        if (!store_model_part(o->model, i, part, sizeof part))
            code = tool_failed(o->command, "the name of the model is too long");
        else if (!digest_file(part, parts[i]))
            code = tool_failed(o->command, "%s, a part of the model: %s", part, strerror(errno));
    }
    if (!code && !sha256_bytes(parts, 32 * (size_t)n, digest))
        code = tool_failed(o->command, "no SHA-256 can be computed");
    free(parts);
    return code;
}

static int digest_model(store_options *o)
{
    uint8_t digest[32];
    char *to = o->weights_digest;
    int code = digest_parts(o, digest);
    if (code) return code;
    to += sprintf(to, "sha256:");
    for (int i = 0; i < 32; i++) to += sprintf(to, "%02x", digest[i]);
    o->weights = o->weights_digest;
    return TOOL_OK;
}

int store_secret(store_options *o)
{
    const char *wrong = secret_read(o->secret_file, o->secret);
    return wrong ? tool_failed(o->command, "%s: %s", o->secret_file, wrong) : TOOL_OK;
}

/* For quire store du and rm: the name of the model's file, as much of it as a name may have. */
static const char *name_model(store_options *o)
{
    const char *slash = o->model ? strrchr(o->model, '/') : NULL;
    snprintf(o->model_name, sizeof o->model_name, "%.63s",
             slash      ? slash + 1
             : o->model ? o->model
                        : o->weights);
    for (char *c = o->model_name; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    return o->model_name;
}

int store_identity(store_options *o, quire_identity *out)
{
    if (!o->secret_file && !o->has_secret) return tool_usage(o->command, "give --secret-file FILE");
    if (!o->model == !o->weights) return tool_usage(o->command, "give either --model FILE or --weights TEXT");
    int code = o->has_secret ? TOOL_OK : store_secret(o);
    if (!code && o->model) code = digest_model(o);
    if (code) return code;
    *out = (quire_identity){sizeof(quire_identity),
                            .weights = o->weights,
                            .tokenizer = o->weights,
                            .adapter = o->adapter ? o->adapter : "",
                            .adapter_scale = o->adapter_scale,
                            .rope = o->rope ? o->rope : "model",
                            .secret = o->secret,
                            .model_name = name_model(o)};
    return TOOL_OK;
}
