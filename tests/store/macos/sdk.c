/* SPDX-License-Identifier: MIT */
/* What macOS's calls do, made of Linux's. QUIRE_MACOS_PLAIN=1 in the environment is a file system that does not know F_FULLFSYNC. */
#define QUIRE_TESTS_STORE_SDK
#include "sdk.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <linux/falloc.h>
#include <linux/sockios.h>

#define MOST_FILES 4096
static atomic_bool is_quiet[MOST_FILES]; /* sockets with SO_NOSIGPIPE */

static int refuse(int error)
{
    errno = error;
    return -1;
}

static int punch(int fd, const fpunchhole_t *hole)
{
    if (hole->fp_flags || hole->reserved || hole->fp_offset % 4096 || hole->fp_length % 4096 ||
        hole->fp_length <= 0)
        return refuse(EINVAL);
    return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, hole->fp_offset, hole->fp_length);
}

static int full_sync(int fd)
{
    const char *plain = getenv("QUIRE_MACOS_PLAIN");
    return plain && *plain == '1' && fcntl(fd, F_GETFD) >= 0 ? refuse(ENOTSUP) : fsync(fd);
}

int macos_fcntl(int fd, int command, ...)
{
    va_list arguments;
    va_start(arguments, command);
    int rc;
    switch (command) {
    case F_RDADVISE: {
        const struct radvisory *part = va_arg(arguments, const struct radvisory *);
        rc = part->ra_count < 0 ? refuse(EINVAL)
                                : posix_fadvise(fd, part->ra_offset, part->ra_count, POSIX_FADV_WILLNEED);
        break;
    }
    case F_RDAHEAD:
    case F_NOCACHE: rc = fcntl(fd, F_GETFD) < 0 ? -1 : 0; break;
    case F_FULLFSYNC: rc = full_sync(fd); break;
    case F_PUNCHHOLE: rc = punch(fd, va_arg(arguments, const fpunchhole_t *)); break;
    case F_SETFD:
    case F_SETFL: rc = fcntl(fd, command, va_arg(arguments, int)); break;
    case F_OFD_SETLK: rc = fcntl(fd, LINUX_OFD_SETLK, va_arg(arguments, struct flock *)); break;
    default: rc = refuse(EINVAL);
    }
    va_end(arguments);
    return rc;
}

int macos_setsockopt(int fd, int level, int name, const void *value, socklen_t size)
{
    if (level != SOL_SOCKET || name != SO_NOSIGPIPE) return setsockopt(fd, level, name, value, size);
    if (size != sizeof(int) || fd >= MOST_FILES) return refuse(EINVAL);
    is_quiet[fd] = *(const int *)value != 0;
    return 0;
}

int macos_getsockopt(int fd, int level, int name, void *value, socklen_t *size)
{
    if (level != SOL_SOCKET || name != SO_NWRITE) return getsockopt(fd, level, name, value, size);
    return *size == sizeof(int) ? ioctl(fd, SIOCOUTQ, value) : refuse(EINVAL);
}

ssize_t macos_sendmsg(int fd, const struct msghdr *message, int flags)
{
    return sendmsg(fd, message, flags | (fd < MOST_FILES && is_quiet[fd] ? MSG_NOSIGNAL : 0));
}

/* Relative to a clock that is not set: macOS's own. */
int pthread_cond_timedwait_relative_np(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *t)
{
    struct timespec end;
    if (t->tv_nsec < 0 || t->tv_nsec >= 1000000000 || t->tv_sec < 0) return EINVAL;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += t->tv_sec;
    end.tv_nsec += t->tv_nsec;
    if (end.tv_nsec >= 1000000000) end.tv_sec++, end.tv_nsec -= 1000000000;
    return pthread_cond_clockwait(cond, lock, CLOCK_MONOTONIC, &end);
}

int sysctlbyname(const char *name, void *value, size_t *size, void *fresh, size_t fresh_size)
{
    static const char boot[] = "F1A7C0DE-0000-4000-8000-000000000001";
    if (strcmp(name, "kern.bootsessionuuid") != 0) return refuse(ENOENT);
    if (fresh || fresh_size || *size < sizeof boot) return refuse(ENOMEM);
    memcpy(value, boot, sizeof boot);
    *size = sizeof boot;
    return 0;
}
