/* SPDX-License-Identifier: MIT */
#include "files/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The limit that other readers have. */
#define MAX_HEADER ((uint64_t)100 << 20)

static const struct {
    const char *name;
    uint32_t bytes;
} types[ST_N_TYPES] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"U16", 2}, {"I16", 2}, {"F16", 2}, {"BF16", 2},
                       {"U32", 4},  {"I32", 4}, {"F32", 4}, {"U64", 8}, {"I64", 8}, {"F64", 8}};

uint32_t st_type_bytes(st_type type)
{
    return types[type].bytes;
}

const char *st_type_name(st_type type)
{
    return types[type].name;
}

/* --------------------------------------------------------------------- JSON */

/* A copy of the header that ends with 0. Strings are unescaped where they lie, so that they need no memory. */
typedef struct scanner {
    char *at;
    const char *wrong; /* the first thing that was; NULL: nothing yet */
} scanner;

static bool refuse(scanner *s, const char *what)
{
    if (!s->wrong) s->wrong = what;
    return false;
}

static void skip_space(scanner *s)
{
    while (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r') s->at++;
}

static bool is_next(scanner *s, char c)
{
    skip_space(s);
    if (*s->at != c) return false;
    s->at++;
    return true;
}

static bool need(scanner *s, char c)
{
    return is_next(s, c) || refuse(s, "the header is not the JSON of a safetensors file");
}

static bool scan_number(scanner *s, uint64_t *out)
{
    uint64_t n = 0;
    skip_space(s);
    if (*s->at < '0' || *s->at > '9') return refuse(s, "a number is missing in the header");
    for (; *s->at >= '0' && *s->at <= '9'; s->at++) {
        uint64_t digit = (uint64_t)(*s->at - '0');
        if (n > (UINT64_MAX - digit) / 10) return refuse(s, "a number in the header is too large");
        n = n * 10 + digit;
    }
    *out = n;
    return true;
}

static bool scan_hex(const char *at, uint32_t *out)
{
    uint32_t n = 0;
    for (int i = 0; i < 4; i++) {
        char c = at[i];
        if (c >= '0' && c <= '9')
            n = n * 16 + (uint32_t)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            n = n * 16 + (uint32_t)((c | 32) - 'a' + 10);
        else
            return false; /* the 0 at the end too */
    }
    *out = n;
    return true;
}

static char *put_utf8(char *to, uint32_t c)
{
    if (c < 0x80) {
        *to++ = (char)c;
    } else if (c < 0x800) {
        *to++ = (char)(0xc0 | c >> 6);
        *to++ = (char)(0x80 | (c & 63));
    } else if (c < 0x10000) {
        *to++ = (char)(0xe0 | c >> 12);
        *to++ = (char)(0x80 | (c >> 6 & 63));
        *to++ = (char)(0x80 | (c & 63));
    } else {
        *to++ = (char)(0xf0 | c >> 18);
        *to++ = (char)(0x80 | (c >> 12 & 63));
        *to++ = (char)(0x80 | (c >> 6 & 63));
        *to++ = (char)(0x80 | (c & 63));
    }
    return to;
}

/* After a backslash and 'u'. What is written is never longer than what was read. */
static bool unescape_unicode(scanner *s, char **to)
{
    uint32_t c, low;
    if (!scan_hex(s->at, &c) || !c) return false;
    s->at += 4;
    if (c >= 0xd800 && c < 0xe000) {
        if (c >= 0xdc00 || s->at[0] != '\\' || s->at[1] != 'u' || !scan_hex(s->at + 2, &low) ||
            low < 0xdc00 || low >= 0xe000)
            return false;
        s->at += 6;
        c = 0x10000 + ((c & 0x3ff) << 10 | (low & 0x3ff));
    }
    *to = put_utf8(*to, c);
    return true;
}

static bool scan_string(scanner *s, const char **out)
{
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    if (!need(s, '"')) return false;
    char *to = s->at;
    *out = to;
    while (*s->at != '"') {
        if ((unsigned char)*s->at < 0x20) return refuse(s, "a string in the header is not terminated");
        if (*s->at != '\\') {
            *to++ = *s->at++;
            continue;
        }
        s->at++;
        const char *known = *s->at ? strchr(from, *s->at) : NULL;
        if (known) {
            *to++ = into[known - from];
            s->at++;
        } else if (*s->at++ != 'u' || !unescape_unicode(s, &to)) {
            return refuse(s, "a string in the header is not valid JSON");
        }
    }
    s->at++;
    *to = 0; /* at the latest where the quote was */
    return true;
}

/* ------------------------------------------------------------------ entries */

static bool scan_shape(scanner *s, st_tensor *t)
{
    t->rank = 0;
    if (!need(s, '[')) return false;
    if (is_next(s, ']')) return true;
    do {
        if (t->rank == ST_MAX_RANK) return refuse(s, "a tensor has too many dimensions");
        if (!scan_number(s, &t->shape[t->rank++])) return false;
    } while (is_next(s, ','));
    return need(s, ']');
}

static bool scan_type(scanner *s, st_tensor *t)
{
    const char *name;
    if (!scan_string(s, &name)) return false;
    for (int i = 0; i < ST_N_TYPES; i++)
        if (!strcmp(name, types[i].name)) {
            t->type = (st_type)i;
            return true;
        }
    return refuse(s, "a tensor has an unknown type");
}

typedef struct place {
    uint64_t begin, end;
} place;

static bool scan_place(scanner *s, place *p)
{
    return need(s, '[') && scan_number(s, &p->begin) && need(s, ',') && scan_number(s, &p->end) &&
           need(s, ']');
}

/* Bytes by type and shape; false: more than a size can say. */
static bool tensor_bytes(const st_tensor *t, uint64_t *out)
{
    uint64_t n = types[t->type].bytes;
    bool empty = false;
    for (uint32_t i = 0; i < t->rank; i++) empty |= !t->shape[i];
    for (uint32_t i = 0; i < t->rank && !empty; i++) {
        if (n > UINT64_MAX / t->shape[i]) return false;
        n *= t->shape[i];
    }
    *out = empty ? 0 : n;
    return true;
}

static bool scan_tensor(scanner *s, st_tensor *t, const uint8_t *data, uint64_t n_data)
{
    const char *key;
    unsigned seen = 0;
    place p = {0, 0};
    uint64_t bytes;
    if (!need(s, '{')) return false;
    do {
        if (!scan_string(s, &key) || !need(s, ':')) return false;
        unsigned which = !strcmp(key, "dtype")          ? 1
                         : !strcmp(key, "shape")        ? 2
                         : !strcmp(key, "data_offsets") ? 4
                                                        : 0;
        if (!which || seen & which)
            return refuse(s, "a tensor has other fields than dtype, shape and data_offsets");
        seen |= which;
        if (!(which == 1 ? scan_type(s, t) : which == 2 ? scan_shape(s, t) : scan_place(s, &p))) return false;
    } while (is_next(s, ','));
    if (!need(s, '}')) return false;
    if (seen != 7) return refuse(s, "a tensor has no dtype, shape or data_offsets");
    if (p.begin > p.end || p.end > n_data) return refuse(s, "a tensor lies outside of the data");
    if (!tensor_bytes(t, &bytes) || bytes != p.end - p.begin)
        return refuse(s, "the data of a tensor does not have the size of its shape");
    t->data = data + p.begin;
    t->bytes = (size_t)bytes;
    return true;
}

/* Room for one more of a list that doubles. */
static void *grow(void *list, size_t n, size_t bytes)
{
    if (n & (n - 1)) return list;
    return realloc(list, (n ? 2 * n : 1) * bytes);
}

static bool scan_metadata(scanner *s, safetensors *f)
{
    if (f->n_metadata) return refuse(s, "the header has __metadata__ twice");
    if (!need(s, '{')) return false;
    if (is_next(s, '}')) return true;
    do {
        st_pair *more = (st_pair *)grow(f->metadata, f->n_metadata, sizeof *more), *p;
        if (!more) return refuse(s, "out of memory");
        f->metadata = more;
        p = &more[f->n_metadata];
        if (!scan_string(s, &p->key) || !need(s, ':') || !scan_string(s, &p->value)) return false;
        f->n_metadata++;
    } while (is_next(s, ','));
    return need(s, '}');
}

static bool scan_header(scanner *s, safetensors *f, const uint8_t *data, uint64_t n_data)
{
    const char *name;
    if (!need(s, '{')) return false;
    if (!is_next(s, '}')) {
        do {
            if (!scan_string(s, &name) || !need(s, ':')) return false;
            if (!strcmp(name, "__metadata__")) {
                if (!scan_metadata(s, f)) return false;
                continue;
            }
            st_tensor *more = (st_tensor *)grow(f->tensors, f->n_tensors, sizeof *more);
            if (!more) return refuse(s, "out of memory");
            f->tensors = more;
            more[f->n_tensors].name = name;
            if (!scan_tensor(s, &more[f->n_tensors], data, n_data)) return false;
            f->n_tensors++;
        } while (is_next(s, ','));
        if (!need(s, '}')) return false;
    }
    skip_space(s);
    return !*s->at || refuse(s, "the header has text after its end");
}

/* -------------------------------------------------------------------- checks */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const st_tensor *)a)->name, ((const st_tensor *)b)->name);
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const st_pair *)a)->key, ((const st_pair *)b)->key);
}

