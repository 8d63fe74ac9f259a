/* SPDX-License-Identifier: MIT */
/* store: the disk tier: directory, segments, usage. */
#define _GNU_SOURCE
#include "store/disk_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEAD_FILE "quire-store"
#define HEAD_VERSION 1u
#define HEAD_BYTES 40u
#define HEAD_ROOM 8192u /* of both small files */
static const uint8_t magic[8] = {'Q', 'U', 'I', 'R', 'E', 'S', 'T', 0};

#define MIN_CAP (16ull << 20)
#define MIN_SEGMENTS 4u
#define SEGMENT_TARGET (256ull << 20) /* small caps get fewer segments, so that large objects fit */
#define LOCK_BYTES (64ull << 10)      /* room for LMDB's lock file, beside each segment */
#define MAX_READERS 510u

/* LMDB allows one environment per file and process. */
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static quire_disk *open_disks;

typedef struct complaint {
    char *message;
    size_t size;
} complaint;

__attribute__((format(printf, 3, 4))) static quire_status complain(complaint c, quire_status status,
                                                                   const char *format, ...)
{
    va_list args;
    if (!c.message || !c.size) return status;
    va_start(args, format);
    (void)vsnprintf(c.message, c.size, format, args);
    va_end(args);
    return status;
}

/* ----------------------------------------------------------------- records */

int quire_segment_end(MDB_txn *txn, int rc)
{
    if (!rc) return mdb_txn_commit(txn);
    mdb_txn_abort(txn);
    return rc;
}

quire_segment_head quire_segment_read_head(quire_segment *s, MDB_txn *txn)
{
    MDB_val key = quire_val("head", 4), value;
    quire_segment_head h = {0};
    if (mdb_get(txn, s->head, &key, &value) == 0 && value.mv_size == sizeof h)
        memcpy(&h, value.mv_data, sizeof h);
    return h;
}

int quire_segment_write_head(quire_segment *s, MDB_txn *txn, const quire_segment_head *h)
{
    MDB_val key = quire_val("head", 4), value = quire_val(h, sizeof *h);
    return mdb_put(txn, s->head, &key, &value, 0);
}

int quire_segment_meta(quire_segment *s, MDB_txn *txn, const quire_key *object, quire_meta *out)
{
    MDB_val key = quire_val(object->byte, 32), value;
    int rc = mdb_get(txn, s->meta, &key, &value);
    if (rc) return rc;
    if (value.mv_size != sizeof *out) return MDB_CORRUPTED;
    memcpy(out, value.mv_data, sizeof *out);
    return 0;
}

int quire_segment_put_meta(quire_segment *s, MDB_txn *txn, const quire_key *object, const quire_meta *m)
{
    MDB_val key = quire_val(object->byte, 32), value = quire_val(m, sizeof *m);
    return mdb_put(txn, s->meta, &key, &value, 0);
}

void quire_recency_key(uint8_t key[16], uint64_t tick, const quire_key *object)
{
    for (int i = 0; i < 8; i++) key[i] = (uint8_t)(tick >> (56 - 8 * i)); /* big-endian: sorts by time */
    memcpy(key + 8, object->byte, 8);
}

int quire_segment_begin(quire_segment *s, MDB_txn **txn)
{
    int rc = mdb_txn_begin(s->env, NULL, MDB_RDONLY, txn), dead;
    if (rc != MDB_READERS_FULL) return rc;
    (void)mdb_reader_check(s->env, &dead);
    return mdb_txn_begin(s->env, NULL, MDB_RDONLY, txn);
}

/* ---------------------------------------------------------------- segments */

/* Where the process has mapped the file; LMDB does not tell. */
static const uint8_t *find_map(int fd)
{
    struct stat st;
    char line[512];
    const uint8_t *found = NULL;
    FILE *maps = fstat(fd, &st) ? NULL : fopen("/proc/self/maps", "re");
    if (!maps) return NULL;
    while (!found && fgets(line, sizeof line, maps)) {
        uint64_t begin, offset, inode;
        unsigned major, minor;
        if (sscanf(line, "%" SCNx64 "-%*x %*4s %" SCNx64 " %x:%x %" SCNu64, &begin, &offset, &major, &minor,
                   &inode) == 5 &&
            inode == st.st_ino && offset == 0)
            found = (const uint8_t *)(uintptr_t)begin;
    }
    fclose(maps);
    return found;
}

