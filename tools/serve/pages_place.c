/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "serve/pages_place.h"

#include "common/place.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

const char *pages_find(char *path, size_t size)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const struct passwd *user = home && *home ? NULL : getpwuid(geteuid());
    if (user) home = user->pw_dir;
    int n = 0;
    if (cache && *cache)
        n = snprintf(path, size, "%s/quire/pages", cache);
    else if (home && *home)
        n = snprintf(path, size, "%s/.cache/quire/pages", home);
    else
        return "there is no home directory for pages; give --store DIRECTORY, or --store none";
    return (size_t)n < size ? NULL : "the path of the home directory is too long; give --store DIRECTORY";
}

bool pages_make(const char *path)
{
    char part[PLACE_SIZE];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = part + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        if (mkdir(part, 0700) && errno != EEXIST) return false;
    }
    return !mkdir(part, 0700) || errno == EEXIST;
}

static bool give_name(const char *temporary, const char *path)
{
    if (!link(temporary, path)) return true;
#ifdef RENAME_NOREPLACE /* a file system without hard links */
    if (errno != EEXIST && !renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_NOREPLACE)) return true;
#endif
    return errno == EEXIST; /* another was first */
}

static bool make_key(const char *path)
{
    char temporary[PLACE_SIZE + 32];
    uint8_t key[32];
    if (getrandom(key, sizeof key, 0) != (ssize_t)sizeof key) return false;
    if (snprintf(temporary, sizeof temporary, "%s.XXXXXX", path) >= (int)sizeof temporary) {
        errno = ENAMETOOLONG;
        return false;
    }
    int fd = mkostemp(temporary, O_CLOEXEC); /* mode 0600 */
    if (fd < 0) return false;
    bool good = write(fd, key, sizeof key) == (ssize_t)sizeof key && !fsync(fd);
    if (close(fd)) good = false;
    good = good && give_name(temporary, path);
    int why = errno;
    unlink(temporary);
    errno = why;
    return good;
}

const char *pages_key(const char *path)
{
    struct stat link_itself, file;
    if (lstat(path, &link_itself) && errno == ENOENT && !make_key(path)) return strerror(errno);
    if (lstat(path, &link_itself) || stat(path, &file)) return strerror(errno);
    if (link_itself.st_uid != geteuid() || file.st_uid != geteuid())
        return "this key belongs to another user, who can read what is kept with it; give --secret-file FILE, or another --store";
    return NULL;
}