static int by_place(const void *a, const void *b)
{
    const st_tensor *x = (const st_tensor *)a, *y = (const st_tensor *)b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Leaves both lists in the order of their names, for finding. */
static const char *check(safetensors *f)
{
    if (f->n_tensors) qsort(f->tensors, f->n_tensors, sizeof *f->tensors, by_place);
    for (size_t i = 1; i < f->n_tensors; i++)
        if (f->tensors[i].bytes && f->tensors[i - 1].data + f->tensors[i - 1].bytes > f->tensors[i].data)
            return "tensors overlap";
    if (f->n_tensors) qsort(f->tensors, f->n_tensors, sizeof *f->tensors, by_name);
    for (size_t i = 1; i < f->n_tensors; i++)
        if (!by_name(&f->tensors[i - 1], &f->tensors[i])) return "two tensors have the same name";
    if (f->n_metadata) qsort(f->metadata, f->n_metadata, sizeof *f->metadata, by_key);
    for (size_t i = 1; i < f->n_metadata; i++)
        if (!by_key(&f->metadata[i - 1], &f->metadata[i])) return "the metadata has the same key twice";
    return NULL;
}

bool safetensors_read(safetensors *out, const uint8_t *bytes, size_t n, char *message, size_t size)
{
    safetensors f = {0};
    scanner s = {0};
    uint64_t length = 0;
    for (uint32_t i = 0; i < 8 && n >= 8; i++) length |= (uint64_t)bytes[i] << 8 * i;
    if (n < 8 || length < 2 || length > n - 8 || length > MAX_HEADER) {
        snprintf(message, size, "the file is not a safetensors file, or is truncated");
        return false;
    }
    f.text = (char *)malloc((size_t)length + 1);
    if (!f.text) {
        snprintf(message, size, "out of memory");
        return false;
    }
    memcpy(f.text, bytes + 8, (size_t)length);
    f.text[length] = 0;
    s.at = f.text;
    if (scan_header(&s, &f, bytes + 8 + length, n - 8 - length)) s.wrong = check(&f);
    if (s.wrong) {
        snprintf(message, size, "%s", s.wrong);
        safetensors_free(&f);
        return false;
    }
    *out = f;
    return true;
}

void safetensors_free(safetensors *f)
{
    free(f->tensors);
    free(f->metadata);
    free(f->text);
    *f = (safetensors){0};
}

const st_tensor *safetensors_find(const safetensors *f, const char *name)
{
    st_tensor key = {.name = name};
    if (!f->n_tensors) return NULL;
    return (const st_tensor *)bsearch(&key, f->tensors, f->n_tensors, sizeof key, by_name);
}

const char *safetensors_metadata(const safetensors *f, const char *key)
{
    st_pair wanted = {.key = key};
    if (!f->n_metadata) return NULL;
    const st_pair *found =
        (const st_pair *)bsearch(&wanted, f->metadata, f->n_metadata, sizeof wanted, by_key);
    return found ? found->value : NULL;
}

/* -------------------------------------------------------------------- writing */

typedef struct text {
    char *bytes;
    size_t n, room;
    bool failed;
} text;

static void add(text *t, const char *bytes, size_t n)
{
    while (!t->failed && t->room - t->n < n) {
        size_t room = t->room ? 2 * t->room : 4096;
        char *more = (char *)realloc(t->bytes, room);
        if (!more) {
            t->failed = true;
            return;
        }
        t->bytes = more;
        t->room = room;
    }
    if (t->failed) return;
    memcpy(t->bytes + t->n, bytes, n);
    t->n += n;
}

static void add_text(text *t, const char *string)
{
    add(t, string, strlen(string));
}

static void add_number(text *t, uint64_t n)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%" PRIu64, n);
    add_text(t, digits);
}

