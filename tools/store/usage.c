/* SPDX-License-Identifier: MIT */
/* store_usage: quire store du, rm and quota: whose pages are on disk, how much, and away with them. */
#define _GNU_SOURCE
#include "store/options.h"

#include <openssl/core_names.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TENANT 16u

/* ------------------------------------------------------------------ the list */

/* What du prints one line for: a tenant, a model or a namespace. */
typedef struct share {
    quire_namespace_usage sum;
    uint32_t n_namespaces;
} share;

typedef struct shares {
    share *list;
    size_t n, cap;
    const char *by;                         /* as --by; NULL: namespaces */
    const quire_store_selection *selection; /* NULL: all */
    uint64_t objects, bytes;
} shares;

static bool is_same(const shares *s, const quire_namespace_usage *a, const quire_namespace_usage *b)
{
    if (s->by && strcmp(s->by, "tenant") == 0) return memcmp(a->tenant, b->tenant, TENANT) == 0;
    if (s->by && strcmp(s->by, "model") == 0) return strcmp(a->model_name, b->model_name) == 0;
    return memcmp(a->root, b->root, sizeof a->root) == 0 && memcmp(a->tenant, b->tenant, TENANT) == 0;
}

static bool is_selected(const quire_store_selection *s, const quire_namespace_usage *u)
{
    return !s || ((!s->root || memcmp(s->root, u->root, sizeof u->root) == 0) &&
                  (!s->tenant || memcmp(s->tenant, u->tenant, TENANT) == 0) &&
                  (!s->tenant_name || strcmp(s->tenant_name, u->tenant_name) == 0) &&
                  (!s->model_name || strcmp(s->model_name, u->model_name) == 0));
}

