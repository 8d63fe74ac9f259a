/* SPDX-License-Identifier: MIT */
/* Rows of a saved state on their way into plain memory, and what becomes of those that nobody can read. */
#include "bare.h"
#include "config.h"
#include "device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_bool said_lost; /* once for each state: until the next graph */

void bare_say_lost(const char *name)
{
    say_trouble(
        "the codec of a restored state is not known here (%s; a c: codec needs the profile that it was saved with); the "
        "state is rejected, and requests that need it fail until it is computed again",
        name);
}

void bare_say_needed(void)
{
    say_trouble("a request failed because it needs a restored state that was rejected");
}

static bool is_lost(const char *row)
{
    return !memcmp(row, lost_bytes, LOST_BYTES);
}

static void say_lost_once(const struct row_shape *s)
{
    if (!atomic_exchange(&said_lost, true)) bare_say_lost(s->name);
}

/* --------------------------------------------------------------------- suspects */

/*
 * Tensors in host memory that a row was lost in, by the address of their first row. To look for such rows takes a read of
 * memory for each, so only these are looked at, until all their rows have been overwritten. The host may copy rows within a
 * tensor, which is why single rows are not listed. An address whose tensor is gone stays until another one has it.
 */
struct suspect {
    struct suspect *next;
    const char *rows;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct suspect *suspects;
static bool all_are; /* there was no memory for the list */
static atomic_bool any_lost;

/* Where the list has it, or its end. */
static struct suspect **find_suspect(const char *rows)
{
    struct suspect **at = &suspects;
    while (*at && (*at)->rows != rows) at = &(*at)->next;
    return at;
}

static bool is_suspect(const struct row_shape *s)
{
    if (!atomic_load(&any_lost)) return false;
    pthread_mutex_lock(&lock);
    bool is = all_are || *find_suspect(s->rows);
    pthread_mutex_unlock(&lock);
    return is;
}

static void suspect(const struct row_shape *s)
{
    pthread_mutex_lock(&lock);
    struct suspect **at = find_suspect(s->rows);
    if (!*at && (*at = calloc(1, sizeof **at))) (*at)->rows = s->rows;
    if (!*at) all_are = true;
    atomic_store(&any_lost, true);
    pthread_mutex_unlock(&lock);
}

/* A loss after this is a new one, and is told. */
static void acquit(const struct row_shape *s)
{
    pthread_mutex_lock(&lock);
    struct suspect **at = find_suspect(s->rows), *gone = *at;
    if (gone) *at = gone->next;
    free(gone);
    if (!suspects && !all_are && atomic_exchange(&any_lost, false)) atomic_store(&said_lost, false);
    pthread_mutex_unlock(&lock);
}

/* ------------------------------------------------------------------------- set */

/* A place for n rows on their way. */
struct move {
    set_function set;
    struct host_buffer *buffer;
    struct host_tensor *tensor;
    const struct row_shape *shape;
};

/* Attention over host memory is checked before it runs (below). Elsewhere only a NaN can keep an answer from being made. */
static void lose(const struct move *m, size_t offset)
{
    char bytes[LOST_BYTES];
    memset(bytes, 0xff, sizeof bytes);
    mark_put(bytes, UINT32_MAX);
    if (host.ggml_backend_buft_is_host(m->buffer->buft)) {
        memcpy(bytes, lost_bytes, sizeof bytes);
        suspect(m->shape);
    }
    say_lost_once(m->shape);
    m->set(m->buffer, m->tensor, bytes, offset, sizeof bytes);
}

/* n rows of one coding, at most CELLS. */
static bool convert(const struct row_shape *s, const struct coding *c, const char *rows, uint32_t n, char *to)
{
    float *values = malloc((size_t)n * s->row * sizeof *values);
    bool ok = values && marks_read(s, c, rows, n, values) && marks_write_bare(s, values, n, to);
    free(values);
    return ok;
}

static void set_coded(const struct move *m, const struct coding *c, const char *rows, uint32_t n,
                      size_t offset)
{
    size_t bytes = m->shape->row_bytes;
    char *to = malloc(n * bytes);
    if (to && convert(m->shape, c, rows, n, to)) {
        m->set(m->buffer, m->tensor, to, offset, n * bytes);
    } else {
        for (uint32_t i = 0; i < n; i++)
            if (to && convert(m->shape, c, rows + i * bytes, 1, to))
                m->set(m->buffer, m->tensor, to, offset + i * bytes, bytes);
            else
                lose(m, offset + i * bytes);
    }
    free(to);
}

/* How many of n rows are alike, at most CELLS. */
static uint32_t run_of(const struct row_shape *s, const char *rows, uint64_t n, enum row_kind *kind,
                       const struct coding **c)
{
    uint32_t run = 1, most = n < CELLS ? (uint32_t)n : CELLS;
    const struct coding *other = *c = NULL;
    *kind = marks_look(s, rows, c);
    while (run < most && marks_look(s, rows + run * s->row_bytes, &other) == *kind &&
           (*kind != ROW_CODED || other == *c))
        run++;
    return run;
}

void bare_set(set_function set, struct host_buffer *b, struct host_tensor *t, const void *data, size_t offset,
              size_t size)
{
    struct row_shape s;
    struct move m = {.set = set, .buffer = b, .tensor = t, .shape = &s};
    const char *rows = data;
    size_t done = 0, at = 0; /* bytes: set, looked at */
    if (!marks_shape(t, &s) || (host_offset(t) + offset) % s.row_bytes) {
        set(b, t, data, offset, size);
        return;
    }
    while (size - at >= s.row_bytes) {
        const struct coding *c;
        enum row_kind kind;
        uint32_t n = run_of(&s, rows + at, (size - at) / s.row_bytes, &kind, &c);
        size_t bytes = n * s.row_bytes;
        if (kind != ROW_BARE) {
            if (at > done) set(b, t, rows + done, offset + done, at - done);
            if (kind == ROW_CODED) set_coded(&m, c, rows + at, n, offset + at);
            for (uint32_t i = 0; kind == ROW_LOST && i < n; i++) lose(&m, offset + at + i * s.row_bytes);
            done = at + bytes;
        }
        at += bytes;
    }
    if (size > done) set(b, t, rows + done, offset + done, size - done);
    marks_tell();
}

void bare_get(get_function get, struct host_buffer *b, const struct host_tensor *t, void *data, size_t offset,
              size_t size)
{
    struct row_shape s;
    char *rows = data;
    get(b, t, data, offset, size);
    if (!atomic_load(&any_lost) || !marks_shape(t, &s) || (host_offset(t) + offset) % s.row_bytes ||
        !is_suspect(&s))
        return;
    for (size_t at = 0; size - at >= s.row_bytes; at += s.row_bytes)
        if (is_lost(rows + at)) mark_put_nobody(rows + at, s.row_bytes);
}

void bare_settle(const struct row_shape *s, char *rows, uint64_t n)
{
    for (uint32_t run; n; n -= run, rows += run * s->row_bytes) {
        const struct coding *c;
        enum row_kind kind;
        run = run_of(s, rows, n, &kind, &c);
        if (kind == ROW_BARE) continue;
        char *to = kind == ROW_CODED ? malloc(run * s->row_bytes) : NULL;
        bool whole = to && convert(s, c, rows, run, to);
        for (uint32_t i = 0; i < run; i++) {
            size_t at = i * s->row_bytes;
            if (whole || (to && convert(s, c, rows + at, 1, to + at))) {
                memcpy(rows + at, to + at, s->row_bytes);
            } else {
                memcpy(rows + at, lost_bytes, LOST_BYTES);
                suspect(s);
                say_lost_once(s);
            }
        }
        free(to);
    }
}

/* ------------------------------------------------------------------------ lost */

/* Whether a SET_ROWS before this node of the graph writes the row. */
static bool is_written(struct host_graph *graph, int before, const struct host_tensor *root, uint64_t row)
{
    for (int i = 0; graph && i < before; i++) {
        const struct host_tensor *node = host.ggml_graph_node(graph, i);
        if (node->op != host.op.SET_ROWS || host_root(node) != root) continue;
        for (int64_t j = 0; j < node->src[1]->ne[0]; j++)
            if ((uint64_t)set_rows_index(node, j) == row) return true;
    }
    return false;
}

/* Whether rows lie at the address that the tensor has. */
static bool is_bare(const struct host_tensor *root)
{
    const struct kv *kv = kv_of(root);
    return kv ? !kv->format : host.ggml_backend_buft_is_host(root->buffer->buft);
}

/* A mask that the graph computes is not there before it runs. What models select is added to the mask of the host, which
 * hides at least what it hides by itself. */
static bool may_see(const struct host_tensor *mask, int64_t stream, int64_t cell)
{
    if (!mask || host_root(mask)->op == host.op.NONE) return attend_sees(mask, stream, cell);
    for (int i = 0; i < 2 && mask->op == host.op.ADD; i++) {
        const struct host_tensor *part = mask->src[i];
        if (host_root(part)->op == host.op.NONE && part->type == mask->type &&
            !memcmp(part->ne, mask->ne, sizeof part->ne) && !attend_sees(part, stream, cell))
            return false;
    }
    return true;
}

static uint64_t rows_of(const struct host_tensor *root)
{
    return (uint64_t)(root->ne[1] * root->ne[2]);
}

/* The shape of the tensor that this is a view of, if it is plain memory that may hold lost rows. */
static bool suspect_shape(const struct host_tensor *t, struct row_shape *s)
{
    const struct host_tensor *root = host_root(t);
    return atomic_load(&any_lost) && root->buffer && root->data && marks_shape(t, s) && is_suspect(s) &&
           is_bare(root);
}

static bool holds_lost(const struct row_shape *s, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (is_lost(s->rows + i * s->row_bytes)) return true;
    return false;
}

/* A mask of NULL hides nothing. */
static bool sees_lost(const struct host_tensor *operand, const struct host_tensor *mask,
                      struct host_graph *graph, int before)
{
    struct row_shape s;
    const struct host_tensor *root = host_root(operand);
    if (!suspect_shape(operand, &s)) return false;
    uint64_t all = rows_of(root);
    if (!holds_lost(&s, all)) {
        acquit(&s);
        return false;
    }
    bool by_cells = operand->nb[1] == s.row_bytes; /* as attention reads it; else any row may be meant */
    uint64_t first = host_offset(operand) / s.row_bytes;
    uint64_t n = by_cells ? (uint64_t)operand->ne[1] : all, streams = by_cells ? (uint64_t)operand->ne[3] : 1;
    if (!by_cells) first = 0;
    for (uint64_t stream = 0; stream < streams; stream++)
        for (uint64_t cell = 0; cell < n; cell++) {
            uint64_t row = first + stream * (operand->nb[3] / s.row_bytes) + cell;
            if (row < all && is_lost(s.rows + row * s.row_bytes) &&
                (!by_cells || (graph ? may_see : attend_sees)(mask, (int64_t)stream, (int64_t)cell)) &&
                !is_written(graph, before, root, row))
                return true;
        }
    return false;
}

static bool node_is_lost(const struct host_tensor *op, struct host_graph *graph, int before)
{
    bool lost = false;
    if (op->op == host.op.FLASH_ATTN_EXT) {
        lost = sees_lost(op->src[1], op->src[3], graph, before) ||
               sees_lost(op->src[2], op->src[3], graph, before);
    } else if (op->op != host.op.SET_ROWS && op->op != host.op.ROPE && op->op != host.op.CPY &&
               !host_does_nothing(op->op)) { /* those write rows, or move their positions */
        for (int i = 0; i < HOST_MAX_SRC && !lost; i++)
            lost = op->src[i] && sees_lost(op->src[i], NULL, graph, before);
    }
    if (lost) bare_say_needed();
    return lost;
}

bool bare_op_is_lost(const struct host_tensor *op)
{
    return atomic_load(&any_lost) && node_is_lost(op, NULL, 0);
}

bool bare_graph_is_lost(struct host_graph *graph)
{
    if (!atomic_load(&any_lost)) return false;
    atomic_store(&said_lost, false);
    for (int i = 0, n = host.ggml_graph_n_nodes(graph); i < n; i++) {
        const struct host_tensor *node = host.ggml_graph_node(graph, i);
        if (node->flags & HOST_FLAG_COMPUTE && node_is_lost(node, graph, i)) return true;
    }
    return false;
}

/* ----------------------------------------------------------------------- shift */

bool bare_note_lost(struct lost_rows *list, const struct host_tensor *op)
{
    struct row_shape s;
    const struct host_tensor *root = host_root(op);
    if ((op->op != host.op.ROPE && op->op != host.op.CPY) || !suspect_shape(op, &s)) return true;
    for (uint64_t i = 0; i < rows_of(root); i++) {
        char *row = (char *)root->data + i * s.row_bytes;
        if (!is_lost(row)) continue;
        char **more = realloc(list->row, (list->n + 1) * sizeof *more);
        if (!more) return false;
        list->row = more;
        list->row[list->n++] = row;
    }
    return true;
}

void bare_put_back(struct lost_rows *list)
{
    for (size_t i = 0; i < list->n; i++) memcpy(list->row[i], lost_bytes, LOST_BYTES);
    free(list->row);
}

bool bare_note_graph(struct lost_rows *list, struct host_graph *graph)
{
    for (int i = 0, n = atomic_load(&any_lost) ? host.ggml_graph_n_nodes(graph) : 0; i < n; i++)
        if (!bare_note_lost(list, host.ggml_graph_node(graph, i))) return false;
    return true;
}
