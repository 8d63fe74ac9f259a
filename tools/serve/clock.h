/* SPDX-License-Identifier: MIT */
/* clock: time that does not jump, and waiting by it. */
#ifndef QUIRE_TOOLS_SERVE_CLOCK_H
#define QUIRE_TOOLS_SERVE_CLOCK_H

#include <pthread.h>

double clock_ms(void);
/* For conditions that clock_cond_init() has made. */
void clock_cond_init(pthread_cond_t *cond);
struct timespec clock_in_ms(long long ms);

#endif
