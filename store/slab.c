/* SPDX-License-Identifier: MIT */
/* store: slab files. */
#define _GNU_SOURCE
#include "store/os.h"
#include "store/slab.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define SLAB_VERSION 1u
#define LAST_SLAB (1u << 30) /* no store comes to this: 64 PiB were written by then */
static const uint8_t magic[8] = {'Q', 'U', 'I', 'R', 'E', 'S', 'B', 0};
enum { AT_VERSION = 8, AT_ID = 16, AT_RESERVED = 20, AT_KEY = 24, AT_CHECK = 56, HEAD_END = 64 };

bool quire_buffer_create(quire_buffer *b, const quire_allocator *a, size_t bytes)
{
    b->cap = bytes + QUIRE_BLOCK;
    b->memory = (uint8_t *)quire_mem_take(a, b->cap);
    b->bytes = b->memory + (QUIRE_BLOCK - (uintptr_t)b->memory % QUIRE_BLOCK) % QUIRE_BLOCK;
    return b->memory != NULL;
}

void quire_buffer_destroy(quire_buffer *b, const quire_allocator *a)
{
    quire_mem_free(a, b->memory, b->cap);
    *b = (quire_buffer){0};
}

/* ------------------------------------------------------------------- table */

void quire_slabs_init(quire_slabs *s, const quire_allocator *a, const char *directory, int directory_fd)
{
    *s = (quire_slabs){.allocator = *a, .directory = directory, .directory_fd = directory_fd};
    pthread_mutex_init(&s->lock, NULL);
}

static void close_file(quire_slabs *s, quire_slab *slab)
{
    if (slab->cached_fd >= 0) close(slab->cached_fd);
    close(slab->fd);
    quire_mem_free(&s->allocator, slab, sizeof *slab);
}

void quire_slabs_fini(quire_slabs *s)
{
    for (quire_slab *slab = s->first, *next; slab; slab = next) {
        next = slab->next;
        close_file(s, slab);
    }
    pthread_mutex_destroy(&s->lock);
}

static void name_of(uint32_t id, char name[24])
{
    (void)snprintf(name, 24, "slab-%08x", (unsigned)id);
}

static int open_file(const quire_slabs *s, uint32_t id, int flags, bool *direct)
{
    char name[24];
    name_of(id, name);
    return quire_os_open_direct(s->directory_fd, name, flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW, direct);
}

/* Under the lock. */
static quire_slab *enlist(quire_slabs *s, uint32_t id, int fd, bool direct)
{
    struct stat st = {0};
    quire_slab *slab = fstat(fd, &st) || !S_ISREG(st.st_mode)
                           ? NULL
                           : (quire_slab *)quire_mem_take(&s->allocator, sizeof *slab);
    if (!slab) {
        bool is_file = S_ISREG(st.st_mode);
        close(fd);
        errno = is_file ? ENOMEM : ENXIO;
        return NULL;
    }
    slab->id = id;
    slab->fd = fd;
    slab->cached_fd = -1;
    slab->is_direct = direct;
    slab->dev = st.st_dev;
    slab->ino = st.st_ino;
    slab->refs = 1;
    slab->next = s->first;
    s->first = slab;
    return slab;
}

/* Files that another process has removed: nobody asks for their numbers again. Under the lock. */
static void close_removed(quire_slabs *s)
{
    for (quire_slab **at = &s->first; *at;) {
        quire_slab *slab = *at;
        struct stat st;
        if (slab->refs || fstat(slab->fd, &st) || st.st_nlink) {
            at = &slab->next;
            continue;
        }
        *at = slab->next;
        close_file(s, slab);
    }
}

quire_slab *quire_slab_take(quire_slabs *s, uint32_t id)
{
    bool direct;
    pthread_mutex_lock(&s->lock);
    quire_slab *slab = s->first;
    while (slab && (slab->id != id || slab->is_retired)) slab = slab->next;
    if (slab) {
        slab->refs++;
    } else {
        close_removed(s);
        int fd = open_file(s, id, 0, &direct);
        if (fd >= 0) slab = enlist(s, id, fd, direct);
    }
    pthread_mutex_unlock(&s->lock);
    return slab;
}

bool quire_slab_open_cached(quire_slabs *s, quire_slab *slab)
{
    char name[24];
    struct stat st;
    if (!slab->is_direct || slab->cached_fd >= 0) return true;
    name_of(slab->id, name);
    pthread_mutex_lock(&s->lock);
    if (slab->cached_fd < 0) {
        int fd = openat(s->directory_fd, name,
                        O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); /* a FIFO would wait */
        if (fd >= 0 && (fstat(fd, &st) || (uint64_t)st.st_dev != slab->dev || st.st_ino != slab->ino)) {
            close(fd); /* another file has the name now */
            fd = -1;
        }
        if (fd >= 0) quire_os_read_as_asked(fd);
        slab->cached_fd = fd;
    }
    pthread_mutex_unlock(&s->lock);
    return slab->cached_fd >= 0;
}

