/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "serve/folder.h"

#include "common/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#ifdef __linux__
#include <linux/magic.h>
#include <sys/vfs.h>
#endif
#include <unistd.h>

#define LEAST_IN_MEMORY (UINT64_C(1) << 30)

static int remove_one(const char *path, const struct stat *s, int kind, struct FTW *at)
{
    (void)s;
    (void)kind;
    (void)at;
    return remove(path);
}

void folder_remove(const char *path)
{
    if (*path) nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* The lock of a folder is held as long as its process lives. */
static int lock(const char *folder)
{
    char path[512];
    snprintf(path, sizeof path, "%s/lock", folder);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB)) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

/* Folders of processes that were killed. */
static void remove_old_folders(const char *base)
{
    char pattern[64];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/quire-serve.??????", base);
    if (glob(pattern, GLOB_NOSORT, NULL, &found)) return;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct stat there;
        if (lstat(found.gl_pathv[i], &there) || !S_ISDIR(there.st_mode) || there.st_uid != geteuid())
            continue;
        int fd = lock(found.gl_pathv[i]);
        if (fd < 0) continue;
        folder_remove(found.gl_pathv[i]);
        close(fd);
    }
    globfree(&found);
}

bool folder_is_memory(const char *path)
{
#ifdef __linux__
    struct statfs about;
    return !statfs(path, &about) && (about.f_type == TMPFS_MAGIC || about.f_type == RAMFS_MAGIC);
#else
    (void)path;
    return false;
#endif
}

static const char *choose_base(bool is_sealed)
{
    struct statvfs room;
    const char *why = NULL;
    if (access("/dev/shm", W_OK) || statvfs("/dev/shm", &room))
        why = "/dev/shm cannot be written";
    else if ((uint64_t)room.f_bavail * room.f_frsize < LEAST_IN_MEMORY)
        why =
            "/dev/shm has less than 1 GiB free"; /* containers often have 64 MiB of it, less than one slot */
    if (!why) return "/dev/shm";
    fprintf(stderr, "quire serve: slot files are in /tmp: %s\n", why);
    if (is_sealed && !folder_is_memory("/tmp"))
        fprintf(
            stderr,
            "quire serve: pages are encrypted on disk, but slot files are not, and /tmp is on a disk: give "
            "/dev/shm more room, or mount a tmpfs at /tmp\n");
    return "/tmp";
}

/* Another process that starts may take a folder that is not locked yet for an old one, and remove it. */
static bool is_there(int fd)
{
    struct stat of;
    return !fstat(fd, &of) && of.st_nlink;
}

int folder_make(char *folder, size_t size, bool is_sealed)
{
    enum { TRIES = 20 };
    const char *base = choose_base(is_sealed);
    remove_old_folders("/dev/shm");
    remove_old_folders("/tmp");
    for (int i = 0; i < TRIES; i++) {
        snprintf(folder, size, "%s/quire-serve.XXXXXX", base);
        if (!mkdtemp(folder)) {
            int why = errno;
            *folder = 0;
            if (strcmp(base, "/dev/shm") != 0 &&
                !access("/dev/shm", W_OK)) { /* better little room than none */
                fprintf(stderr, "quire serve: slot files are in /dev/shm all the same: /tmp: %s\n",
                        strerror(why));
                base = "/dev/shm";
                continue;
            }
            errno = why;
            return tool_failed("serve", "no folder can be made in %s: %s", base, strerror(errno));
        }
        int fd = lock(folder);
        if (fd >= 0 && is_there(fd)) return TOOL_OK;
        if (fd >= 0) close(fd);
    }
    return tool_failed("serve", "%s cannot be locked: %s", folder, strerror(errno));
}
