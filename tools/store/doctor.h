/* SPDX-License-Identifier: MIT */
/* store_doctor: findings about a directory and a remote tier. */
#ifndef QUIRE_TOOLS_STORE_DOCTOR_H
#define QUIRE_TOOLS_STORE_DOCTOR_H

#include "store/options.h"

/* A fault: the store cannot work, or loses what it should keep. A warning: it works worse than it could, or soon will. A note: worth
 * knowing, or could not be looked at. */
typedef enum severity { SEVERITY_OK, SEVERITY_NOTE, SEVERITY_WARNING, SEVERITY_FAULT } severity;

typedef struct doctor {
    const store_options *options;
    uint32_t n[4];               /* findings by severity */
    uint64_t largest_page_bytes; /* that was seen on disk; 0: none */
} doctor;

/* check: its name, which stays the same. to_do: a sentence, or NULL. */
__attribute__((format(printf, 5, 6))) void doctor_say(doctor *d, const char *check, severity how,
                                                      const char *to_do, const char *format, ...);

void doctor_look_at_disk(doctor *d);   /* doctor_disk.c */
void doctor_look_at_pages(doctor *d);  /* doctor_pages.c */
void doctor_look_at_remote(doctor *d); /* doctor_remote.c */

#endif
