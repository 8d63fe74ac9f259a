/* SPDX-License-Identifier: MIT */
/* store: time. Alone in its file: a program that simulates a fleet links another clock in its place (tests/store/fleet). */
#define _POSIX_C_SOURCE 200809L
#include "store/base.h"

#include <time.h>

uint64_t quire_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * QUIRE_SECOND + (uint64_t)t.tv_nsec;
}

uint64_t quire_now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}
