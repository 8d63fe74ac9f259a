/* SPDX-License-Identifier: MIT */
/* Names of macOS's SDK that store/os_macos.c uses, so that it can be compiled on Linux: the compiler is told to include this first. The numbers
 * are those of the SDK; sdk.c does with Linux's calls what the manual says of them, and refuses what a Mac refuses. */
#ifndef QUIRE_TESTS_STORE_SDK_H
#define QUIRE_TESTS_STORE_SDK_H

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>

/* Linux has the same command under another number. */
enum { LINUX_OFD_SETLK = F_OFD_SETLK };
#undef F_OFD_SETLK
#define F_OFD_SETLK 90

#define F_RDADVISE 44
#define F_RDAHEAD 45
#define F_NOCACHE 48
#define F_FULLFSYNC 51
#define F_PUNCHHOLE 99
#define st_ctimespec st_ctim
#define SO_NOSIGPIPE 0x1022
#define SO_NWRITE 0x1024

struct radvisory {
    off_t ra_offset;
    int ra_count;
};

typedef struct fpunchhole {
    unsigned fp_flags, reserved;
    off_t fp_offset, fp_length;
} fpunchhole_t;

int macos_fcntl(int fd, int command, ...);
int macos_setsockopt(int fd, int level, int name, const void *value, socklen_t size);
int macos_getsockopt(int fd, int level, int name, void *value, socklen_t *size);
ssize_t macos_sendmsg(int fd, const struct msghdr *message, int flags);
int pthread_cond_timedwait_relative_np(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *t);
int sysctlbyname(const char *name, void *value, size_t *size, void *fresh, size_t fresh_size);

#if !defined(QUIRE_TESTS_STORE_SDK)
#define fcntl macos_fcntl
#define setsockopt macos_setsockopt
#define getsockopt macos_getsockopt
#define sendmsg macos_sendmsg
#endif

#endif
