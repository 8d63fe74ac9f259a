/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "serve/tenants.h"

#include "files/private_file.h"
#include "files/secret_file.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_SIZE = 4096, MOST_KEYS = 10000, PATH_SIZE = 4096 };

typedef struct row {
    uint8_t digest[32];
    tenant tenant;
} row;

typedef struct list {
    row *rows;
    uint32_t n, cap;
} list;

struct tenants {
    char *path;
    pthread_mutex_t lock; /* of what follows */
    list list;
    uint8_t (*secrets)[32]; /* that of number i + 1 */
    uint32_t n_secrets;
};

/* ------------------------------------------------------------------- reading */

/* The next word of a line, or NULL. */
static char *next_word(char **at)
{
    *at += strspn(*at, " \t");
    char *word = *at;
    *at += strcspn(word, " \t");
    if (**at) *(*at)++ = 0;
    return *word ? word : NULL;
}

static bool is_name(const char *name)
{
    if (strlen(name) >= TENANT_NAME) return false;
    for (; *name; name++)
        if (*name < ' ' || *name > '~') return false;
    return true;
}

static const char *read_secret_of(const char *list_path, const char *path, uint8_t secret[32])
{
    char whole[PATH_SIZE];
    const char *slash = *path == '/' ? NULL : strrchr(list_path, '/');
    int n = slash ? snprintf(whole, sizeof whole, "%.*s/%s", (int)(slash - list_path), list_path, path)
                  : snprintf(whole, sizeof whole, "%s", path);
    return n < (int)sizeof whole ? secret_read(whole, secret) : "the path is too long";
}

static row *add_row(list *l)
{
    if (l->n == l->cap) {
        uint32_t cap = l->cap ? 2 * l->cap : 16;
        row *more = (row *)realloc(l->rows, sizeof *more * cap);
        if (!more) return NULL;
        l->rows = more;
        l->cap = cap;
    }
    l->rows[l->n] = (row){0};
    return &l->rows[l->n];
}

/* NULL, or what is wrong with the line. */
static const char *read_line(list *l, const char *path, char *line)
{
    char *at = line;
    row *r = add_row(l);
    if (!r || l->n >= MOST_KEYS) return r ? "there are too many keys" : "out of memory";
    char *digest = next_word(&at), *secret = next_word(&at), *name = at + strspn(at, " \t");
    if (!digest || *digest == '#') return NULL;
    for (char *end = name + strlen(name); end > name && (end[-1] == ' ' || end[-1] == '\t');) *--end = 0;
    if (strlen(digest) != 64 || !secret_read_hex(digest, 64, r->digest))
        return "it must begin with the SHA-256 of a key, in 64 hex digits";
    if (!secret) return "the file of the secret is missing";
    if (!is_name(name)) return "a name is at most 63 bytes of printable text";
    strcpy(r->tenant.name, name);
    for (uint32_t i = 0; i < l->n; i++)
        if (!memcmp(l->rows[i].digest, r->digest, 32)) return "the same key was there before";
    r->tenant.reads_metrics = !strcmp(secret, "-");
    const char *wrong = r->tenant.reads_metrics ? NULL : read_secret_of(path, secret, r->tenant.secret);
    if (wrong) return wrong;
    /* `quire store rm --tenant NAME` would remove the pages of both. */
    for (uint32_t i = 0; i < l->n; i++)
        if (*name && !r->tenant.reads_metrics && !l->rows[i].tenant.reads_metrics &&
            !strcmp(l->rows[i].tenant.name, name) &&
            CRYPTO_memcmp(l->rows[i].tenant.secret, r->tenant.secret, 32) != 0)
            return "the same name was there before with another secret";
    l->n++;
    return NULL;
}

static const char *read_lines(list *l, const char *path, FILE *f, unsigned *number)
{
    char *line = NULL;
    size_t cap = 0;
    const char *wrong = NULL;
    for (ssize_t n; !wrong && (n = getline(&line, &cap, f)) >= 0;) {
        ++*number;
        if (n > LINE_SIZE || memchr(line, 0, (size_t)n)) {
            wrong = "it is too long, or has a byte 0";
        } else {
            line[strcspn(line, "\r\n")] = 0;
            wrong = read_line(l, path, line);
        }
    }
    if (!wrong && ferror(f)) wrong = "it cannot be read";
    free(line);
    return wrong;
}

