/* SPDX-License-Identifier: MIT */
/*
 * store: the disk tier: limits of tenants. They are kept in a small file, which is replaced as a whole within a transaction of the
 * index: so that changes of two processes do not undo each other. Every process reads it again when it has changed. If it is
 * lost, damaged or of another version, the limit that the process was opened with holds. A file that cannot be read is never replaced:
 * the limits in it would be lost.
 */
#define _GNU_SOURCE
#include "store/disk_inside.h"
#include "store/os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define QUOTA_FILE "quotas"
#define QUOTA_VERSION 1u
#define QUOTA_MAX 65536u
#define FILE_MAX (AT_ENTRIES + ENTRY * (uint64_t)QUOTA_MAX + HASH)
#define EVICT_MAX 256u
static const uint8_t magic[8] = {'Q', 'U', 'I', 'R', 'E', 'Q', 'T', 0};
/* Then entries of 16 bytes tenant and 8 bytes limit, in order of the tenants; then the hash of all before it. */
enum { AT_VERSION = 8, AT_N = 16, AT_RESERVED = 20, AT_ALL = 24, AT_ENTRIES = 32, ENTRY = 24, HASH = 8 };

static void say_file(const quire_disk *d, const char *what)
{
    quire_log_say(d->log, QUIRE_EVENT_QUOTA, QUIRE_LOG_WARNING, "%s/" QUOTA_FILE " %s.", d->directory, what);
}

void quire_disk_begin_quotas(quire_disk *d)
{
    pthread_mutex_init(&d->quotas.lock, NULL);
}

void quire_disk_end_quotas(quire_disk *d)
{
    quire_mem_free(&d->allocator, d->quotas.list, sizeof *d->quotas.list * d->quotas.cap);
    pthread_mutex_destroy(&d->quotas.lock);
}

/* ------------------------------------------------------------------ the file */

static bool make_room(quire_disk *d, uint32_t n)
{
    quire_quotas *q = &d->quotas;
    if (n <= q->cap) return true;
    uint32_t cap = n + 64;
    quire_quota *list = (quire_quota *)quire_mem_take(&d->allocator, sizeof *list * cap);
    if (!list) return false;
    if (q->n) memcpy(list, q->list, sizeof *list * q->n);
    quire_mem_free(&d->allocator, q->list, sizeof *list * q->cap);
    q->list = list;
    q->cap = cap;
    return true;
}

/* What the bytes of the file say. */
static quire_status take_over(quire_disk *d, const uint8_t *b, size_t n)
{
    quire_quotas *q = &d->quotas;
    if (quire_load64(b + n - HASH) != XXH3_64bits(b, n - HASH)) return QUIRE_EFORMAT;
    uint32_t n_entries = quire_load32(b + AT_N);
    if (n_entries > QUOTA_MAX || n != AT_ENTRIES + (size_t)ENTRY * n_entries + HASH) return QUIRE_EFORMAT;
    if (!make_room(d, n_entries)) return QUIRE_ENOMEM;
    for (uint32_t i = 0; i < n_entries; i++) {
        const uint8_t *e = b + AT_ENTRIES + (size_t)ENTRY * i;
        memcpy(q->list[i].tenant, e, QUIRE_TENANT);
        q->list[i].bytes = quire_load64(e + QUIRE_TENANT);
    }
    q->n = n_entries;
    q->all = quire_load64(b + AT_ALL);
    return QUIRE_OK;
}

/* Only magic and version are the same in all versions: they are judged before length and hash. */
static quire_status read_bytes(quire_disk *d, int fd, uint64_t size)
{
    uint8_t head[AT_N];
    size_t n = (size_t)size;
    ssize_t got = pread(fd, head, sizeof head, 0);
    if (got < 0) return QUIRE_EIO;
    if (got != (ssize_t)sizeof head || memcmp(head, magic, sizeof magic) ||
        !quire_version_is_whole(head + AT_VERSION))
        return QUIRE_EFORMAT;
    if (quire_load32(head + AT_VERSION) != QUOTA_VERSION) return QUIRE_EVERSION;
    if (size < AT_ENTRIES + HASH || size > FILE_MAX) return QUIRE_EFORMAT;
    uint8_t *bytes = (uint8_t *)quire_mem_take(&d->allocator, n);
    if (!bytes) return QUIRE_ENOMEM;
    got = pread(fd, bytes, n, 0);
    quire_status status = got == (ssize_t)n ? take_over(d, bytes, n) : got < 0 ? QUIRE_EIO : QUIRE_EFORMAT;
    quire_mem_free(&d->allocator, bytes, n);
    return status;
}