static int open_dbs(quire_segment *s)
{
    MDB_txn *txn;
    int rc = mdb_txn_begin(s->env, NULL, 0, &txn);
    if (rc) return rc;
    rc = mdb_dbi_open(txn, "objects", MDB_CREATE, &s->objects);
    if (!rc) rc = mdb_dbi_open(txn, "meta", MDB_CREATE, &s->meta);
    if (!rc) rc = mdb_dbi_open(txn, "recency", MDB_CREATE, &s->recency);
    if (!rc) rc = mdb_dbi_open(txn, "head", MDB_CREATE, &s->head);
    return quire_segment_end(txn, rc);
}

static void segment_path(const quire_disk *d, uint32_t i, const char *suffix, char *out, size_t size)
{
    (void)snprintf(out, size, "%s/segment-%02u%s", d->directory, (unsigned)i, suffix);
}

static int open_segment(quire_disk *d, uint32_t i)
{
    quire_segment *s = &d->segment[i];
    char path[4200];
    int dead, rc = mdb_env_create(&s->env);
    segment_path(d, i, "", path, sizeof path);
    if (rc) return rc;
    rc = mdb_env_set_maxdbs(s->env, 4);
    if (!rc) rc = mdb_env_set_maxreaders(s->env, MAX_READERS);
    if (!rc) rc = mdb_env_set_mapsize(s->env, d->segment_bytes);
    /* NOMETASYNC: a crash of the machine may undo the last transaction, and nothing else. NORDAHEAD: objects are read by
     * pread(), the map only serves the tree. */
    if (!rc) rc = mdb_env_open(s->env, path, MDB_NOSUBDIR | MDB_NOTLS | MDB_NOMETASYNC | MDB_NORDAHEAD, 0600);
    if (!rc) rc = mdb_reader_check(s->env, &dead);
    if (!rc) rc = open_dbs(s);
    if (!rc) rc = mdb_env_get_fd(s->env, &s->fd);
    if (!rc) s->map = find_map(s->fd);
    return rc;
}

static void remove_segment(const quire_disk *d, uint32_t i)
{
    char path[4200];
    segment_path(d, i, "", path, sizeof path);
    (void)unlink(path);
    segment_path(d, i, "-lock", path, sizeof path);
    (void)unlink(path);
}

/* -------------------------------------------------------------------- head */

static bool lock_head(int fd, int how, uint32_t timeout_ms)
{
    uint64_t deadline = quire_deadline(timeout_ms);
    while (flock(fd, how | LOCK_NB)) {
        if ((errno != EWOULDBLOCK && errno != EINTR) || quire_now() >= deadline) return false;
        usleep(500);
    }
    return true;
}

static bool write_head(const quire_disk *d)
{
    uint8_t head[HEAD_BYTES] = {0};
    memcpy(head, magic, sizeof magic);
    quire_store32(head + 8, HEAD_VERSION);
    quire_store32(head + 12, d->n_segments);
    quire_store64(head + 16, d->segment_bytes);
    quire_store64(head + 24, d->cap_bytes);
    quire_store64(head + 32, XXH3_64bits(head, 32));
    return pwrite(d->head_fd, head, sizeof head, 0) == (ssize_t)sizeof head && fsync(d->head_fd) == 0;
}

/* Segments keep their size for ever; another cap means more or fewer of them. */
static void fit_cap(quire_disk *d)
{
    uint64_t n = (d->cap_bytes - HEAD_ROOM) / (d->segment_bytes + LOCK_BYTES);
    d->n_segments = n > QUIRE_MAX_SEGMENTS ? QUIRE_MAX_SEGMENTS : (uint32_t)n;
}

static void lay_out(quire_disk *d)
{
    uint64_t n = d->cap_bytes / SEGMENT_TARGET;
    n = n < MIN_SEGMENTS ? MIN_SEGMENTS : n > QUIRE_MAX_SEGMENTS ? QUIRE_MAX_SEGMENTS : n;
    d->n_segments = (uint32_t)n;
    d->segment_bytes = ((d->cap_bytes - HEAD_ROOM) / n - LOCK_BYTES) / 4096 * 4096;
}