static bool read_list(list *l, const char *path, char *message, size_t size)
{
    unsigned number = 0;
    FILE *f = fopen(path, "re");
    const char *wrong = NULL;
    *l = (list){0};
    if (!f)
        snprintf(message, size, "%s: %s", path, strerror(errno));
    else if (private_is_shared(fileno(f)))
        snprintf(message, size, "%s: others can read or change it; make it yours alone (chmod 600)", path);
    else if ((wrong = read_lines(l, path, f, &number)))
        snprintf(message, size, "%s, line %u: %s", path, number, wrong);
    else if (!l->n)
        snprintf(message, size, "%s: it names no tenant", path);
    else
        wrong = "";
    if (f) fclose(f);
    if (wrong && !*wrong) return true;
    free(l->rows);
    *l = (list){0};
    return false;
}

/* Numbers stay what they are as long as the process lives: slots and pages are marked with them. */
static bool give_numbers(tenants *t, list *l)
{
    uint8_t(*all)[32] = (uint8_t(*)[32])realloc(t->secrets, sizeof *all * ((size_t)t->n_secrets + l->n + 1));
    if (!all) return false;
    t->secrets = all;
    for (uint32_t i = 0; i < l->n; i++) {
        tenant *one = &l->rows[i].tenant;
        uint32_t at = 0;
        if (one->reads_metrics) continue;
        while (at < t->n_secrets && CRYPTO_memcmp(all[at], one->secret, 32) != 0) at++;
        if (at == t->n_secrets) memcpy(all[t->n_secrets++], one->secret, 32);
        one->number = at + 1;
    }
    return true;
}

bool tenants_read_again(tenants *t, char *message, size_t size)
{
    list fresh;
    if (!read_list(&fresh, t->path, message, size)) return false;
    pthread_mutex_lock(&t->lock);
    list old = t->list;
    bool good = give_numbers(t, &fresh);
    if (good) t->list = fresh;
    pthread_mutex_unlock(&t->lock);
    if (!good) snprintf(message, size, "out of memory");
    free(good ? old.rows : fresh.rows);
    return good;
}

tenants *tenants_open(const char *path, char *message, size_t size)
{
    tenants *t = (tenants *)calloc(1, sizeof *t);
    if (t) t->path = strdup(path);
    if (!t || !t->path) {
        snprintf(message, size, "out of memory");
        free(t);
        return NULL;
    }
    pthread_mutex_init(&t->lock, NULL);
    if (tenants_read_again(t, message, size)) return t;
    tenants_close(t);
    return NULL;
}

void tenants_close(tenants *t)
{
    if (!t) return;
    if (t->list.rows) OPENSSL_cleanse(t->list.rows, sizeof(row) * t->list.n);
    if (t->secrets) OPENSSL_cleanse(t->secrets, sizeof *t->secrets * t->n_secrets);
    free(t->list.rows);
    free(t->secrets);
    pthread_mutex_destroy(&t->lock);
    free(t->path);
    free(t);
}

/* ------------------------------------------------------------------- finding */

/* As llama-server does it: Authorization, or if that is empty X-Api-Key; "Bearer " before the key is left out. */
static const char *key_of(const char *authorization, const char *x_api_key, size_t *n)
{
    static const char bearer[] = "Bearer ";
    const char *key = authorization ? authorization + strspn(authorization, " \t") : "";
    if (!*key) key = x_api_key ? x_api_key + strspn(x_api_key, " \t") : "";
    if (!strncmp(key, bearer, sizeof bearer - 1)) key += sizeof bearer - 1;
    *n = strlen(key);
    while (*n && (key[*n - 1] == ' ' || key[*n - 1] == '\t')) --*n;
    return key;
}

bool tenants_find(tenants *t, const char *authorization, const char *x_api_key, tenant *out)
{
    uint8_t digest[32];
    unsigned size = sizeof digest;
    size_t n;
    bool found = false;
    const char *key = key_of(authorization, x_api_key, &n);
    if (!n || !EVP_Digest(key, n, digest, &size, EVP_sha256(), NULL)) return false;
    pthread_mutex_lock(&t->lock);
    /* Digests, not keys: how long this takes tells nothing that helps to find a key. */
    for (uint32_t i = 0; i < t->list.n && !found; i++)
        if ((found = !memcmp(t->list.rows[i].digest, digest, 32))) *out = t->list.rows[i].tenant;
    pthread_mutex_unlock(&t->lock);
    return found;
}

uint32_t tenants_count(tenants *t)
{
    pthread_mutex_lock(&t->lock);
    uint32_t n = t->list.n;
    pthread_mutex_unlock(&t->lock);
    return n;
}

bool tenants_has(tenants *t, uint32_t number)
{
    bool found = false;
    pthread_mutex_lock(&t->lock);
    for (uint32_t i = 0; i < t->list.n && !found; i++) found = t->list.rows[i].tenant.number == number;
    pthread_mutex_unlock(&t->lock);
    return found;
}