static quire_status add(void *ctx, const quire_namespace_usage *u)
{
    shares *s = (shares *)ctx;
    size_t i = 0;
    if (!is_selected(s->selection, u)) return QUIRE_OK;
    while (i < s->n && !is_same(s, &s->list[i].sum, u)) i++;
    if (i == s->cap) {
        size_t cap = 2 * s->cap + 64;
        share *more = (share *)realloc(s->list, cap * sizeof *more);
        if (!more) return QUIRE_ENOMEM;
        s->list = more;
        s->cap = cap;
    }
    share *to = &s->list[i];
    if (i == s->n) {
        s->n++;
        *to = (share){.sum = *u, .n_namespaces = 1};
    } else {
        to->n_namespaces++;
        to->sum.objects += u->objects;
        to->sum.bytes += u->bytes;
        to->sum.pinned += u->pinned;
        if (u->last_used_us > to->sum.last_used_us) to->sum.last_used_us = u->last_used_us;
        if (!*to->sum.tenant_name) memcpy(to->sum.tenant_name, u->tenant_name, sizeof u->tenant_name);
    }
    s->objects += u->objects;
    s->bytes += u->bytes;
    return QUIRE_OK;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = ((const share *)a)->sum.bytes, y = ((const share *)b)->sum.bytes;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* ---------------------------------------------------------------------- du */

static void print_when(uint64_t used_us)
{
    time_t used = (time_t)(used_us / 1000000);
    struct tm tm;
    char when[32];
    gmtime_r(&used, &tm);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
    printf("%s", when);
}

static void print_json(const shares *s, const share *one)
{
    const quire_namespace_usage *u = &one->sum;
    bool by_tenant = strcmp(s->by, "tenant") == 0, by_model = strcmp(s->by, "model") == 0;
    printf("{");
    if (!by_model) {
        printf("\"tenant\":\"");
        store_print_hex(stdout, u->tenant, TENANT);
        printf("\",\"tenant_name\":");
        tool_json_string(stdout, u->tenant_name);
        printf(",");
    }
    if (!by_tenant) {
        printf("\"model_name\":");
        tool_json_string(stdout, u->model_name);
        printf(",");
    }
    if (!by_tenant && !by_model) {
        printf("\"root\":\"");
        store_print_hex(stdout, u->root, 32);
        printf("\",");
    }
    printf("\"namespaces\":%u,\"objects\":%llu,\"bytes\":%llu,\"pinned\":%llu,", one->n_namespaces,
           (unsigned long long)u->objects, (unsigned long long)u->bytes, (unsigned long long)u->pinned);
    if (!by_model) printf("\"quota_bytes\":%llu,", (unsigned long long)u->quota_bytes);
    printf("\"used\":\"");
    print_when(u->last_used_us);
    printf("\"}\n");
}

/* A name and, if there is none, the beginning of the number. */
static void print_name(const char *name, const uint8_t *number, size_t n, const char *otherwise)
{
    char plain[64];
    if (*name) {
        (void)snprintf(plain, sizeof plain, "%s", name);
        printf("%-24s ", tool_plain(plain));
    } else if (number) {
        store_print_hex(stdout, number, n);
        printf("%*s ", n < 12 ? 24 - 2 * (int)n : 0, "");
    } else {
        printf("%-24s ", otherwise);
    }
}

static void print_text(const shares *s, const share *one)
{
    const quire_namespace_usage *u = &one->sum;
    bool by_tenant = strcmp(s->by, "tenant") == 0, by_model = strcmp(s->by, "model") == 0;
    char a[TOOL_BYTES_SIZE], b[TOOL_BYTES_SIZE];
    if (!by_model) print_name(u->tenant_name, u->tenant, by_tenant ? TENANT : 12, "");
    if (!by_tenant) print_name(u->model_name, NULL, 0, "(no name)");
    if (!by_tenant && !by_model) {
        store_print_hex(stdout, u->root, 8);
        printf(" ");
    }
    printf("%9llu objects %10s", (unsigned long long)u->objects, tool_bytes(a, (double)u->bytes));
    if (!by_model && u->quota_bytes) printf(" of %s", tool_bytes(b, (double)u->quota_bytes));
    if (u->pinned) printf("  %llu pinned", (unsigned long long)u->pinned);
    printf("  ");
    print_when(u->last_used_us);
    printf("\n");
}

static const char *set_by(void *ctx, const char *value)
{
    if (strcmp(value, "tenant") && strcmp(value, "model") && strcmp(value, "namespace"))
        return "tenant, model or namespace";
    ((store_options *)ctx)->by = value;
    return NULL;
}

int store_du(int argc, char **argv)
{
    static const tool_option more[] = {
        {"--by", "WHAT", "tenant, model or namespace (default: tenant)", .set = set_by},
    };
    static const tool_command about = {
        .name = "store du",
        .usage = "--dir DIRECTORY [--by tenant|model|namespace] [--json]",
        .about =
            "Shows how many objects and bytes each tenant, model or namespace has on disk, the largest first, and when they\n"
            "were last used. Reads only the index. Names are those that the engine gives (tenant_name, model_name); a\n"
            "tenant without one is shown by its number, which is made from its secret. The text form shows the beginning\n"
            "of roots; --json shows all of them.",
        .examples = "  quire store du --dir /var/cache/quire\n"
                    "  quire store du --dir /var/cache/quire --by model --json\n",
    };
    store_options o;
    quire_store *store;
    int code = store_begin(&o, STORE_DISK, &about, more, 1, argc, argv, &store);
    if (code >= 0) return code;
    shares s = {.by = o.by ? o.by : "tenant"};
    quire_status status = quire_store_usage_each(store, add, &s);
    quire_store_close(store);
    if (!status && s.n) qsort(s.list, s.n, sizeof *s.list, compare);
    for (size_t i = 0; i < s.n && !status; i++) (o.json ? print_json : print_text)(&s, &s.list[i]);
    free(s.list);
    return status ? tool_failed(o.command, "the index could not be read") : tool_finish(o.command);
}

/* -------------------------------------------------------------- who is meant */

static bool read_hex(const char *text, uint8_t *out, size_t n)
{
    if (strlen(text) != 2 * n || strspn(text, "0123456789abcdefABCDEF") != 2 * n) return false;
    for (size_t i = 0; i < n; i++) {
        char byte[3] = {text[2 * i], text[2 * i + 1], 0};
        out[i] = (uint8_t)strtoul(byte, NULL, 16);
    }
    return true;
}

/* The number of the tenant who has this secret (docs/formats/store.md). */
static bool tenant_of(uint8_t secret[32], uint8_t tenant[TENANT])
{
    static char hash[] = "SHA256", info[] = "quire tenant 1";
    uint8_t salt[32] = {0};
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    EVP_KDF_CTX *context = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
    OSSL_PARAM p[] = {OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, hash, 0),
                      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, secret, 32),
                      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, salt, sizeof salt),
                      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info, sizeof info - 1),
                      OSSL_PARAM_construct_end()};
    bool done = context && EVP_KDF_derive(context, tenant, TENANT, p) == 1;
    EVP_KDF_CTX_free(context);
    EVP_KDF_free(kdf);
    return done;
}