/* Under the lock of writers. alone: no other process has the directory open. */
static quire_status read_head(quire_disk *d, bool alone, complaint c)
{
    uint8_t head[HEAD_BYTES];
    ssize_t n = pread(d->head_fd, head, sizeof head, 0);
    bool is_new = n == 0;
    bool whole = n == (ssize_t)sizeof head && !memcmp(head, magic, sizeof magic) &&
                 quire_load64(head + 32) == XXH3_64bits(head, 32);
    if (n == (ssize_t)sizeof head && !memcmp(head, magic, sizeof magic) &&
        quire_load32(head + 8) != HEAD_VERSION)
        return complain(c, QUIRE_EVERSION, "%s was made by another version of Quire and cannot be used",
                        d->directory);
    if (n < 0) return complain(c, QUIRE_EIO, "%s/" HEAD_FILE ": %s", d->directory, strerror(errno));
    if (!is_new && !whole && n == (ssize_t)sizeof head && memcmp(head, magic, sizeof magic))
        return complain(c, QUIRE_EIO, "%s/" HEAD_FILE " is not a file of a store; use another directory",
                        d->directory);
    if (!whole) { /* new, or the process that made it died before it was done */
        if (!d->cap_bytes)
            return complain(
                c, QUIRE_EINVAL,
                "%s contains no store; a new one needs a size limit (disk_bytes; on the command line --cap)",
                d->directory);
        lay_out(d);
    } else {
        uint64_t cap = quire_load64(head + 24);
        uint32_t before = quire_load32(head + 12);
        d->n_segments = before;
        d->segment_bytes = quire_load64(head + 16);
        if (!before || before > QUIRE_MAX_SEGMENTS || d->segment_bytes < 4096 || cap < MIN_CAP)
            return complain(c, QUIRE_EIO, "%s/" HEAD_FILE " is damaged", d->directory);
        if (!d->cap_bytes || !alone || d->cap_bytes == cap) {
            d->cap_bytes = cap; /* as it is: of those who run already, or asked for */
            return QUIRE_OK;
        }
        if (d->cap_bytes < MIN_SEGMENTS * (d->segment_bytes + LOCK_BYTES) + HEAD_ROOM) {
            /* Too small for segments of this size: begin anew. */
            for (uint32_t i = 0; i < before; i++) remove_segment(d, i);
            lay_out(d);
        } else {
            fit_cap(d);
            for (uint32_t i = d->n_segments; i < before; i++) remove_segment(d, i);
        }
    }
    return write_head(d) ? QUIRE_OK : complain(c, QUIRE_EIO, "%s: %s", d->directory, strerror(errno));
}

/* ------------------------------------------------------------------ opening */

static quire_status claim_directory(quire_disk *d, complaint c)
{
    char path[4200];
    struct stat st;
    if (mkdir(d->directory, 0700) && errno != EEXIST)
        return complain(c, QUIRE_EIO, "%s: %s", d->directory, strerror(errno));
    (void)snprintf(path, sizeof path, "%s/" HEAD_FILE, d->directory);
    d->head_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (d->head_fd < 0 || fstat(d->head_fd, &st))
        return complain(c, QUIRE_EIO, "%s: %s", path, strerror(errno));
    d->dev = st.st_dev;
    d->ino = st.st_ino;
    for (const quire_disk *o = open_disks; o; o = o->next_open)
        if (o->dev == d->dev && o->ino == d->ino)
            return complain(c, QUIRE_EBUSY, "%s is already open in this process", d->directory);
    return QUIRE_OK;
}

static quire_status open_segments(quire_disk *d, complaint c)
{
    for (uint32_t i = 0; i < d->n_segments; i++) {
        int rc = open_segment(d, i);
        if (rc == MDB_INVALID || rc == MDB_CORRUPTED || rc == MDB_VERSION_MISMATCH ||
            rc == MDB_PAGE_NOTFOUND) {
            /* Not a database, or a damaged one: it is a cache, so begin that segment anew. */
            mdb_env_close(d->segment[i].env);
            d->segment[i] = (quire_segment){0};
            remove_segment(d, i);
            rc = open_segment(d, i);
        }
        if (rc)
            return complain(c, QUIRE_EIO, "%s/segment-%02u: %s", d->directory, (unsigned)i, mdb_strerror(rc));
    }
    return QUIRE_OK;
}