static void add_string(text *t, const char *string)
{
    char code[8];
    add(t, "\"", 1);
    for (; *string; string++) {
        unsigned char c = (unsigned char)*string;
        if (c == '"' || c == '\\') add(t, "\\", 1);
        if (c < 0x20) {
            snprintf(code, sizeof code, "\\u%04x", c);
            add_text(t, code);
        } else {
            add(t, string, 1);
        }
    }
    add(t, "\"", 1);
}

static void add_tensor(text *t, const st_tensor *tensor, uint64_t begin)
{
    add_string(t, tensor->name);
    add_text(t, ":{\"dtype\":");
    add_string(t, types[tensor->type].name);
    add_text(t, ",\"shape\":[");
    for (uint32_t i = 0; i < tensor->rank; i++) {
        if (i) add(t, ",", 1);
        add_number(t, tensor->shape[i]);
    }
    add_text(t, "],\"data_offsets\":[");
    add_number(t, begin);
    add(t, ",", 1);
    add_number(t, begin + tensor->bytes);
    add_text(t, "]}");
}

bool safetensors_write(FILE *file, const st_tensor *tensors, size_t n_tensors, const st_pair *metadata,
                       size_t n_metadata)
{
    text t = {0};
    uint64_t begin = 0;
    uint8_t length[8];
    add(&t, "{", 1);
    for (size_t i = 0; i < n_metadata; i++) {
        add_text(&t, i ? "," : "\"__metadata__\":{");
        add_string(&t, metadata[i].key);
        add(&t, ":", 1);
        add_string(&t, metadata[i].value);
    }
    if (n_metadata) add_text(&t, n_tensors ? "}," : "}");
    for (size_t i = 0; i < n_tensors; begin += tensors[i].bytes, i++) {
        if (i) add(&t, ",", 1);
        add_tensor(&t, &tensors[i], begin);
    }
    add(&t, "}", 1);
    while (!t.failed && t.n % 8) add(&t, " ", 1);
    for (uint32_t i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)t.n >> 8 * i);
    bool right = !t.failed && fwrite(length, 1, 8, file) == 8 && fwrite(t.bytes, 1, t.n, file) == t.n;
    for (size_t i = 0; i < n_tensors && right; i++)
        right = !tensors[i].bytes || fwrite(tensors[i].data, 1, tensors[i].bytes, file) == tensors[i].bytes;
    free(t.bytes);
    return right;
}
