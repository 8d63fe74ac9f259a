/* SPDX-License-Identifier: MIT */
/* child: runs another program and looks at what it writes. */
#ifndef QUIRE_TOOLS_CHILD_H
#define QUIRE_TOOLS_CHILD_H

#include <stdbool.h>
#include <stddef.h>

/* A variable of the child's environment; value NULL: unset. */
typedef struct child_variable {
    const char *name, *value;
} child_variable;

typedef struct child {
    const char *const *argv;         /* ends with NULL */
    const child_variable *variables; /* ends with a NULL name */
    /* For every piece of its output, stdout and stderr together; may be NULL. */
    void (*output)(void *ctx, const char *text, size_t n);
    void *ctx;
    unsigned seconds; /* after so many it is ended; 0: never */
} child;

/* Its exit status, 128 + the signal that ended it, or -1: it could not be started. */
int child_run(const child *c);

#endif
