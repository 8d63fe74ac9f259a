/* SPDX-License-Identifier: MIT */
/* store: the disk tier: directory, head file, usage. */
#define _GNU_SOURCE
#include "store/disk_inside.h"
#include "store/os.h"
#include "store/seal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/rand.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define HEAD_FILE "quire-store"
#define HEAD_VERSION 2u
static const uint8_t magic[8] = {'Q', 'U', 'I', 'R', 'E', 'S', 'T', 0};
enum { AT_VERSION = 8, AT_CAP = 16, AT_KEY = 24, AT_CHECK = 56, HEAD_BYTES = 64 };

#define MIN_CAP (16ull << 20)
#define TICK_MAX (1ull << 62) /* later ones are damage */

/* SQLite's locks belong to the process: nobody else in it may open and close the index. */
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

/* -------------------------------------------------------------------- locks */

bool quire_disk_lock(quire_disk *d, int part, bool alone, uint32_t timeout_ms)
{
    uint64_t deadline = quire_deadline(timeout_ms);
    while (!quire_os_lock(d->head_fd, part, alone ? F_WRLCK : F_RDLCK)) {
        if ((errno != EAGAIN && errno != EACCES && errno != EINTR) || quire_now() >= deadline) return false;
        (void)usleep(500);
    }
    return true;
}

void quire_disk_unlock(quire_disk *d, int part)
{
    (void)quire_os_lock(d->head_fd, part, F_UNLCK);
}

/* --------------------------------------------------------------------- head */

static bool write_head(const quire_disk *d)
{
    uint8_t head[HEAD_BYTES] = {0};
    memcpy(head, magic, sizeof magic);
    quire_store_version(head + AT_VERSION, HEAD_VERSION);
    quire_store64(head + AT_CAP, d->cap_bytes);
    memcpy(head + AT_KEY, d->key, QUIRE_DIRECTORY_KEY);
    quire_store64(head + AT_CHECK, XXH3_64bits(head, AT_CHECK));
    return pwrite(d->head_fd, head, sizeof head, 0) == (ssize_t)sizeof head &&
           ftruncate(d->head_fd, HEAD_BYTES) == 0;
}

typedef struct search {
    quire_disk *disk;
    uint32_t n_slabs;
    bool found;
} search;

static void look_for_key(void *ctx, uint32_t id, uint64_t disk_bytes)
{
    search *s = (search *)ctx;
    (void)disk_bytes;
    s->n_slabs++;
    if (!s->found) s->found = quire_slab_read_head(&s->disk->slabs, id, s->disk->key) == QUIRE_MISS_NONE;
}

/* The head file is new or damaged. The slabs have the key, too; the index has the cap. */
static quire_status recover_head(quire_disk *d, bool is_ours, complaint c)
{
    search s = {.disk = d};
    if (!quire_slab_each(&d->slabs, look_for_key, &s))
        return complain(c, QUIRE_EIO, "%s: %s", d->directory, strerror(errno));
    if (!is_ours && !s.n_slabs)
        return complain(c, QUIRE_EIO, "%s/" HEAD_FILE " is not a file of a store; use another directory",
                        d->directory);
    quire_index_head h;
    if (!d->cap_bytes && s.found && !quire_index_begin(&d->writer, false, QUIRE_LOCK_TIMEOUT_MS)) {
        quire_index_rc rc = quire_index_read_head(&d->writer, &h);
        if (!quire_index_end(&d->writer, rc)) d->cap_bytes = h.cap_bytes;
    }
    if (!d->cap_bytes)
        return complain(
            c, QUIRE_EINVAL,
            "%s contains no store; a new one needs a size limit (disk_bytes; on the command line --cap)",
            d->directory);
    if (!s.found && RAND_bytes(d->key, QUIRE_DIRECTORY_KEY) != 1) return QUIRE_ENOMEM;
    return write_head(d) ? QUIRE_OK : complain(c, QUIRE_EIO, "%s: %s", d->directory, strerror(errno));
}

