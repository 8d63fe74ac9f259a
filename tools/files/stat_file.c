/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "files/stat_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void end_strings(quire_stat *s)
{
    s->program[sizeof s->program - 1] = 0;
    s->ggml[sizeof s->ggml - 1] = 0;
    s->isa[sizeof s->isa - 1] = 0;
    for (uint32_t i = 0; i < QUIRE_STAT_POLICIES; i++)
        s->policies[i].policy[sizeof s->policies[i].policy - 1] = 0;
}

bool stat_file_read(quire_stat *s, const char *path, bool *is_stale)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return false;
    /* In a folder for everybody a name proves nothing. */
    bool right = !fstat(fd, &info) && S_ISREG(info.st_mode) && info.st_uid == getuid() &&
                 read(fd, s, sizeof *s) == (ssize_t)sizeof *s;
    close(fd);
    if (!right || memcmp(s->magic, QUIRE_STAT_MAGIC, sizeof s->magic) || s->version != QUIRE_STAT_VERSION ||
        s->size < sizeof *s)
        return false;
    end_strings(s);
    *is_stale = quire_stat_start_of(s->pid) != s->start;
    return true;
}

static size_t look_into(const char *folder, uint64_t pid, void (*look)(void *, const quire_stat *), void *ctx)
{
    char start[64], path[512];
    size_t found = 0;
    bool is_stale;
    quire_stat s;
    DIR *dir = folder && *folder ? opendir(folder) : NULL;
    snprintf(start, sizeof start, "quire-stat.%u.", (unsigned)getuid());
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (strncmp(e->d_name, start, strlen(start)) ||
            snprintf(path, sizeof path, "%s/%s", folder, e->d_name) >= (int)sizeof path ||
            !stat_file_read(&s, path, &is_stale))
            continue;
        if (is_stale) {
            unlink(path);
        } else if (!pid || s.pid == pid) {
            look(ctx, &s);
            found++;
        }
    }
    if (dir) closedir(dir);
    return found;
}

size_t stat_file_each(uint64_t pid, void (*look)(void *, const quire_stat *), void *ctx)
{
    return look_into(getenv("XDG_RUNTIME_DIR"), pid, look, ctx) + look_into("/dev/shm", pid, look, ctx) +
           look_into("/tmp", pid, look, ctx);
}