static void close_if_unused(quire_slabs *s, quire_slab *slab)
{
    if (slab->refs || !slab->is_retired) return;
    quire_slab **at = &s->first;
    while (*at != slab) at = &(*at)->next;
    *at = slab->next;
    close_file(s, slab);
}

void quire_slab_give(quire_slabs *s, quire_slab *slab)
{
    if (!slab) return;
    pthread_mutex_lock(&s->lock);
    slab->refs--;
    close_if_unused(s, slab);
    pthread_mutex_unlock(&s->lock);
}

void quire_slab_forget(quire_slabs *s, uint32_t id)
{
    pthread_mutex_lock(&s->lock);
    for (quire_slab *slab = s->first, *next; slab; slab = next) {
        next = slab->next;
        if (slab->id != id) continue;
        slab->is_retired = true;
        close_if_unused(s, slab);
    }
    pthread_mutex_unlock(&s->lock);
}

bool quire_slab_remove(quire_slabs *s, uint32_t id)
{
    char name[24];
    name_of(id, name);
    bool gone = unlinkat(s->directory_fd, name, 0) == 0 || errno == ENOENT;
    quire_slab_forget(s, id);
    return gone;
}

bool quire_slab_is_gone(const quire_slabs *s, uint32_t id)
{
    struct stat st;
    char name[24];
    name_of(id, name);
    return fstatat(s->directory_fd, name, &st, AT_SYMLINK_NOFOLLOW) ? errno == ENOENT : !S_ISREG(st.st_mode);
}

