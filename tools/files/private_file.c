/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "files/private_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool private_open(private_file *f, const char *path)
{
    struct stat st;
    *f = (private_file){0};
    bool exists = stat(path, &st) == 0;
    if (exists && !S_ISREG(st.st_mode)) return (f->stream = fopen(path, "wb")) != NULL;
    /* Through symbolic links: the file they lead to is replaced, not the link. */
    f->path = exists ? realpath(path, NULL) : strdup(path);
    if (!f->path || asprintf(&f->temporary, "%s.XXXXXX", f->path) < 0) f->temporary = NULL;
    int fd = f->temporary ? mkostemp(f->temporary, O_CLOEXEC) : -1; /* mode 0600, whatever the umask */
    if (fd >= 0) f->stream = fdopen(fd, "wb");
    if (f->stream) return true;
    int why = errno;
    if (fd >= 0) {
        close(fd);
        unlink(f->temporary);
    }
    free(f->path);
    free(f->temporary);
    errno = why;
    return false;
}

bool private_close(private_file *f, bool keep)
{
    bool good = !ferror(f->stream);
    int why = EIO;
    if (fclose(f->stream)) {
        good = false;
        why = errno;
    }
    if (f->temporary) {
        if (good && keep && rename(f->temporary, f->path)) {
            good = false;
            why = errno;
        }
        if (!good || !keep) unlink(f->temporary);
    }
    free(f->path);
    free(f->temporary);
    errno = why;
    return good;
}

bool private_is_shared(int fd)
{
    struct stat st;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) return false;
    return st.st_mode & (S_IROTH | S_IWOTH | S_IWGRP) || (st.st_mode & S_IRGRP && st.st_uid == geteuid());
}