/* The lock of the head file is that of writers; a shared lock of the second file says "somebody has it open". */
static quire_status open_all(quire_disk *d, complaint c)
{
    quire_status status = claim_directory(d, c);
    if (status) return status;
    if (!lock_head(d->head_fd, LOCK_EX, 10000))
        return complain(c, QUIRE_EIO, "%s is locked by another process", d->directory);
    char path[4200];
    (void)snprintf(path, sizeof path, "%s/" HEAD_FILE ".users", d->directory);
    d->users_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (d->users_fd < 0) return complain(c, QUIRE_EIO, "%s: %s", path, strerror(errno));
    bool alone = flock(d->users_fd, LOCK_EX | LOCK_NB) == 0;
    status = read_head(d, alone, c);
    if (!status) status = open_segments(d, c);
    if (!status && flock(d->users_fd, LOCK_SH))
        status = complain(c, QUIRE_EIO, "%s: %s", path, strerror(errno));
    (void)flock(d->head_fd, LOCK_UN);
    return status;
}

static void destroy(quire_disk *d)
{
    quire_allocator a = d->allocator;
    for (uint32_t i = 0; i < QUIRE_MAX_SEGMENTS; i++)
        if (d->segment[i].env) mdb_env_close(d->segment[i].env);
    if (d->head_fd >= 0) close(d->head_fd);
    if (d->users_fd >= 0) close(d->users_fd);
    pthread_mutex_destroy(&d->write_lock);
    quire_mem_free_text(&a, d->directory);
    quire_mem_free(&a, d, sizeof *d);
}

quire_status quire_disk_open(quire_disk **out, const char *directory, uint64_t cap_bytes,
                             const quire_allocator *allocator, quire_counters *counters, char *message,
                             size_t message_size)
{
    complaint c = {message, message_size};
    if (cap_bytes && cap_bytes < MIN_CAP)
        return complain(c, QUIRE_EINVAL, "the size limit must be at least 16 MiB");
    if (!*directory || strlen(directory) > 4000)
        return complain(c, QUIRE_EINVAL, "the name of the directory is empty or too long");
    quire_disk *d = (quire_disk *)quire_mem_take(allocator, sizeof *d);
    if (!d) return QUIRE_ENOMEM;
    d->allocator = *allocator;
    d->counters = counters;
    d->cap_bytes = cap_bytes;
    d->head_fd = d->users_fd = -1;
    pthread_mutex_init(&d->write_lock, NULL);
    d->directory = quire_mem_text(allocator, directory);
    quire_status status = QUIRE_ENOMEM;
    pthread_mutex_lock(&open_lock);
    if (d->directory) status = open_all(d, c);
    if (!status) {
        d->next_open = open_disks;
        open_disks = d;
    }
    pthread_mutex_unlock(&open_lock);
    if (status) {
        destroy(d);
        return status;
    }
    *out = d;
    return QUIRE_OK;
}

void quire_disk_close(quire_disk *d)
{
    if (!d) return;
    pthread_mutex_lock(&open_lock);
    quire_disk **at = &open_disks;
    while (*at && *at != d) at = &(*at)->next_open;
    if (*at) *at = d->next_open;
    pthread_mutex_unlock(&open_lock);
    destroy(d);
}

/* -------------------------------------------------------------------- usage */

static uint64_t file_bytes(const char *path)
{
    struct stat st;
    return stat(path, &st) ? 0 : (uint64_t)st.st_blocks * 512;
}

void quire_disk_usage_get(quire_disk *d, quire_disk_usage *out)
{
    char path[4200];
    *out = (quire_disk_usage){.cap_bytes = d->cap_bytes};
    (void)snprintf(path, sizeof path, "%s/" HEAD_FILE, d->directory);
    out->file_bytes = file_bytes(path);
    for (uint32_t i = 0; i < d->n_segments; i++) {
        quire_segment *s = &d->segment[i];
        MDB_txn *txn;
        segment_path(d, i, "", path, sizeof path);
        out->file_bytes += file_bytes(path);
        segment_path(d, i, "-lock", path, sizeof path);
        out->file_bytes += file_bytes(path);
        if (quire_segment_begin(s, &txn)) continue;
        quire_segment_head h = quire_segment_read_head(s, txn);
        mdb_txn_abort(txn);
        out->n_objects += h.n_objects;
        out->n_pinned += h.n_pinned;
    }
}