static void read_file(quire_disk *d, uint64_t size)
{
    quire_quotas *q = &d->quotas;
    /* A FIFO would wait. */
    int fd = openat(d->directory_fd, QUOTA_FILE, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    q->wrong = fd >= 0 ? read_bytes(d, fd, size) : QUIRE_EIO;
    if (fd >= 0) close(fd);
    if (!q->wrong) return;
    q->n = 0;
    q->all = 0;
    if (q->wrong == QUIRE_ENOMEM || q->wrong == QUIRE_EIO) q->change_s = -1; /* may pass: tried again */
}

static void say_wrong(const quire_disk *d, quire_status wrong)
{
    say_file(
        d, wrong == QUIRE_EVERSION
               ? "was written by another version of Quire; while it is there, tenants have "
                 "the limit that the store was opened with and no limit can be set"
           : wrong == QUIRE_EFORMAT
               ? "is damaged; until it is removed, tenants have the limit that the store was "
                 "opened with and no limit can be set"
               : "cannot be read; until it can, tenants have the limit that the store was opened with and no "
                 "limit can be set");
}

/* Reads the file again if it is another one. Under the lock. */
static void refresh(quire_disk *d)
{
    quire_quotas *q = &d->quotas;
    struct stat st;
    bool is_there = fstatat(d->directory_fd, QUOTA_FILE, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (!is_there) st = (struct stat){0};
    struct timespec changed = quire_os_changed(&st);
    if (st.st_ino == q->ino && (uint64_t)st.st_size == q->size && changed.tv_sec == q->change_s &&
        changed.tv_nsec == q->change_ns)
        return;
    q->ino = st.st_ino;
    q->size = (uint64_t)st.st_size;
    q->change_s = changed.tv_sec;
    q->change_ns = changed.tv_nsec;
    q->n = 0;
    q->all = 0;
    quire_status before = q->wrong;
    q->wrong = QUIRE_OK;
    if (is_there) read_file(d, q->size);
    if (q->wrong != before) q->is_told = false;
}

/* One that is too large is none of ours. */
uint64_t quire_disk_quota_bytes(const quire_disk *d)
{
    uint64_t size = d->quotas.size;
    return size > FILE_MAX ? 0 : size;
}

static bool write_file(quire_disk *d)
{
    quire_quotas *q = &d->quotas;
    size_t n = AT_ENTRIES + (size_t)ENTRY * q->n + HASH;
    uint8_t *b = (uint8_t *)quire_mem_take(&d->allocator, n);
    if (!b) return false;
    memcpy(b, magic, sizeof magic);
    quire_store_version(b + AT_VERSION, QUOTA_VERSION);
    quire_store32(b + AT_N, q->n);
    quire_store64(b + AT_ALL, q->all);
    for (uint32_t i = 0; i < q->n; i++) {
        memcpy(b + AT_ENTRIES + (size_t)ENTRY * i, q->list[i].tenant, QUIRE_TENANT);
        quire_store64(b + AT_ENTRIES + (size_t)ENTRY * i + QUIRE_TENANT, q->list[i].bytes);
    }
    quire_store64(b + n - HASH, XXH3_64bits(b, n - HASH));
    (void)unlinkat(d->directory_fd, QUOTA_FILE ".new", 0);
    int fd = openat(d->directory_fd, QUOTA_FILE ".new", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool done = fd >= 0 && write(fd, b, n) == (ssize_t)n && quire_os_sync(fd);
    if (fd >= 0) close(fd);
    /* EINVAL: a file system that syncs no directories. */
    done = done && renameat(d->directory_fd, QUOTA_FILE ".new", d->directory_fd, QUOTA_FILE) == 0 &&
           (quire_os_sync(d->directory_fd) || errno == EINVAL);
    quire_mem_free(&d->allocator, b, n);
    return done;
}

/* ------------------------------------------------------------------- limits */

static int compare(const void *tenant, const void *quota)
{
    return memcmp(tenant, ((const quire_quota *)quota)->tenant, QUIRE_TENANT);
}

static quire_quota *find(quire_quotas *q, const uint8_t *tenant)
{
    return q->n ? (quire_quota *)bsearch(tenant, q->list, q->n, sizeof *q->list, compare) : NULL;
}

uint64_t quire_disk_quota(quire_disk *d, const uint8_t tenant[QUIRE_TENANT])
{
    static const uint8_t imported[QUIRE_TENANT];
    quire_quotas *q = &d->quotas;
    pthread_mutex_lock(&q->lock);
    refresh(d);
    const quire_quota *own = find(q, tenant);
    uint64_t all = q->all ? q->all : q->asked;
    if (!memcmp(tenant, imported, sizeof imported)) all = 0; /* of many tenants, perhaps */
    uint64_t bytes = own ? own->bytes : all;
    quire_status wrong = q->is_told ? QUIRE_OK : q->wrong;
    q->is_told = true;
    pthread_mutex_unlock(&q->lock);
    if (wrong) say_wrong(d, wrong);
    return bytes ? bytes : QUIRE_NO_QUOTA;
}

/* Under the lock, of the file that was read. */
static bool change(quire_disk *d, const uint8_t *tenant, uint64_t bytes)
{
    quire_quotas *q = &d->quotas;
    if (!tenant) {
        if (q->all == bytes) return true;
        q->all = bytes;
        return write_file(d);
    }
    quire_quota *own = find(q, tenant);
    if (own ? own->bytes == bytes : !bytes) return true;
    if (own && bytes) {
        own->bytes = bytes;
    } else if (own) {
        memmove(own, own + 1, sizeof *own * (size_t)(q->list + --q->n - own));
    } else {
        if (q->n == QUOTA_MAX || !make_room(d, q->n + 1)) return false;
        uint32_t at = q->n++;
        for (; at && memcmp(q->list[at - 1].tenant, tenant, QUIRE_TENANT) > 0; at--)
            q->list[at] = q->list[at - 1];
        memcpy(q->list[at].tenant, tenant, QUIRE_TENANT);
        q->list[at].bytes = bytes;
    }
    return write_file(d);
}

/* Many tenants, perhaps. */
static void enforce_later(quire_disk *d)
{
    d->is_quota_due = true;
    quire_disk_wake_keeper(d);
}

quire_status quire_disk_set_quota(quire_disk *d, const uint8_t *tenant, uint64_t bytes)
{
    quire_index_head h;
    if (!tenant) { /* holds for this process, whatever becomes of the file */
        pthread_mutex_lock(&d->quotas.lock);
        d->quotas.asked = bytes;
        pthread_mutex_unlock(&d->quotas.lock);
    }
    quire_index_rc rc = quire_disk_begin_write(d, &h); /* one process at a time */
    if (rc) {
        say_file(d, "could not be written");
        return QUIRE_EIO;
    }
    pthread_mutex_lock(&d->quotas.lock);
    refresh(d);
    quire_status wrong = d->quotas.wrong;
    bool done = !wrong && change(d, tenant, bytes);
    if (wrong)
        d->quotas.is_told = true;
    else
        d->quotas.change_s = -1; /* the file is read again, whatever has become of it */
    pthread_mutex_unlock(&d->quotas.lock);
    (void)quire_disk_end_write(d, &h, QUIRE_INDEX_OK);
    if (wrong) {
        if (!tenant) enforce_later(d);
        say_wrong(d, wrong);
        return wrong;
    }
    if (!done) {
        say_file(d, "could not be written");
        return QUIRE_EIO;
    }
    if (!tenant) {
        enforce_later(d);
        return QUIRE_OK;
    }
    return quire_disk_enforce_quotas(d, tenant) ? QUIRE_OK : QUIRE_EIO;
}

/* -------------------------------------------------------------- enforcement */

static bool enforce(quire_disk *d, const uint8_t *tenant)
{
    uint64_t limit = quire_disk_quota(d, tenant), before;
    quire_index_head h;
    quire_index_rc rc = QUIRE_INDEX_OK;
    if (limit == QUIRE_NO_QUOTA) return true;
    do { /* in steps: others want to write, too */
        rc = quire_disk_begin_write(d, &h);
        if (rc) return false;
        before = h.n_objects;
        rc = quire_disk_evict_tenant(d, &h, tenant, limit, UINT64_MAX, EVICT_MAX);
        rc = quire_disk_end_write(d, &h, rc == QUIRE_INDEX_NONE ? QUIRE_INDEX_OK : rc);
    } while (!rc && before - h.n_objects == EVICT_MAX);
    return !rc;
}

bool quire_disk_enforce_quotas(quire_disk *d, const uint8_t *tenant)
{
    enum { STEP = 32 };
    quire_namespace_row rows[STEP];
    int64_t after = INT64_MIN;
    if (tenant) return enforce(d, tenant);
    for (uint32_t n = STEP; n == STEP;) {
        quire_index_rc rc;
        quire_index *ix = quire_disk_begin_read(d, &rc);
        if (!ix) return false;
        rc = quire_index_next_namespaces(ix, after, rows, STEP, &n);
        rc = quire_disk_end_read(d, ix, rc);
        if (rc > QUIRE_INDEX_NONE) return false;
        for (uint32_t i = 0; i < n; i++)
            if (!enforce(d, rows[i].tenant)) return false;
        if (n) after = rows[n - 1].id;
    }
    return true;
}
