/* SPDX-License-Identifier: MIT */
/* store_archive: quire store export and import: objects in one file, each after its length (docs/formats/store.md). */
#define _POSIX_C_SOURCE 200809L
#include "common/progress.h"
#include "files/private_file.h"
#include "store/options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char magic[16] = "QUIRE PAGES 1\n\n";
#define MIN_OBJECT 192u /* the header of a page object */
#define MAX_OBJECT (1ull << 34)
#define FIRST_ROOM (1u << 20)

typedef struct archive {
    FILE *file;
    progress progress;
    uint64_t n, n_left_out;
    double bytes;
} archive;

static void put_length(uint8_t out[8], uint64_t n)
{
    for (int i = 0; i < 8; i++) out[i] = (uint8_t)(n >> 8 * i);
}

static uint64_t get_length(const uint8_t in[8])
{
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | in[i];
    return n;
}

static quire_status write_one(void *ctx, const quire_object_info *info, const void *bytes, size_t n)
{
    archive *a = (archive *)ctx;
    uint8_t length[8];
    if (info->damage || !bytes) {
        a->n_left_out++;
        return QUIRE_OK;
    }
    put_length(length, n);
    a->n++;
    a->bytes += (double)n;
    progress_show(&a->progress, (double)a->n);
    return fwrite(length, 8, 1, a->file) == 1 && fwrite(bytes, n, 1, a->file) == 1 ? QUIRE_OK : QUIRE_EIO;
}

static int report(const store_options *o, const archive *a, const char *what)
{
    if (o->json)
        printf("{\"objects\":%llu,\"left_out\":%llu,\"bytes\":%.0f}\n", (unsigned long long)a->n,
               (unsigned long long)a->n_left_out, a->bytes);
    else
        printf("%llu objects %s, %.3f GB; %llu damaged objects left out\n", (unsigned long long)a->n, what,
               a->bytes / 1e9, (unsigned long long)a->n_left_out);
    return tool_finish(o->command);
}

int store_export(int argc, char **argv)
{
    static const tool_command about = {
        .name = "store export",
        .usage = "--dir DIRECTORY FILE",
        .about =
            "Writes all undamaged objects on disk to one file. The file is not encrypted, but only you can\n"
            "read it (mode 0600).",
        .examples = "  quire store export --dir /var/cache/quire pages.quire\n",
        TOOL_ONE(store_options, file, "file"),
    };
    store_options o;
    quire_store *store;
    quire_store_stats s = {.size = sizeof s};
    archive a = {0};
    int code = store_parse(&o, STORE_DISK, &about, NULL, 0, argc, argv);
    if (code < 0 && !o.file) code = tool_usage(about.name, "give a file to write");
    if (code >= 0) return code;
    code = store_open(&o, &store);
    if (code) return code;
    private_file file;
    if (!private_open(&file, o.file)) {
        code = tool_failed(o.command, "%s: %s", o.file, strerror(errno));
        quire_store_close(store);
        return code;
    }
    a.file = file.stream;
    quire_store_stats_get(store, &s);
    progress_start(&a.progress, "export", "objects", (double)s.disk_objects);
    bool good = fwrite(magic, sizeof magic, 1, a.file) == 1 && !quire_store_each(store, 1, write_one, &a);
    progress_end(&a.progress);
    int why = errno;
    if (!private_close(&file, good) && good) {
        good = false;
        why = errno;
    }
    quire_store_close(store);
    return good ? report(&o, &a, "written") : tool_failed(o.command, "%s: %s", o.file, strerror(why));
}

typedef struct room {
    uint8_t *bytes;
    size_t cap;
} room;

/* What was read is less than an object. */
static int ends_early(const store_options *o, FILE *file)
{
    return ferror(file) ? tool_failed(o->command, "%s: %s", o->file, strerror(errno))
                        : tool_failed(o->command, "%s ends in the middle of an object", o->file);
}

/* The next n bytes of the file. The room grows while they come: a wrong length takes at most twice the memory that the file fills. */
static int read_object(const store_options *o, FILE *file, room *r, size_t n)
{
    for (size_t have = 0, part; have < n; have += part) {
        if (have == r->cap) {
            size_t cap = have ? 2 * have : FIRST_ROOM;
            uint8_t *more = (uint8_t *)realloc(r->bytes, cap);
            if (!more) return tool_failed(o->command, "out of memory");
            r->bytes = more;
            r->cap = cap;
        }
        part = (n < r->cap ? n : r->cap) - have;
        if (fread(r->bytes + have, part, 1, file) != 1) return ends_early(o, file);
    }
    return TOOL_OK;
}

static int put_object(const store_options *o, quire_store *store, archive *a, const room *r, size_t n)
{
    quire_status status = quire_store_put_object(store, r->bytes, n);
    if (status == QUIRE_EFORMAT || status == QUIRE_EVERSION)
        a->n_left_out++;
    else if (status)
        return tool_failed(o->command, "%s", quire_status_text(status));
    else
        a->n++, a->bytes += (double)n;
    progress_show(&a->progress, (double)ftell(a->file) / 1e6);
    return TOOL_OK;
}

/* TOOL_OK: the file ended behind an object, or behind its head. */
static int read_all(const store_options *o, quire_store *store, archive *a)
{
    room r = {0};
    int code = TOOL_OK;
    while (code == TOOL_OK) {
        uint8_t length[8] = {0};
        size_t got = fread(length, 1, sizeof length, a->file);
        if (!got && !ferror(a->file)) break;
        uint64_t n = get_length(length);
        if (got < sizeof length)
            code = ends_early(o, a->file);
        else if (n < MIN_OBJECT || n > MAX_OBJECT)
            code = tool_failed(o->command, "%s is damaged", o->file);
        else
            code = read_object(o, a->file, &r, (size_t)n);
        if (code == TOOL_OK) code = put_object(o, store, a, &r, (size_t)n);
    }
    free(r.bytes);
    return code;
}

int store_import(int argc, char **argv)
{
    static const tool_command about = {
        .name = "store import",
        .usage = "--dir DIRECTORY [--cap BYTES] FILE",
        .about =
            "Reads the objects of an exported file into the store. Each object is checked first. Only a namespace\n"
            "with the identity of the one that saved an object can use it.",
        .examples = "  quire store import --dir /var/cache/quire --cap 64G pages.quire\n",
        TOOL_ONE(store_options, file, "file"),
    };
    store_options o;
    quire_store *store;
    archive a = {0};
    char head[sizeof magic];
    struct stat st;
    int code = store_parse(&o, STORE_DISK | STORE_CAP, &about, NULL, 0, argc, argv);
    if (code < 0 && !o.file) code = tool_usage(about.name, "give a file to read");
    if (code >= 0) return code;
    a.file = fopen(o.file, "rb");
    if (!a.file || fstat(fileno(a.file), &st))
        return tool_failed(o.command, "%s: %s", o.file, strerror(errno));
    if (fread(head, sizeof head, 1, a.file) != 1 || memcmp(head, magic, sizeof head)) {
        code =
            ferror(a.file)
                ? tool_failed(o.command, "%s: %s", o.file, strerror(errno))
                : tool_failed(o.command,
                              "%s was not written by quire store export, or by a version with another format",
                              o.file);
        fclose(a.file);
        return code;
    }
    code = store_open(&o, &store);
    if (!code) {
        progress_start(&a.progress, "import", "MB", (double)st.st_size / 1e6);
        code = read_all(&o, store, &a);
        progress_end(&a.progress);
        quire_store_close(store);
    }
    fclose(a.file);
    return code ? code : report(&o, &a, "stored");
}