typedef struct who {
    quire_store_selection selection;
    uint8_t tenant[TENANT], root[32];
} who;

/* TOOL_OK, or what was said. */
static int find_who(who *w, store_options *o)
{
    w->selection = (quire_store_selection){.size = sizeof w->selection, .model_name = o->model};
    if (o->tenant && o->secret_file)
        return tool_usage(o->command, "give --tenant or --secret-file, not both");
    if (o->tenant && read_hex(o->tenant, w->tenant, TENANT))
        w->selection.tenant = w->tenant;
    else if (o->tenant)
        w->selection.tenant_name = o->tenant;
    if (o->secret_file) {
        int code = store_secret(o);
        if (code) return code;
        if (!tenant_of(o->secret, w->tenant)) return tool_failed(o->command, "out of memory");
        w->selection.tenant = w->tenant;
    }
    if (o->root && !read_hex(o->root, w->root, 32))
        return tool_usage(o->command, "--root must be 64 hex digits, as du --by namespace --json shows them");
    if (o->root) w->selection.root = w->root;
    return TOOL_OK;
}

static const tool_option who_options[] = {
    {"--tenant", "NAME", "the tenant: its name, or its number as du shows it",
     TOOL_WORD(store_options, tenant), .wish = "a name or 32 hex digits"},
    {"--secret-file", "FILE", "the tenant that has this secret", TOOL_WORD(store_options, secret_file)},
    {"--model", "NAME", "the model, by the name that du --by model shows", TOOL_WORD(store_options, model),
     .wish = "a name"},
    {"--root", "HEX", "one namespace, by its root", TOOL_WORD(store_options, root)},
    {"--yes", NULL, "do not ask", TOOL_FLAG(store_options, yes)},
};

/* ---------------------------------------------------------------------- rm */

/* TOOL_OK: go on. */
static int confirm(const store_options *o, const shares *s)
{
    char answer[16] = "", size[TOOL_BYTES_SIZE];
    if (o->yes) return TOOL_OK;
    fprintf(stderr, "%llu objects (%s) of %zu namespaces in %s are to be removed, also pinned ones.\n",
            (unsigned long long)s->objects, tool_bytes(size, (double)s->bytes), s->n, o->directory);
    if (!isatty(STDIN_FILENO)) return tool_failed(o->command, "nothing was removed; give --yes");
    fprintf(stderr, "Remove them? [y/N] ");
    if (fgets(answer, sizeof answer, stdin) && (*answer == 'y' || *answer == 'Y')) return TOOL_OK;
    return tool_failed(o->command, "nothing was removed");
}

