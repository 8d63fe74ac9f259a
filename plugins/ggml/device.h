/* SPDX-License-Identifier: MIT */
/* device.h: what the parts of the plug-in know of each other. */
#ifndef QUIRE_GGML_DEVICE_H
#define QUIRE_GGML_DEVICE_H

#include "kv.h"

/* buffers.c */
void buffers_init(struct host_device *);

/* context.c. Takes a tensor in if it is one of the cache; false: it is not. */
bool context_adopt(struct kv_buffer *, struct host_tensor *);
void context_leave(struct kv_buffer *); /* before the buffer goes */
/* Looks at an attention op that the host asks about. */
void context_learn(const struct host_tensor *attention);
/* At rows of single heads, which a model copies out of the cache to attend to them. Of those that are taken whole there is nothing
 * to learn: they may be no operand of attention. */
void context_learn_rows(const struct host_tensor *rows);
/* All buffers of the context that this thread makes are there: the next one belongs to another. */
void context_close(void);
/* An op that is not ours (NULL: attention that we were not asked about) needs this tensor of the cache. While nothing is in tiles, its layer is handed back to the host;
 * later the op has to be run by fallback_run. */
void context_make_plain(const struct host_tensor *cache, const char *op);
/* Hands a layer back, under the lock of the contexts. */
void context_release(struct kv *);
/* Makes the plan, if that has not happened. A tensor that the plan leaves out is plain from then on. */
enum kv_place { KV_IN_TILES, KV_IN_HOST_MEMORY, KV_NO_MEMORY };
enum kv_place context_settle(struct kv *);

/* plan.c */
bool plan_context(struct kv_context *); /* under the lock of the contexts */
void plan_tell(struct kv_context *);

/* report.c. The plan in words, lines, as far as it is about layers of this context. */
void report_policy(const struct kv_context *, const quire_plan *, quire_write_fn, void *ctx);

/* devices.c */
void devices_tell(void);

/* One backend instance: a stream of graphs from one context of the host. */
struct worker {
    uint32_t n_threads;
    quire_executor executor;
    struct team *team;
    quire_workspace *workspace;
    struct host_backend *cpu; /* for the host's own ops, made when needed */
    char *scratch;
    size_t scratch_size;
};

/* threads.c */
struct worker *worker_create(void);
void worker_destroy(struct worker *);
void worker_set_threads(struct worker *, int n);
/* Says how much there is to do (multiplications); small work is not spread where waking others is dear. */
void worker_expect(struct worker *, double work);
struct host_backend *worker_cpu(struct worker *); /* fallback.c; NULL: no memory */
void *worker_scratch(struct worker *,
                     size_t bytes); /* aligned to 64, lost at the next call; NULL: no memory */

/*
 * Ops. `can` is asked while the host lays out a graph, again for every new graph: attend learns the shapes of the cache
 * from it, and set_rows hands the cache back where the host writes it in another way. `run` returns HOST_SUCCESS or what failed.
 */
bool set_rows_can(const struct host_tensor *);
int set_rows_run(struct worker *, struct host_tensor *);
int64_t set_rows_index(const struct host_tensor *, int64_t i); /* the row that the i-th one goes to */
bool attend_can(const struct host_tensor *);
int attend_run(struct worker *, struct host_tensor *);
/* Whether a query sees a cell. mask NULL: yes. */
bool attend_sees(const struct host_tensor *mask, int64_t stream, int64_t cell);
bool get_rows_can(const struct host_tensor *); /* GET_ROWS of the cache */
int get_rows_run(struct worker *, struct host_tensor *);
bool shift_can(const struct host_tensor *); /* ROPE, CPY and CONT on the cache */
int shift_run(struct worker *, struct host_tensor *);
/* Any op, by the host's CPU backend: for tensors that are plain, or when the op does not fit the tiles. */
int fallback_run(struct worker *, struct host_tensor *);

#endif
