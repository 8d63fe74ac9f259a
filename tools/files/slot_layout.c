/* SPDX-License-Identifier: MIT */
/* slot_layout: types and sizes of the rows of a slot, and the text for them. */
#include "files/slot_file.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_TOKENS 64u

bool slot_version_known(uint32_t version)
{
    return version >= SLOT_FIRST_VERSION && version <= SLOT_LAST_VERSION;
}

static bool is_plain(int32_t type)
{
    return type == 0 || type == 1 || type == 30; /* f32, f16, bf16: llama.cpp rotates none of these */
}

/* What version 3 leaves open. */
static void guess_rotation(slot_layout *l)
{
    l->rotation_k = l->rotation_v = 0;
    for (uint32_t i = 0; i < l->n_layers; i++) {
        if (!is_plain(l->k[i].type)) l->rotation_k = SLOT_ROTATION_UNKNOWN;
        if (l->n_v && !is_plain(l->v[i].type)) l->rotation_v = SLOT_ROTATION_UNKNOWN;
    }
}

void slot_layout_complete(slot_layout *l)
{
    if (l->version == SLOT_FIRST_VERSION) guess_rotation(l);
    l->page_bytes = 0;
    for (uint32_t i = 0; i < l->n_layers; i++)
        l->page_bytes += (size_t)(l->k[i].kept + (l->n_v ? l->v[i].kept : 0)) * PAGE_TOKENS;
}

size_t slot_bytes(const slot_layout *l, uint32_t n_tokens)
{
    size_t each = sizeof(uint32_t);
    for (uint32_t i = 0; i < l->n_layers; i++)
        each += (size_t)(l->k[i].row_bytes + (l->n_v ? l->v[i].row_bytes : 0));
    return each * n_tokens;
}

static bool is_alike(const slot_rows *a, const slot_rows *b)
{
    return a->type == b->type && a->row_bytes == b->row_bytes && a->kept == b->kept &&
           a->element_bytes == b->element_bytes;
}

/* "384" or "204of384". */
static const char *print_bytes(const slot_rows *rows, char text[48])
{
    int n = rows->kept < rows->row_bytes ? snprintf(text, 48, "%lluof", (unsigned long long)rows->kept) : 0;
    snprintf(text + n, 48 - (size_t)n, "%llu", (unsigned long long)rows->row_bytes);
    return text;
}

/* Runs of equal layers: " 30x1/384,1/204of384/0". */
static void print_layers(const slot_layout *l, char *text, size_t size, int n)
{
    for (uint32_t i = 0, run; i < l->n_layers && n > 0 && (size_t)n < size; i += run) {
        const slot_rows *k = &l->k[i], *v = &l->v[i];
        char k_bytes[48], v_bytes[48];
        for (run = 1; i + run < l->n_layers; run++)
            if (!is_alike(k, &l->k[i + run]) || !is_alike(v, &l->v[i + run])) break;
        n += snprintf(text + n, size - (size_t)n, " %ux%d/%s,%d/%s/%u", run, k->type, print_bytes(k, k_bytes),
                      v->type, print_bytes(v, v_bytes), v->element_bytes);
    }
}

/* "llama slot 4 vt=0 v=1 rot=64/64: 30x8/204,8/204/0"; version 3 has no rotations. */
void slot_layout_print(const slot_layout *l, char *text, size_t size)
{
    int n = snprintf(text, size, "llama slot %u vt=%d v=%d", l->version, l->v_transposed, l->n_v != 0);
    if (l->version > SLOT_FIRST_VERSION)
        n += snprintf(text + n, size - (size_t)n, " rot=%u/%u", l->rotation_k, l->rotation_v);
    n += snprintf(text + n, size - (size_t)n, ":");
    print_layers(l, text, size, n);
}

static void print_rotation(uint32_t rotation, char text[16])
{
    if (rotation == SLOT_ROTATION_UNKNOWN)
        snprintf(text, 16, "?");
    else
        snprintf(text, 16, "%u", rotation);
}

void slot_rows_print(const slot_layout *l, char *text, size_t size)
{
    char k[16], v[16];
    print_rotation(l->rotation_k, k);
    print_rotation(l->rotation_v, v);
    print_layers(
        l, text, size,
        snprintf(text, size, "llama rows vt=%d v=%d rot=%s/%s:", l->v_transposed, l->n_v != 0, k, v));
}

/* "1/384" or "1/204of384". */
static bool parse_rows(slot_rows *rows, const char *text, const char **end)
{
    int n = 0, more = 0;
    unsigned long long bytes;
    if (sscanf(text, "%d/%llu%n", &rows->type, &bytes, &n) != 2 || !n) return false;
    rows->kept = rows->row_bytes = bytes;
    if (sscanf(text + n, "of%llu%n", &bytes, &more) == 1 && more) rows->row_bytes = bytes;
    *end = text + n + more;
    return rows->row_bytes <= 1u << 24 && rows->kept <= rows->row_bytes;
}

const char *slot_layout_parse(slot_layout *l, const char *text)
{
    int vt, v, n = 0, more = 0;
    memset(l, 0, sizeof *l);
    if (sscanf(text, "llama slot %u vt=%d v=%d%n", &l->version, &vt, &v, &n) != 3 || !n)
        return "the text is not a slot layout";
    if (!slot_version_known(l->version)) return "the slot layout has an unknown version (known are 3 and 4)";
    text += n;
    if (l->version > SLOT_FIRST_VERSION) {
        if (sscanf(text, " rot=%u/%u%n", &l->rotation_k, &l->rotation_v, &more) != 2 ||
            l->rotation_k > SLOT_MAX_ROTATION || l->rotation_v > SLOT_MAX_ROTATION)
            return "the slot layout is damaged";
        text += more;
    }
    if (*text != ':') return "the slot layout is damaged";
    n = 1;
    l->v_transposed = vt != 0;
    for (text += n; *text == ' ';) {
        slot_rows k = {0}, one = {0};
        char *end;
        unsigned long run = strtoul(text, &end, 10);
        if (*end != 'x' || !parse_rows(&k, end + 1, &text) || *text != ',' ||
            !parse_rows(&one, text + 1, &text) || *text != '/' || !isdigit((unsigned char)text[1]))
            return "the slot layout is damaged";
        one.element_bytes = (uint32_t)strtoul(text + 1, &end, 10);
        text = end;
        if (run > SLOT_MAX_LAYERS - l->n_layers || !k.row_bytes ||
            (one.element_bytes && one.kept < one.row_bytes))
            return "the slot layout is damaged";
        for (; run; run--) {
            l->k[l->n_layers] = k;
            l->v[l->n_layers++] = one;
        }
    }
    l->n_v = v ? l->n_layers : 0;
    slot_layout_complete(l);
    return *text || !l->n_layers ? "the slot layout is damaged" : NULL;
}
