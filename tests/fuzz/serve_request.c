/* SPDX-License-Identifier: MIT */
/* Any bytes as a request of a client of quire serve: "METHOD TARGET\n", lines of headers, an empty line, the body.
 * Slots cannot be reached however their path is written, and what goes to the server has the slot that this program chose, and
 * everything else as it was. */
#define _GNU_SOURCE
#include "support/fuzz.h"

#include "serve/body.h"
#include "serve/form.h"
#include "serve/route.h"

#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

static void check(bool ok)
{
    if (!ok) abort();
}

/* ------------------------------------------------------------------- the path */

static int hex(const char *text, int n)
{
    int value = 0;
    for (int i = 0; i < n; i++) {
        char c = text[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* Whether llama-server's own decoder finds the path of a slot: it knows %XX and %uXXXX. */
static bool is_slot(const char *target)
{
    static const char wanted[] = "/slots/";
    const char *at = target;
    for (size_t i = 0; i < sizeof wanted - 1; i++) {
        int c = (unsigned char)*at, step = 1;
        if (!c || c == '?' || c == '#') return false;
        if (c == '%' && at[1] == 'u' && hex(at + 2, 4) >= 0) {
            c = hex(at + 2, 4);
            step = 6;
        } else if (c == '%' && at[1] != 'u' && hex(at + 1, 2) >= 0) {
            c = hex(at + 1, 2);
            step = 3;
        }
        if (c != wanted[i]) return false;
        at += step;
    }
    return true;
}

static void check_line(char *line)
{
    form f = {0};
    char *space = strchr(line, ' ');
    const char *target = space ? space + 1 : "";
    if (space) *space = 0;
    form_line(&f, line, target);
    route to = route_of(line, target, ""), with = route_of(line, target, "/api");
    check(to <= ROUTE_HEALTH && with <= ROUTE_HEALTH);
    if (!strcmp(line, "POST") && is_slot(target)) check(to == ROUTE_REFUSED && with == ROUTE_REFUSED);
    if (f.status == 0 && to != ROUTE_REFUSED && !strcmp(line, "POST"))
        check(!strchr(target, ' ') && *target == '/');
}

static void check_header(form *f, char *line, size_t n)
{
    char *colon = memchr(line, ':', n);
    size_t n_name = colon ? (size_t)(colon - line) : n;
    const char *value = colon ? colon + 1 : line + n;
    form_header(f, line, n_name, value, n - (size_t)(value - line));
    if (!f->status) check(n_name > 0 && !memchr(line, '\r', n) && !memchr(line, 0, n));
    (void)form_names(value, "Close");
}

/* ------------------------------------------------------------------- the body */

static bool is_name(yyjson_val *key, const char *name)
{
    return yyjson_equals_str(key, name);
}

/* The next member that is not one of those that may change; NULL: none. */
static yyjson_val *next(yyjson_obj_iter *all, bool skips_cache)
{
    yyjson_val *key;
    while ((key = yyjson_obj_iter_next(all)))
        if (!is_name(key, "id_slot") && !is_name(key, "n_cache_reuse") &&
            !(skips_cache && is_name(key, "cache_prompt")))
            return key;
    return NULL;
}

static void check_same(yyjson_doc *was, yyjson_doc *now, bool skips_cache)
{
    yyjson_obj_iter a = yyjson_obj_iter_with(yyjson_doc_get_root(was));
    yyjson_obj_iter b = yyjson_obj_iter_with(yyjson_doc_get_root(now));
    yyjson_val *ka, *kb;
    do {
        ka = next(&a, skips_cache);
        kb = next(&b, skips_cache);
        check(!ka == !kb);
        if (!ka) break;
        size_t na, nb;
        check(yyjson_get_len(ka) == yyjson_get_len(kb) &&
              !memcmp(yyjson_get_str(ka), yyjson_get_str(kb), yyjson_get_len(ka)));
        char *ta = yyjson_val_write(yyjson_obj_iter_get_val(ka), 0, &na);
        char *tb = yyjson_val_write(yyjson_obj_iter_get_val(kb), 0, &nb);
        check(ta && tb && na == nb && !memcmp(ta, tb, na));
        free(ta);
        free(tb);
    } while (ka);
}

static yyjson_val *only(yyjson_doc *doc, const char *name, unsigned *n)
{
    yyjson_obj_iter all = yyjson_obj_iter_with(yyjson_doc_get_root(doc));
    yyjson_val *key, *found = NULL;
    *n = 0;
    while ((key = yyjson_obj_iter_next(&all)))
        if (is_name(key, name)) {
            found = yyjson_obj_iter_get_val(key);
            ++*n;
        }
    return found;
}

static yyjson_doc *parse(const char *text, size_t n)
{
    return yyjson_read(text, n, YYJSON_READ_NUMBER_AS_RAW | YYJSON_READ_ALLOW_BOM);
}

static void check_body(const char *bytes, size_t n)
{
    body *b = body_read(bytes, n);
    size_t size;
    unsigned times;
    if (!b) return;
    yyjson_doc *was = parse(bytes, n);
    check(was && yyjson_is_obj(yyjson_doc_get_root(was)));
    for (int is_chat = 0; is_chat < 2; is_chat++) {
        body_prompt kind = body_kind(b, is_chat);
        uint32_t n_tokens = 0;
        if (kind == BODY_TEXT) check(body_text(b, &size) != NULL);
        if (kind == BODY_TOKENS) {
            uint32_t *tokens = body_tokens(b, &n_tokens);
            check(tokens && n_tokens > 0);
            free(tokens);
        }
    }
    char *made = body_for_slot(b, 7, BODY_REUSES, &size);
    check(made && strlen(made) == size);
    yyjson_doc *now = parse(made, size);
    check(now != NULL);
    yyjson_val *slot = only(now, "id_slot", &times);
    check(times == 1 && yyjson_is_raw(slot) && yyjson_get_len(slot) == 1 && *yyjson_get_raw(slot) == '7');
    check(yyjson_is_true(only(now, "cache_prompt", &times)) && times == 1);
    check_same(was, now, true);
    yyjson_doc_free(now);
    free(made);

    made = body_for_slot(b, BODY_ANY_SLOT, BODY_REUSES_AS_IT_SAYS, &size);
    check(made && strlen(made) == size);
    now = parse(made, size);
    check(now != NULL);
    (void)only(now, "id_slot", &times);
    check(!times);
    (void)only(now, "n_cache_reuse", &times);
    check(!times);
    check_same(was, now, false);
    yyjson_doc_free(now);
    free(made);
    yyjson_doc_free(was);
    body_free(b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *copy = malloc(n + 1), *at = copy, *end = copy + n, *line;
    form f = {0};
    check(copy != NULL);
    memcpy(copy, data, n);
    copy[n] = 0;
    for (bool is_first = true; (line = memchr(at, '\n', (size_t)(end - at))); is_first = false) {
        *line = 0;
        char *begin = at;
        at = line + 1;
        if (!is_first && line == begin) break;
        if (is_first)
            check_line(begin);
        else
            check_header(&f, begin, (size_t)(line - begin));
    }
    form_end(&f, "HTTP/1.1", 1 << 20);
    check(!f.status == !f.sentence);
    check_body(at, (size_t)(end - at));
    check_body((const char *)data, n); /* the whole input too */
    free(copy);
    return 0;
}
