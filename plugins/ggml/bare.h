/* SPDX-License-Identifier: MIT */
/*
 * bare.h: tensors of the cache that are plain memory: layers that the host keeps on the CPU or on another device, and our own
 * buffers that became plain. Whatever comes into them leaves its mark behind.
 */
#ifndef QUIRE_GGML_BARE_H
#define QUIRE_GGML_BARE_H

#include "marks.h"

typedef void (*set_function)(struct host_buffer *, struct host_tensor *, const void *, size_t offset, size_t);
typedef void (*get_function)(struct host_buffer *, const struct host_tensor *, void *, size_t offset, size_t);

/* set_tensor and get_tensor of a buffer, done by the functions that the buffer has for it. Rows that are codes are turned
 * into values of the declared type. A row that is lost is noted in its place. */
void bare_set(set_function, struct host_buffer *, struct host_tensor *, const void *, size_t offset, size_t);
void bare_get(get_function, struct host_buffer *, const struct host_tensor *, void *, size_t offset, size_t);
/* The same for rows that are in host memory already. */
void bare_settle(const struct row_shape *, char *rows, uint64_t n);

/* Whether an op on plain memory would see a row that is lost; then it must fail. Says so. */
bool bare_op_is_lost(const struct host_tensor *op);
/* The same for a graph that the host's CPU backend is about to run. */
bool bare_graph_is_lost(struct host_graph *);

/* Rows that are lost where an op moves positions (ROPE, or CPY back from it), which would make values of them. Noted before it
 * runs, put back behind it. */
struct lost_rows {
    char **row;
    size_t n;
};
bool bare_note_lost(struct lost_rows *, const struct host_tensor *op); /* adds; false: no memory */
void bare_put_back(struct lost_rows *);                                /* and frees the list */
/* The same for all ops of a graph. */
bool bare_note_graph(struct lost_rows *, struct host_graph *);

/* One line about a state that cannot be taken, and about a request that needs it. */
void bare_say_lost(const char *name);
void bare_say_needed(void);

/* hooks.c. Lets the two functions above stand before the memory that the host's CPU and its other devices give, and the
 * check before the graphs of its CPU backend. Again when devices may have been added. */
void hooks_set(const struct host_device *own);

#endif
