/* SPDX-License-Identifier: MIT */
/* Files of a directory, changed from outside. */
#define _GNU_SOURCE
#include "store/kit/file_kit.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

void kit_files_list(kit_files *f, const char *directory)
{
    DIR *dir = opendir(directory);
    *f = (kit_files){0};
    KIT_REQUIRE(dir);
    for (struct dirent *e; (e = readdir(dir)) && f->n < KIT_FILES;) {
        struct stat st;
        if (e->d_name[0] == '.' || fstatat(dirfd(dir), e->d_name, &st, 0) || !S_ISREG(st.st_mode)) continue;
        KIT_REQUIRE(asprintf(&f->path[f->n], "%s/%s", directory, e->d_name) > 0);
        f->size[f->n++] = (uint64_t)st.st_size;
    }
    closedir(dir);
}

void kit_files_free(kit_files *f)
{
    for (uint32_t i = 0; i < f->n; i++) free(f->path[i]);
    f->n = 0;
}

void kit_files_copy(const char *from, const char *to)
{
    char command[2100];
    int n = snprintf(command, sizeof command, "rm -rf '%s'/* && cp -a --sparse=always '%s'/. '%s'/", to, from,
                     to);
    KIT_REQUIRE(n < (int)sizeof command && system(command) == 0);
}

void kit_overwrite(const char *path, uint64_t at, const void *bytes, size_t n)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    KIT_REQUIRE(fd >= 0 && pwrite(fd, bytes, n, (off_t)at) == (ssize_t)n);
    close(fd);
}

void kit_flip_bit(const char *path, uint64_t at, uint32_t bit)
{
    uint8_t byte;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    KIT_REQUIRE(fd >= 0);
    if (pread(fd, &byte, 1, (off_t)at) == 1) {
        byte ^= (uint8_t)(1u << bit);
        KIT_REQUIRE(pwrite(fd, &byte, 1, (off_t)at) == 1);
    }
    close(fd);
}

uint32_t kit_plain_blocks(const char *path, uint64_t *blocks, uint32_t cap)
{
    uint8_t block[4096];
    uint32_t n = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    KIT_REQUIRE(fd >= 0);
    for (off_t at = 0; n < cap && (at = lseek(fd, at, SEEK_DATA)) >= 0; at += 4096) {
        uint32_t seen[256] = {0}, zeros;
        at = at / 4096 * 4096;
        ssize_t got = pread(fd, block, sizeof block, at);
        if (got <= 0) break;
        for (ssize_t i = 0; i < got; i++) seen[block[i]]++;
        zeros = seen[0];
        if (zeros > (uint32_t)got / 16 && zeros < (uint32_t)got) blocks[n++] = (uint64_t)at;
    }
    close(fd);
    return n;
}

uint64_t kit_used_byte(const char *path, uint64_t block, uint32_t which)
{
    uint8_t bytes[4096];
    uint16_t used[4096];
    uint32_t n = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    KIT_REQUIRE(fd >= 0);
    ssize_t got = pread(fd, bytes, sizeof bytes, (off_t)block);
    close(fd);
    for (ssize_t i = 0; i < got; i++)
        if (bytes[i]) used[n++] = (uint16_t)i;
    return block + (n ? used[which % n] : 0);
}

uint64_t kit_find_bytes(const char *path, uint64_t from, const void *bytes, size_t n)
{
    uint8_t *memory = (uint8_t *)malloc(1 << 20);
    uint64_t found = UINT64_MAX;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    KIT_REQUIRE(memory && fd >= 0);
    for (uint64_t at = from; found == UINT64_MAX; at += (1 << 20) - n) {
        ssize_t got = pread(fd, memory, 1 << 20, (off_t)at);
        if (got < (ssize_t)n) break;
        const uint8_t *p = (const uint8_t *)memmem(memory, (size_t)got, bytes, n);
        if (p) found = at + (uint64_t)(p - memory);
    }
    close(fd);
    free(memory);
    return found;
}

uint64_t kit_record_check(const char *slab, const uint8_t *head)
{
    uint64_t seed = 0; /* the beginning of the directory's key */
    int fd = open(slab, O_RDONLY | O_CLOEXEC);
    KIT_REQUIRE(fd >= 0 && pread(fd, &seed, sizeof seed, 24) == (ssize_t)sizeof seed);
    close(fd);
    return XXH3_64bits_withSeed(head, 32, seed);
}