bool quire_slab_is_current(const quire_slabs *s, const quire_slab *slab)
{
    struct stat st;
    char name[24];
    name_of(slab->id, name);
    return fstatat(s->directory_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
           (uint64_t)st.st_dev == slab->dev && st.st_ino == slab->ino;
}

bool quire_slab_each(const quire_slabs *s, void (*fn)(void *ctx, uint32_t id, uint64_t disk_bytes), void *ctx)
{
    int fd = openat(s->directory_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        if (fd >= 0) close(fd);
        return false;
    }
    for (struct dirent *e; errno = 0, (e = readdir(dir));) {
        struct stat st;
        char *end, name[24];
        if (strncmp(e->d_name, "slab-", 5) != 0) continue;
        unsigned long id = strtoul(e->d_name + 5, &end, 16);
        if (*end || !id || id > LAST_SLAB) continue;
        name_of((uint32_t)id, name);
        if (strcmp(name, e->d_name) == 0 && fstatat(s->directory_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(st.st_mode))
            fn(ctx, (uint32_t)id, (uint64_t)st.st_blocks * 512);
    }
    bool all = errno == 0;
    closedir(dir);
    return all;
}

/* -------------------------------------------------------------------- head */

quire_slab *quire_slab_create(quire_slabs *s, uint32_t id, const uint8_t key[QUIRE_DIRECTORY_KEY])
{
    quire_buffer block;
    bool direct;
    if (!quire_buffer_create(&block, &s->allocator, QUIRE_BLOCK)) {
        errno = ENOMEM;
        return NULL;
    }
    memcpy(block.bytes, magic, sizeof magic);
    quire_store_version(block.bytes + AT_VERSION, SLAB_VERSION);
    quire_store32(block.bytes + AT_ID, id);
    memcpy(block.bytes + AT_KEY, key, QUIRE_DIRECTORY_KEY);
    quire_store64(block.bytes + AT_CHECK, XXH3_64bits(block.bytes, AT_CHECK));
    pthread_mutex_lock(&s->lock);
    int fd = open_file(s, id, O_CREAT | O_EXCL, &direct);
    quire_slab *slab = fd < 0 ? NULL : enlist(s, id, fd, direct);
    pthread_mutex_unlock(&s->lock);
    if (slab && !quire_slab_write(slab, block.bytes, QUIRE_BLOCK, 0)) {
        int why = errno;
        (void)quire_slab_remove(s, id);
        quire_slab_give(s, slab);
        slab = NULL;
        errno = why;
    }
    int why = errno;
    quire_buffer_destroy(&block, &s->allocator);
    errno = why;
    return slab;
}

quire_miss quire_slab_read_head(const quire_slabs *s, uint32_t id, uint8_t key[QUIRE_DIRECTORY_KEY])
{
    uint8_t head[HEAD_END];
    char name[24];
    name_of(id, name);
    int fd =
        openat(s->directory_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); /* a FIFO would wait */
    ssize_t n = fd < 0 ? -1 : pread(fd, head, sizeof head, 0);
    if (fd >= 0) close(fd);
    if (n < 0) return QUIRE_MISS_DISK;
    if (n != (ssize_t)sizeof head || memcmp(head, magic, sizeof magic)) return QUIRE_MISS_MAGIC;
    if (!quire_version_is_whole(head + AT_VERSION)) return QUIRE_MISS_HEADER;
    if (quire_load32(head + AT_VERSION) != SLAB_VERSION) return QUIRE_MISS_VERSION;
    if (quire_load64(head + AT_CHECK) != XXH3_64bits(head, AT_CHECK) || quire_load32(head + AT_ID) != id)
        return QUIRE_MISS_HEADER;
    memcpy(key, head + AT_KEY, QUIRE_DIRECTORY_KEY);
    return QUIRE_MISS_NONE;
}

/* ---------------------------------------------------------------- transfer */

/* Some file systems open files with O_DIRECT and refuse the transfer. */
static bool leave_direct(quire_slab *slab)
{
    bool left = quire_os_leave_direct(slab->fd);
    if (left) slab->is_direct = false;
    return left;
}

void quire_slab_prefetch(quire_slab *slab, uint64_t at, uint64_t n)
{
    int fd = slab->cached_fd >= 0 ? slab->cached_fd : slab->fd;
    quire_os_prefetch(fd, at, n);
}

void quire_slab_uncache(quire_slab *slab, uint64_t at, uint64_t n)
{
    quire_os_uncache(slab->fd, at, n);
}

quire_miss quire_slab_read_parts(quire_slab *slab, struct iovec *v, int n_v, uint64_t at, bool cached)
{
    uint64_t begin = at;
    int fd = cached && slab->cached_fd >= 0 ? slab->cached_fd : slab->fd;
    while (n_v) {
        ssize_t got = preadv(fd, v, n_v, (off_t)at);
        if (got < 0 && (errno == EINTR || (errno == EINVAL && leave_direct(slab)))) continue;
        if (got < 0) return QUIRE_MISS_DISK;
        if (got == 0 || got % 512) return QUIRE_MISS_LENGTH; /* the end of the file */
        at += (uint64_t)got;
        for (size_t left = (size_t)got; left && n_v;) {
            size_t part = left < v->iov_len ? left : v->iov_len;
            v->iov_base = (uint8_t *)v->iov_base + part;
            v->iov_len -= part;
            left -= part;
            if (!v->iov_len) v++, n_v--;
        }
    }
    if (!slab->is_direct && !cached) quire_slab_uncache(slab, begin, at - begin);
    return QUIRE_MISS_NONE;
}

quire_miss quire_slab_read(quire_slab *slab, void *to, size_t n, uint64_t at)
{
    struct iovec v = {to, n};
    return quire_slab_read_parts(slab, &v, n > 0, at, false);
}

bool quire_slab_write(quire_slab *slab, const void *from, size_t n, uint64_t at)
{
    for (size_t done = 0; done < n;) {
        ssize_t put = pwrite(slab->fd, (const uint8_t *)from + done, n - done, (off_t)(at + done));
        if (put < 0 && (errno == EINTR || (errno == EINVAL && leave_direct(slab)))) continue;
        if (put <= 0) return false;
        done += (size_t)put;
    }
    if (!slab->is_direct) { /* only clean pages can be forgotten */
        quire_os_write_out(slab->fd, at, n);
        quire_slab_uncache(slab, at, n);
    }
    return true;
}

bool quire_slab_punch(quire_slab *slab, uint64_t at, uint64_t n)
{
    return quire_os_punch(slab->fd, at, n);
}

void quire_slab_cut(quire_slab *slab, uint64_t end)
{
    struct stat st;
    if (fstat(slab->fd, &st) == 0 && (uint64_t)st.st_size > end) (void)!ftruncate(slab->fd, (off_t)end);
}

void quire_slab_extend(quire_slab *slab, uint64_t end)
{
    struct stat st;
    if (fstat(slab->fd, &st) == 0 && (uint64_t)st.st_size < end) (void)!ftruncate(slab->fd, (off_t)end);
}

uint64_t quire_slab_next_data(quire_slab *slab, uint64_t at)
{
    return quire_os_next_data(slab->fd, at);
}

uint64_t quire_slab_disk_bytes(const quire_slab *slab)
{
    struct stat st;
    return fstat(slab->fd, &st) ? 0 : (uint64_t)st.st_blocks * 512;
}
