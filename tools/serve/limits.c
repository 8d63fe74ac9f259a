/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "serve/limits.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdio.h>
#include <sys/resource.h>

enum { MOST_CONNECTIONS = 8192, LEAST_CONNECTIONS = 8 };
/* Of one that is answered: its own, that to the server, and two of libcurl. */
enum { FILES_EACH = 4 };
/* Of the store, the server and slots. */
enum { OWN_FILES = 256 };

uint32_t limits_connections(uint64_t files)
{
    uint64_t own = files < 4 * OWN_FILES ? files / 4 : OWN_FILES, most = (files - own) / FILES_EACH;
    return most > MOST_CONNECTIONS    ? MOST_CONNECTIONS
           : most < LEAST_CONNECTIONS ? LEAST_CONNECTIONS
                                      : (uint32_t)most;
}

static uint64_t files_now(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return 0;
    return limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
}

uint32_t limits_raise_files(void)
{
    struct rlimit limit;
    if (!getrlimit(RLIMIT_NOFILE, &limit)) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
    return limits_connections(files_now());
}

void limits_tell(uint32_t connections)
{
    if (connections < MOST_CONNECTIONS)
        fprintf(
            stderr,
            "quire serve: there can be %u connections at once, because %llu files may be open (ulimit -n)\n",
            connections, (unsigned long long)files_now());
}

/* Pages of a megabyte come and go all the time; to get each from the kernel anew takes as long as all else that is done with them. */
void limits_keep_memory(void)
{
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 64 << 20);
    mallopt(M_ARENA_MAX, 4); /* a connection has a thread, but not an arena, for itself */
#endif
}