int store_rm(int argc, char **argv)
{
    static const tool_command about = {
        .name = "store rm",
        .usage =
            "--dir DIRECTORY [--tenant NAME | --secret-file FILE] [--model NAME] [--root HEX] [--yes] [--json]",
        .about =
            "Removes all objects of a tenant, a model or a namespace from disk, also pinned ones; of several conditions all\n"
            "must hold. Their space is given back to the file system, so that their bytes can no longer be read from the\n"
            "files. Says what it would remove and asks; without a terminal it needs --yes. The remote tier is not touched:\n"
            "without the secret its objects cannot be read.",
        .examples = "  quire store rm --dir /var/cache/quire --tenant acme\n"
                    "  quire store rm --dir /var/cache/quire --secret-file tenant.key --yes\n"
                    "  quire store rm --dir /var/cache/quire --model llama-3.1-8b --yes --json\n",
    };
    store_options o;
    quire_store *store;
    who w;
    uint64_t n = 0;
    int code = store_parse(&o, STORE_DISK, &about, who_options, sizeof who_options / sizeof *who_options,
                           argc, argv);
    if (code >= 0) return code;
    if (!o.tenant && !o.secret_file && !o.model && !o.root)
        return tool_usage(about.name, "give --tenant, --secret-file, --model or --root");
    code = find_who(&w, &o);
    if (!code) code = store_open(&o, &store);
    if (code) return code;
    shares s = {.selection = &w.selection};
    quire_status status = quire_store_usage_each(store, add, &s);
    free(s.list);
    if (!status) code = s.objects ? confirm(&o, &s) : TOOL_OK;
    /* Also if nothing is known: an index that is being made anew may find some. */
    if (!status && !code) status = quire_store_remove(store, &w.selection, &n);
    quire_store_close(store);
    if (status) return tool_failed(o.command, "the disk could not be read or written");
    if (code) return code;
    printf(o.json ? "{\"removed\":%llu,\"bytes\":%llu}\n" : "%llu objects removed (%llu bytes)\n",
           (unsigned long long)n, (unsigned long long)s.bytes);
    return tool_finish(o.command);
}

/* ------------------------------------------------------------------- quota */

int store_quota(int argc, char **argv)
{
    static const tool_option more[] = {
        {"--tenant", "NAME", "the tenant: its name, or its number as du shows it",
         TOOL_WORD(store_options, tenant), .wish = "a name or 32 hex digits"},
        {"--secret-file", "FILE", "the tenant that has this secret", TOOL_WORD(store_options, secret_file)},
        {"--bytes", "BYTES", "the limit, such as 20G; 0: the limit that engines give (tenant_bytes) holds",
         TOOL_BYTES(store_options, quota_bytes, 0, STORE_MAX_BYTES)},
    };
    static const tool_command about = {
        .name = "store quota",
        .usage = "--dir DIRECTORY (--tenant NAME | --secret-file FILE) --bytes BYTES",
        .about =
            "Sets how much one tenant may have on disk. It holds at once for all processes that use the directory, and for\n"
            "later ones. A tenant above its limit loses its own least recently used objects that are not pinned.",
        .examples = "  quire store quota --dir /var/cache/quire --tenant acme --bytes 20G\n",
    };
    store_options o;
    quire_store *store;
    who w;
    int code = store_parse(&o, STORE_DISK, &about, more, 3, argc, argv);
    if (code >= 0) return code;
    if (!o.tenant == !o.secret_file) return tool_usage(about.name, "give --tenant or --secret-file");
    if (o.quota_bytes == UINT64_MAX) return tool_usage(about.name, "give --bytes BYTES");
    code = find_who(&w, &o);
    if (!code) code = store_open(&o, &store);
    if (code) return code;
    shares s = {.by = "tenant", .selection = &w.selection};
    quire_status status = w.selection.tenant ? QUIRE_OK : quire_store_usage_each(store, add, &s);
    if (!status && !w.selection.tenant && s.n != 1)
        code = s.n ? tool_failed(
                         o.command,
                         "%zu tenants are called %s: give the number of one, as quire store du prints it",
                         s.n, o.tenant)
                   : tool_failed(o.command, "no tenant with pages in this directory is called %s", o.tenant);
    if (!status && !code && !w.selection.tenant) memcpy(w.tenant, s.list[0].sum.tenant, TENANT);
    if (!status && !code) status = quire_store_set_quota(store, w.tenant, o.quota_bytes);
    free(s.list);
    quire_store_close(store);
    if (status) return tool_failed(o.command, "the limit could not be set: %s", quire_status_text(status));
    if (code) return code;
    char text[TOOL_BYTES_SIZE];
    if (o.json)
        printf("{\"quota_bytes\":%llu}\n", (unsigned long long)o.quota_bytes);
    else if (o.quota_bytes)
        printf("the tenant may have %s in this directory\n", tool_bytes(text, (double)o.quota_bytes));
    else
        printf("the tenant has no limit of its own any more\n");
    return tool_finish(o.command);
}