static quire_status read_head(quire_disk *d, complaint c)
{
    uint8_t head[HEAD_BYTES] = {0};
    struct stat st;
    ssize_t n = pread(d->head_fd, head, sizeof head, 0);
    if (n < 0) return complain(c, QUIRE_EIO, "%s/" HEAD_FILE ": %s", d->directory, strerror(errno));
    /* Zeros: made, and never written before the machine failed. */
    static const uint8_t zeros[HEAD_BYTES];
    bool is_ours =
        n < (ssize_t)sizeof magic || !memcmp(head, magic, sizeof magic) || !memcmp(head, zeros, sizeof head);
    bool is_whole = n > AT_CAP && is_ours && quire_version_is_whole(head + AT_VERSION);
    if (fstatat(d->directory_fd, "segment-00", &st, 0) == 0 && !is_whole)
        return complain(
            c, QUIRE_EVERSION,
            "%s holds a store of an earlier form (LMDB segments), which this version does not read; remove "
            "the directory or use another one",
            d->directory);
    if (is_whole && quire_load32(head + AT_VERSION) != HEAD_VERSION)
        return complain(c, QUIRE_EVERSION, "%s was made by another version of Quire and cannot be used",
                        d->directory);
    if (!is_whole || n != HEAD_BYTES || quire_load64(head + AT_CHECK) != XXH3_64bits(head, AT_CHECK))
        return recover_head(d, is_ours, c);
    memcpy(d->key, head + AT_KEY, QUIRE_DIRECTORY_KEY);
    if (!d->cap_bytes) d->cap_bytes = quire_load64(head + AT_CAP);
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ opening */

static uint64_t this_boot(void)
{
    char text[64] = "";
    size_t n = quire_os_boot(text, sizeof text);
    return n ? XXH3_64bits(text, n) : 0;
}

/* The cap that was asked for holds for everybody who has the directory open. After a start of the machine the index is checked: it
 * is not synced. */
static quire_index_rc adopt(quire_disk *d, uint64_t cap_asked)
{
    quire_index_head h;
    quire_index_rc rc = quire_disk_begin_write(d, &h);
    if (rc) return rc;
    /* The clock may have been ahead when pages were used: they must not be younger than all that is saved from now on. */
    uint64_t newest = 0;
    rc = quire_index_newest(&d->writer, &newest);
    if (!rc && newest > d->last_tick && newest < TICK_MAX) d->last_tick = newest;
    uint64_t boot = this_boot();
    bool rebooted = h.boot != boot;
    if (cap_asked) h.cap_bytes = cap_asked;
    d->cap_bytes = h.cap_bytes;
    h.boot = boot;
    d->is_over_cap = quire_disk_taken(&h) + h.free_bytes > quire_disk_budget(d, &h);
    d->is_scanning = h.scan_slab < h.scan_end;
    rc = quire_disk_end_write(d, &h, rc == QUIRE_INDEX_NONE ? QUIRE_INDEX_OK : rc);
    if (!rc && rebooted) d->is_check_due = true;
    return rc;
}

static quire_status open_index(quire_disk *d, uint64_t cap_asked, complaint c)
{
    quire_index_rc rc = adopt(d, cap_asked);
    if (rc == QUIRE_INDEX_FOREIGN)
        return complain(c, QUIRE_EVERSION,
                        "the index of %s was made by another version of Quire and cannot be used",
                        d->directory);
    if (rc == QUIRE_INDEX_LOST || rc == QUIRE_INDEX_DAMAGED) {
        rc = quire_disk_make_index(d, d->cap_bytes);
        if (rc) return complain(c, QUIRE_EIO, "%s/" QUIRE_INDEX_FILE ": %s", d->directory, strerror(errno));
        d->is_damaged = false;
        rc = adopt(d, cap_asked);
    }
    /* Locked by others: go on, with misses until they let go. */
    if (rc && rc != QUIRE_INDEX_BUSY)
        return complain(c, QUIRE_EIO, "%s/" QUIRE_INDEX_FILE " cannot be opened", d->directory);
    return QUIRE_OK;
}

static quire_status claim_directory(quire_disk *d, complaint c)
{
    struct stat st;
    if (mkdir(d->directory, 0700) && errno != EEXIST)
        return complain(c, QUIRE_EIO, "%s: %s", d->directory, strerror(errno));
    d->directory_fd = open(d->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->directory_fd < 0 || fstat(d->directory_fd, &st))
        return complain(c, QUIRE_EIO, "%s: %s", d->directory, strerror(errno));
    d->dev = st.st_dev;
    d->ino = st.st_ino;
    for (const quire_disk *o = open_disks; o; o = o->next_open)
        if (o->dev == d->dev && o->ino == d->ino)
            return complain(c, QUIRE_EBUSY, "%s is already open in this process", d->directory);
    do { /* another process may make it between the two */
        d->head_fd = openat(d->directory_fd, HEAD_FILE, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (d->head_fd >= 0 || errno != ENOENT) break;
        d->head_fd =
            openat(d->directory_fd, HEAD_FILE, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        d->head_is_new = d->head_fd >= 0;
    } while (d->head_fd < 0 && errno == EEXIST);
    if (d->head_fd < 0) return complain(c, QUIRE_EIO, "%s/" HEAD_FILE ": %s", d->directory, strerror(errno));
    /* Beyond the end of the file this does nothing where it can be done. */
    if (!quire_os_punch(d->head_fd, 1 << 20, QUIRE_BLOCK) && quire_os_cannot_punch(errno))
        return complain(c, QUIRE_EIO,
                        "the file system of %s cannot give back parts of files (punch holes); %s can",
                        d->directory, quire_os_punching_systems);
    return QUIRE_OK;
}

static quire_status open_all(quire_disk *d, uint64_t cap_asked, complaint c)
{
    quire_status status = claim_directory(d, c);
    if (status) return status;
    quire_slabs_init(&d->slabs, &d->allocator, d->directory, d->directory_fd);
    quire_warm_init(&d->warm, &d->slabs, quire_warm_default());
    if (!quire_disk_lock(d, QUIRE_LOCK_INDEX, true, 10000))
        return complain(c, QUIRE_EIO, "%s is locked by another process", d->directory);
    status = read_head(d, c);
    if (!status) {
        d->mac = quire_mac_create(&d->allocator, d->key);
        if (!d->mac) status = QUIRE_ENOMEM;
    }
    if (!status) status = open_index(d, cap_asked, c);
    if (!status && !write_head(d)) status = complain(c, QUIRE_EIO, "%s: %s", d->directory, strerror(errno));
    /* A directory of another version stays as it is. Nobody can have begun to use the file: they are refused for the same reason. */
    if (status == QUIRE_EVERSION && d->head_is_new) (void)unlinkat(d->directory_fd, HEAD_FILE, 0);
    quire_disk_unlock(d, QUIRE_LOCK_INDEX);
    if (!status && !quire_disk_start_keeper(d)) status = QUIRE_ENOMEM;
    return status;
}

static void destroy(quire_disk *d)
{
    quire_allocator a = d->allocator;
    quire_disk_stop_keeper(d);
    for (uint32_t i = 0; i < QUIRE_READERS; i++) {
        quire_index_close(&d->reader[i]);
        pthread_mutex_destroy(&d->reader_lock[i]);
    }
    quire_index_close(&d->writer);
    for (uint32_t i = 0; i < d->n_spare; i++) quire_buffer_destroy(&d->spare[i], &a);
    quire_buffer_destroy(&d->write_buffer, &a);
    if (d->warm.slabs) quire_warm_fini(&d->warm);
    quire_sealer_destroy(d->sealer);
    quire_disk_end_quotas(d);
    if (d->slabs.directory) quire_slabs_fini(&d->slabs);
    quire_mac_destroy(d->mac);
    if (d->head_fd >= 0) close(d->head_fd);
    if (d->directory_fd >= 0) close(d->directory_fd);
    pthread_mutex_destroy(&d->write_lock);
    pthread_mutex_destroy(&d->spare_lock);
    pthread_mutex_destroy(&d->keeper_lock);
    pthread_cond_destroy(&d->keeper_cond);
    quire_mem_free_text(&a, d->index_path);
    quire_mem_free_text(&a, d->directory);
    quire_mem_free(&a, d, sizeof *d);
}

static quire_disk *create(const char *directory, const quire_allocator *a)
{
    char whole[8300], path[8320];
    quire_disk *d = (quire_disk *)quire_mem_take(a, sizeof *d);
    if (!d) return NULL;
    d->allocator = *a;
    d->head_fd = d->directory_fd = -1;
    if (!quire_cond_init(&d->keeper_cond)) {
        quire_mem_free(a, d, sizeof *d);
        return NULL;
    }
    pthread_mutex_init(&d->write_lock, NULL);
    pthread_mutex_init(&d->spare_lock, NULL);
    pthread_mutex_init(&d->keeper_lock, NULL);
    quire_disk_begin_quotas(d);
    /* The process may change its own directory. */
    char *here = *directory == '/' ? NULL : getcwd(path, 4200);
    (void)snprintf(whole, sizeof whole, "%s%s%s", here ? here : "", here ? "/" : "", directory);
    (void)snprintf(path, sizeof path, "%s/" QUIRE_INDEX_FILE, whole);
    d->directory = quire_mem_text(a, whole);
    d->index_path = quire_mem_text(a, path);
    for (uint32_t i = 0; i < QUIRE_READERS; i++) {
        pthread_mutex_init(&d->reader_lock[i], NULL);
        quire_index_init(&d->reader[i], d->index_path);
    }
    quire_index_init(&d->writer, d->index_path);
    if (d->directory && d->index_path) return d;
    destroy(d);
    return NULL;
}

quire_status quire_disk_open(quire_disk **out, const char *directory, uint64_t cap_bytes,
                             const quire_allocator *allocator, quire_counters *counters, quire_store_log *log,
                             char *message, size_t message_size)
{
    complaint c = {message, message_size};
    if (cap_bytes && cap_bytes < MIN_CAP)
        return complain(c, QUIRE_EINVAL, "the size limit must be at least 16 MiB");
    if (!*directory || strlen(directory) > 4000)
        return complain(c, QUIRE_EINVAL, "the name of the directory is empty or too long");
    quire_disk *d = create(directory, allocator);
    if (!d) return QUIRE_ENOMEM;
    d->counters = counters;
    d->log = log;
    d->cap_bytes = cap_bytes;
    pthread_mutex_lock(&open_lock);
    quire_status status = open_all(d, cap_bytes, c);
    if (!status) {
        d->next_open = open_disks;
        open_disks = d;
    } else {
        destroy(d); /* within the lock: it may have the index open */
    }
    pthread_mutex_unlock(&open_lock);
    if (!status) *out = d;
    return status;
}

void quire_disk_close(quire_disk *d)
{
    if (!d) return;
    quire_disk_stop_keeper(d);
    pthread_mutex_lock(&open_lock);
    quire_disk **at = &open_disks;
    while (*at && *at != d) at = &(*at)->next_open;
    if (*at) *at = d->next_open;
    destroy(d);
    pthread_mutex_unlock(&open_lock);
}

void quire_disk_set_warm(quire_disk *d, uint64_t bytes)
{
    d->warm.bound = bytes;
}

/* -------------------------------------------------------------------- usage */

/* Of all files. */
static uint64_t directory_bytes(const quire_disk *d)
{
    uint64_t bytes = 0;
    int fd = openat(d->directory_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        if (fd >= 0) close(fd);
        return 0;
    }
    for (struct dirent *e; (e = readdir(dir));) {
        struct stat st;
        if (e->d_name[0] != '.' && fstatat(d->directory_fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            bytes += (uint64_t)st.st_blocks * 512;
    }
    closedir(dir);
    return bytes;
}

void quire_disk_usage_get(quire_disk *d, quire_disk_usage *out)
{
    quire_index_head h = {0};
    quire_index_rc rc;
    quire_index *ix = quire_disk_begin_read(d, &rc);
    if (ix) {
        rc = quire_index_read_head(ix, &h);
        rc = quire_disk_end_read(d, ix, rc);
    }
    *out = (quire_disk_usage){.cap_bytes = rc ? d->cap_bytes : h.cap_bytes,
                              .file_bytes = directory_bytes(d),
                              .is_scanning = d->is_damaged};
    if (rc) return;
    out->n_objects = h.n_objects;
    out->n_pinned = h.n_pinned;
    out->n_unknown = h.n_foreign;
    out->record_bytes = h.live_bytes;
    out->is_scanning = h.scan_slab < h.scan_end || d->is_damaged;
}

const char *quire_disk_directory(const quire_disk *d)
{
    return d->directory;
}

const char *quire_disk_explain(const quire_disk *d)
{
    struct stat st;
    struct statvfs space;
    if (stat(d->directory, &st)) return "the directory is gone";
    if ((uint64_t)st.st_dev != d->dev || (uint64_t)st.st_ino != d->ino)
        return "another directory has taken its place";
    if (fstatvfs(d->directory_fd, &space) == 0) {
        if (space.f_flag & ST_RDONLY) return "the file system is read-only";
        if ((uint64_t)space.f_bavail * space.f_frsize < QUIRE_WRITE_BUFFER) return "the file system is full";
        if (space.f_files && !space.f_favail) return "the file system has no room for more files";
    }
    if (faccessat(d->directory_fd, ".", W_OK | X_OK, AT_EACCESS)) return "the directory may not be written";
    return "writing failed";
}
